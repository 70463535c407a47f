"""YAML files of plain data, read within bounds and written so that they read back the same.

A file of a few hundred bytes can stand for billions of values, hide a key behind a later one of the same name, or name
Python code to run. Here a file holds at most `MAX_BYTES`; a key stands once, and aliases (`*name`) and tags such as
`!!python/name` are refused. Numbers are decimal: `3e-4` is one (YAML 1.1 reads it as text), while `010`, `1:30` and
dates are text (YAML 1.1 reads 8, 90 and an object).
"""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode

MAX_BYTES = 64 * 1024

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"""[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?
        |\.[0-9][0-9_]*([eE][-+]?[0-9]+)?
        |[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.(inf|Inf|INF))$
        |\.(nan|NaN|NAN)$""",
    re.VERBOSE,
)


class _Loader(yaml.SafeLoader):
    """Refuses what is more than plain data."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """A node, as PyYAML makes it, unless it is an alias or has a tag."""
        event = self.peek_event()
        # a few aliases of aliases can stand for billions of values ("billion laughs")
        alias = isinstance(event, AliasEvent)
        self._refuse(alias, f"aliases such as *{event.anchor} are not accepted", event)
        tag = getattr(event, "tag", None)
        self._refuse(tag not in (None, "!"), f"tags such as {tag} are not accepted", event)  # "!" alone marks text
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """A mapping whose keys are words or numbers, each of them once."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            self._refuse(not isinstance(key, ScalarNode), "a key must be a word", key)
            self._refuse(key.value in seen, f"the key {key.value!r:.80} stands twice", key)  # PyYAML keeps the last
            seen.add(key.value)
        return node

    @staticmethod
    def _refuse(refused: bool, problem: str, place: Any) -> None:
        if refused:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


class _Dumper(yaml.SafeDumper):
    """Puts text in quotation marks where a loader, this one or another, would read something else in it."""


# What plain words mean: YAML 1.1 has octal, base 60 and dates among the numbers. "value" is the word "=", which PyYAML
# can read but not construct.
_REPLACED = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp", "value")}
_Loader.yaml_implicit_resolvers = {  # SafeLoader's own table serves the whole process
    first: [(tag, pattern) for tag, pattern in entries if tag not in _REPLACED]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """The plain data that a YAML text holds, None for an empty one; ValueError, in one line, where it is refused."""
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(place + ", ".join(filter(None, (error.context, error.problem)))) from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"character {error.position} is U+{error.character:04X}: {error.reason}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError:
        raise ValueError("an int of more than 4,300 digits") from None  # Python's own bound


def read_yaml_file(path: Path) -> Any:
    """What a YAML file holds, {} for an empty one.

    Raises:
        OSError: it cannot be read.
        ValueError: names the file and what is wrong with it.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)  # one byte more shows that there is more
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES // 1024} KiB")
        tree = load_yaml(content.decode("utf-8"))
    except ValueError as error:  # bytes that are no UTF-8 are one, too
        raise ValueError(f"{path} is not a YAML file of settings: {error}") from None
    return {} if tree is None else tree


def dump_yaml(tree: Any) -> str:
    """The text that `load_yaml` turns into `tree` again; no list or dict may stand in it twice."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

"""The command `audit`: a loop from a file, compared with the specification."""

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from course_lm.cli.output import as_json, to_standard_error
from course_lm.validation import did_you_mean, ensure, import_extra, named, one_line


def audit_file(options: Namespace) -> int:
    """Audit the target FILE.py:FUNCTION and print the report, as text or JSON.

    Return 0 for a sound loop, 1 for an unsound one, 3 for one that could not be compared, such as one that raises.

    An adapter makes a loop of a step function, of a Trainer class or of a Lightning module class. What the loop itself
    writes goes to standard error.

    Raises:
        ValueError: a target that cannot be read or called.
        ImportError: an adapter whose library is not installed.
    """
    others = [name for name in ("adapter", "parts") if getattr(options, name) is not None]
    others += ["ranks"] if options.ranks > 1 else []
    ensure(not (options.resume and others), f"--resume cannot be given with --{others[0] if others else ''}")
    made = load(options.target)
    from course_lm import audit  # only now: a path that is none is refused without it

    with to_standard_error():
        if options.resume:
            report = audit.audit_resume(made, precision=options.precision)
        else:
            if options.ranks > 1:  # no other process can import the file's module
                import_extra("cloudpickle", "lab").register_pickle_by_value(
                    sys.modules[_name_of(Path(options.target.rpartition(":")[0]))]
                )
            if options.adapter is not None:
                from course_lm.audit import adapters

                made = getattr(adapters, options.adapter)(made)
            report = audit.audit(made, ranks=options.ranks, precision=options.precision, parts=options.parts)
    with suppress(BrokenPipeError):  # nobody reads on, as after `| head`: the exit code is the verdict still
        print(as_json(report.to_dict()) if options.json else report)
    return 0 if report.sound else 1 if report.compared else 3


def load(target: str) -> Callable[..., Any]:
    """What FILE.py:NAME names: a function, or a class for an adapter.

    Raises:
        ValueError: no such file or name, a file that cannot be run, or a name of something that cannot be called.
    """
    file, colon, name = target.rpartition(":")
    ensure(bool(colon and file and name), f"the target must be FILE.py:FUNCTION, got {one_line(target)}")
    path = Path(file)
    ensure(path.suffix == ".py", f"the target must be in a file that ends in .py, got {one_line(file)}")
    ensure(path.is_file(), f"no such file: {one_line(file)}")
    module = _run(path)
    if not hasattr(module, name):
        names = [one for one in vars(module) if callable(getattr(module, one)) and not one.startswith("_")]
        hint = did_you_mean(name, names) or (f"it has {', '.join(names)}" if names else "it has no function")
        raise ValueError(f"{file} has no {one_line(name)}; {hint}".rstrip("; "))
    made = getattr(module, name)
    ensure(callable(made), f"{target} must be a function, got {type(made).__name__}")
    return made


def _name_of(path: Path) -> str:
    return f"_audited_{path.stem}"  # no name that is imported elsewhere


def _run(path: Path) -> ModuleType:
    """The module that a file makes; its imports are looked for beside it first, as Python itself does."""
    found = importlib.util.spec_from_file_location(_name_of(path), path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[found.name] = module  # a dataclass looks itself up there
    from course_lm.audit.play import kept_running

    try:
        with to_standard_error(), kept_running():
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be run: {one_line(named(error))}") from error
    return module

"""Two ways to refuse a bad value, and one to miss an optional package."""

from importlib import import_module
from types import ModuleType
from typing import Any, get_args, get_type_hints


def require(holds: bool, key: str, accepted: str, value: object) -> None:
    """Raise ValueError "<key> must be <accepted>, got <value>" unless `holds`."""
    if not holds:
        raise ValueError(f"{key} must be {accepted}, got {value!r}")


def require_choice(section: Any, key: str) -> None:
    """Raise ValueError unless the value of a dataclass's `key` is one of those that its Literal type names."""
    accepted = get_args(get_type_hints(type(section))[key])
    require(getattr(section, key) in accepted, key, f"one of {', '.join(accepted)}", getattr(section, key))


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency; ImportError says which extra of this package brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed: pip install "course-lm[{extra}]"') from error

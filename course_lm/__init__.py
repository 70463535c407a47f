"""The training loop of a language model, shown to be right: one room (submodule) for each part of the loop.

Importing the package imports nothing else; a submodule is loaded when it is first named,
as in ``course_lm.trainer.Trainer``.
"""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if not name.startswith("_"):
        full_name = f"{__name__}.{name}"
        try:
            return import_module(full_name)
        except ModuleNotFoundError as error:
            if error.name != full_name:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The training loop of a language model, shown to be right: one module or package for each part of the loop.

Importing the package imports nothing else; a module is loaded when it is first named,
as in ``course_lm.trainer.Trainer``. `dir(course_lm)` lists them.
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
            if error.name != full_name:  # the module is there, and something that it imports is missing
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from pkgutil import iter_modules

    own = [name for name in globals() if name.startswith("__")]
    return sorted(own + [module.name for module in iter_modules(__path__) if not module.name.startswith("_")])

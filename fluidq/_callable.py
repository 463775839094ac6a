"""Modules that can be called: `fluidq.simulate` is where the engine lives and, called, is the engine.

The design names the module and the verb alike. Importing a submodule binds its name on the package, so a function of
that name there would be hidden by the first import; calling the module is the verb instead.
"""

import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(module: str) -> None:
    """Let the module be called as the function that it defines under its own last name."""
    sys.modules[module].__class__ = _Verb

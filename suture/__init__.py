"""Suture: subgraph federated learning. One graph cut across several owners, trained together, nothing shown."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suture.api import Comparison as Comparison
    from suture.api import Options as Options
    from suture.api import Result as Result
    from suture.api import compare as compare
    from suture.api import resume as resume
    from suture.api import run as run
    from suture.errors import SutureError as SutureError
    from suture.settings import Protocol as Protocol

_HOMES = dict.fromkeys(("Comparison", "Options", "Result", "compare", "resume", "run"), "suture.api")
_HOMES |= {"SutureError": "suture.errors", "Protocol": "suture.settings"}


class _Package(ModuleType):
    """Imports what is asked for when it is asked for: torch takes seconds, and `suture --help` needs none of it."""

    def __getattr__(self, name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'suture' has no attribute {name!r}")
        value: object = getattr(import_module(_HOMES[name]), name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system sets each submodule here, and would so put suture/run.py in the place of the function.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *_HOMES])


sys.modules[__name__].__class__ = _Package

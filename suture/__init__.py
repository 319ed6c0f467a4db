"""Suture: subgraph federated learning. One graph cut across several owners; every piece stays there."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from suture.core.lean import import_geometric_leanly

if TYPE_CHECKING:
    from suture.api import Comparison as Comparison
    from suture.api import Options as Options
    from suture.api import Result as Result
    from suture.api import compare as compare
    from suture.api import predict as predict
    from suture.api import resume as resume
    from suture.api import run as run
    from suture.api import trust as trust
    from suture.assessment.assess import Assessment as Assessment
    from suture.assessment.assess import assess as assess
    from suture.errors import SutureError as SutureError
    from suture.report.writing import write_report as write_report
    from suture.settings import Protocol as Protocol

_HOMES = dict.fromkeys(("Comparison", "Options", "Result", "compare", "predict", "resume", "run", "trust"), "suture.api")
_HOMES |= dict.fromkeys(("Assessment", "assess"), "suture.assessment.assess")
_HOMES |= {"write_report": "suture.report.writing"}
_HOMES |= {"SutureError": "suture.errors", "Protocol": "suture.settings"}

import_geometric_leanly()


def __getattr__(name: str) -> object:
    """Import what is asked for when it is asked for: torch takes seconds, and `suture --help` needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'suture' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

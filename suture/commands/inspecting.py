"""`suture show`."""

from __future__ import annotations

from pathlib import Path

from suture.report import console
from suture.report.view import folder_report


def show(path: Path) -> None:
    """Print a run or comparison folder."""
    console.results().print(folder_report(path))

"""Reports from Python: `suture.write_report("runs/mine")`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suture.core.storage import write_atomically
from suture.errors import ConfigError
from suture.report.gathering import gather
from suture.report.page import Page, written
from suture.report.report import report_page

PAGE = "report.html"


def write_report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write one page that shows all there is to see of runs or comparisons; returns its path.

    Args:
        runs: The folder of a run or comparison, finished or not, or several of them.
        out: The page  [default: report.html in the first folder].
    """
    paths = [Path(runs)] if isinstance(runs, str | Path) else [Path(one) for one in runs]
    target = Path(out) if out is not None else paths[0] / PAGE if paths else Path(PAGE)
    write_page(report_page(gather(paths)), target)
    return target


def write_page(page: Page, target: Path) -> None:
    """Write it, whole or not at all."""
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; give a file, such as {target / PAGE}")
    write_atomically(target, written(page).encode())

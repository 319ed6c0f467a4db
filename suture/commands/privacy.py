"""`suture privacy`."""

from __future__ import annotations

from pathlib import Path

from suture.commands.running import STDOUT, check_json_target, write_results
from suture.errors import ConfigError
from suture.report import console
from suture.report.privacy import privacy_report, read_privacy


def show_privacy(path: Path, delta: float, target: str | None) -> None:
    """Print what a run's or comparison's guarantees are worth and what left its clients."""
    if not 0 < delta < 1:
        raise ConfigError(f"--delta must be between 0 and 1, got {delta}")
    check_json_target(target)
    runs = read_privacy(path, delta)
    if not runs:
        raise ConfigError(f"no run of {path} has begun; start with: suture resume {path}")
    if target is not None:
        write_results([run.as_json() for run in runs], target)
    if target != STDOUT:
        console.results().print(privacy_report(runs))

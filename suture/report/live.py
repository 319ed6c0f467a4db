"""A running folder on one screen, for `suture watch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.text import Text

from suture.core.metrics import AUTO
from suture.report.console import grid
from suture.report.standing import Run, Standing
from suture.report.table import metric_of
from suture.report.text import NOTHING, count, duration, megabytes, score, sparkline
from suture.runs import origin

WIDE = 100
"""From so many columns on, curves and bars are long."""


@dataclass(frozen=True)
class Screen:
    """One look."""

    standing: Standing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        yield Group(
            _title(self.standing), _table(self.standing, 30 if wide else 14, 20 if wide else 8), *_remarks(self.standing)
        )


def _title(standing: Standing) -> Text:
    made = standing.made
    parts = [f"{origin.label(made.dataset)}, protocol {made.protocol.name}"]
    if standing.owners is not None:
        absent = len({name for run in standing.runs for name in _absent(run)})
        present = f"{standing.owners - absent} of " if absent else ""
        parts.append(f"{present}{count(standing.owners, 'owner')}{' present' if absent else ''}")
    done = sum(run.state == "finished" for run in standing.runs)
    parts.append(f"{done} of {count(len(standing.runs), 'run')} finished")
    left = standing.seconds_left
    if standing.state == "running" and left is not None:
        parts.append(f"{duration(left)} left")
    return Text(f"{standing.path}: {', '.join(parts)}", style="bold")


def _table(standing: Standing, curve: int, bar: int) -> RenderableType:
    told = next((run.outcome.metric for run in standing.runs if run.outcome is not None), AUTO)
    share = metric_of(standing.made, told).is_share
    table = grid("method", "runs", "", "now", "validation", "last %" if share else "last", "MB", "left")
    for index in (5, 6, 7):
        table.columns[index].justify = "right"
    for method in standing.made.methods:
        runs = [run for run in standing.runs if run.method == method.name]
        shown = _shown(runs)
        finished = sum(run.state == "finished" for run in runs)
        whole = sum(run.total if run.state == "finished" else min(run.done, run.total) for run in runs)
        scores = shown.validation
        left = shown.seconds_left
        table.add_row(
            method.name,
            f"{finished}/{len(runs)}",
            ProgressBar(sum(run.total for run in runs), whole, width=bar),
            _now(shown),
            sparkline(scores, curve),
            score(scores[-1], share, 1) if scores else NOTHING,
            megabytes(sum(shown.sent.values())) if shown.done and not method.sees_uncut_graph else NOTHING,
            duration(left) if left is not None and shown.state == "running" else NOTHING,
        )
    return table


def _shown(runs: Sequence[Run]) -> Run:
    """The run of a method that is under way, else the last one that was."""
    running = [run for run in runs if run.state in ("running", "stopped")]
    finished = [run for run in runs if run.state == "finished"]
    return (running or finished[::-1] or runs)[0]


def _now(run: Run) -> str:
    if run.state in ("waiting", "finished"):
        return run.state
    return f"seed {run.seed}, {run.phase} {run.done}/{run.total}" if run.done else f"seed {run.seed}, beginning"


def _absent(run: Run) -> dict[str, str]:
    return {} if run.status is None else {name: why.text for name, why in run.status.absent.items()}


def _remarks(standing: Standing) -> Iterator[Text]:
    """Faults, and how to go on."""
    for run in standing.runs:
        for owner, why in sorted(_absent(run).items()):
            yield Text(f"{run.method} seed {run.seed}: {owner} is absent: {why}")
        if run.status is not None and run.status.reason is not None:
            yield Text(f"{run.method} seed {run.seed}: {run.status.state}: {run.status.reason.text}")

"""Our runs beside a paper's figures: how far apart, whether that is within chance, and whether its ranking holds.

Ours is *reached* if it is not below the published mean by more than one published deviation or one point, whichever is more;
*near* if it is not above it by more than that either. A ranking is of two rows of the same table, graph, number of clients
and variant: it holds if our means differ in the same direction. Significance is paired by seed, as everywhere
(`suture.assessment.gains`): by Nadeau and Bengio's corrected t, because seeds draw their nodes from the same graph, and by
the plain paired t beside it. Only runs on the same cut are paired.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from suture.assessment.gains import Gain, gain
from suture.bench.published import Cell, Table
from suture.bench.reproduced import Run, Store
from suture.report.results import p_of

POINT = 0.01
PERCENT = {"model_size_pct", "comm_cost_pct", "sparsity_pct"}
"""Metrics that are printed in percent of something; the others are shares, and shown in percent."""
AVERAGING = "fedavg"
Verdict = Literal["reached", "short", "open"]


@dataclass(frozen=True)
class Ranking:
    """A row against another one of the same table."""

    against: str
    published: float
    """Difference of the printed means."""
    gain: Gain | None
    """Ours, paired by seed; None: nothing to pair."""
    p: float | None
    plain_p: float | None
    """Of the paired t without correction."""

    @property
    def holds(self) -> bool | None:
        """Whether ours differ in the same direction; None: not known, or the printed ones do not differ."""
        if self.gain is None or self.published == 0:
            return None
        return (self.gain.mean > 0) == (self.published > 0)


@dataclass(frozen=True)
class Judged:
    """A published number beside ours."""

    cell: Cell
    runs: tuple[Run, ...]
    values: tuple[float, ...]
    """Ours, one a run, in the unit of the published one."""
    here: bool
    """Whether the graph's raw files are here."""
    command: str
    rankings: tuple[Ranking, ...] = ()

    @property
    def mean(self) -> float | None:
        """Ours."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def gap(self) -> float | None:
        """Ours minus theirs."""
        printed = self.cell.printed.mean
        return None if self.mean is None or printed is None else self.mean - printed

    @property
    def deviations(self) -> float | None:
        """The gap in published deviations."""
        std = self.cell.printed.std
        return None if self.gap is None or not std else self.gap / std

    @property
    def allowance(self) -> float:
        """One published deviation or one point, whichever is more."""
        point = 100 * POINT if self.cell.printed.metric in PERCENT else POINT
        return max(self.cell.printed.std or 0.0, point)

    @property
    def verdict(self) -> Verdict:
        """Whether the published mean is reached."""
        if self.gap is None:
            return "open"
        return "reached" if self.gap >= -self.allowance - 1e-12 else "short"

    @property
    def is_near(self) -> bool | None:
        """Whether ours is within the allowance, above or below."""
        return None if self.gap is None else abs(self.gap) <= self.allowance + 1e-12

    @property
    def seconds(self) -> float | None:
        """Processor seconds of a run, or those of the clock where they are not known."""
        took = [run.seconds if run.processor is None else run.processor for run in self.runs]
        return statistics.fmean(took) if took else None

    @property
    def megabytes(self) -> float | None:
        """Sent and received by all clients in a run."""
        sent = [(run.bytes_up + run.bytes_down) / 1e6 for run in self.runs]
        return statistics.fmean(sent) if sent else None

    @property
    def missing(self) -> str:
        """Why there is no figure of ours."""
        if self.values:
            return ""
        if self.cell.recipe is None:
            return self.cell.why_not
        return "not run" if self.here else f"the raw files are not here: suture data get {self.cell.printed.dataset}"


def judge(table: Table, store: Store, here: Sequence[str], whole: Table | None = None) -> list[Judged]:
    """Every cell of a table; `here` are the graphs that can be read, `whole` the table with all its rows to rank among."""
    everything = (whole or table).cells
    found = []
    for cell in table.cells:
        one = _judged(cell, table, store, here, everything)
        if cell.row in table.about.own and cell.printed.metric not in PERCENT and cell.recipe is not None:
            rankings = (_ranking(one, other, table, store, here, everything) for other in _rivals(cell, table, everything))
            one = Judged(one.cell, one.runs, one.values, one.here, one.command, tuple(rankings))
        found.append(one)
    return found


def _judged(cell: Cell, table: Table, store: Store, here: Sequence[str], among: Sequence[Cell]) -> Judged:
    recipe = cell.recipe
    if recipe is None:
        return Judged(cell, (), (), cell.printed.dataset in here, "")
    runs = store.runs(recipe, table.name)
    told = {run.seed: value for run in runs if (value := _value(cell, run, table, store, among)) is not None}
    runs = [run for run in runs if run.seed in told]
    command = recipe.command([run.seed for run in runs] or table.seeds)
    return Judged(cell, tuple(runs), tuple(told.values()), cell.printed.dataset in here, command)


def _value(cell: Cell, run: Run, table: Table, store: Store, among: Sequence[Cell]) -> float | None:
    """A run's number in the unit of the published one; None: it cannot be told."""
    metric, recipe = cell.printed.metric, cell.recipe
    assert recipe is not None
    if metric in ("model_size_pct", "sparsity_pct"):
        sent = 100.0 if run.sent_share is None else 100 * run.sent_share
        return sent if metric == "model_size_pct" else 100 - sent
    if metric == "comm_cost_pct":
        alike = (one for one in among if one.row == AVERAGING and one.printed.metric == metric and one.recipe is not None)
        other = next((one.recipe for one in alike if _place(one) == _place(cell)), None)
        theirs = {one.seed: one.bytes_up + one.bytes_down for one in store.runs(other, table.name)} if other else {}
        return 100 * (run.bytes_up + run.bytes_down) / theirs[run.seed] if run.seed in theirs else None
    if cell.round is not None:
        return run.curve.get(cell.round)
    value: float | None = getattr(run, recipe.column)
    return None if value is None or math.isnan(value) else value


def _place(cell: Cell) -> tuple[str, str, int | None]:
    return cell.printed.setting, cell.printed.dataset, cell.printed.clients


def _rivals(cell: Cell, table: Table, among: Sequence[Cell]) -> list[Cell]:
    """What a cell is ranked against: the same place and variant, or the row that has no variant."""
    found = []
    for name in table.about.baselines:
        alike = [
            one
            for one in among
            if one.row == name != cell.row and _place(one) == _place(cell) and one.printed.metric == cell.printed.metric
        ]
        alike = [one for one in alike if one.round == cell.round]
        same = [one for one in alike if one.printed.variant == cell.printed.variant]
        plain = [one for one in alike if not one.printed.variant or one.round is not None]
        found += (same or plain)[:1]
    return found


def _ranking(one: Judged, rival: Cell, table: Table, store: Store, here: Sequence[str], among: Sequence[Cell]) -> Ranking:
    other = _judged(rival, table, store, here, among)
    theirs = {run.seed: (run, value) for run, value in zip(other.runs, other.values, strict=True)}
    pairs = [
        (run, value - theirs[run.seed][1])
        for run, value in zip(one.runs, one.values, strict=True)
        if run.seed in theirs and theirs[run.seed][0].cut == run.cut
    ]
    ours, printed = one.cell.printed.mean, rival.printed.mean
    published = 0.0 if ours is None or printed is None else ours - printed
    if not pairs:
        return Ranking(rival.row, published, None, None, None)
    redrawn = len({run.cut for run, _ in pairs}) > 1
    ratio = statistics.fmean(run.tested / run.trained for run, _ in pairs if run.trained) if redrawn else 0.0
    differences = [difference for _, difference in pairs]
    corrected, plain = gain(differences, ratio), gain(differences, 0.0)
    told = (None if part is None else p_of(part) for part in (corrected, plain))
    return Ranking(rival.row, published, corrected, *told)

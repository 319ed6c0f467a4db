"""Several finished runs side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from suture.errors import ConfigError
from suture.runs.outcome import Line, Outcome


@dataclass(frozen=True)
class Row:
    """Mean and sample deviation over seeds of one method."""

    method: str
    seeds: int
    values: dict[str, tuple[float, float] | None]
    least_private: Outcome | None = None
    """The run with the weakest of the guarantees; None: there is none."""
    metric: str = "accuracy"
    """What its scores are."""


COLUMNS = (
    "accuracy_client_mean",
    "accuracy_weighted",
    "accuracy_worst",
    "accuracy_global",
    "bytes_up",
    "bytes_down",
    "seconds",
)


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison."""

    outcomes: tuple[Outcome, ...]
    histories: tuple[list[Line], ...] = ()
    """The lines of every run, in the same order."""
    notes: tuple[str, ...] = ()
    """All that was dropped or assumed of a graph of somebody's own, and the methods that do not fit it."""

    def history(self, method: str, seed: int) -> list[Line]:
        """What metrics.jsonl of one of the runs holds, one dictionary for each round."""
        for outcome, lines in zip(self.outcomes, self.histories, strict=True):
            if (outcome.method, outcome.seed) == (method, seed):
                return lines
        runs = ", ".join(f"{outcome.method} with seed {outcome.seed}" for outcome in self.outcomes)
        raise ConfigError(f"{method} was not run with seed {seed}; there are {runs}")

    def as_json(self) -> list[dict[str, object]]:
        """One object per method and seed."""
        return [outcome.as_json() for outcome in self.outcomes]

    def chosen(self, among: Sequence[str], sign: float) -> str | None:
        """Which of these methods has the best mean validation score; `sign` is that of its metric."""
        means: dict[str, float] = {}
        for name in among:
            told = [outcome.validation for outcome in self.outcomes if outcome.method == name]
            known = [sign * value for value in told if value is not None]
            if known and len(known) == len(told):
                means[name] = statistics.fmean(known)
        return max(means, key=lambda name: means[name], default=None)

    def rows(self) -> list[Row]:
        """One row per method, in the order they were asked for."""
        rows = []
        for name in dict.fromkeys(outcome.method for outcome in self.outcomes):
            runs = [outcome for outcome in self.outcomes if outcome.method == name]
            promised = [run for run in runs if run.mechanism is not None]
            weakest = max(promised, key=lambda run: (run.delta or 0.0, run.epsilon or math.inf), default=None)
            rows.append(Row(name, len(runs), {column: _spread(runs, column) for column in COLUMNS}, weakest, runs[0].metric))
        return rows


def _spread(runs: Sequence[Outcome], column: str) -> tuple[float, float] | None:
    values = [getattr(run, column) for run in runs]
    if any(value is None for value in values):
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

"""From finished runs to judgements: each method's score, what it gains over training alone, and who gains it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.assessment.candidates import ALONE
from suture.assessment.gains import Gain, gain
from suture.core.metrics import Metric
from suture.method import Method
from suture.privacy.disclosure import read_disclosure
from suture.runs.comparison import Comparison
from suture.runs.folder import place_of
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan


@dataclass(frozen=True)
class Judged:
    """One method over all seeds."""

    method: str
    mean: float
    """Test score, over owners as the protocol averages, and over seeds."""
    deviation: float
    validation: float | None
    gain: Gain | None
    """Over local; None for local itself, and where nothing can be said."""
    owners: dict[str, float]
    """Each owner's test score, mean over seeds; those that can be tested."""
    owner_gains: dict[str, Gain]
    bytes_per_owner: float
    """Sent and received in one run, tests aside."""
    seconds: float
    """Of one run, all owners in one process."""
    left: tuple[str, ...]
    """Kinds of things that left owners."""
    central: bool = False
    """It was given everything, and is no federated method."""

    def worst(self, metric: Metric) -> tuple[str, float] | None:
        """The owner that is served worst, and its score."""
        return min(self.owners.items(), key=lambda pair: metric.sign * pair[1], default=None)


@dataclass(frozen=True)
class Evidence:
    """Finished runs, and what is needed to compare them."""

    comparison: Comparison
    made: Plan
    metric: Metric
    ids: tuple[str, ...]
    """Names of the owners, in the order of the client axis."""
    resampled: float
    """See `gains`."""
    out: Path
    """Where the runs are kept."""

    def judged(self) -> tuple[Judged, ...]:
        """Every method, in the order of the plan."""
        return tuple(self._judge(method) for method in self.made.methods)

    def _judge(self, method: Method[Any, Any]) -> Judged:
        runs, alone = self._runs(method.name), self._runs(ALONE)
        scores = [self._score(run) for run in runs]
        each = {name: [self._of_owner(run, k) for run in runs] for k, name in enumerate(self.ids)}
        validations = [run.validation for run in runs if run.validation is not None]
        total, gains = None, dict[str, Gain]()
        if method.name != ALONE:
            total = self._gain(scores, [self._score(run) for run in alone])
            for k, (name, mine) in enumerate(each.items()):
                if (of_owner := self._gain(mine, [self._of_owner(run, k) for run in alone])) is not None:
                    gains[name] = of_owner
        central = method.sees_uncut_graph
        sent = statistics.fmean(run.bytes_up + run.bytes_down for run in runs) / len(self.ids)
        return Judged(
            method=method.name,
            mean=statistics.fmean(scores),
            deviation=statistics.stdev(scores) if len(scores) > 1 else 0.0,
            validation=statistics.fmean(validations) if len(validations) == len(runs) else None,
            gain=total,
            owners={name: mean for name, values in each.items() if (mean := _mean(values)) is not None},
            owner_gains=gains,
            bytes_per_owner=0.0 if central else sent,
            seconds=statistics.fmean(run.seconds for run in runs),
            left=() if central else tuple(read_disclosure(place_of(self.out, method.name, self.made.seeds[0])).left()),
            central=central,
        )

    def _runs(self, method: str) -> list[Outcome]:
        """One a seed, in the order of the seeds."""
        by_seed = {outcome.seed: outcome for outcome in self.comparison.outcomes if outcome.method == method}
        return [by_seed[seed] for seed in self.made.seeds]

    def _score(self, run: Outcome) -> float:
        weighted = self.made.protocol.evaluation.average == "nodes"
        return run.accuracy_weighted if weighted else run.accuracy_client_mean

    def _of_owner(self, run: Outcome, k: int) -> float:
        """The test score of one owner in the round that is reported for it; NaN: it has nothing to test."""
        lines = self.comparison.history(run.method, run.seed)
        reported = run.best_rounds[k] if run.best_rounds else run.best_round
        tested = next(line["client_test"] for line in lines if "client_test" in line and line["round"] == reported)
        return math.nan if tested[k] is None else float(tested[k])

    def _gain(self, ours: Sequence[float], theirs: Sequence[float]) -> Gain | None:
        return gain([self.metric.sign * (a - b) for a, b in zip(ours, theirs, strict=True)], self.resampled)


def preferred(
    comparison: Comparison, among: Sequence[str], sign: float, sent: Mapping[str, float], resampled: float
) -> str | None:
    """Of the methods that validation cannot tell from the best one, the one that sends least.

    Not one, though, that validation cannot tell from training alone if it can tell the best one from that.
    """
    best = comparison.chosen(among, sign)
    if best is None:
        return None
    scores = {
        name: [math.nan if outcome.validation is None else outcome.validation for outcome in runs]
        for name in (ALONE, *among)
        if (runs := [outcome for outcome in comparison.outcomes if outcome.method == name])
    }

    def surely_better(one: str, other: str) -> bool:
        told = gain([sign * (a - b) for a, b in zip(scores[one], scores[other], strict=True)], resampled)
        return told is not None and told.is_sure

    several, helps = len(scores[best]) > 1, surely_better(best, ALONE)
    tested = [name for name in among if not any(map(math.isnan, scores[name]))]
    alike = [name for name in tested if several and not surely_better(best, name)]
    alike = [name for name in alike if not helps or surely_better(name, ALONE)]
    return min([best, *alike], key=lambda name: sent[name])


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else None

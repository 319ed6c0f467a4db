"""The numbers of finished runs: scores by method, and differences paired by seed with their intervals.

Intervals are those of `suture.assessment.gains`: the corrected resampled t of Nadeau and Bengio where every seed draws its
own nodes, the plain paired t where all seeds test the same. Nothing is tested that was not run with the same seed on the
same cut.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from suture.assessment.candidates import ALONE
from suture.assessment.gains import CONFIDENCE, Gain, gain
from suture.methods import METHODS
from suture.report.records import Gathered, RunRecord
from suture.runs.comparison import Comparison
from suture.runs.outcome import Outcome

SCORES = {
    "accuracy_client_mean": "client mean",
    "accuracy_weighted": "node-weighted",
    "accuracy_worst": "worst client",
    "accuracy_global": "uncut graph",
}


@dataclass(frozen=True)
class Paired:
    """One method against another, in the metric's own unit; above 0 is better."""

    method: str
    against: str
    gain: Gain
    p: float | None
    """Two-sided; None: one seed tells none."""


def headline(run: RunRecord) -> str:
    """The number that the protocol of a run reports."""
    asked = {key: value.strip('"') for key, value in run.settings.get("evaluation", {}).items()}
    if asked.get("graph") == "global":
        return "accuracy_global"
    return "accuracy_weighted" if asked.get("average") == "nodes" else "accuracy_client_mean"


def is_reference(method: str) -> bool:
    """Whether a method is given the uncut graph, so that it is no federated one."""
    name = method.partition(" @ ")[0]
    return name in METHODS and METHODS[name].sees_uncut_graph


def finished(gathered: Gathered, method: str | None = None) -> list[Outcome]:
    """The outcomes of all runs that have ended, or of one method's; the first of several with the same seed."""
    found: dict[tuple[str, int], Outcome] = {}
    for run in gathered.runs:
        if run.outcome is not None and method in (None, run.method):
            found.setdefault((run.method, run.seed), run.outcome)
    return list(found.values())


def comparison(gathered: Gathered) -> Comparison:
    """Of all runs that have ended."""
    return Comparison(tuple(finished(gathered)))


def score(outcome: Outcome, column: str) -> float:
    """One of `SCORES`; NaN: there is none."""
    value = getattr(outcome, column)
    return math.nan if value is None else float(value)


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """Mean and sample deviation of what is known, all of it; None: something is not."""
    if not values or any(map(math.isnan, values)):
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def resampled(gathered: Gathered) -> float:
    """Tested per trained node if seeds draw their own, 0 if all test the same; see `gains`."""
    if len({run.roles for run in gathered.runs if run.roles}) <= 1:
        return 0.0
    ratios = []
    for run in gathered.runs:
        pooled = (run.evaluation or {}).get("pooled", {})
        try:
            tested, trained = float(pooled["test"]["support"]), float(pooled["train"]["support"])
        except (KeyError, TypeError, ValueError):
            continue
        if trained > 0:
            ratios.append(tested / trained)
    return statistics.fmean(ratios) if ratios else 0.0


def baseline(gathered: Gathered) -> str | None:
    """What others are compared with: training alone if it was run, else the first method; None: there is only one."""
    methods = [method for method in gathered.methods if finished(gathered, method)]
    if len(methods) < 2:
        return None
    return ALONE if ALONE in methods else methods[0]


def paired(gathered: Gathered, against: str, column: str) -> list[Paired]:
    """Every other method against one, seed by seed."""
    share = resampled(gathered)
    theirs = _by_seed(gathered, against)
    found = []
    for method in gathered.methods:
        ours = _by_seed(gathered, method)
        seeds = [seed for seed in ours if seed in theirs and ours[seed][1] == theirs[seed][1]]
        if method == against or not seeds:
            continue
        differences = [gathered.sign * (score(ours[s][0], column) - score(theirs[s][0], column)) for s in seeds]
        told = gain(differences, share)
        if told is not None:
            found.append(Paired(method, against, told, p_of(told)))
    return found


def _by_seed(gathered: Gathered, method: str) -> Mapping[int, tuple[Outcome, str]]:
    found: dict[int, tuple[Outcome, str]] = {}
    for run in gathered.of(method):
        if run.outcome is not None:
            found.setdefault(run.seed, (run.outcome, run.roles))
    return found


def p_of(told: Gain) -> float | None:
    """The chance of a difference this far from 0 if there were none, by the t that the interval is of."""
    if told.half is None:
        return None
    if told.half == 0:
        return 1.0 if told.mean == 0 else 0.0
    error = told.half / float(stdtrit(told.seeds - 1, (1 + CONFIDENCE) / 2))
    return float(2 * stdtr(told.seeds - 1, -abs(told.mean) / error))


def metric_names(gathered: Gathered) -> list[str]:
    """Of all metrics that runs were measured by, the one they were judged by first."""
    judged = [run.outcome.metric for run in gathered.runs if run.outcome]
    told = [
        name
        for run in gathered.runs
        for client in _clients(run).values()
        for name in client.get("test", {})
        if name != "support" and isinstance(name, str)
    ]
    return list(dict.fromkeys([*(name for name in judged if name in told), *told]))


def of_clients(run: RunRecord, metric: str, role: str = "test") -> list[float]:
    """A metric of every client that could be measured, from evaluation.json."""
    values = [client.get(role, {}).get(metric) for client in _clients(run).values()]
    return [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]


def _clients(run: RunRecord) -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    told = (run.evaluation or {}).get("clients", {})
    if not isinstance(told, dict):
        return {}
    return {
        name: {role: part for role, part in client.items() if isinstance(part, dict)}
        for name, client in told.items()
        if isinstance(client, dict)
    }


def smaller_is_better(gathered: Gathered) -> frozenset[str]:
    """Names of metrics."""
    told = [(run.evaluation or {}).get("smaller_is_better", []) for run in gathered.runs]
    return frozenset(str(name) for names in told if isinstance(names, list) for name in names)


def owner_scores(run: RunRecord) -> dict[str, float]:
    """Each client's test score in the round that is reported for it."""
    outcome, curve = run.outcome, run.curve
    if outcome is None or not curve.client_test:
        return {}
    reported = outcome.best_rounds or (outcome.best_round,) * len(run.clients)
    places = {number: place for place, number in enumerate(curve.rounds)}
    found = {}
    for k, (name, number) in enumerate(zip(run.clients, reported, strict=False)):
        if number in places and (value := curve.client_test[places[number]][k]) is not None:
            found[name] = value
    return found

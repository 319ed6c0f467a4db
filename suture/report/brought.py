"""What a comparison shows, in words: what federation brought, what mending brought, what the lost links cost.

Methods are sorted by what they declare, and the best of each sort is chosen by validation, never by the test.
Differences are paired by seed; what is not sure at 95 % (`assessment.gains`, which counts that seeds share nodes) is said
to be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from suture.assessment.candidates import ALONE
from suture.assessment.gains import Gain, gain
from suture.core.metrics import Metric
from suture.method import Method
from suture.report.table import headline, metric_of
from suture.report.text import count, score
from suture.runs.comparison import Comparison
from suture.runs.plan import Plan

UNCUT = "accuracy_global"
FEWEST_SEEDS = 3
"""With fewer, an interval says nothing that anybody could use."""


@dataclass(frozen=True)
class _Seen:
    """A comparison, and the column that its protocol reports."""

    comparison: Comparison
    metric: Metric
    column: str
    resampled: float

    def best(self, methods: Sequence[Method[Any, Any]]) -> str | None:
        return self.comparison.chosen([method.name for method in methods], self.metric.sign)

    def scores(self, method: str, column: str) -> dict[int, float]:
        runs = (run for run in self.comparison.outcomes if run.method == method)
        return {run.seed: getattr(run, column) for run in runs if getattr(run, column) is not None}

    def mean(self, method: str, column: str) -> str:
        values = self.scores(method, column).values()
        return score(sum(values) / len(values), self.metric.is_share, 1)

    def against(self, ours: str, theirs: str, column: str | None = None) -> Gain | None:
        """`ours` (in another column, if one is named) less `theirs`, seed by seed."""
        first, second = self.scores(ours, column or self.column), self.scores(theirs, self.column)
        both = [seed for seed in first if seed in second]
        found = gain([self.metric.sign * (first[seed] - second[seed]) for seed in both], self.resampled)
        return found if found is None or len(both) >= FEWEST_SEEDS else replace(found, half=None)

    def told(self, found: Gain) -> str:
        """`+27.8 ±1.2 points`: with the half of its interval."""
        unit = " points" if self.metric.is_share else ""
        size, half = score(abs(found.mean), self.metric.is_share, 1), score(found.half, self.metric.is_share, 1)
        sign = "-" if found.mean < 0 else "+"
        return f"{sign}{size} ±{half}{unit}" if found.half is not None else f"{sign}{size}{unit}"


def brought(comparison: Comparison, made: Plan) -> list[str]:
    """A few sentences; none if training alone was not run, or nothing beside it."""
    present = {run.method for run in comparison.outcomes}
    methods = [method for method in made.methods if method.name in present]
    metric, split = metric_of(made, comparison.outcomes[0].metric), made.protocol.split
    resampled = split.test / split.train if split.train else 0.0
    seen = _Seen(comparison, metric, headline(made.protocol.evaluation), resampled)
    federated = [method for method in methods if not method.sees_uncut_graph and method.name != ALONE]
    plain = seen.best([method for method in federated if method.mends == "nothing" and not method.knows_links])
    if ALONE not in present or plain is None:
        return []
    sentences = [_federation(seen, plain)]
    for sort, group in (
        ("Mending", [method for method in federated if method.mends != "nothing" and not method.knows_links]),
        ("Known links", [method for method in federated if method.knows_links]),
    ):
        if (best := seen.best(group)) is not None:
            sentences.append(_over(seen, sort, best, plain))
    central = next((method.name for method in methods if method.sees_uncut_graph), None)
    if central is not None:
        sentences += _lost(seen, central, plain, [method.name for method in federated])
    found = [sentence for sentence in sentences if sentence]
    if len(made.seeds) < FEWEST_SEEDS and found:
        found.append(f"{count(len(made.seeds), 'seed')}: all of this may be chance; say --seeds 0,1,2 for more.")
    return found


def _federation(seen: _Seen, plain: str) -> str:
    found = seen.against(plain, ALONE)
    if found is None:
        return ""
    pair = f"{plain} {seen.mean(plain, seen.column)}, {ALONE} {seen.mean(ALONE, seen.column)}"
    return f"Federation {_verdict(seen, found, 'over training alone')} ({pair})."


def _over(seen: _Seen, sort: str, best: str, plain: str) -> str:
    found = seen.against(best, plain)
    if found is None:
        return ""
    verb = "bring" if sort.endswith("s") else "brings"
    return f"{sort} {_verdict(seen, found, f'over {plain}', verb)} (best by validation: {best})."


def _verdict(seen: _Seen, found: Gain, against: str, verb: str = "brings") -> str:
    """What may be said of a difference, and no more."""
    size = f"{seen.told(found)} {against}"
    better = f"better in {found.better} of {count(found.seeds, 'seed')}"
    if found.half is None:
        return f"{verb} {size}, {better}"
    if found.is_sure:
        return f"{verb} {size}"
    if found.is_loss:
        return f"costs {size}"
    return f"{verb} nothing that can be told from chance: {size}, {better}"


def _lost(seen: _Seen, central: str, plain: str, federated: Sequence[str]) -> list[str]:
    """What the uncut graph would give, and how much of that the best method has brought back."""
    column = UNCUT if seen.scores(central, UNCUT) else seen.column
    missing = seen.against(central, plain, column)
    if missing is None:
        return []
    lines = [
        f"Lost links {_cost(seen, missing)}: {central} training and testing on the uncut graph reaches "
        f"{seen.mean(central, column)}."
    ]
    best = seen.comparison.chosen(federated, seen.metric.sign)
    if missing.is_sure and best is not None and best != plain and (back := seen.against(best, plain)) is not None:
        share = 100 * back.mean / missing.mean
        lines.append(f"Of that, {best} gives back {share:.0f} %." if back.is_sure else "None of it is given back for sure.")
    elif missing.is_sure:
        lines.append("None of it is given back for sure.")
    return lines


def _cost(seen: _Seen, missing: Gain) -> str:
    if missing.half is None or missing.is_sure:
        return f"cost {seen.told(missing).lstrip('+')}"
    return f"cost nothing that can be told from chance ({seen.told(missing)})"

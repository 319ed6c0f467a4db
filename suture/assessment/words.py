"""The recommendation in words: what to do, how sure that is, who gains, what leaves, and what cannot be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from suture.assessment.candidates import OUTSIDE_FROM, labels_differ, meanings_differ
from suture.assessment.facts import Facts
from suture.assessment.gains import Gain
from suture.assessment.judging import Judged
from suture.core.metrics import Metric

Verdict = Literal["federate", "perhaps", "alone"]
MOST_NAMED = 6


def verdict_of(best: Judged | None, alone: Judged, metric: Metric) -> Verdict:
    """federate: better beyond chance; perhaps: better in every seed, but chance could do that; alone: neither."""
    if best is None or best.gain is None:
        return "alone"
    if best.gain.is_sure:
        return "federate"
    chosen = best.validation is None or alone.validation is None or metric.sign * (best.validation - alone.validation) > 0
    promising = best.gain.mean > 0 and best.gain.better == best.gain.seeds and chosen
    return "perhaps" if promising and not best.gain.is_loss else "alone"


def amount(value: float, metric: Metric, decimals: int = 1) -> str:
    """`+3.1`, in points of percent where the metric is a share, in its own unit where it is not."""
    return f"{100 * value:+.{decimals}f}" if metric.is_share else f"{value:+.3g}"


def interval(told: Gain, metric: Metric) -> str:
    """`+3.1 ± 0.8`."""
    if told.half is None:
        return amount(told.mean, metric)
    return f"{amount(told.mean, metric)} ± {amount(told.half, metric).lstrip('+')}"


def unit(metric: Metric) -> str:
    """What gains are counted in."""
    return f"points of {metric.name}" if metric.is_share else f"of {metric.name}"


def recommendation(
    verdict: Verdict, best: Judged | None, judged: Sequence[Judged], metric: Metric, highest: str | None = None
) -> list[str]:
    """What to do, in sentences; `best` is the federated method to prefer, `highest` the one that validates best."""
    if best is None or best.gain is None:
        return ["Nothing can be recommended: no federated method could be compared with training alone."]
    told = f"{interval(best.gain, metric)} {unit(metric)} over training alone"
    seeds = f"better in {best.gain.better} of {best.gain.seeds} seeds"
    lines = []
    if verdict == "federate":
        lines.append(f"Federate with {best.method}: {told}, {seeds}.")
    elif verdict == "perhaps":
        lines.append(
            f"Federation may help: {best.method} brings {told}, {seeds}; but chance alone could do that. "
            "More seeds (--seeds), more time (--minutes) or more labels would tell."
        )
    elif best.gain.is_loss:
        lines.append(f"Train alone: the best federated method, {best.method}, is worse ({told}).")
    else:
        lines.append(
            f"Training alone is as good: federation brings nothing measurable here ({best.method}: {told}, {seeds})."
        )
    lines += _owners(best, metric)
    lines += _others(best, judged, metric, highest)
    return lines


def _owners(best: Judged, metric: Metric) -> Iterator[str]:
    """Who gains and who loses."""
    gains = sorted(best.owner_gains.items(), key=lambda pair: -pair[1].mean)
    if len(gains) < 2:
        return
    first, last = gains[0], gains[-1]
    losing = [(name, told) for name, told in gains if told.mean < 0]
    if first[1].mean > 0:
        yield f"With {best.method}, {first[0]} gains most ({interval(first[1], metric)})" + (
            f", {last[0]} least ({interval(last[1], metric)})." if not losing else "."
        )
    if losing:
        shown = [
            f"{name} {interval(told, metric)}" + ("" if told.is_loss else ", which may be chance") for name, told in losing
        ]
        more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
        yield f"{'Owner' if len(shown) == 1 else 'Owners'} that would lose: {'; '.join(shown[-MOST_NAMED:])}{more}."


def _others(best: Judged, judged: Sequence[Judged], metric: Metric, highest: str | None) -> Iterator[str]:
    for one in judged:
        if one.gain is not None and one.method == highest != best.method:
            more = [kind for kind in one.left if kind not in best.left]
            sends = f"{one.bytes_per_owner / max(best.bytes_per_owner, 1):.1f} times as much"
            what = f", {' and '.join(more)} too" if more else ""
            yield (
                f"{one.method} validates best, though not beyond chance above {best.method}: it brings "
                f"{interval(one.gain, metric)} over training alone, and sends {sends}{what}."
            )
        if one.central and one.gain is not None:
            yield f"All tables in one place ({one.method}) would bring {interval(one.gain, metric)}."


def described(facts: Facts) -> list[str]:
    """The facts in sentences."""
    sizes, labels = [owner.nodes for owner in facts.owners], [owner.train for owner in facts.owners]
    whose = "owners" if facts.given else "parts that METIS cut, as the graph names no owners"
    lines = [
        f"{len(facts.owners)} {whose}: {min(sizes):,} to {max(sizes):,} nodes, {min(labels):,} to {max(labels):,} training "
        f"labels each."
    ]
    if facts.heterogeneity is not None and facts.heterogeneity_by_chance is not None:
        alike = "differ" if labels_differ(facts) else "are alike"
        lines.append(
            f"Shares of the labels {alike}: distance {facts.heterogeneity:.2f} between owners (0 to 1), "
            f"{facts.heterogeneity_by_chance:.2f} by chance."
        )
    if facts.agreement is not None and facts.agreement_within is not None:
        alike = "differ" if meanings_differ(facts) else "agree"
        lines.append(
            f"What features say of the label: owners {alike} ({facts.agreement:.2f} between owners, "
            f"{facts.agreement_within:.2f} within one)."
        )
    lines.append(_links(facts))
    if facts.homophily is not None and facts.homophily_by_chance is not None:
        lines.append(
            f"Linked nodes have the same class in {100 * facts.homophily:.0f} % of pairs, "
            f"{100 * facts.homophily_by_chance:.0f} % by chance."
        )
    if facts.graphless:
        lines.append(f"Without edges: {', '.join(facts.graphless)}.")
    return lines


def _links(facts: Facts) -> str:
    much = "" if facts.outside_share >= OUTSIDE_FROM else ", which is little"
    return (
        f"{100 * facts.outside_share:.1f} % of the edges owners know of lead to somebody else's nodes{much} "
        f"({facts.missing:,} between owners here, {facts.boundary:,} boundary edges)."
    )


def limits(facts: Facts, seeds: int, reduced: Sequence[str], rounds: int) -> list[str]:
    """What the figures do not say."""
    lines = []
    if facts.resampled:
        lines.append("± is a 95 % interval over seeds that each draw their own test nodes (Nadeau and Bengio's correction).")
    else:
        lines.append("± is a 95 % interval over seeds; masks are given, so it holds the randomness of training alone.")
    if seeds == 1:
        lines = ["One seed tells no interval."]
    if not facts.given:
        lines.append("The owners are made up: real ones will differ more, and what holds here need not hold for them.")
    fewest = min(facts.owners, key=lambda owner: owner.tested)
    if fewest.tested < 50:
        lines.append(f"{fewest.name} has {fewest.tested} test nodes: its own figure says little.")
    if reduced:
        lines.append(f"For want of time: {'; '.join(reduced)}. --minutes gives more.")
    lines.append(
        f"Tried in one process with {rounds} rounds at most and default settings: the network's time, owners that fail, "
        "and what tuning or privacy (secure sums, noise) would change are not in it."
    )
    return lines

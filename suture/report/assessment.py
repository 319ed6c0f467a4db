"""An assessment on one screen: what was seen, one table, a recommendation, what would leave each owner, what is not said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from suture.assessment.assess import Assessment
from suture.assessment.candidates import ALONE
from suture.assessment.judging import Judged
from suture.assessment.words import described, interval, unit
from suture.report.console import grid
from suture.report.text import NOTHING, count, megabytes, score, score_spread, three_digits
from suture.runs import origin

MOST_OWNERS = 12


def assessment_report(found: Assessment) -> Group:
    """What `suture assess` prints."""
    parts: list[RenderableType] = [Text(f"{origin.label(found.known.dataset)}: what federation would bring", style="bold")]
    parts += _sentences(described(found.facts))
    parts += [Text(), methods_table(found), Text(_legend(found)), Text()]
    parts += [Text("Recommendation", style="bold"), *_sentences(found.recommendation)]
    if owners := _owners(found):
        parts += [Text(), owners]
    parts += [Text(), Text("What would leave each owner", style="bold"), *_sentences(_leaving(found.methods))]
    parts += [Text(), Text("What this does not say", style="bold"), *_sentences([*found.limits, *found.known.left_out])]
    return Group(*parts)


def next_step(found: Assessment, graph: str) -> str:
    """The command that follows; `graph` is how the graph was named, such as `--data bank`."""
    if found.verdict == "perhaps":
        more = f"suture assess {graph} --minutes {3 * found.known.minutes:g}"
        return f"next: {more}   or: suture run {graph} --method {found.chosen}"
    return f"next: suture run {graph} --method {found.chosen if found.verdict == 'federate' else ALONE}"


def _sentences(lines: Iterable[str]) -> Iterator[RenderableType]:
    return (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)


def methods_table(found: Assessment) -> Table:
    """One line a method."""
    metric = found.metric
    several, share = len(found.seeds) > 1, metric.is_share
    name = f"{metric.name} %" if share else metric.name
    table = grid(
        "\nmethod", f"test\n{name}", "gain over\nalone", "better in\nseeds", "worst\nowner", "MB per\nowner", "\nseconds"
    )
    for index in (1, 2, 3, 5, 6):
        table.columns[index].justify = "right"
    for one in found.methods:
        worst = one.worst(metric)
        table.add_row(
            Text(f"{one.method} *" if one.method == found.chosen else one.method),
            score_spread((one.mean, one.deviation), several, share),
            NOTHING if one.gain is None else interval(one.gain, metric),
            NOTHING if one.gain is None else f"{one.gain.better} of {one.gain.seeds}",
            NOTHING if worst is None else f"{worst[0]} {score(worst[1], share)}",
            NOTHING if one.central else megabytes(one.bytes_per_owner),
            three_digits(one.seconds),
        )
    return table


def _legend(found: Assessment) -> str:
    metric, owners = found.metric, len(found.facts.owners)
    seeds = count(len(found.seeds), "seed")
    return (
        f"{metric.title}, {metric.direction}, mean ± deviation over {seeds}, {count(owners, 'owner')}; "
        f"gains in {unit(metric)} ± 95 % interval; "
        "* is preferred: of the federated methods that validation cannot tell from the best, the one that sends least."
    )


def _owners(found: Assessment) -> RenderableType | None:
    """Every owner's own figures, alone and with the chosen method."""
    best = next((one for one in found.methods if one.method == found.chosen), None)
    if best is None or not best.owner_gains or len(best.owner_gains) > MOST_OWNERS:
        return None
    alone, share = found.of(ALONE), found.metric.is_share
    table = grid("owner", "nodes", "training labels", "alone", best.method, "gain", numbers_from=1)
    for owner in found.facts.owners:
        told, name = best.owner_gains.get(owner.name), f"{owner.name} (no edges)" if owner.graphless else owner.name
        table.add_row(
            name,
            f"{owner.nodes:,}",
            f"{owner.train:,}",
            score(alone.owners.get(owner.name), share),
            score(best.owners.get(owner.name), share),
            NOTHING if told is None else interval(told, found.metric),
        )
    return table


def _leaving(judged: Sequence[Judged]) -> Iterator[str]:
    """What kinds of things leave with which methods, those with the same together."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for one in judged:
        if not one.central:
            kinds.setdefault(one.left, []).append(one.method)
    for left, methods in kinds.items():
        yield f"{', '.join(methods)}: {', '.join(left) or 'nothing'}"
    central = [one.method for one in judged if one.central]
    if central:
        yield f"{', '.join(central)}: everything"

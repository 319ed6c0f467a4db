"""What attacks found, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from suture.attacks.attack import Finding, Measured
from suture.attacks.reidentification import Reidentification
from suture.attacks.trials import ATTACKS, read_findings
from suture.core.message import Kind
from suture.privacy.disclosure import ENVELOPE, EVALUATION_STEP, Disclosure
from suture.report.console import grid, titled
from suture.report.text import NOTHING, three_digits
from suture.runs.folder import is_comparison, place_of
from suture.runs.plan import Plan

NOT_ATTACKED = "not attacked"
NONE_TRIED = "What this is worth to somebody curious was not measured; train with --record, then: suture attack {run}"
NONE_COULD = "no attack could be tried"
UNREAD = "No attack here has read these, and what they tell was not measured: {what}."
PLAIN = frozenset({Kind.COUNTS, Kind.LOSSES, Kind.KEYS, Kind.SEALED, Kind.BLINDED, ENVELOPE})
"""What needs no attack, since it says itself what it tells, or cannot be read."""
CUT = "*"
OUT_OF_TIME = "* {who} ran out of time, {far}: with more --minutes it may find more."
LEGEND = (
    "Advantage is success minus the best guess without messages; where its 95 % interval is above 0, messages tell "
    "something. Attacks that fail here prove nothing: a better one may succeed."
)


def attack_report(found: Sequence[Finding], title: str, sent: Disclosure) -> Group:
    """A line for each attack and view, why others were not tried, and what of all that was sent none has read."""
    table = grid("attack", "view", "measure", "success", "guess", "advantage", "95 %", "exact", "seconds")
    for column in table.columns[3:]:
        column.justify = "right"
    for finding in found:
        if finding.measured is None:
            continue
        m = finding.measured
        style = "bold" if finding.succeeds else ""
        exact = f"{m.exact[0]:,} of {m.exact[1]:,}" if m.exact else NOTHING
        mark = CUT if finding.cut else ""
        told = (m.measure, f"{m.success:.3f}", f"{m.guess:.3f}", *gain(m), exact, three_digits(finding.seconds) + mark)
        table.add_row(finding.attack, finding.view, *(Text(cell, style=style) for cell in told))
    parts: list[RenderableType] = [titled(title, table)] if table.row_count else [Text(title, style="bold")]
    tried = {finding.attack: finding for finding in found if finding.measured is not None}
    for finding in tried.values():
        needs = f" Knows {'; '.join(finding.knows)}." if finding.knows else ""
        parts.append(Text(f"{finding.attack}: {finding.target}.{needs} Guess: {finding.guess}."))
    parts += [Text(OUT_OF_TIME.format(who=f"{one.attack} ({one.view})", far=one.how_far)) for one in found if one.cut]
    refused: dict[str, list[str]] = {}
    for finding in found:
        if finding.measured is None:
            refused.setdefault(finding.why_not, []).append(f"{finding.attack} ({finding.view})")
    parts += [Text(f"Not tried, {', '.join(who)}: {why}.") for why, who in refused.items()]
    parts += [Text(left)] if (left := unread(found, sent)) else []
    return Group(*parts, Text(LEGEND) if tried else Text("No attack could be tried."))


def gain(measured: Measured) -> tuple[str, str]:
    """`+0.28` and `0.26..0.29`."""
    return f"{measured.advantage:+.3f}", f"{measured.low:.2f}..{measured.high:.2f}"


def worst(found: Sequence[Finding]) -> Finding | None:
    """The attack that certainly beats its guess by most, or None. Who is who counts last: it tells nothing of nodes."""
    sure = [
        (finding.attack != Reidentification.name, finding.measured.low, finding)
        for finding in found
        if finding.measured is not None and finding.succeeds
    ]
    return max(sure, key=lambda one: one[:2], default=(False, 0.0, None))[2]


def worst_in_words(found: Sequence[Finding]) -> str:
    """The same in a cell of a table, and how many of all attacks there are could be tried: the others say nothing."""
    tried = {finding.attack for finding in found if finding.measured is not None}
    if not tried:
        return NOT_ATTACKED if not found else NONE_COULD
    far = f"; {len(tried)} of {len(ATTACKS)} attacks tried{_cut_short(found)}"
    hit = worst(found)
    if hit is None or hit.measured is None:
        return f"no attack won{far}"
    hits = hit.measured.exact
    exact = f", {hits[0]:,} of {hits[1]:,} exact" if hits and hits[0] else ""
    return f"{hit.attack} ({hit.view}) {hit.measured.success:.2f}, guess {hit.measured.guess:.2f}{exact}{far}"


def untried(found: Sequence[Finding]) -> list[str]:
    """Attacks that were not tried on a run that was attacked, for whatever reason."""
    tried = {finding.attack for finding in found if finding.measured is not None}
    return [name for name in ATTACKS if name not in tried] if found else []


def unread(found: Sequence[Finding], sent: Disclosure) -> str:
    """What left clients and no attack has read, in a sentence; nothing if there is none, or nobody attacked."""
    read = {(step, kind) for finding in found for step in finding.read for kind in ATTACKS[finding.attack].uses}
    flows = [flow for flow in sent.flows() if flow.direction == "up" and flow.step != EVALUATION_STEP]
    left: dict[str, list[str]] = {}
    for flow in flows:
        if flow.kind not in PLAIN and (flow.step, flow.kind) not in read:
            left.setdefault(flow.step, []).append(flow.kind)
    listed = "; ".join(f"{', '.join(kinds)} (in {step})" for step, kinds in left.items())
    return UNREAD.format(what=listed) if found and listed else ""


def _cut_short(found: Sequence[Finding]) -> str:
    """How many attacks had too little time, for the end of a line."""
    cut = sum(finding.cut for finding in found)
    return f" ({cut} of {len(found)} attacks ran out of time)" if cut else ""


def attacked(path: Path, made: Plan) -> list[RenderableType]:
    """A line for each method of a folder that was attacked: the attack that tells most, over all its seeds."""
    lines: list[RenderableType] = []
    for method in made.methods:
        runs = [place_of(path, method.name, seed) for seed in made.seeds] if is_comparison(path) else [path]
        found = [finding for run in runs for finding in read_findings(run)]
        if found:
            lines.append(Text(f"Attacked, {method.name}: {worst_in_words(found)}; all attacks: suture privacy RUN."))
    return lines

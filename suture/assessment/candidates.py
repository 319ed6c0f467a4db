"""Which methods are tried, by stated rules.

    always                                           local and fedavg
    some owner has no edges                          fedgls, and fed_mlp, which needs none
    5 % of edges or more lead to other owners        fedsage_plus, which makes up for missing neighbours
    owners' labels or features' meanings differ      fedpub, which gives each owner a model of its own
    they do not                                      fedper, whose last layer alone is each owner's own
    always                                           global: what one would get from all tables in one place

At most three are tried beside local, fedavg and global; the rules above stand in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from suture.assessment.facts import Facts
from suture.methods import METHODS
from suture.runs.fitting import unfit

ALONE, USUAL, POOLED = "local", "fedavg", "global"
MOST_FITTING = 3
OUTSIDE_FROM = 0.05
APART_FROM, TIMES_CHANCE = 0.1, 2.0
"""Owners' labels differ where their distance is this large, and this many times what chance would give."""
AGREE_BELOW, RELIABLE_FROM = 0.5, 0.2
"""Features mean different things where owners agree less than this part of what two halves of one owner do, and those do."""


@dataclass(frozen=True)
class Candidate:
    """A method, and why it is tried."""

    name: str
    why: str
    wanted: bool = False
    """Tried even if time is short."""


def labels_differ(facts: Facts) -> bool:
    """Whether owners have other shares of the labels than each other."""
    apart, chance = facts.heterogeneity, facts.heterogeneity_by_chance
    return apart is not None and chance is not None and apart >= max(APART_FROM, TIMES_CHANCE * chance)


def meanings_differ(facts: Facts) -> bool:
    """Whether the same features go with other labels at other owners."""
    between, within = facts.agreement, facts.agreement_within
    return between is not None and within is not None and within >= RELIABLE_FROM and between < AGREE_BELOW * within


def candidates(facts: Facts, named: tuple[str, ...] | None = None) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """What is tried, local and fedavg first and global last, and a line for each that does not fit.

    What the user named is tried in place of what the rules would choose.
    """
    first = (
        Candidate(ALONE, "every owner alone: what federation is measured against", wanted=True),
        Candidate(USUAL, "one model, averaged over the owners", wanted=True),
    )
    if named is not None:
        always = {candidate.name for candidate in first}
        asked = (Candidate(name, "you named it", wanted=True) for name in named if name not in always)
        return (*first, *asked), ()
    fit, left_out = [], []
    for candidate in _by_rules(facts):
        reason = unfit(METHODS[candidate.name], facts.kind, bool(facts.graphless))
        if reason is None:
            fit.append(candidate)
        else:
            left_out.append(f"{candidate.name} would be tried ({candidate.why}), but {reason}")
    pooled = Candidate(POOLED, "all tables in one place: for comparison, not an offer")
    return (*first, *fit[:MOST_FITTING], pooled), tuple(left_out)


def _by_rules(facts: Facts) -> list[Candidate]:
    found = []
    if facts.graphless:
        who = f"{', '.join(facts.graphless)} has no edges" if len(facts.graphless) == 1 else "some owners have no edges"
        found.append(Candidate("fedgls", f"{who}: it learns a graph for them"))
        found.append(Candidate("fed_mlp", f"{who}: it needs none"))
    if facts.outside_share >= OUTSIDE_FROM:
        share = f"{100 * facts.outside_share:.0f} %"
        found.append(Candidate("fedsage_plus", f"{share} of owners' edges lead to others: it makes up for those neighbours"))
    if labels_differ(facts) or meanings_differ(facts):
        what = "labels" if labels_differ(facts) else "features' meanings"
        found.append(Candidate("fedpub", f"owners' {what} differ: each gets a model of its own"))
    else:
        found.append(Candidate("fedper", "the last layer alone is each owner's own, which costs nothing"))
    return found

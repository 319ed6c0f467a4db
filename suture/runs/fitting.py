"""Which methods of a plan fit its graph: those that nobody named and that cannot be run on it are left out, with a word."""

from __future__ import annotations

from dataclasses import replace

from suture.graph.target import Kind, Target
from suture.method import check_links, check_target
from suture.methods import AnyMethod
from suture.runs.plan import Plan

PREDICTED: dict[Kind, str] = {"class": "classes", "labels": "several labels of a node", "value": "numbers"}


def unfit(method: AnyMethod, kind: Kind, graphless: bool) -> str | None:
    """Why a method cannot be run on a graph with such labels, some of whose owners may have no edges; None: it can."""
    if kind not in method.targets:
        return f"cannot predict {PREDICTED[kind]}"
    return "cannot train owners without edges" if graphless and not method.accepts_graphless else None


def fitting(made: Plan, kind: Kind, graphless: bool) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the methods that fit, and a line that names the others; one that the user named is refused instead."""
    link = made.protocol.task == "link"
    if made.named:
        # Now, not after the methods before it have trained for hours.
        for method in made.methods:
            if link:
                check_links(method)
            else:
                check_target(method, Target(kind))
        return made, ()
    reasons: dict[str, list[str]] = {}
    for method in made.methods:
        if reason := method.beyond_links() if link else unfit(type(method), kind, graphless):
            reasons.setdefault(reason, []).append(method.name)
    if not reasons:
        return made, ()
    gone = {name for names in reasons.values() for name in names}
    told = "; ".join(f"{', '.join(names)} {reason}" for reason, names in reasons.items())
    kept = tuple(method for method in made.methods if method.name not in gone)
    return replace(made, methods=kept), (f"methods that are left out: {told}",)

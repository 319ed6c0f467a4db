"""Every method says for which of its steps it asks, as it is set: owners carry out no other."""

from __future__ import annotations

from typing import Any

import pytest
from harness import brief, small, small_world

from suture.engines.embedded import EmbeddedCohort
from suture.federation.owner.travelling import check_entries, entries_handed_out
from suture.method import Method
from suture.methods import METHODS
from suture.methods.fedavg import FedAvg
from suture.runs.counting import Record, Sent

OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"training": {"stitch": 2}}),
    ("fedgcn", {"hops": 1}),
    ("fedgcn", {"together": True}),
    ("fedgcn", {"together": True, "hops": 1, "training": {"stitch": 1}}),
    ("fedsage_plus", {"answers": "exact"}),
    ("fedsage_plus", {"answers": "coarse"}),
    ("fedsage_plus", {"shared_generator": True}),
    ("fedsage_plus", {"alpha": 0.0}),
    ("feddep", {"proto": False}),
    ("feddep", {"dgen": False}),
    ("fedggr", {"gsl": False}),
    ("fedggr", {"codes": "groups"}),
    ("fedggr", {"codes": "nodes"}),
    ("fedgram", {"rank": 0}),
    ("suture", {"rank": 0}),
    ("suture", {"seams": 0}),
]
ALL = [*((name, {}) for name in METHODS), *OTHERWISE]
ONLY_FOR_SOME_DATA = {name: {"measure", "multiply"} for name in ("fedgram", "suture")}
"""Asked where features are mostly not zero, or more than directions are wanted, which a method is not told before."""


def sent_by(method: Method[Any, Any]) -> list[Sent]:
    """Everything, with every phase once."""
    world, record = small_world(), Record()
    cohort: EmbeddedCohort[Any] = EmbeddedCohort.start(method, world.clients, world.task, ledger=record)
    server = method.init_server(world.task)
    for phase in method.plan():
        cohort.begin(phase.name, 1)
        server = cohort.carry_out(phase.body, server)
    return record.sent


@pytest.mark.parametrize(("name", "values"), ALL, ids=[f"{name}-{values}" for name, values in ALL])
def test_what_is_asked_is_what_was_said(name: str, values: dict[str, Any]) -> None:
    method = small(METHODS[name], **values)
    if method.sees_uncut_graph:
        pytest.skip("no owner has the uncut graph")
    sent = sent_by(method)
    asked = {one.step for one in sent}
    assert method.asked() - asked <= ONLY_FOR_SOME_DATA.get(name, set())
    assert asked <= method.asked() and "evaluate" not in method.asked()
    handed_out = entries_handed_out(method, small_world().task)
    for reply in (one.message for one in sent if one.direction == "up"):
        check_entries(method, reply, handed_out)


def test_an_engine_does_not_carry_out_another_step() -> None:
    world, method = small_world(), small(FedAvg, **brief(FedAvg))
    cohort: EmbeddedCohort[Any] = EmbeddedCohort.start(method, world.clients, world.task)
    with pytest.raises(TypeError, match="does not ask for as it is set"):
        cohort.ask(method.stitch_wants, method.hand_out(method.init_server(world.task), cohort.ids))  # type: ignore[arg-type]

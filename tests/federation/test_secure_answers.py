"""FedSage+ and FedGGR between owners with secure aggregation: whose gradient an answer is, or whose sum, nobody sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_faults import OWNERS, QUICK, InProcess, coordinator, metrics, planned, shards  # noqa: F401

from suture import api
from suture.core.packing import kind_of
from suture.federation.owner.keys import LASTING_KEY
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of


def kinds_that_pass(plan: api.Plan, folder: Path, shards: Path) -> dict[bool, set[str]]:  # noqa: F811
    """Types of messages that leave owners in an open (False) and in a secure (True) run, which end alike."""
    kinds: dict[bool, set[str]] = {}
    for secure in (False, True):
        transport = InProcess(folder / str(secure) / "owners", shards)
        for owner in OWNERS:  # who group their nodes alike in both
            (folder / str(secure) / "owners" / owner / LASTING_KEY).write_bytes(owner.encode().ljust(32))
        seen: set[str] = set()

        def record(owner: str, frame: Frame, answer: Callable[[], bytes], seen: set[str] = seen) -> bytes:
            reply = answer()
            if body := Frame.unpack(reply).body:
                seen.add(kind_of(body))
            return reply

        transport.meddle = record
        order = order_of(plan, "run", QUICK, secure=secure)
        assert coordinator(order, folder / str(secure), transport).carry_on() is not None
        kinds[secure] = seen
    for mine, theirs in zip(metrics(folder / "True"), metrics(folder / "False"), strict=True):
        assert mine.get("client_test") == theirs.get("client_test")
        assert mine.get("loss", 0.0) == pytest.approx(theirs.get("loss", 0.0), abs=1e-4)
    assert len(OWNERS) > 2, "with two owners each could subtract itself"
    return kinds


def test_answers_leave_their_owners_sealed(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """The run ends as the open one does, and of what answers others only sums are seen."""
    plan = planned("fedsage_plus", 2, "fedsage_plus.generator_epochs=3", "fedsage_plus.smallest=3")
    kinds = kinds_that_pass(plan, tmp_path, shards)
    assert "Answers" in kinds[False]
    assert kinds[True] & {"Answers", "Gradients", "Up"} == set()
    assert {"Sealed", "Offer", "Scores"} <= kinds[True]


def test_nothing_of_a_single_owner_passes_with_anchors(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    plan = planned(
        "fedggr", 2, "fedggr.pretrain_rounds=2", "fedggr.code_width=4", "fedggr.anchors=6", "fedggr.anchor_rounds=3"
    )
    kinds = kinds_that_pass(plan, tmp_path, shards)
    assert {"Encoder", "NearSums", "Up"} <= kinds[False]
    assert kinds[True] & (kinds[False] - {"Scores"}) == set(), "scores are by an owner's policy"
    assert "Sealed" in kinds[True]

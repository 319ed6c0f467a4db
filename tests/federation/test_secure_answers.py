"""FedSage+ between owners with secure aggregation: whose gradient an answer is, nobody sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_faults import OWNERS, QUICK, InProcess, coordinator, metrics, planned, shards  # noqa: F401

from suture.core.packing import kind_of
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of


def test_answers_leave_their_owners_sealed(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """The run ends as the open one does, and of what answers others only sums are seen."""
    plan = planned("fedsage_plus", 2, "fedsage_plus.generator_epochs=3", "fedsage_plus.smallest=3")
    kinds: dict[bool, set[str]] = {}
    for secure in (False, True):
        transport = InProcess(tmp_path / str(secure) / "owners", shards)
        seen: set[str] = set()

        def record(owner: str, frame: Frame, answer: Callable[[], bytes], seen: set[str] = seen) -> bytes:
            reply = answer()
            if body := Frame.unpack(reply).body:
                seen.add(kind_of(body))
            return reply

        transport.meddle = record
        order = order_of(plan, "run", QUICK, secure=secure)
        assert coordinator(order, tmp_path / str(secure), transport).carry_on() is not None
        kinds[secure] = seen
    assert "Answers" in kinds[False]
    assert kinds[True] & {"Answers", "Gradients", "Up"} == set()
    assert {"Sealed", "Offer", "Scores"} <= kinds[True]
    for mine, theirs in zip(metrics(tmp_path / "True"), metrics(tmp_path / "False"), strict=True):
        assert mine.get("client_test") == theirs.get("client_test")
        assert mine.get("loss", 0.0) == pytest.approx(theirs.get("loss", 0.0), abs=1e-4)
    assert len(OWNERS) > 2, "with two owners each could subtract itself"

"""Stitching, moments and methods with messages of their own between processes: they end where one process does."""

from __future__ import annotations

import json
from pathlib import Path
from pipes import Piped

import pytest
from loopback import embedded, planned, write_shards
from numpy.testing import assert_allclose

from suture.federation.audit import AUDIT, AuditLog
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.policy import Policy
from suture.federation.wire.orders import FaultSettings, order_of
from suture.federation.wire.reasons import Refused

KNOWN = ("partition.boundary=both", "rounds=2", "model.hidden=8", "model.dropout=0")
"""Without dropout, which draws by a node's place: foreign nodes stand in the order of their addresses."""


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("method", "more", "steps"),
    [
        ("fedavg", ("training.stitch=2", "training.moments=averaged"), {"stitch_offer", "stitch_hear"}),
        ("fedgcn", ("fedgcn.fewest=1", "training.moments=server"), {"post_sums", "post_around"}),
        ("fedtad", ("fedtad.distil_epochs=1", "fedtad.pseudo_nodes=12"), {"tell_reliability", "local_update"}),
        ("fedgta", (), {"local_update"}),
        ("adafgl", ("adafgl.adapt_epochs=2",), {"local_update", "take_knowledge", "adapt_locally"}),
        ("fggp", (), {"local_update", "tell_prototypes", "take_prototypes"}),
        (
            "fedgram",
            ("fedgram.rank=8", "fedgram.sure=0.3", "training.moments=averaged"),
            {"count", "multiply", "relate", "learn"},
        ),
        ("suture", ("suture.rank=8",), {"relate", "local_update", "known_links", "stitch_offer", "stitch_hear"}),
        ("suture", ("suture.rank=8", "suture.patience=1", "training.lr=0.3", "rounds=5"), {"local_update"}),
    ],
)
def test_between_processes_as_in_one(method: str, more: tuple[str, ...], steps: set[str], tmp_path: Path) -> None:
    made = planned(method, 3, *KNOWN, *more)
    ids = write_shards(made, tmp_path / "shards").clients.ids
    transport = Piped(tmp_path / "owners", ids, tmp_path / "shards")
    try:
        audit = AuditLog(tmp_path / AUDIT, "coordinator")
        leg = Coordinator(order_of(made, "run", FaultSettings()), tmp_path / "run", transport, audit)
        assert leg.carry_on() is not None
    finally:
        transport.close()
    alone = embedded(made, tmp_path / "embedded")
    mine, theirs = lines(tmp_path / "run"), lines(alone)
    assert [line["phase"] for line in mine] == [line["phase"] for line in theirs]
    for one, other in zip(mine, theirs, strict=True):
        for key, value in one.items():
            if isinstance(value, float | list):
                assert_allclose(value, other[key], rtol=1e-4, atol=1e-4, err_msg=key)
    told = {line["step"] for line in map(json.loads, (tmp_path / "run" / "ledger.jsonl").read_text().splitlines())}
    assert steps <= told


def test_an_owner_can_keep_predictions_and_addresses_at_home() -> None:
    import torch

    from suture.core.message import Rows
    from suture.methods.links import Offered, Wanted

    rows = Rows(torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]))
    address = Rows(torch.tensor([7]), torch.tensor([0, 1]))
    with pytest.raises(Refused, match="forbids rows to leave"):
        Policy(forbid_fields=("rows",)).permit("stitch_offer", Offered(("a",), address, rows))
    with pytest.raises(Refused, match="forbids addresses to leave"):
        Policy(forbid_fields=("addresses",)).permit("stitch_wants", Wanted(("a",), address))

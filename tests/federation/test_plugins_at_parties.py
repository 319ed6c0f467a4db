"""Methods that are in no installation: a party runs them if its own start named them, and never because somebody asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from pipes import Piped

import pytest
from loopback import PLUGINS, embedded, planned, spelling, write_shards
from numpy.testing import assert_allclose

from suture.errors import ConfigError
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.coordinator import Coordinator, door_at, let_in
from suture.federation.owner.owner import Owner
from suture.federation.wire.orders import FaultSettings, Order, order_of
from suture.federation.wire.reasons import Refused
from suture.methods import door_with


def short(name: str):
    return planned(name, 3, "rounds=3", "local_epochs=2", "model.hidden=8")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", list(PLUGINS))
def test_an_example_between_processes_equals_the_embedded_run(name: str, tmp_path: Path) -> None:
    made = short(name)
    ids = write_shards(made, tmp_path / "shards").clients.ids
    transport = Piped(tmp_path / "owners", ids, tmp_path / "shards", plugins={owner: [spelling(name)] for owner in ids})
    try:
        order = order_of(made, "run", FaultSettings())
        assert order.method == name
        let_in([spelling(name)], tmp_path / "home")
        audit = AuditLog(tmp_path / AUDIT, "coordinator")
        leg = Coordinator(order, tmp_path / "run", transport, audit, door=lambda: door_at(tmp_path / "home"))
        assert leg.carry_on() is not None
    finally:
        transport.close()
    alone = embedded(made, tmp_path / "embedded")
    for mine, theirs in zip(lines(tmp_path / "run"), lines(alone), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            if isinstance(value, float | list):
                assert_allclose(value, theirs[key], rtol=1e-5, atol=1e-5, err_msg=key)
    noted = json.loads((tmp_path / "run" / "run.json").read_text())["plugins"]
    assert [one["spelling"] for one in noted] == [spelling(name)]


def test_an_owner_without_it_refuses(tmp_path: Path) -> None:
    made = short("fedamp")
    ids = write_shards(made, tmp_path / "shards").clients.ids
    plugins = {owner: [spelling("fedamp")] for owner in ids[1:]}
    transport = Piped(tmp_path / "owners", ids, tmp_path / "shards", plugins=plugins)
    try:
        audit, order = AuditLog(tmp_path / AUDIT, "coordinator"), order_of(made, "run", FaultSettings())
        leg = Coordinator(order, tmp_path / "run", transport, audit, door=lambda: door_with([spelling("fedamp")]))
        with pytest.raises(Refused, match=f"owner {ids[0]} refuses: the terms cannot be accepted: unknown method 'fedamp'"):
            leg.carry_on()
    finally:
        transport.close()
    assert any(line["event"] == "refused" for line in read_audit(tmp_path / "owners" / ids[0] / AUDIT))


def test_a_coordinator_without_it_says_so(tmp_path: Path) -> None:
    order = order_of(short("fedamp"), "run", FaultSettings())
    leg = Coordinator(order, tmp_path / "run", None, AuditLog(tmp_path / AUDIT, "coordinator"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown method 'fedamp'"):
        leg.carry_on()


@pytest.mark.parametrize(
    "change",
    [
        {"method": "examples/fedamp.py:FedAMP"},
        {"dataset": "some.module:load"},
        {"config": '[model]\nkind = "/tmp/x.py:Wide"\n'},
        {"config": '[evaluation]\nmetric = "x.y:z"\n'},
        {"config": '[methods.fedavg.model]\nkind = "x.py:Wide"\n'},
    ],
)
def test_an_order_carries_names_only(change: dict[str, str]) -> None:
    order = order_of(planned("fedavg", 3), "run", FaultSettings())
    with pytest.raises(ConfigError, match="parties run only what is installed at them"):
        Order.read({**order.as_json(), **change})
    with pytest.raises(ConfigError, match="parties run only what is installed at them"):
        replace(order, **change)


def test_an_owner_checks_its_plugins_when_it_starts(tmp_path: Path) -> None:
    ids = write_shards(planned("fedavg", 3), tmp_path / "shards").clients.ids
    shard = tmp_path / "shards" / f"{ids[0]}.safetensors"
    with pytest.raises(ConfigError, match="there is no file"):
        Owner.set_up(ids[0], shard, None, tmp_path / "home", [str(tmp_path / "no.py:Where")])
    policy = tmp_path / "policy.toml"
    policy.write_text('methods = ["fedamp"]')
    with pytest.raises(ConfigError, match="unknown method 'fedamp'"):
        Owner.set_up(ids[0], shard, policy, tmp_path / "home")
    assert "fedamp" in Owner.set_up(ids[0], shard, policy, tmp_path / "home", [spelling("fedamp")]).door.names()
    assert "fedamp" in Owner.at(tmp_path / "home").door.names()

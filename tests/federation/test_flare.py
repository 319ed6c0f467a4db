"""Every method between real processes with mutual TLS ends as in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import PLUGINS, Loopback, embedded, planned, spelling
from numpy.testing import assert_allclose

from suture.config.resolve import to_toml
from suture.federation.audit import AUDIT, read_audit
from suture.methods import METHODS
from suture.runs.checkpoint import load_models

pytestmark = pytest.mark.federation
OWNERS = 3
FEDERATED = [*(name for name, method in METHODS.items() if not method.sees_uncut_graph), *PLUGINS]
NEEDS = {
    # Forms in which owners choose nothing by keys of their own; those that do are in test_owners_draws.py.
    "feddep": ("feddep.as_published=true",),
    "fedsage_plus": ("fedsage_plus.answers=exact",),
    "fedggr": ("fedggr.codes=nodes",),
    # Addresses of a private matching are others than in one process; see test_matched_owners.py.
    **dict.fromkeys(("fedgcn", "suture"), ("partition.boundary=both", "partition.matching=open")),
}
SEALED = {
    "fedgram": ("local_update", ["fedgram.rank=8"]),
    "fedgcn": ("post_together", ["partition.boundary=both", "fedgcn.together=true", "fedgcn.fewest=1"]),
    "fedggr": ("train_with_anchors", ["fedggr.codes=anchors"]),
    "moon": ("local_update", ["partition.boundary=both", "training.stitch=1"]),
}
"""Methods of which owners' parts are summed in a step, and links that are stitched after a private matching."""


def short(name: str, *more: str):
    return planned(name, OWNERS, "rounds=3", "local_epochs=2", "model.hidden=16", *NEEDS.get(name, ()), *more)


@pytest.fixture(scope="module")
def finished(federation: Loopback) -> dict[str, Path]:
    """One job, all methods, the owners' processes warm."""
    orders = [federation.order(short(name), f"equal-{name}") for name in FEDERATED]
    return dict(zip(FEDERATED, federation.carry_out(orders), strict=True))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", FEDERATED)
def test_equals_the_embedded_run(name: str, finished: dict[str, Path], federation: Loopback, tmp_path: Path) -> None:
    alone = embedded(short(name), tmp_path / "embedded")
    for mine, theirs in zip(lines(finished[name]), lines(alone), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            if isinstance(value, float):
                assert_allclose(value, theirs[key], rtol=1e-5, atol=1e-5, err_msg=key)
            elif key.startswith("client_"):
                assert_allclose(value, theirs[key], atol=1e-5, err_msg=key)
            else:
                assert value == theirs[key], key
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (finished[name], alone))
    for key in ("accuracy_client_mean", "accuracy_weighted", "accuracy_worst", "bytes_up", "bytes_down", "best_round"):
        assert ours[key] == pytest.approx(theirs[key], abs=1e-5), key
    _same_models(name, finished[name], alone, federation)


def test_sums_are_sealed_between_processes(federation: Loopback, tmp_path: Path) -> None:
    plans = {name: planned(name, OWNERS, "rounds=3", "model.hidden=16", *more) for name, (_, more) in SEALED.items()}
    orders = [replace(federation.order(made, f"sealed-{name}"), secure=True) for name, made in plans.items()]
    for (name, made), run in zip(plans.items(), federation.carry_out(orders), strict=True):
        told = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        up = [line for line in told if line["step"] == SEALED[name][0] and line["direction"] == "up"]
        assert up and all(set(line["kinds"]) <= {"sealed", "keys"} for line in up), name
        ours, alone = (
            json.loads((path / "result.json").read_text()) for path in (run, embedded(made, tmp_path / f"alone-{name}"))
        )
        # Real owners draw FedGGR's groups by keys of their own.
        assert name == "fedggr" or ours["accuracy_weighted"] == pytest.approx(alone["accuracy_weighted"], abs=0.1), name


def _same_models(name: str, ours: Path, alone: Path, federation: Loopback) -> None:
    """The shared model is in the run folder; everybody's own model is with its owner, and nowhere else."""
    expected, _ = load_models(alone / "model.safetensors")
    central, _ = load_models(ours / "model.safetensors")
    assert set(central) == set(expected) & {"shared"}
    for owner in federation.owners:
        home = federation.kits[owner] / "suture" / "runs" / f"equal-{name}"
        mine, _ = load_models(home / "model.safetensors")
        theirs = expected.get(owner, expected.get("shared"))
        assert theirs is not None
        assert mine[owner].keys() == theirs.keys()
        for key, value in theirs.items():
            assert_allclose(mine[owner][key].numpy(), value.numpy(), rtol=1e-5, atol=1e-5, err_msg=key)
        assert len((home / "predictions.csv").read_text().splitlines()) > 1


def test_the_commands_of_a_data_team(federation: Loopback, tmp_path: Path) -> None:
    """Submit, follow, look, predict: only commands, and only what they print."""
    out, kit = tmp_path / "run", str(federation.kits["operator"])
    made = short("fedper")
    config = tmp_path / "protocol.toml"
    config.write_text(to_toml(made.resolved))
    code, printed = federation.run(
        *("federation", "run", "--kit", kit, "--method", "fedper", "--protocol", str(config), "--seed", "0"),
        *("--out", str(out)),
    )
    assert code == 0, printed
    assert "fedper" in printed
    assert str(out) in printed
    alone = embedded(made, tmp_path / "embedded")
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (out, alone))
    assert ours["accuracy_client_mean"] == pytest.approx(theirs["accuracy_client_mean"], abs=1e-5)

    code, printed = federation.run("federation", "status", "--kit", kit)
    assert code == 0, printed
    assert printed.count(" connected") == OWNERS
    kept = {path.name: path.read_bytes() for path in out.iterdir()}
    code, printed = federation.run("federation", "resume", str(out))
    assert code == 0, printed
    assert {path.name: path.read_bytes() for path in out.iterdir()} == kept
    code, printed = federation.run("show", str(out))
    assert code == 0, printed

    owner = federation.owners[0]
    code, printed = federation.run("owner", "predict", str(federation.kits[owner]))
    assert code == 0, printed
    assert printed.startswith("id,owner,prediction,probability 0")
    run = json.loads((out / "order.json").read_text())["run"]
    code, printed = federation.run("owner", "ledger", str(federation.kits[owner]), "--run", run)
    assert code == 0, printed
    assert "params.layer1.weight [40, 16]" in printed
    sent = json.loads((out / "result.json").read_text())["bytes_up"]
    events = [line for line in read_audit(federation.kits[owner] / "suture" / AUDIT) if line.get("run") == run]
    assert [line["event"] for line in events] == ["opened", "finished"]
    assert events[-1]["sent_bytes"] == sent // OWNERS


def test_a_method_in_a_file_by_command(federation: Loopback, tmp_path: Path) -> None:
    """The operator names its file, the parties theirs; what travels is the method's name."""
    out, kit = tmp_path / "run", str(federation.kits["operator"])
    code, printed = federation.run(
        *("federation", "run", "--kit", kit, "--method", spelling("fedamp"), "--seed", "0", "--out", str(out)),
        *("--set", "rounds=2", "--set", "hidden=8"),
    )
    assert code == 0, printed
    assert "fedamp" in printed
    assert json.loads((out / "order.json").read_text())["method"] == "fedamp"
    code, printed = federation.run("show", str(out))
    assert code == 0 and "fedamp" in printed, printed


def test_requests_are_not_formatted_for_a_log_that_nobody_writes() -> None:
    """FLARE puts every received request into the text of a debug line; see `suture.federation.flare.transport`."""
    from suture.federation.flare import transport as flare

    assert "secret" not in f"{flare.ConsumableBufferList([b'secret', b'more'])}"

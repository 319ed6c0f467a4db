"""Every method's messages can be attacked, and what no attack has read is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import suture
from suture.attacks import trials
from suture.attacks.scenes import Scene
from suture.attacks.updates import updates
from suture.cli import main
from suture.methods import METHODS

SMALL = "csbm:nodes=120,features=40,degree=3"
QUICK = ("suture", "fedgram", "scaffold", "fedgta", "fedtad", "ditto")
"""Of the newest methods; all others are tried in the slow tests."""
READ_BESIDE_MODELS = {"suture": {"relate"}, "fedgram": {"relate"}, "fedtad": {"tell_reliability"}}
FEDERATED = [name for name, kind in METHODS.items() if not kind.sees_uncut_graph]


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FEDERATED]
)
def test_every_attack_finds_something_or_says_why_not(method: str, tmp_path: Path) -> None:
    values = ["rounds=2", "model.hidden=8"]
    suture.run(SMALL, method, clients=3, overrides=values, out=tmp_path / "run", options=suture.Options(record=True))
    found = list(trials.carry_out(Scene.read(tmp_path / "run"), trials.chosen(None, None), 3600))
    assert {one.attack for one in found} == set(trials.ATTACKS)
    assert all((one.measured is None) == bool(one.why_not) for one in found)
    read = {step for one in found for step in one.read}
    assert READ_BESIDE_MODELS.get(method, set()) <= read
    assert all(not one.read for one in found if one.measured is None)


def test_what_no_attack_has_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FED-PUB's signatures: attacks on its models say nothing of them, and no sentence may look as if they did."""
    out = tmp_path / "run"
    train = ["attack", "--dataset", SMALL, "--method", "fedpub", "--clients", "3", "--set", "rounds=2", "-q"]
    assert main([*train, "--attack", "membership", "--view", "server", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "signatures (in local_update)" in said.split("No attack here has read these")[1]
    (kept,) = json.loads((out / "attacks.json").read_text())["findings"]
    assert kept["read"] == ["local_update"]
    assert main(["privacy", str(out)]) == 0
    assert "signatures" in " ".join(capsys.readouterr().out.split()).split("No attack here")[1]
    # Whoever kept findings before they said what they had read, kept them all the same.
    del kept["read"]
    (out / "attacks.json").write_text(json.dumps({"findings": [kept]}))
    assert main(["show", str(out)]) == 0
    assert "1 of 10 attacks tried" in " ".join(capsys.readouterr().out.split())


def test_a_page_names_attacks_that_were_not_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    train = ["attack", "--dataset", SMALL, "--method", "fedavg", "--clients", "3", "--set", "rounds=2", "-q"]
    assert main([*train, "--attack", "membership,rows", "--view", "server", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["table", str(out), "--what", "attacks"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "not tried" in told and "membership" in told
    left = [name for name in trials.ATTACKS if name != "membership"]
    assert all(name in told for name in left)


def test_of_secure_sums_the_mean_is_attacked_and_nothing_of_one_owner(tmp_path: Path) -> None:
    """A server that is shown sums has the model of all owners together: that is not safe, and not called untried."""
    values, how = ["rounds=3", "model.hidden=8"], suture.Options(record=True, engine="sealed")
    suture.run(SMALL, "fedavg", clients=3, overrides=values, out=tmp_path / "run", options=how)
    scene = Scene.read(tmp_path / "run")
    every = [updates(ears, scene) for ears in scene.heard("server").values()]
    first, second = every[0]
    handed = scene.recorded
    down = [frame for frame in handed.frames() if (frame.step, frame.direction) == ("local_update", "down")]
    asks = sorted({frame.ask for frame in down})
    following = next(handed.read(frame) for frame in down if frame.ask == asks[1])
    assert all(torch.equal(first.after[name], value) for name, value in following.params.items())
    assert all(torch.equal(first.after[name], other[0].after[name]) for other in every for name in first.after)
    assert all(torch.equal(second.before[name], first.after[name]) for name in first.after)
    (found,) = trials.carry_out(scene, trials.chosen(["membership"], ["server"]), 60)
    assert found.measured is not None

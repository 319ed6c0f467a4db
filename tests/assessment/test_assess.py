"""An assessment says what the data were made to say: where federation helps, where it harms, and what it could not try."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import suture
from suture.assessment.assess import read_assessment
from suture.errors import ConfigError, DataError, IntegrityError
from suture.report.assessment import assessment_report, next_step
from suture.report.console import results
from suture.runs.plan import plan

FEATURES = 16
QUICK: dict[str, Any] = {"hidden": 16, "dropout": 0.0, "rounds": 30}


def consortium(
    owners: int = 6, nodes: int = 160, train: int = 6, flip: bool = False, graphless: bool = False, seed: int = 0
) -> Data:
    """Owners whose labels follow from the features in one way, or with `flip` in opposite ways; few nodes train."""
    rng = np.random.default_rng(seed)
    total = owners * nodes
    client = np.repeat(np.arange(owners), nodes)
    x = rng.normal(0, 1, (total, FEATURES))
    direction = rng.normal(0, 1, FEATURES)
    y = (x @ direction + rng.normal(0, 0.5, total) > 0).astype(np.int64)
    if flip:
        y = np.where(client % 2 == 0, y, 1 - y)
    source = rng.integers(0, total, 2 * total)
    target = client[source] * nodes + rng.integers(0, nodes, 2 * total)
    alike = (y[source] == y[target]) & (source != target)
    if graphless:
        alike &= client[source] != owners - 1
    pairs = np.unique(np.sort(np.stack([source, target])[:, alike], axis=0), axis=1)
    place = np.arange(total) % nodes
    masks = {
        "train_mask": place < train,
        "val_mask": (place >= train) & (place < train + 60),
        "test_mask": place >= train + 60,
    }
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=torch.from_numpy(np.concatenate([pairs, pairs[::-1]], axis=1).copy()),
        y=torch.from_numpy(y),
        client=torch.from_numpy(client),
        owners=[f"owner-{letter}" for letter in "abcdefgh"[:owners]],
        **{name: torch.from_numpy(mask) for name, mask in masks.items()},
    )


def test_where_labels_are_few_and_alike_it_says_federate(tmp_path: Path) -> None:
    found = suture.assess(consortium(), minutes=10, methods=["fedper"], seeds=[0, 1, 2], out=tmp_path / "a", **QUICK)
    assert found.verdict == "federate" and found.chosen == "fedavg"
    told = found.of("fedavg").gain
    assert told is not None and told.is_sure and told.mean > 0.05
    assert told.mean == pytest.approx(found.of("fedavg").mean - found.of("local").mean)
    assert found.recommendation[0].startswith(f"Federate with fedavg: +{100 * told.mean:.1f} ±")
    assert "better in 3 of 3 seeds" in found.text
    assert "weights" in found.of("fedavg").left and "weights" not in found.of("local").left
    assert found.of("fedavg").bytes_per_owner > 100 * 30 > found.of("local").bytes_per_owner / 10
    assert next_step(found, "--data g") == "next: suture run --data g --method fedavg"
    # The folder alone says the same again.
    again = read_assessment(tmp_path / "a")
    assert again is not None and again.as_json() == found.as_json()
    json.dumps(found.as_json(), allow_nan=True)


def test_where_owners_mean_opposite_things_it_says_alone() -> None:
    found = suture.assess(consortium(owners=4, train=60, flip=True), minutes=10, seeds=[0, 1, 2], **QUICK)
    assert found.facts.agreement is not None and found.facts.agreement < 0 < 0.3 < (found.facts.agreement_within or 0)
    assert "fedpub" in {candidate.name for candidate in found.known.tried}
    worse = found.of("fedavg").gain
    assert worse is not None and worse.is_loss and worse.mean < -0.2
    assert found.verdict == "alone"
    assert next_step(found, "--data g") == "next: suture run --data g --method local"
    assert found.folder is None


def test_every_owner_is_told_what_it_gains() -> None:
    data = consortium(owners=3, train=40)
    # The last owner alone has nothing in common with the others.
    last = data.client == 2
    data.y[last] = 1 - data.y[last]
    found = suture.assess(data, minutes=10, methods=[], seeds=[0, 1], **QUICK)
    gains = found.of("fedavg").owner_gains
    assert set(gains) == {"owner-a", "owner-b", "owner-c"}
    assert gains["owner-c"].mean < -0.3 < gains["owner-a"].mean
    assert "Owner" in found.text and "owner-c" in found.text
    test_accuracy = [found.of("fedavg").owners[name] for name in gains]
    assert np.mean(test_accuracy) == pytest.approx(found.of("fedavg").mean, abs=1e-6)


def test_an_owner_without_edges_brings_its_methods() -> None:
    found = suture.assess(consortium(owners=3, graphless=True), minutes=10, seeds=[0, 1], **(QUICK | {"rounds": 3}))
    assert found.facts.graphless == ("owner-c",)
    assert {"fedgls", "fed_mlp"} <= {one.method for one in found.methods}
    assert any("owner-c" in line for line in found.known.facts.graphless)


def test_the_report_fits_a_narrow_screen(capsys: pytest.CaptureFixture[str]) -> None:
    found = suture.assess(consortium(owners=3), minutes=10, methods=[], seeds=[0, 1], **(QUICK | {"rounds": 3}))
    screen = results()
    screen.width = 80
    screen.print(assessment_report(found))
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    for part in ("Recommendation", "What would leave each owner", "What this does not say", "gain over", "owner-a"):
        assert part in said


def test_time_that_is_short_means_fewer_rounds_and_seeds_and_it_is_said() -> None:
    found = suture.assess(consortium(owners=3), minutes=1e-6, hidden=8)
    assert found.seeds == (0, 1, 2)
    assert {one.method for one in found.methods} == {"local", "fedavg"}
    assert found.known.rounds == plan("in-memory", ["local"]).protocol.training.rounds // 2
    assert all(outcome.rounds <= found.known.rounds for outcome in found.comparison.outcomes)
    assert any("not tried: global" in line for line in found.known.reduced)
    assert any("For want of time" in line for line in found.limits)


def test_what_the_user_asks_for_is_not_reduced() -> None:
    found = suture.assess(consortium(owners=3), minutes=1e-6, methods=["fedper"], seeds=[4, 5], hidden=8, rounds=6)
    assert found.seeds == (4, 5) and found.known.rounds == 6
    assert [one.method for one in found.methods] == ["local", "fedavg", "fedper"]


def test_numbers_are_judged_by_their_error() -> None:
    data = consortium(owners=3, train=40)
    data.y, data.task = data.x[:, :1] * 3 + 1, "regression"
    found = suture.assess(data, minutes=10, seeds=[0, 1], **QUICK)
    assert (found.facts.kind, found.metric.name) == ("value", "mae")
    told, alone = found.of("fedavg"), found.of("local")
    assert told.gain is not None and told.gain.mean == pytest.approx(alone.mean - told.mean)
    worst = told.worst(found.metric)
    assert worst is not None and worst[1] == max(told.owners.values())


class TestMistakes:
    def test_one_owner(self) -> None:
        data = consortium(owners=2)
        data.client = torch.zeros_like(data.client)
        with pytest.raises(DataError, match="one owner, owner-a"):
            suture.assess(data, **QUICK)

    def test_no_time(self) -> None:
        with pytest.raises(ConfigError, match="minutes must be above 0, got -1"):
            suture.assess(consortium(owners=2), minutes=-1)

    def test_links(self) -> None:
        with pytest.raises(ConfigError, match="predicts links"):
            suture.assess(consortium(owners=2), protocol="fedpub-link")

    def test_unknown_method(self) -> None:
        with pytest.raises(ConfigError, match="unknown method 'fedpbu'"):
            suture.assess(consortium(owners=2), methods=["fedpbu"])

    def test_a_damaged_folder(self, tmp_path: Path) -> None:
        out = tmp_path / "a"
        suture.assess(consortium(owners=2), minutes=10, methods=[], seeds=[0], out=out, hidden=8, rounds=2)
        (out / "assess.json").write_text('{"dataset": "x"}')
        with pytest.raises(IntegrityError, match=r"assess\.json is not complete"):
            read_assessment(out)

    def test_a_folder_that_is_used(self, tmp_path: Path) -> None:
        out = tmp_path / "a"
        suture.assess(consortium(owners=2), minutes=10, methods=[], seeds=[0], out=out, hidden=8, rounds=2)
        with pytest.raises(ConfigError, match="holds a run already"):
            suture.assess(consortium(owners=2), minutes=10, methods=[], seeds=[0], out=out, hidden=8, rounds=2)

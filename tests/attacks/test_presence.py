"""Whether a node is an owner's, from FedDEP's prototypes: who hears which of them, and what nearness to them is worth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import suture
from suture.attacks import trials
from suture.attacks.judging import auc
from suture.attacks.presence import nearness, told_means, traced
from suture.attacks.scenes import Scene
from suture.methods.feddep.prototypes import without_excess


def recorded(out: Path, dataset: str, clients: int, *values: str, data_root: Path | None = None) -> Path:
    """FedDEP on a random cut, one round, so that it is only the prototypes that count."""
    suture.run(
        dataset,
        "feddep",
        protocol="fedsage-louvain",
        clients=clients,
        seed=0,
        overrides=["rounds=1", "partition.kind=random", "feddep.generator_epochs=1", *values],
        out=out,
        options=suture.Options(data_root=data_root, record=True),
    )
    return out


def test_owners_hear_the_same_means_as_the_server(tmp_path: Path) -> None:
    """Means are passed on in the order of names, without the receiver's own: each must be laid to the right owner."""
    small = ("feddep.d_z=8", "feddep.clusters=3", "feddep.pretrain_epochs=1", "model.hidden=8")
    scene = Scene.read(recorded(tmp_path / "run", "csbm:nodes=240,features=40,degree=3", 4, *small))
    at_server = told_means(next(iter(scene.heard("server").values())), scene.graph.ids)
    assert set(at_server) == set(scene.graph.ids)
    for view in ("owner", "others"):
        for ears in scene.heard(view).values():
            heard = told_means(ears, scene.graph.ids)
            assert set(heard) == set(at_server)
            assert all(torch.equal(heard[name], at_server[name]) for name in heard)


def test_a_node_is_nearest_to_a_mean_that_it_is() -> None:
    rows = torch.eye(6)
    score = nearness(rows, {"a": rows[:2], "b": rows[2:4], "c": rows[4:]}, "b")
    assert score.argsort()[-2:].tolist() in ([2, 3], [3, 2])
    assert score[2] == pytest.approx(2**0.5) and (score[[0, 1, 4, 5]] < 0).all()


def test_noise_in_other_directions_does_not_hide_a_node() -> None:
    """Of a mean of two rows with noise in a hundred directions the distance says nothing, the node's own direction does."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.rand(300, 100, generator=rng), dim=1)
    means = {name: rows[100 * k : 100 * k + 20].view(10, 2, 100).mean(1) for k, name in enumerate("abc")}
    noised = {name: value + 0.05 * torch.randn(value.shape, generator=rng) for name, value in means.items()}
    inside = torch.arange(300) < 20
    by_distance, by_direction = (auc(score(rows, noised, "a"), inside.numpy()) for score in (nearness, traced))
    assert by_direction > max(0.7, by_distance)
    assert auc(traced(rows, {name: torch.randn(10, 100, generator=rng) for name in "abc"}, "a"), inside.numpy()) < 0.65


@pytest.mark.slow
def test_prototypes_as_published_tell_who_has_a_node(tmp_path: Path, data_root: Path) -> None:
    """Ten owners of a random cut of Cora, where nothing but messages tells whose a node is."""
    run = recorded(tmp_path / "run", "cora", 10, "feddep.as_published=true", data_root=data_root)
    pairs = trials.chosen(["presence"], None)
    for found in trials.carry_out(Scene.read(run, data_root), pairs, 3600):
        assert found.succeeds, (found.view, found.measured, found.why_not)
    for found in trials.carry_out(Scene.read(run, data_root, noise=True), pairs, 3600):
        assert not found.succeeds, (found.view, found.measured)


def test_owners_hear_prototypes_no_longer_than_means_can_be() -> None:
    """What noise adds to a length is taken off by those who hear it; a mean without noise stays as it is."""
    centres = torch.tensor([[[[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]]])
    assert torch.allclose(without_excess(centres), torch.tensor([[[[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]]]))

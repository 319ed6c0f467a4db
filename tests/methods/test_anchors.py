"""FedGGR with anchors: placed as k-means places them, by sums alone, and heard by nodes that nobody has seen before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import World, small, small_world
from torch import Tensor

from suture.core.kernels import Segments
from suture.core.tree import Tree
from suture.engines.embedded import EmbeddedCohort
from suture.methods.fedggr.anchored import ANCHORS, ENCODER
from suture.methods.fedggr.anchors import (
    CENTRE,
    MASS,
    PLACES,
    SCALE,
    AnchorBranch,
    drawn_anchors,
    moved_anchors,
    near_sums,
    unplaced,
)
from suture.methods.fedggr.method import FedGgr

WIDTH, COUNT = 3, 4
SEGMENTS = Segments(torch.tensor([0, 40, 55, 55, 70]))
"""Four clients, one of them without nodes."""


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def codes() -> Tensor:
    return torch.randn(70, WIDTH, generator=torch.Generator().manual_seed(3)) * torch.tensor([3.0, 1.0, 0.2]) + 5


def everybodys(anchors: Tree) -> Tree:
    return {name: value.expand(4, *value.shape[1:]) for name, value in anchors.items()}


def over_all(sums: Tensor) -> Tensor:
    return sums.sum(0)


def placed(times: int, smallest: int = 1) -> tuple[Tree, np.ndarray]:
    """Anchors after some rounds, and the same by k-means over everybody's codes in NumPy."""
    x, before = codes(), unplaced(COUNT, WIDTH)
    sums, counts, squares = near_sums(x, everybodys(before), SEGMENTS, smallest)
    told = counts.sum()
    anchors = drawn_anchors(before, over_all(sums)[0] / told, over_all(squares) / told, seed=1)
    for _ in range(times):
        sums, counts, _ = near_sums(x, everybodys(anchors), SEGMENTS, smallest)
        anchors = moved_anchors(anchors, over_all(sums) / told, over_all(counts) / told)
    points = x.numpy().astype(np.float64)
    points = (points - points.mean(0)) / np.sqrt(points.var(0).mean())
    centres = drawn_anchors(before, x.mean(0), x.square().mean(0), seed=1)[PLACES][0].numpy().astype(np.float64)
    for _ in range(times):
        nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
        centres = np.stack([points[nearest == a].mean(0) if (nearest == a).any() else centres[a] for a in range(COUNT)])
    return anchors, centres


@pytest.mark.parametrize("times", [0, 1, 5])
def test_anchors_move_as_in_k_means_over_everybody(times: int) -> None:
    anchors, centres = placed(times)
    np.testing.assert_allclose(anchors[PLACES][0].numpy(), centres, atol=1e-4)
    np.testing.assert_allclose(anchors[CENTRE].flatten().numpy(), codes().mean(0).numpy(), rtol=1e-4)


def test_a_client_is_silent_of_anchors_with_few_of_its_nodes() -> None:
    anchors, _ = placed(2)
    all_sums, all_counts, _ = near_sums(codes(), everybodys(anchors), SEGMENTS, 1)
    sums, counts, squares = near_sums(codes(), everybodys(anchors), SEGMENTS, 6)
    assert bool(((all_counts > 0) & (all_counts < 6)).any()), "there are some"
    assert torch.equal(counts, torch.where(all_counts >= 6, all_counts, 0))
    torch.testing.assert_close(sums, torch.where((all_counts >= 6).unsqueeze(2), all_sums, 0))
    assert float(counts[2].sum() + sums[2].abs().sum() + squares[2].sum()) == 0
    assert squares.sum() < near_sums(codes(), everybodys(anchors), SEGMENTS, 1)[2].sum()


def test_a_node_hears_the_mean_of_the_anchors_near_it() -> None:
    anchors, _ = placed(3)
    anchors[MASS] = torch.tensor([[0.5, 0.0, 0.3, 0.2]])
    heard = AnchorBranch(WIDTH, 2, 0.0, 0.0).heard(codes(), everybodys(anchors), SEGMENTS).numpy()
    points = (codes() - anchors[CENTRE][0]).div(anchors[SCALE][0]).numpy()
    places = anchors[PLACES][0].numpy()
    for node in range(70):
        cosine = places @ points[node] / np.linalg.norm(places, axis=1) / np.linalg.norm(points[node])
        cosine[1] = 0  # nobody is nearest to it
        first, second = np.argsort(-cosine)[:2]
        weight = np.clip(cosine[[first, second]], 0, None)
        expected = weight @ places[[first, second]] / max(weight.sum(), 1e-12)
        np.testing.assert_allclose(heard[node], expected, atol=1e-4)


def test_nodes_that_came_later_hear_anchors_too(world: World) -> None:
    """The model holds all that an embedding needs: predicting does not depend on who was there in training."""
    method = small(FedGgr, codes="anchors", anchors=7, code_width=6, near=3, anchor_rounds=3, smallest=2)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    deployed = method.deploy(server, cohort.ids)
    model = cohort.retain(deployed, cohort.ids)
    assert model is not None
    kept = torch.arange(0, world.clients.num_nodes, 2)
    fewer = world.clients.induced(kept)
    out = method.predict(fewer, model, world.task)
    assert out.shape[0] == kept.numel() and bool(out.isfinite().all())
    unheard = {name: torch.zeros_like(value) if name == ANCHORS + PLACES else value for name, value in model.params.items()}
    without = method.predict(fewer, replace(model, params=unheard), world.task)
    assert float((out - without).abs().max()) > 1e-6, "anchors are heard"
    assert {name for name in model.params if name.startswith(ENCODER)}

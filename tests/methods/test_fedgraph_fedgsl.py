"""FedGraph and FedGSL: what is left of FedGNN when their own part is switched off, and that part by hand."""

from __future__ import annotations

import math

import pytest
import torch
from harness import World, run_to_end, small, small_world

from suture.core.message import Message
from suture.engines.embedded import EmbeddedCohort
from suture.methods.averaging import SERVER
from suture.methods.fedgnn import FedGnn
from suture.methods.fedgraph import FedGraph, Sampling
from suture.methods.fedgsl import FedGsl


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def test_fedgraph_with_a_single_size_is_fedgnn(world: World) -> None:
    mine = run_to_end(small(FedGraph, sizes=(3,)), world.clients, world.task)
    theirs = run_to_end(small(FedGnn, neighbours=3), world.clients, world.task)
    for path, tensor in theirs.server.tensors().items():
        torch.testing.assert_close(mine.server.tensors()[path], tensor, rtol=0, atol=0)


def _server(chosen: list[float], reward: list[float], loss: float = 1.0) -> Sampling:
    return Sampling(SERVER, {}, 5, torch.tensor([chosen]), torch.tensor([reward]), torch.tensor([loss]))


def test_ucb_by_hand() -> None:
    method = FedGraph(sizes=(1, 3, 5), exploration=0.5)
    assert method.choice(_server([1, 0, 1], [9.0, 0.0, 9.0])) == 1  # never tried
    chosen, reward = [6.0, 2.0, 1.0], [1.2, 0.6, 0.0]
    bounds = [g / n + 0.5 * math.sqrt(2 * math.log(9) / n) for n, g in zip(chosen, reward, strict=True)]
    assert method.choice(_server(chosen, reward)) == bounds.index(max(bounds)) == 2
    assert FedGraph(sizes=(1, 3, 5), exploration=0.0).choice(_server(chosen, reward)) == 1


def test_fedgraph_rewards_the_drop_of_the_loss(world: World) -> None:
    method = small(FedGraph, sizes=(1, 4))
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    first = method.round(method.init_server(world.task), cohort)  # type: ignore[attr-defined]
    second = method.round(first, cohort)  # type: ignore[attr-defined]
    assert (first.chosen.tolist(), second.chosen.tolist()) == ([[1.0, 0.0]], [[1.0, 1.0]])
    assert first.reward.tolist() == [[0.0, 0.0]]
    expected = float((first.loss - second.loss) / first.loss)
    assert second.reward.tolist()[0] == pytest.approx([0.0, expected])
    assert expected != 0


class Sent:
    """A ledger that keeps what clients send and receive of embeddings."""

    def __init__(self) -> None:
        self.revealed: list[torch.Tensor] = []
        self.found: list[torch.Tensor] = []

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        if (step, direction) == ("reveal", "up"):
            self.revealed.append(message.tensors()["rows.values"])
        if (step, direction) == ("expand", "down"):
            self.found.append(message.tensors()["mean.values"])


def test_fedgsl_perturbs_rows_of_length_one(world: World) -> None:
    clean, noisy = Sent(), Sent()
    run_to_end(small(FedGsl, noise=0.0), world.clients, world.task, ledger=clean)
    run_to_end(small(FedGsl, noise=0.3), world.clients, world.task, ledger=noisy)
    length = clean.revealed[0].norm(dim=1)
    torch.testing.assert_close(length[length > 0], torch.ones(int((length > 0).sum())))
    difference = noisy.revealed[0] - clean.revealed[0]
    assert float(difference.std()) == pytest.approx(0.3, rel=0.1)
    assert abs(float(difference.mean())) < 0.05
    # Anew in every round: the same noise twice would average out of nothing.
    assert not torch.equal(noisy.revealed[1] - noisy.revealed[0], clean.revealed[1] - clean.revealed[0])


def test_fedgsl_puts_neighbours_at_the_scale_of_the_client(world: World) -> None:
    method, sent = small(FedGsl, noise=0.0), Sent()
    cohort = EmbeddedCohort.start(method, world.clients, world.task, ledger=sent)
    server = method.init_server(world.task)
    method.round(server, cohort)  # type: ignore[attr-defined]
    (state,) = cohort.states()
    hidden = method.backbone(world.task).hidden(server.params, world.clients)  # type: ignore[attr-defined]
    for k in range(4):
        own = world.clients.segments.client == k
        scale = hidden[own].norm(dim=1).mean()
        torch.testing.assert_close(state.scale[k], scale)
        torch.testing.assert_close(state.mean.values[own], sent.found[0][own] * scale)
    assert float(state.count.values.sum()) > 0


def test_no_similar_node_leaves_fedavg(world: World) -> None:
    """With a threshold that nothing reaches both are FedGNN without neighbours, whose own test says that is FedAvg."""
    expected = run_to_end(small(FedGnn, threshold=2.0), world.clients, world.task).server.tensors()
    for kind in (FedGraph, FedGsl):
        mine = run_to_end(small(kind, threshold=2.0), world.clients, world.task).server.tensors()
        torch.testing.assert_close(mine["params.layer1.weight"], expected["params.layer1.weight"], rtol=0, atol=0)


def test_sigma_trains_with_noise(world: World) -> None:
    """FedGNN with DP noise: sigma is training.dp_sigma, which its own tests hold against the definition."""
    by_field = run_to_end(small(FedGnn, sigma=0.5), world.clients, world.task).server.tensors()
    by_training = run_to_end(small(FedGnn, training={"dp_sigma": 0.5}), world.clients, world.task).server.tensors()
    plain = run_to_end(small(FedGnn), world.clients, world.task).server.tensors()
    torch.testing.assert_close(by_field["params.layer1.weight"], by_training["params.layer1.weight"], rtol=0, atol=0)
    assert not torch.allclose(by_field["params.layer1.weight"], plain["params.layer1.weight"])

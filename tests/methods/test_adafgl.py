"""AdaFGL: the reduction to FedAvg, and its lines with whole matrices of pairs of nodes, as the paper writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import array, piece, softmax
from harness import beginning, run_to_end, small, small_world
from numpy.testing import assert_allclose
from torch import Tensor

from suture.core.message import Record
from suture.core.streams import Streams
from suture.errors import ConfigError
from suture.methods.adafgl import AdaFgl, Knowledge, homophily, with_messages
from suture.methods.fedavg import FedAvg
from suture.training.batches import batches

WORLD = small_world()
GRAPH = WORLD.clients


def drawn(width: int, seed: int) -> Tensor:
    return torch.randn(GRAPH.num_nodes, width, generator=torch.Generator().manual_seed(seed))


def rows_of(k: int) -> slice:
    return slice(GRAPH.segments.bounds[k], GRAPH.segments.bounds[k + 1])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def spreading(adjacency: np.ndarray) -> np.ndarray:
    looped = adjacency + np.eye(len(adjacency))
    return looped / np.sqrt(np.outer(looped.sum(1), looped.sum(1)))


def propagation(adjacency: np.ndarray, shares: np.ndarray, alpha: float) -> np.ndarray:
    """Line 1, with every pair of nodes."""
    alike = unit(shares) @ unit(shares).T
    np.fill_diagonal(alike, 0)
    return alpha * spreading(adjacency) + (1 - alpha) * alike / np.sqrt(np.outer(alike.sum(1), alike.sum(1)))


def messages(h: np.ndarray) -> np.ndarray:
    """H' of line 4, with every pair of nodes."""
    s = unit(softmax(h))
    pairs = s @ s.T
    pairs = pairs - pairs.mean()
    return h + (np.maximum(pairs, 0) @ h - np.maximum(-pairs, 0) @ h) / len(h)


def perceptrons(name: str, own: Mapping[str, np.ndarray], operator: np.ndarray, hops: int) -> dict[str, np.ndarray]:
    """What a client's four say before softmax, by lines 2 to 4."""
    x = piece(name)[0]
    smoothed = np.concatenate([np.linalg.matrix_power(operator, j) @ x for j in range(hops + 1)], 1)
    weight = np.concatenate([own[f"hop{j}"] for j in range(hops + 1)], 0)
    hidden = np.maximum(smoothed @ weight + own["hop.bias"], 0)
    parts = np.split(hidden, 3, axis=1)
    said = {
        part: h @ own[f"{part}2.weight"] + own[f"{part}2.bias"]
        for part, h in zip(("same", "smooth", "heard"), parts, strict=True)
    }
    alone = np.maximum(x @ own["alone1.weight"] + own["alone1.bias"], 0)
    return said | {"heard": messages(said["heard"]), "alone": alone @ own["alone2.weight"] + own["alone2.bias"]}


def own_of(state: Record) -> dict[str, np.ndarray]:
    names = [path.removeprefix("own.") for path in state.tensors() if path.startswith("own.")]
    return {name: array(state, f"own.{name}")[0] for name in names}


def test_without_step_two_it_is_fedavg() -> None:
    mine = run_to_end(small(AdaFgl, adapt_epochs=0), GRAPH, WORLD.task)
    theirs = run_to_end(small(FedAvg), GRAPH, WORLD.task)
    for name, value in theirs.server.tensors().items():
        assert torch.equal(mine.server.tensors()[name], value)
    assert torch.equal(mine.scores.value, theirs.scores.value)


def test_step_one_is_fedavg_whatever_follows() -> None:
    mine = run_to_end(small(AdaFgl, adapt_epochs=3), GRAPH, WORLD.task)
    theirs = run_to_end(small(FedAvg), GRAPH, WORLD.task)
    for name, value in theirs.server.params.items():
        assert torch.equal(mine.server.params[name], value)
        for state in mine.states:
            assert torch.equal(state.params[name], value), "clients keep the last mean"


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_propagation_pair_by_pair(alpha: float) -> None:
    shares, h = drawn(3, 0).softmax(1), drawn(5, 1)
    got = Knowledge.of(GRAPH, shares, alpha).propagated(h)
    for k, name in enumerate(GRAPH.ids):
        operator = propagation(piece(name)[3], shares[rows_of(k)].double().numpy(), alpha)
        assert_allclose(got[rows_of(k)].numpy(), operator @ h[rows_of(k)].double().numpy(), atol=1e-5)


def test_messages_pair_by_pair() -> None:
    h = 2 * drawn(3, 2)
    got = with_messages(h, GRAPH.segments)
    for k in range(len(GRAPH.ids)):
        assert_allclose(got[rows_of(k)].numpy(), messages(h[rows_of(k)].double().numpy()), atol=1e-5)


def test_confidence_is_what_half_of_the_labels_tell_of_the_other() -> None:
    rng = Streams.of(0, GRAPH.ids, "half")
    got = homophily(GRAPH, 3, 0.4, 6, rng)
    shuffled = GRAPH.train.nodes[rng.shuffle(GRAPH.train.segments.ptr)]
    for k, name in enumerate(GRAPH.ids):
        mine = [int(v) - rows_of(k).start for v in shuffled if int(GRAPH.segments.client[v]) == k]
        first, held = mine[: (len(mine) + 1) // 2], mine[(len(mine) + 1) // 2 :]
        _, labels, _, adjacency = piece(name)
        start = np.full((len(labels), 3), 1 / 3)
        start[first] = np.eye(3)[labels[first]]
        now = start
        for _ in range(6):
            now = 0.4 * start + 0.6 * spreading(adjacency) @ now
        ahead = now[held, labels[held]] - np.where(np.eye(3)[labels[held]], -1, now[held]).max(1)
        assert float(got[k]) == pytest.approx(np.mean(ahead > 1e-6))
    assert homophily(WORLD.without_edges(*GRAPH.ids).clients, 3, 0.4, 6, rng).tolist() == [0.0] * len(GRAPH.ids)


def test_what_is_predicted_by_hand() -> None:
    method = small(AdaFgl, adapt_epochs=4, hops=2, alpha=0.3)
    end = run_to_end(method, GRAPH, WORLD.task)
    for state in end.states:
        name = state.ids[0]
        one = GRAPH.select([name])
        with torch.no_grad():
            knows = method.backbone(WORLD.task).logits(state.params, one)
        shares = softmax(knows.double().numpy())
        said = perceptrons(name, own_of(state), propagation(piece(name)[3], shares, 0.3), 2)
        said = {part: softmax(out) for part, out in said.items()}
        same, other = (shares + said["same"]) / 2, (said["alone"] + said["smooth"] + said["heard"]) / 3
        h = float(state.confidence[0])
        assert 0 <= h <= 1
        clients = beginning(method, one, WORLD.task)
        clients = type(clients)(one, state, clients.rng, WORLD.task)
        with torch.no_grad():
            got = method.predict(one, method.assemble(clients, method.deploy(end.server, [name])), WORLD.task)
        assert_allclose(got.exp().numpy(), h * same + (1 - h) * other, atol=1e-4)


def test_the_losses_by_hand() -> None:
    method: Any = small(AdaFgl, hops=1, alpha=0.6, preserve=2.0, model={"dropout": 0.0})
    clients = beginning(method, GRAPH, WORLD.task)
    shares = drawn(3, 3).softmax(1)
    (batch,) = batches(GRAPH, method.training, Streams.of(0, GRAPH.ids, "test"))
    terms = method.adapting_terms(clients.state.own, batch, Knowledge.of(GRAPH, shares, 0.6))
    for k, name in enumerate(GRAPH.ids):
        mine = shares[rows_of(k)].double().numpy()
        _, labels, rows, adjacency = piece(name)
        own = {part: value[k].double().numpy() for part, value in clients.state.own.items()}
        said = {part: softmax(out) for part, out in perceptrons(name, own, propagation(adjacency, mine, 0.6), 1).items()}
        for part, likely in said.items():
            assert float(terms[part][k]) == pytest.approx(-np.log(likely[rows, labels[rows]]).mean(), rel=1e-4)
        assert float(terms["preserve"][k]) == pytest.approx(2 * np.square(said["same"] - mine).sum(1).mean(), rel=1e-4)


def test_owners_without_training_nodes_keep_the_extractor() -> None:
    method = small(AdaFgl, adapt_epochs=3)
    role = torch.where((GRAPH.segments.client == 0) & (GRAPH.role == 1), 2, GRAPH.role).to(GRAPH.role.dtype)
    untaught = type(GRAPH)(**{**vars_of(GRAPH), "role": role})
    end = run_to_end(method, untaught, WORLD.task)
    assert float(end.states[0].confidence[0]) == -1
    one = untaught.select([GRAPH.ids[0]])
    clients = type(beginning(method, one, WORLD.task))(one, end.states[0], Streams.of(0, one.ids, "test"), WORLD.task)
    with torch.no_grad():
        model = method.assemble(clients, method.deploy(end.server, one.ids))
        torch.testing.assert_close(
            method.predict(one, model, WORLD.task), method.backbone(WORLD.task).logits(end.server.params, one)
        )


def vars_of(graph: Any) -> dict[str, Any]:
    return {name: getattr(graph, name) for name in graph.__dataclass_fields__}


def test_dp_sgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="adafgl adapts to its training labels without noise"):
        small(AdaFgl, training={"dp_sigma": 1.0})

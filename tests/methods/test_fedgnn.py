"""FedGNN: the reduction to FedAvg, matching against brute force, an expanded forward pass by hand, what travels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import World, assert_same, assert_separable, run_to_end, small, small_world
from torch import nn

from suture.core.message import Message, Rows
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError
from suture.methods import fedgnn
from suture.methods.fedavg import FedAvg
from suture.methods.fedgnn import Counted, Embeddings, Expanded, FedGnn
from suture.settings import ModelSettings, TrainingSettings


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _without_dropout(method: FedAvg) -> FedAvg:
    return replace(method, model=replace(method.model, dropout=0.0))


def test_without_matches_it_is_fedavg(world: World) -> None:
    """Dropout is off, because the additional questions move every client to other random numbers."""
    expanded = run_to_end(_without_dropout(small(FedGnn, threshold=1.1)), world.clients, world.task)
    plain = run_to_end(_without_dropout(small(FedAvg)), world.clients, world.task)
    for mine, theirs in zip(expanded.states, plain.states, strict=True):
        assert float(mine.tensors()["count.values"].abs().max()) == 0
        for path, tensor in theirs.tensors().items():
            assert torch.equal(mine.tensors()[path], tensor), path
    assert_same(replace(expanded, states=[], server=plain.server), replace(plain, states=[]), tolerance=0.0)
    for path, tensor in plain.server.tensors().items():
        assert torch.equal(expanded.server.tensors()[path], tensor)


def _match_by_hand(
    hidden: np.ndarray, owner: np.ndarray, threshold: float, neighbours: int
) -> tuple[np.ndarray, np.ndarray]:
    means, counts = np.zeros_like(hidden), np.zeros(len(hidden))
    for v in range(len(hidden)):
        found = []
        for u in range(len(hidden)):
            cosine = hidden[u] @ hidden[v] / (np.linalg.norm(hidden[u]) * np.linalg.norm(hidden[v]))
            if owner[u] != owner[v] and cosine > threshold:
                found.append((cosine, u))
        nearest = [u for _, u in sorted(found, reverse=True)[:neighbours]]
        counts[v] = len(nearest)
        means[v] = hidden[nearest].mean(0) if nearest else 0
    return means, counts


@pytest.mark.parametrize(("threshold", "neighbours"), [(0.5, 3), (0.9, 3), (-2.0, 1), (0.0, 99)])
def test_matching_against_brute_force(threshold: float, neighbours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = np.random.default_rng(1).normal(size=(30, 4))
    ptr = torch.tensor([0, 12, 13, 30])
    owner = np.repeat([0, 1, 2], [12, 1, 17])
    revealed = Embeddings(("b", "c", "a"), Rows(torch.from_numpy(hidden), ptr))
    method = FedGnn(threshold=threshold, neighbours=neighbours)
    means, counts = _match_by_hand(hidden, owner, threshold, neighbours)
    for at_a_time in (1 << 24, 70, 1):
        monkeypatch.setattr(fedgnn, "COSINES_AT_A_TIME", at_a_time)
        found = method.match(revealed, neighbours)
        assert found.ids == ("b", "c", "a")
        np.testing.assert_array_equal(found.count.values.numpy(), counts)
        np.testing.assert_allclose(found.mean.values.numpy(), means, atol=1e-12)
    if threshold == -2.0:
        assert counts.min() == 1


def test_an_expanded_forward_pass_by_hand(world: World) -> None:
    """Two GCN layers and a head in numpy; before the second layer h_v <- (h_v + n_v z_v) / (1 + n_v)."""
    method = _without_dropout(small(FedGnn))
    graph = world.clients.select(world.clients.ids[:1])
    cohort = EmbeddedCohort.start(method, graph, world.task)
    state = cohort.states()[0]
    assert isinstance(state, Expanded)
    rng = np.random.default_rng(0)
    count = rng.integers(0, 4, graph.num_nodes)
    foreign = rng.normal(size=(graph.num_nodes, 8)) * (count > 0)[:, None]
    known = replace(
        state,
        mean=Rows(torch.from_numpy(foreign).float(), graph.segments.ptr),
        count=Rows(torch.from_numpy(count).float(), graph.segments.ptr),
    )
    cohort.restore([known], 0)
    scores = cohort.evaluate(method.deploy(method.init_server(world.task), cohort.ids))

    w = {name: value[0].double().numpy() for name, value in method.initial_params(world.task).items()}
    adjacency = np.eye(graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    scale = adjacency.sum(1) ** -0.5
    a_hat = scale[:, None] * adjacency * scale
    h = np.maximum(a_hat @ graph.x.dense().double().numpy() @ w["layer1.weight"] + w["layer1.bias"], 0)
    h = (h + count[:, None] * foreign) / (1 + count[:, None])
    h = np.maximum(a_hat @ h @ w["layer2.weight"] + w["layer2.bias"], 0)
    logits = h @ w["head.weight"] + w["head.bias"]
    right = logits.argmax(1) == graph.y.numpy()
    for column, role in enumerate((1, 2, 3)):
        assert float(scores.value[0, column]) == pytest.approx(right[graph.role.numpy() == role].mean())
    train = graph.role.numpy() == 1
    picked = np.take_along_axis(logits, graph.y.numpy()[:, None], 1)[:, 0]
    loss = np.log(np.exp(logits).sum(1)) - picked
    assert float(scores.loss[0]) == pytest.approx(loss[train].mean(), rel=1e-5)


def test_clients_keep_what_they_were_told_until_the_next_exchange(world: World) -> None:
    method = small(FedGnn, interval=2)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server: Counted = method.init_server(world.task)
    seen = []
    for _ in range(4):
        server = method.round(server, cohort)
        seen.append(cohort.states()[0].mean.values.clone())
    assert float(seen[0].abs().max()) > 0
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert torch.equal(seen[2], seen[3])
    assert server.rounds == 4


def test_foreign_neighbours_stay_with_their_client_when_clients_come_and_go(world: World) -> None:
    method = small(FedGnn, training={"participation": 0.5}, interval=2)
    assert_separable(method, world)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    method.round(method.init_server(world.task), cohort)
    state = cohort.states()[0]
    told = [float(state.select([name]).count.values.sum()) > 0 for name in state.ids]
    assert sum(told) == 2


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "gprgnn", "mlp"])
def test_every_backbone_hears_foreign_neighbours(kind: str, world: World) -> None:
    model = ModelSettings(kind=kind, hidden=8, head=True, dropout=0.0)  # type: ignore[arg-type]
    training = TrainingSettings(rounds=1, lr=0.05, batch_size=7, fanouts=(2, 2) if kind == "sage" else ())
    ends = []
    for threshold in (0.0, 1.1):
        method = FedGnn(model=model, training=training, threshold=threshold)
        assert_separable(method, world)
        ends.append(run_to_end(method, world.clients, world.task).server.tensors()["params.layer1.bias"])
    assert not torch.allclose(ends[0], ends[1], atol=1e-4)


def test_operators_of_the_own_graph_are_derived_once(world: World) -> None:
    method = small(FedGnn)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    operator = world.clients.gcn_operator
    seen = cohort.peek(lambda clients: _look(method.seen(clients, training=True).gcn_operator is operator, clients.ids))
    assert seen.ids == world.clients.ids


def _look(same: bool, ids: tuple[str, ...]) -> Message:
    assert same
    return Embeddings(ids, Rows(torch.zeros(0, 1), torch.zeros(len(ids) + 1, dtype=torch.int64)))


def test_what_travels(world: World) -> None:
    sent: dict[tuple[str, str], set[str]] = {}

    class Listener:
        def record(self, number: int, step: str, direction: str, message: Message) -> None:
            sent.setdefault((step, direction), set()).update(message.tensors())
            for path, tensor in message.tensors().items():
                assert path.endswith(".ptr") or tensor.shape[0] == 4 or tensor.shape[1:] in ((8,), ())

    run_to_end(small(FedGnn), world.clients, world.task, ledger=Listener())
    assert sent["reveal", "up"] == {"rows.values", "rows.ptr"}
    assert sent["expand", "down"] == {"mean.values", "mean.ptr", "count.values", "count.ptr"}
    assert sent["expand", "up"] == set()
    assert sent["local_update", "down"] == sent["reveal", "down"]


def test_bad_settings_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="layers >= 2"):
        FedGnn(model=ModelSettings(layers=1))
    own = replace(world.task, module=lambda features, classes: nn.Linear(features, classes))
    with pytest.raises(ConfigError, match="built-in models"):
        small(FedGnn).init_server(own)

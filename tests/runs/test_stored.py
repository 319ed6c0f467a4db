"""Graphs on disk: what is trained and predicted from them is what would be in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from suture.core.message import Model
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError, DataError
from suture.graph.batch import GraphBatch
from suture.graph.stored import Source, StoredGraph, lay_out
from suture.runs import stored
from suture.runs.checkpoint import load_checkpoint, save_checkpoint
from suture.testing.world import World, small_world


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _written(folder: Path, graph: GraphBatch) -> tuple[StoredGraph, np.ndarray]:
    """The clients' graphs, their nodes in another order and with links between owners, laid out by owner again."""
    nodes, rng = graph.num_nodes, np.random.default_rng(0)
    number = rng.permutation(nodes)  # of the node at each place
    place = np.argsort(number)
    owner = graph.segments.client.numpy()
    ends = graph.edge_index.numpy()
    across = rng.integers(0, nodes, (2, 200))
    across = across[:, owner[across[0]] != owner[across[1]]]
    source, target = number[np.concatenate([ends, across], 1)]
    order = np.lexsort((source, target))
    rowptr = np.searchsorted(target[order], np.arange(nodes + 1))
    x, y, role = (part[torch.from_numpy(place)].numpy() for part in (graph.x.dense(), graph.y, graph.role))
    found = lay_out(folder, Source(x, rowptr, source[order], y, role), owner[place], graph.ids)
    return found, number


def test_a_stored_graph_is_the_graph(tmp_path: Path, world: World) -> None:
    graph = world.clients
    found, number = _written(tmp_path, graph)
    assert found.ids == graph.ids
    assert found.segments.bounds == graph.segments.bounds
    for name in graph.ids:
        one, other = found.select([name]), graph.select([name])
        # Inside an owner nodes lie by their numbers.
        k = graph.ids.index(name)
        mine = number[slice(*graph.segments.bounds[k : k + 2])]
        to = torch.from_numpy(np.argsort(mine))
        assert one.node_id.tolist() == sorted(mine.tolist())
        assert torch.equal(one.x.dense(), other.x.dense()[to])
        assert torch.equal(one.y, other.y[to]) and torch.equal(one.role, other.role[to])
        assert torch.equal(one.mean_operator.to_dense(), other.mean_operator.to_dense()[to][:, to])
    assert found.graphless.tolist() == graph.graphless.tolist()


def test_training_from_disk_is_training_in_memory(tmp_path: Path, world: World) -> None:
    graph, _ = _written(tmp_path, world.clients)
    result = stored.train(tmp_path, rounds=3, overrides=["fedsage.batch_size=16", "fedsage.fanout=3", "model.hidden=8"])
    pieces = [graph.select([name]) for name in graph.ids]
    ends = []
    for piece, first in zip(pieces, graph.segments.bounds, strict=False):
        matrix = piece.neighbours
        ends.append(torch.stack([matrix.col.long(), matrix.row]) + first)
    x = replace(graph.x, matrix=graph.x.matrix.clone())
    plain = GraphBatch(graph.ids, graph.segments, x, torch.cat(ends, 1), graph.y, graph.role, graph.node_id)
    cohort = EmbeddedCohort.start(result.method, plain, result.task, chunk_size=1)
    server = result.method.init_server(result.task)
    body = result.method.plan()[0].body
    for _ in range(3):
        server = body(server, cohort)
        cohort.evaluate(result.method.deploy(server, cohort.ids))
    best = max(result.history, key=lambda line: (line["validation"], -line["validation_loss"]))
    assert best["round"] <= 3
    last = result.history[-1]
    assert len(result.history) == 3 and 0 < last["validation"] <= 1
    if best["round"] == 3:
        for name, value in result.model.params.items():
            torch.testing.assert_close(value, server.params[name], rtol=1e-5, atol=1e-6)


def test_predictions_are_in_the_order_of_before(tmp_path: Path, world: World) -> None:
    graph, _ = _written(tmp_path, world.clients)
    result = stored.train(tmp_path, rounds=2, overrides=["fedsage.batch_size=16", "model.hidden=8"])
    said = np.load(stored.predict(tmp_path, result, tmp_path))
    assert said.shape == (graph.num_nodes,)
    one = graph.select([graph.ids[1]])
    with torch.no_grad():
        scores = result.method.predict(one, replace(result.model, ids=one.ids), result.task)
    assert said[one.node_id.numpy()].tolist() == scores.argmax(1).tolist()


def test_what_needs_whole_graphs_is_refused(tmp_path: Path, world: World) -> None:
    with pytest.raises(DataError, match="not a stored graph"):
        StoredGraph.open(tmp_path / "nowhere")
    graph, _ = _written(tmp_path, world.clients)
    with pytest.raises(ConfigError, match="whole graphs in memory"):
        stored.train(tmp_path, "fedavg", rounds=1)
    with pytest.raises(DataError, match="chunks of one"):
        graph.select([graph.ids[2], graph.ids[0]])


def test_a_checkpoint_takes_records_that_share_memory(tmp_path: Path) -> None:
    """Reported models may be rows of the server's table, in its memory."""
    table = torch.arange(12.0).view(4, 3)
    records = {"server": Model(("", "a", "b", "c"), {"w": table}), "best": Model(("a", "b"), {"w": table[1:3]})}
    save_checkpoint(tmp_path, {"asked": 1, "iteration": 1}, records)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.records["best"].as_record(Model).params["w"].tolist() == table[1:3].tolist()
    assert found.records["server"].as_record(Model).params["w"].tolist() == table.tolist()

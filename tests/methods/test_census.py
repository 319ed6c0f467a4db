"""The census against plain numpy over all nodes: the same sums whoever holds them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of
from suture.graph.scaling import Statistics, standardised
from suture.graph.target import Kind, Target
from suture.method import Task
from suture.methods.census import Census, Counted, statistics_of

NODES, CLASSES = 300, 3


def features(sparse: bool) -> torch.Tensor:
    """Columns: a flag; about a million with a deviation of one; tiny; constant; mostly zero."""
    rng = np.random.default_rng(1)
    columns = [
        rng.integers(0, 2, NODES),
        1e6 + rng.normal(0, 1, NODES),
        1e-4 * rng.random(NODES),
        np.full(NODES, 7.0),
        np.where(rng.random(NODES) < 0.1, rng.normal(5, 1, NODES), 0),
    ]
    x = torch.from_numpy(np.stack(columns, 1)).float()
    return x.to_sparse_csr() if sparse else x


def pieces(x: torch.Tensor, y: torch.Tensor) -> GraphBatch:
    owner = torch.arange(NODES) % 3
    members = [torch.nonzero(owner == k).squeeze(1) for k in range(3)]
    data = Data(x=x, edge_index=torch.stack([torch.arange(NODES - 3), torch.arange(3, NODES)]), y=y)
    roles = [(torch.arange(len(one)) % 4).to(torch.int8) for one in members]
    return batch_of(data, ["a", "b", "c"], members, roles, [False] * 3)


def counted(graph: GraphBatch, outputs: int, *, chunk: int = 0, through_bytes: bool = False) -> Counted:
    method, task = Census(), Task(graph.x.width, outputs, 0)
    cohort = EmbeddedCohort.start(method, graph, task, chunk_size=chunk, through_bytes=through_bytes)
    server = method.init_server(task)
    for phase in method.plan():
        server = phase.body(server, cohort)  # type: ignore[arg-type]
    return server


def found(x: torch.Tensor, y: torch.Tensor, kind: Kind = "class", outputs: int = CLASSES, **how: object) -> Statistics:
    graph = dataclasses.replace(pieces(x, y), target=Target(kind))
    return statistics_of(counted(graph, outputs, **how), None, kind, True)  # type: ignore[arg-type]


LABELS = torch.from_numpy(np.random.default_rng(2).integers(0, CLASSES, NODES))
TRAINS = torch.zeros(NODES, dtype=torch.bool)
for k in range(3):
    TRAINS[torch.arange(k, NODES, 3)[torch.arange(100) % 4 == 1]] = True


@pytest.mark.parametrize("sparse", [False, True])
def test_scales_are_those_of_all_nodes_together(sparse: bool) -> None:
    x = features(sparse=False).double().numpy()
    got = found(features(sparse), LABELS)
    shift, scale = np.array(got.shift), np.array(got.scale)
    np.testing.assert_allclose(shift[[0, 3, 4]], [0, 7, 0], atol=1e-9)
    np.testing.assert_allclose(shift[1:3], x[:, 1:3].mean(0), rtol=1e-9)
    np.testing.assert_allclose(scale[1:3], x[:, 1:3].std(0), rtol=1e-5)
    assert scale[0] == 1 and scale[3] == 1
    np.testing.assert_allclose(scale[4], np.sqrt((x[:, 4] ** 2).mean()), rtol=1e-6)
    assert got.classes == tuple(torch.bincount(LABELS[TRAINS], minlength=CLASSES).double().tolist())
    assert (got.nodes, got.trained) == (NODES, int(TRAINS.sum()))


@pytest.mark.parametrize("sparse", [False, True])
def test_features_on_the_scale(sparse: bool) -> None:
    got = found(features(sparse), LABELS)
    out = standardised(features(sparse), got)
    dense = out.to_dense() if sparse else out
    assert (out.layout == torch.sparse_csr) == sparse
    assert torch.allclose(dense[:, 1:3].mean(0), torch.zeros(2), atol=0.05)  # float32 around a million
    assert torch.allclose(dense[:, 2].std(correction=0), torch.tensor(1.0), atol=1e-4)
    assert torch.equal(dense[:, 0], features(False)[:, 0])
    assert bool((dense[features(False)[:, 4] == 0, 4] == 0).all())


def test_numbers_to_predict() -> None:
    y = torch.from_numpy(np.random.default_rng(3).normal(250, 40, (NODES, 2))).float()
    y[~TRAINS] = torch.nan
    got = found(features(False), y, "value", 2)
    np.testing.assert_allclose(got.target_shift, y[TRAINS].double().mean(0), rtol=1e-6)
    np.testing.assert_allclose(got.target_scale, y[TRAINS].double().std(0, correction=0), rtol=1e-5)
    assert got.classes == ()


@pytest.mark.parametrize("how", [{"chunk": 1}, {"through_bytes": True}, {"chunk": 2, "through_bytes": True}])
def test_the_same_one_client_at_a_time_and_through_bytes(how: dict[str, object]) -> None:
    together, apart = found(features(False), LABELS), found(features(False), LABELS, **how)
    for name, value in dataclasses.asdict(together).items():
        np.testing.assert_allclose(np.array(dataclasses.asdict(apart)[name]), np.array(value), rtol=1e-9)


def test_marked_columns_alone() -> None:
    graph = pieces(features(False), LABELS)
    got = statistics_of(counted(graph, CLASSES), [False, False, True, False, False], "class", True)
    assert [scale != 1 for scale in got.scale] == [False, False, True, False, False]


def test_edge_weights_have_their_mean() -> None:
    graph = pieces(features(False), LABELS)
    weight = torch.linspace(1, 9, graph.edge_index.shape[1])
    got = statistics_of(counted(dataclasses.replace(graph, edge_weight=weight), CLASSES), None, "class", False)
    assert got.edge_scale == pytest.approx(float(weight.double().mean())) and got.scale == ()


def test_statistics_survive_json() -> None:
    got = found(features(False), LABELS)
    assert Statistics.read(got.as_json()) == got

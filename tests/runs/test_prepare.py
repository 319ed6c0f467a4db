"""What a run lays out, and what it leaves until somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import suture
from suture.graph.batch import batch_of
from suture.runs.prepare import Prepared

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"


def prepared(method: str, *more: str) -> Prepared:
    overrides = ["rounds=1", "hidden=8", *more]
    return suture.run(GRAPH, method, clients=3, overrides=overrides).finished.prepared


@pytest.mark.parametrize(("method", "looks"), [("fedper", False), ("local", False), ("fedavg", True), ("global", True)])
def test_the_uncut_graph_is_made_for_those_who_look_at_it(method: str, looks: bool) -> None:
    made = prepared(method)
    assert ("uncut" in vars(made)) == looks
    assert "with_hidden_edges" not in vars(made)


def test_the_uncut_graph_shares_the_memory_of_the_graph() -> None:
    made = prepared("fedper", "preprocess.row_normalise=false")
    assert made.uncut.edge_index.data_ptr() == made.graph.edge_index.data_ptr()
    assert torch.equal(made.uncut.x.dense(), made.graph.x.to_dense())
    assert torch.equal(made.uncut.role, made.cut.split.roles)


def test_hidden_edges_are_those_of_clients_that_lost_theirs() -> None:
    made = prepared("local", "graphless_fraction=0.5")
    parts = made.cut.partition
    expected = batch_of(made.data, parts.ids, parts.members, made.cut.split.client_roles, [False] * 3)
    assert torch.equal(made.with_hidden_edges.edge_index, expected.edge_index)
    assert made.clients.edge_index.shape[1] < expected.edge_index.shape[1]
    assert made.with_hidden_edges.x is made.clients.x


@pytest.mark.parametrize("words", ["words_per_node=8", "words_per_node=30"])
def test_pieces_and_the_uncut_graph_are_on_one_scale(words: str) -> None:
    data = suture.run(GRAPH.replace("words_per_node=8", words), "local", clients=3, overrides=["rounds=1"]).data
    made = suture.run(data, "fedavg", protocol="own", overrides={"rounds": 1, "hidden": 8}).finished.prepared
    assert made.counts is not None and made.counts.statistics.scale
    index = torch.cat(list(made.cut.partition.members))
    assert torch.equal(made.clients.x.dense(), made.uncut.x.dense()[index])
    assert not torch.equal(made.uncut.x.dense(), data.x.to_dense())


def test_neighbours_in_a_batch_are_selected_where_they_are() -> None:
    clients = prepared("fedper").clients
    some = replace(clients, edge_weight=torch.rand(clients.edge_index.shape[1]))
    nearby, apart = some.select(some.ids[1:]), some.select(some.ids[:0:-1]).select(some.ids[1:])
    assert nearby.y.data_ptr() == some.y[some.segments.bounds[1] :].data_ptr()
    assert nearby.segments.bounds == apart.segments.bounds
    for name in ("edge_index", "edge_weight", "y", "role", "node_id"):
        assert torch.equal(getattr(nearby, name), getattr(apart, name)), name
    assert torch.equal(nearby.x.dense(), apart.x.dense())


@pytest.mark.parametrize(("name", "metric"), [("tolokers", "roc_auc"), ("chameleon_filtered", "accuracy")])
def test_a_graph_with_several_splits_is_run_by_its_papers_split_and_metric(
    dataset: Callable[[str], Data], data_root: Path, name: str, metric: str
) -> None:
    given = dataset(name)
    options = suture.Options(data_root=data_root)
    run = suture.run(name, "local", clients=2, seed=13, overrides=["rounds=1", "hidden=8"], options=options)
    made = run.finished.prepared
    assert (run.outcome.protocol, made.task.metric) == ("given-splits", metric)
    assert "of the 10 given splits, number 3 is used" in made.notes
    for code, mask in enumerate((given.train_mask, given.val_mask, given.test_mask), start=1):
        assert torch.equal(made.cut.split.roles == code, mask[:, 3])

"""What methods put in the place of what was lost, counted by brute force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import suture
from suture.core.streams import Streams
from suture.method import Clients, Supposed
from suture.runs.mended import mended_of

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"


def _run(tmp_path: Path, method: str, protocol: str, *overrides: str) -> tuple[suture.Result, dict[str, Any]]:
    out = tmp_path / "run"
    result = suture.run(GRAPH, method, protocol=protocol, clients=4, overrides=["rounds=2", *overrides], out=out)
    return result, json.loads((out / "views.json").read_text())["mended"]


def _lost(result: suture.Result) -> list[int]:
    """Of every client's nodes, one client after the other: neighbours outside its piece."""
    prepared, found = result.finished.prepared, []
    source, target = prepared.graph.edge_index.tolist()
    for members in prepared.cut.partition.members:
        mine = set(members.tolist())
        lost = dict.fromkeys(mine, 0)
        for a, b in zip(source, target, strict=True):
            if b in mine and a not in mine:
                lost[b] += 1
        found += [lost[node] for node in members.tolist()]
    return found


def test_fedsage_plus(tmp_path: Path) -> None:
    result, told = _run(tmp_path, "fedsage_plus", "fedsage-louvain", "fedsage_plus.generator_epochs=4")
    lost = _lost(result)
    assert told["neighbours"]["lost"] == sum(lost)
    by_lost = torch.tensor(told["neighbours"]["counts"]).sum(1).tolist()
    assert by_lost == torch.bincount(torch.tensor(lost).clamp_max(15), minlength=16).tolist()
    prepared, memory = result.finished.prepared, result.finished.memory
    assert memory is not None
    rng = Streams.of(0, prepared.clients.ids, "test")
    mended = result.finished.method.recalled(Clients(prepared.clients, memory, rng, prepared.task))
    assert told["neighbours"]["supposed"] == mended.num_nodes - prepared.clients.num_nodes


def test_feddep(tmp_path: Path) -> None:
    result, told = _run(tmp_path, "feddep", "feddep-louvain", "feddep.generator_epochs=2", "feddep.pretrain_epochs=2")
    assert told["neighbours"]["lost"] == sum(_lost(result)) and set(told) == {"neighbours"}


def test_fedgls_links_are_compared_with_the_hidden_edges(tmp_path: Path) -> None:
    result, told = _run(tmp_path, "fedgls", "fedgls-graphless")
    prepared = result.finished.prepared
    parts = prepared.cut.partition
    assert [one["client"] for one in told["learned"]] == [
        name for name, graphless in zip(parts.ids, parts.graphless, strict=True) if graphless
    ]
    edges = {frozenset(pair) for pair in prepared.graph.edge_index.T.tolist()}
    for one in told["learned"]:
        mine = set(parts.members[parts.ids.index(one["client"])].tolist())
        assert one["hidden"] == sum(pair <= mine and len(pair) == 2 for pair in edges)
        assert 0 <= one["right"] <= min(one["hidden"], one["learned"])


def test_fedggr_says_what_its_server_linked(tmp_path: Path) -> None:
    result, told = _run(tmp_path, "fedggr", "fedggr-random", "fedggr.pretrain_rounds=2", "fedggr.codes=nodes", "fedggr.k=5")
    nodes = result.finished.prepared.clients.num_nodes
    assert told["server"]["things"] == nodes and not told["server"]["groups"] and told["server"]["links"] <= 5 * nodes
    _, grouped = _run(tmp_path / "groups", "fedggr", "fedggr-random", "fedggr.pretrain_rounds=2", "fedggr.codes=groups")
    assert grouped["server"]["groups"] and grouped["server"]["things"] < nodes / 4


def test_a_servers_links_are_counted_by_class_and_owner(tmp_path: Path) -> None:
    prepared = _run(tmp_path, "fedavg", "fedggr-random")[0].finished.prepared
    graph = prepared.clients
    links = torch.randint(0, graph.num_nodes, (2, 200), generator=torch.Generator().manual_seed(0))
    told = mended_of(Supposed.of(graph, thing=graph.segments.place), links, prepared)["server"]
    owner, label = graph.segments.client.tolist(), graph.y.tolist()  # names are in order, so that numbers are flat ones
    pairs = [(a, b) for a, b in links.T.tolist() if a != b]
    assert told["links"] == len(pairs)
    assert told["across_owners"] == pytest.approx(sum(owner[a] != owner[b] for a, b in pairs) / len(pairs), abs=1e-5)
    assert told["inside_class"] == pytest.approx(sum(label[a] == label[b] for a, b in pairs) / len(pairs), abs=1e-5)
    shares = [label.count(c) / len(label) for c in range(3)]
    assert told["inside_by_chance"] == pytest.approx(sum(share**2 for share in shares), abs=1e-5)


def test_pairs_that_meet_are_counted_by_class_and_owner(tmp_path: Path) -> None:
    result, told = _run(tmp_path, "fedggr", "fedggr-random", "fedggr.pretrain_rounds=2", "fedggr.codes=anchors")
    graph = result.finished.prepared.clients
    assert told["server"]["places"] and 1 < told["server"]["things"] <= result.finished.method.anchors
    place = torch.randint(-1, 4, (graph.num_nodes,), generator=torch.Generator().manual_seed(0))
    told = mended_of(Supposed.of(graph, meets=place), None, result.finished.prepared)["server"]
    owner, label, place = graph.segments.client.tolist(), graph.y.tolist(), place.tolist()
    nodes = [node for node, where in enumerate(place) if where >= 0]
    everyone = [(a, b) for a in nodes for b in nodes if a < b]
    for pairs, keys in (
        ([(a, b) for a, b in everyone if place[a] == place[b]], ("across_owners", "inside_class")),
        (everyone, ("across_by_chance", "inside_by_chance")),
    ):
        assert told[keys[0]] == pytest.approx(sum(owner[a] != owner[b] for a, b in pairs) / len(pairs), abs=1e-5)
        assert told[keys[1]] == pytest.approx(sum(label[a] == label[b] for a, b in pairs) / len(pairs), abs=1e-5)
    assert told["links"] == sum(place[a] == place[b] for a, b in everyone) and told["things"] == 4


def test_others_suppose_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, "fedavg", "fedpub-disjoint")[1] == {}

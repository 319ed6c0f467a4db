"""Embedding-fused GraphSAGE against a plain PyTorch statement of it, full batch and sampled."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import SAGEConv

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch, View, batch_of
from suture.graph.embeddings import MendedFeatures, with_embeddings
from suture.graph.synthetic import contextual_block_model
from suture.methods.feddep.fused import FusedSage
from suture.nn.backbones import Sage
from suture.nn.sampler import sample_batch
from suture.settings import ModelSettings

FEATURES, CLASSES, WIDTH = 20, 3, 6


def _graph() -> GraphBatch:
    data = contextual_block_model(nodes=60, classes=CLASSES, features=FEATURES, degree=4.0, communities=2, seed=0)
    members = [torch.arange(0, 35), torch.arange(35, 60)]
    roles = (torch.arange(60) % 3 + 1).to(torch.int8)
    return batch_of(data, ["ash", "birch"], members, [roles[m] for m in members], [False] * 2)


def _network(**settings: object) -> tuple[FusedSage, Tree]:
    network = FusedSage(ModelSettings(kind="sage", hidden=8, dropout=0.0, **settings), FEATURES, CLASSES, WIDTH)  # type: ignore[arg-type]
    rows = [network.init(torch.Generator().manual_seed(k)) for k in range(2)]
    return network, {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def _embedding(nodes: int = 60) -> torch.Tensor:
    return torch.randn(nodes, WIDTH, generator=torch.Generator().manual_seed(5))


def _by_hand(params: Tree, k: int, x: torch.Tensor, edge_index: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x^k = sigma(W [x || mean x_u || z]): PyG's SAGEConv plus z times a weight of its own, twice."""
    h = x
    for layer in (1, 2):
        weights = {part: params[f"layer{layer}.{part}"][k] for part in ("self", "neighbour", "bias", "embedding")}
        conv = SAGEConv(h.shape[1], weights["self"].shape[1])
        state = {"lin_l.weight": weights["neighbour"].T, "lin_l.bias": weights["bias"], "lin_r.weight": weights["self"].T}
        conv.load_state_dict(state)
        h = conv(h, edge_index) + z @ weights["embedding"]
        h = torch.relu(h) if layer == 1 else h
    return h


def test_full_batch_equals_the_plain_statement() -> None:
    graph, z = _graph(), _embedding()
    network, params = _network()
    logits = network.logits(params, with_embeddings(graph, z))
    for k, part in enumerate((slice(0, 35), slice(35, 60))):
        one = graph.client_data(k)
        torch.testing.assert_close(logits[part], _by_hand(params, k, one.x, one.edge_index, z[part]), rtol=1e-4, atol=1e-5)


def test_sampling_more_neighbours_than_there_are_equals_full_batch() -> None:
    graph = with_embeddings(_graph(), _embedding())
    network, params = _network()
    seeds = torch.tensor([2, 7, 30, 40, 59])
    sampled = sample_batch(graph, seeds, (1000, 1000), Streams.of(0, graph.ids, "sample"), replace=False)
    assert isinstance(sampled.inputs, MendedFeatures)
    expected = network.logits(params, graph)[seeds]
    torch.testing.assert_close(network.sampled_logits(params, sampled), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.logits(params, graph, view=View(graph, seeds)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [False, True])
def test_without_embeddings_it_is_graphsage(head: bool) -> None:
    """On a plain graph, and with z = 0, the further weights are never read; they do not change the others' start either."""
    graph = _graph()
    network, params = _network(head=head)
    plain = Sage(network.settings, FEATURES, CLASSES)
    for name, value in plain.init(torch.Generator().manual_seed(0)).items():
        torch.testing.assert_close(params[name][:1], value, rtol=0, atol=0)
    expected = plain.logits({name: value for name, value in params.items() if "embedding" not in name}, graph)
    torch.testing.assert_close(network.logits(params, graph), expected, rtol=0, atol=0)
    torch.testing.assert_close(network.logits(params, with_embeddings(graph, torch.zeros(60, WIDTH))), expected)


def test_gradients_reach_the_embeddings_and_their_weights() -> None:
    network, params = _network()
    z = _embedding().requires_grad_()
    params = {name: value.requires_grad_() for name, value in params.items()}
    out = network.logits(params, with_embeddings(_graph(), z))
    wanted = [z, params["layer1.embedding"], params["layer2.embedding"]]
    assert all(float(grad.abs().sum()) > 0 for grad in torch.autograd.grad(out.square().sum(), wanted))


def test_selecting_clients_keeps_their_embeddings() -> None:
    z = _embedding()
    chosen = with_embeddings(_graph(), z).select(["birch"])
    assert isinstance(chosen.x, MendedFeatures)
    assert torch.equal(chosen.x.embedding, z[35:])

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
from suture.methods.feddep.fused import FusedSage, Fusion
from suture.nn.backbones import Sage
from suture.nn.sampler import sample_batch
from suture.settings import ModelSettings

FEATURES, CLASSES, WIDTH = 20, 3, 6


def _graph() -> GraphBatch:
    data = contextual_block_model(nodes=60, classes=CLASSES, features=FEATURES, degree=4.0, communities=2, seed=0)
    members = [torch.arange(0, 35), torch.arange(35, 60)]
    roles = (torch.arange(60) % 3 + 1).to(torch.int8)
    return batch_of(data, ["ash", "birch"], members, [roles[m] for m in members], [False] * 2)


def _network(fusion: Fusion = "own", **settings: object) -> tuple[FusedSage, Tree]:
    model = ModelSettings(kind="sage", hidden=8, dropout=0.0, **settings)  # type: ignore[arg-type]
    network = FusedSage(model, FEATURES, CLASSES, WIDTH, fusion)
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


def test_as_printed_embeddings_are_heard_before_the_first_layer_too() -> None:
    """x^0 = sigma(W [x || z]) by hand, then the plain statement on x^0 in the place of features."""
    graph, z = _graph(), _embedding()
    network, params = _network("input")
    logits = network.logits(params, with_embeddings(graph, z))
    for k, part in enumerate((slice(0, 35), slice(35, 60))):
        one = graph.client_data(k)
        both = torch.cat([params["layer0.weight"][k], params["layer0.embedding"][k]])
        x = torch.relu(torch.cat([one.x, z[part]], 1) @ both + params["layer0.bias"][k])
        torch.testing.assert_close(logits[part], _by_hand(params, k, x, one.edge_index, z[part]), rtol=1e-4, atol=1e-5)


def test_embeddings_can_stand_for_further_neighbours() -> None:
    """A share of one third beside two neighbours is one more of them, whose hidden units are z P: by hand, node by node."""
    graph, z = _graph(), _embedding()
    network, params = _network("neighbours")
    one, k = graph.client_data(0), 0
    degree = torch.bincount(one.edge_index[1], minlength=35)
    counts = torch.arange(35) % 3
    share = (counts / (counts + degree).clamp_min(1)).float()
    carried = torch.cat([torch.cat([z[:35], share[:, None]], 1), torch.zeros(25, WIDTH + 1)])
    logits = network.logits(params, with_embeddings(graph, carried))[:35]
    hidden = network.last_input(params, graph)[:35]
    weights = {part: params[f"layer2.{part}"][k] for part in ("self", "neighbour", "bias", "embedding")}
    for v in range(35):
        heard = [hidden[u] for u in one.edge_index[0, one.edge_index[1] == v]] + [z[v] @ weights["embedding"]] * int(
            counts[v]
        )
        mean = torch.stack(heard).mean(0) if heard else torch.zeros(8)
        expected = hidden[v] @ weights["self"] + mean @ weights["neighbour"] + weights["bias"]
        torch.testing.assert_close(logits[v], expected, rtol=1e-4, atol=1e-5)
    assert "layer1.embedding" not in params


@pytest.mark.parametrize("fusion", ["own", "input", "neighbours"])
def test_sampling_more_neighbours_than_there_are_equals_full_batch(fusion: Fusion) -> None:
    more = [torch.full((60, 1), 0.3)] if fusion == "neighbours" else []
    graph = with_embeddings(_graph(), torch.cat([_embedding(), *more], 1))
    network, params = _network(fusion)
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

# mypy: disable-error-code="no-untyped-call"
"""Layers, samples, exported and own modules on edges with direction and weights."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphSAGE, MessagePassing, Sequential
from torch_geometric.nn.models import GCN
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch, View, batch_of
from suture.nn import export
from suture.nn.backbones import BACKBONES, Sage, make_backbone
from suture.nn.export import OURS, WeightedMeanConv, arguments, state_for_pyg, to_module, to_pyg
from suture.nn.module import ModuleBackbone, takes_weights
from suture.nn.sampler import sample_batch
from suture.report.loader import Told, loader_code
from suture.settings import ModelSettings

KINDS = ("gcn", "sage", "gprgnn", "gat", "mlp")
FEATURES, CLASSES, SIZES = 300, 3, (16, 9, 12)


@pytest.fixture(autouse=True)
def _pygs_class_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyG leaves the call of whatever Sequential it compiled last in the class."""
    monkeypatch.setattr(Sequential, "forward", Sequential.forward)


def weighted_batch(seed: int = 0, *, undirected: bool = False, features: int = FEATURES) -> GraphBatch:
    """`features` above 256 are propagated before the first product."""
    rng = torch.Generator().manual_seed(seed)
    nodes = sum(SIZES)
    edges = coalesce(remove_self_loops(torch.randint(nodes, (2, 10 * nodes), generator=rng))[0])
    weight = torch.rand(edges.shape[1], generator=rng) * 4 + 0.01
    if undirected:
        edges, weight = to_undirected(edges, weight, nodes, reduce="mean")
    x = torch.randn(nodes, features, generator=rng) / features**0.5
    data = Data(x=x, edge_index=edges, edge_weight=weight, y=torch.zeros(nodes, dtype=torch.int64))
    roles = [torch.ones(size, dtype=torch.int8) for size in SIZES]
    return batch_of(data, ["a", "b", "c"], torch.arange(nodes).split(SIZES), roles, [False] * 3)


def settings_of(kind: str, *, head: bool = False, layers: int = 2) -> ModelSettings:
    return ModelSettings(kind, layers=layers, hidden=8, heads=4, hops=4, head=head, dropout=0.0)  # type: ignore[arg-type]


def random_params(settings: ModelSettings, features: int = FEATURES) -> Tree:
    rng = torch.Generator().manual_seed(1)
    single = make_backbone(settings, features, CLASSES).init(rng)
    return {n: v + 0.3 * torch.randn(3, *v.shape[1:], generator=rng) for n, v in single.items()}


class PygWeightedSage(MessagePassing):
    """A second weighted SAGE layer, by PyG's own machinery: sums of w h and of w."""

    def __init__(self, parts: Tree) -> None:
        super().__init__(aggr="sum")
        self.parts = parts

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        total = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        weight = self.propagate(edge_index, x=torch.ones(x.shape[0], 1), edge_weight=edge_weight)
        mean = torch.where(weight > 0, total / weight, 0.0)
        out: Tensor = x @ self.parts["self"] + mean @ self.parts["neighbour"] + self.parts["bias"]
        return out

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.unsqueeze(1) * x_j


def layer_of(params: Tree, name: str, k: int) -> Tree:
    return {key.partition(".")[2]: value[k] for key, value in params.items() if key.startswith(f"{name}.")}


def by_pyg(kind: str, params: Tree, one: Data, k: int) -> Tensor:
    """Two layers of PyG's, in the weights of client k."""
    x, edges = one.x, (one.edge_index, one.edge_weight)

    def gcn(h: Tensor, parts: Tree) -> Tensor:
        conv = GCNConv(h.shape[1], parts["bias"].shape[0])
        out: Tensor = functional_call(conv, {"lin.weight": parts["weight"].T, "bias": parts["bias"]}, (h, *edges))
        return out

    if kind == "gprgnn":
        first, second, gamma = layer_of(params, "layer1", k), layer_of(params, "layer2", k), params["hops.gamma"][k]
        h = torch.relu(x @ first["weight"] + first["bias"]) @ second["weight"] + second["bias"]
        identity = {"weight": torch.eye(CLASSES), "bias": torch.zeros(CLASSES)}
        out = gamma[0] * h
        for weight in gamma[1:]:
            h = gcn(h, identity)
            out = out + weight * h
        return out
    h = x
    for name in ("layer1", "layer2"):
        parts = layer_of(params, name, k)
        h = gcn(h, parts) if kind == "gcn" else PygWeightedSage(parts)(h, *edges)
        h = torch.relu(h) if name == "layer1" else h
    return h


@pytest.mark.parametrize("features", [300, 7])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gprgnn"])
def test_every_layer_is_pygs_forward_and_backward(kind: str, undirected: bool, features: int) -> None:
    graph, settings = weighted_batch(undirected=undirected, features=features), settings_of(kind)
    params = {name: value.requires_grad_() for name, value in random_params(settings, features).items()}
    ours = make_backbone(settings, features, CLASSES).logits(params, graph)
    theirs = torch.cat([by_pyg(kind, params, graph.client_data(k), k) for k in range(3)])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    down = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    mine = torch.autograd.grad((ours * down).sum(), list(params.values()))
    for name, left, right in zip(
        params, mine, torch.autograd.grad((theirs * down).sum(), list(params.values())), strict=True
    ):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-3, msg=f"the gradient of {name} differs")
    nodes = torch.tensor([3, 7, 20, 36])
    seen = make_backbone(settings, features, CLASSES).logits(params, graph, view=View(graph, nodes))
    torch.testing.assert_close(seen, ours[nodes], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_who_ignores_weights_says_so(kind: str) -> None:
    settings = settings_of(kind)
    backbone, params, graph = make_backbone(settings, FEATURES, CLASSES), random_params(settings), weighted_batch()
    alike = backbone.logits(params, graph)
    object.__setattr__(graph := weighted_batch(), "edge_weight", None)
    heard = not torch.allclose(alike, backbone.logits(params, graph))
    assert heard != backbone.ignores_weights
    assert {*KINDS, "gap"} == set(BACKBONES), "gap has noise, and tests of its own"


@pytest.mark.parametrize("replace", [False, True])
def test_sampled_neighbours_are_the_weighted_mean_in_expectation(replace: bool) -> None:
    graph = weighted_batch(features=4)
    seeds = torch.arange(graph.num_nodes)
    h_NF = graph.x.dense()
    drawn = []
    for attempt in range(3000):
        batch = sample_batch(graph, seeds, (3,), Streams.of(attempt, graph.ids), replace=replace)
        drawn.append(batch.blocks[0].mean.times(batch.inputs.dense()))
    samples = torch.stack(drawn).double()
    expected = graph.mean_operator.times(h_NF).double()
    deviation = samples.std(0) / len(drawn) ** 0.5
    assert float(((samples.mean(0) - expected).abs() / deviation.clamp_min(1e-6)).max()) < 5
    plain = graph.neighbours.times(h_NF) / graph.degree.clamp_min(1).unsqueeze(1)
    assert float(((samples.mean(0) - plain).abs() / deviation.clamp_min(1e-6)).max()) > 20


def test_a_sample_of_all_neighbours_is_the_weighted_mean() -> None:
    graph, settings = weighted_batch(), settings_of("sage")
    params, sage = random_params(settings), Sage(settings, FEATURES, CLASSES)
    batch = sample_batch(graph, torch.arange(graph.num_nodes), (99, 99), Streams.of(0, graph.ids), replace=False)
    torch.testing.assert_close(sage.sampled_logits(params, batch), sage.logits(params, graph), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_module_predicts_what_we_predict(kind: str, head: bool, layers: int) -> None:
    graph, settings = weighted_batch(), settings_of(kind, head=head, layers=layers)
    params = random_params(settings)
    ours = make_backbone(settings, FEATURES, CLASSES).logits(params, graph)
    for k in range(3):
        one = graph.client_data(k)
        exported = to_pyg(params, settings, FEATURES, CLASSES, row=k, weighted=True)
        inputs = [one[name] for name in arguments(exported, weighted=True)]
        assert len(inputs) == (2 if kind in ("gat", "mlp") else 3)
        torch.testing.assert_close(exported(*inputs), ours[graph.segments.client == k], atol=1e-5, rtol=1e-4)
        assert exported.state_dict().keys() == state_for_pyg(params, settings).keys()


@pytest.mark.parametrize("kind", ["gcn", "sage", "gprgnn"])
def test_without_weights_a_weighted_export_is_the_plain_one(kind: str) -> None:
    settings, one = settings_of(kind), weighted_batch().client_data(0)
    params = random_params(settings)
    plain = to_pyg(params, settings, FEATURES, CLASSES)
    assert arguments(plain, weighted=True) == ("x", "edge_index")
    weighted = to_pyg(params, settings, FEATURES, CLASSES, weighted=True)
    torch.testing.assert_close(weighted(one.x, one.edge_index, None), plain(one.x, one.edge_index))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_call_of_another_sequential_is_not_ours(weighted: bool) -> None:
    """PyG leaves the call of whatever it compiled last in the class."""
    settings, one = settings_of("sage"), weighted_batch().client_data(0)
    inputs = (one.x, one.edge_index, one.edge_weight) if weighted else (one.x, one.edge_index)
    before = to_pyg(random_params(settings), settings, FEATURES, CLASSES, weighted=weighted)
    expected = before(*inputs)
    compiled = Sequential("x, strange", [(nn.Linear(FEATURES, 1), "x -> x")])
    assert compiled(one.x, None).shape == (SIZES[0], 1)
    after = to_pyg(random_params(settings), settings, FEATURES, CLASSES, weighted=weighted)
    copied = copy.deepcopy(after)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(before(*inputs), expected) and torch.equal(after(*inputs), expected)
    assert not copied(*inputs).any(), "a copy calls its own layers"
    kept = io.BytesIO()
    torch.save(after, kept)
    kept.seek(0)
    assert torch.load(kept, weights_only=False).state_dict().keys() == after.state_dict().keys()


@pytest.mark.parametrize("layer", OURS, ids=lambda layer: layer.__name__)
def test_layers_that_pyg_lacks_can_be_pasted(layer: type[nn.Module]) -> None:
    space: dict[str, Any] = {"nn": nn, "torch": torch, "Tensor": Tensor, "gcn_norm": export.gcn_norm}
    exec(inspect.getsource(layer), space)
    sizes = (6, 2) if layer is WeightedMeanConv else (3,)
    pasted, own = space[layer.__name__](*sizes), layer(*sizes)
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    pasted.load_state_dict(own.state_dict())
    one = weighted_batch(features=6).client_data(0)
    inputs = (one.x, one.edge_index, one.edge_weight)
    assert torch.equal(pasted(*inputs), own(*inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_snippet_runs(kind: str, tmp_path: Any) -> None:
    settings, one = settings_of(kind, head=True), weighted_batch().client_data(0)
    params = random_params(settings)
    module = to_pyg(params, settings, FEATURES, CLASSES, weighted=True)
    file = tmp_path / "model.safetensors"
    weighted = "edge_weight" in arguments(module, weighted=True)
    told = Told(kind="value", outputs=CLASSES, features=FEATURES, edges="as given", weighted=weighted)
    safetensors.torch.save_file(state_for_pyg(params, settings), file, told.metadata())
    space: dict[str, Any] = {}
    exec(loader_code(module, told, "A model", file, whole=False), space)
    scores = space["predict"](one.x, one.edge_index, one.edge_weight)
    ours = make_backbone(settings, FEATURES, CLASSES).logits(params, weighted_batch())[: SIZES[0]]
    torch.testing.assert_close(scores, ours, atol=1e-5, rtol=1e-4)


class Hearing(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.conv(x, edge_index, edge_weight)  # type: ignore[no-any-return]


class Deaf(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


def in_a_row(features: int, classes: int) -> nn.Module:
    conv = GCNConv(features, classes)
    return Sequential("x, edge_index, edge_weight", [(conv, "x, edge_index, edge_weight -> x")])


@pytest.mark.parametrize("factory", [Hearing, Deaf, in_a_row])
def test_an_own_module_hears_weights_if_it_can(factory: Any) -> None:
    graph, backbone = weighted_batch(features=6), ModuleBackbone(ModelSettings(), 6, CLASSES, factory)
    params = {name: value.repeat(3, *[1] * (value.dim() - 1)) for name, value in backbone.init(torch.Generator()).items()}
    out = backbone.logits(params, graph)
    assert backbone.ignores_weights == (factory is Deaf)
    for k in range(3):
        one, module = graph.client_data(k), to_module(params, factory, 6, CLASSES, row=k)
        inputs = [one[name] for name in arguments(module, weighted=True)]
        assert len(inputs) == (2 if factory is Deaf else 3)
        torch.testing.assert_close(module(*inputs), out[graph.segments.client == k])
    assert arguments(module, weighted=False) == ("x", "edge_index")


def test_pygs_ready_made_networks_are_asked_what_they_support() -> None:
    assert takes_weights(GCN(4, 4, 2))
    assert not takes_weights(GraphSAGE(4, 4, 2)), "it has the argument and ignores it"
    assert not takes_weights(GATConv(4, 4))

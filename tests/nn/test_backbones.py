# mypy: disable-error-code="no-untyped-call"
"""Every backbone against PyG's own layers, client by client, forward and backward."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import APPNP, GATConv, GCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce, remove_self_loops, to_dense_adj

from suture.core.streams import Streams
from suture.core.tree import Tree, is_tiled, tile
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, View, batch_of
from suture.nn.backbones import BACKBONES, Gat, GprGnn, make_backbone
from suture.nn.layers import dropout, dropout_mask
from suture.settings import ModelSettings

KINDS = ("gcn", "sage", "gat", "gprgnn", "mlp")
SIZES = {"unequal": (9, 4, 14), "equal": (8, 8, 8), "one client": (11,)}
LAYOUTS = {
    # name: (features, share of entries that are not zero, stored sparse, propagated before the first product)
    "dense, wide": (300, 1.0, False, True),
    "dense, narrow": (6, 1.0, False, False),
    "sparse, propagated late": (200, 0.02, True, False),
    "sparse, propagated first": (10, 0.5, True, True),
}


def toy_batch(sizes: tuple[int, ...] = SIZES["unequal"], layout: str = "dense, narrow", classes: int = 3) -> GraphBatch:
    """Directed graphs with an isolated node in each client; with three clients, the second has no edge at all."""
    width, share, sparse, _ = LAYOUTS[layout]
    rng = torch.Generator().manual_seed(0)
    nodes = sum(sizes)
    members = torch.arange(nodes).split(sizes)
    edges = coalesce(remove_self_loops(torch.randint(nodes, (2, 12 * nodes), generator=rng))[0])
    lonely = torch.stack([m[-1] for m in members])
    edges = edges[:, ~torch.isin(edges, lonely).any(0)]
    x = torch.randn(nodes, width, generator=rng) / math.sqrt(width * share)
    x *= torch.rand(nodes, width, generator=rng) < share
    data = Data(
        x=x.to_sparse_csr() if sparse else x,
        edge_index=edges,
        y=torch.randint(classes, (nodes,), generator=rng),
    )
    roles = [torch.ones(size, dtype=torch.int8) for size in sizes]
    ids = [f"client-{k}" for k in range(len(sizes))]
    return batch_of(data, ids, members, roles, [len(sizes) == 3 and k == 1 for k in range(len(sizes))])


def random_params(settings: ModelSettings, features: int, classes: int, clients: int, seed: int = 1) -> Tree:
    """A different model for each client, biases and hop weights too."""
    rng = torch.Generator().manual_seed(seed)
    single = make_backbone(settings, features, classes).init(rng)
    return {n: v + 0.3 * torch.randn(clients, *v.shape[1:], generator=rng) for n, v in single.items()}


def pyg_layer(kind: str, p: Tree, name: str, x: Tensor, edge_index: Tensor) -> Tensor:
    """The same layer by PyG, with gradients flowing to our weights."""
    conv: torch.nn.Module
    own = {part.removeprefix(f"{name}."): value for part, value in p.items() if part.startswith(f"{name}.")}
    if kind == "gcn":
        conv = GCNConv(1, 1)
        parts = {"lin.weight": own["weight"].T, "bias": own["bias"]}
    elif kind == "sage":
        conv = SAGEConv(1, 1, aggr="mean", root_weight=True)
        parts = {"lin_l.weight": own["neighbour"].T, "lin_r.weight": own["self"].T, "lin_l.bias": own["bias"]}
    elif kind == "gat":
        _, heads, each = own["weight"].shape
        conv = GATConv(1, each, heads, negative_slope=0.2)
        parts = {"lin.weight": own["weight"].flatten(1).T, "bias": own["bias"]}
        parts |= {"att_src": own["source"].unsqueeze(0), "att_dst": own["target"].unsqueeze(0)}
    else:
        return x @ own["weight"] + own["bias"]
    out: Tensor = functional_call(conv, parts, (x, edge_index))
    return out


def pyg_logits(settings: ModelSettings, p: Tree, x: Tensor, edge_index: Tensor) -> Tensor:
    for index in range(1, settings.layers + 1):
        x = pyg_layer(settings.kind, p, f"layer{index}", x, edge_index)
        if index < settings.layers or settings.head:
            x = F.relu(x)
    if settings.head:
        x = x @ p["head.weight"] + p["head.bias"]
    if settings.kind == "gprgnn":
        edges, weight = gcn_norm(edge_index, num_nodes=x.shape[0])
        operator = to_dense_adj(edges, edge_attr=weight, max_num_nodes=x.shape[0])[0].T
        x = sum(p["hops.gamma"][j] * torch.linalg.matrix_power(operator, j) @ x for j in range(settings.hops + 1))
    return x


def assert_equals_pyg(settings: ModelSettings, graph: GraphBatch, classes: int) -> None:
    """Logits and all gradients, against one PyG forward pass for each client."""
    params = random_params(settings, graph.x.width, classes, len(graph.ids))
    ours = {name: value.clone().requires_grad_() for name, value in params.items()}
    logits = make_backbone(settings, graph.x.width, classes).logits(ours, graph)
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)) / logits.shape[0]
    gradients = torch.autograd.grad((logits * cotangent).sum(), list(ours.values()))
    assert all(gradient.any() for gradient in gradients), "this graph does not test every parameter"
    bounds = graph.segments.bounds
    for k in range(len(graph.ids)):
        theirs = {name: value[k].clone().requires_grad_() for name, value in params.items()}
        one, rows = graph.client_data(k), slice(bounds[k], bounds[k + 1])
        expected = pyg_logits(settings, theirs, one.x, one.edge_index)
        torch.testing.assert_close(logits[rows], expected, atol=1e-5, rtol=1e-5)
        wanted = torch.autograd.grad((expected * cotangent[rows]).sum(), list(theirs.values()))
        for gradient_KF, expected_F in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(gradient_KF[k], expected_F, atol=1e-6, rtol=1e-5)


def settings_of(kind: str, **changes: object) -> ModelSettings:
    values = {"kind": kind, "hidden": 8, "heads": 2, "hops": 3, "dropout": 0.5} | changes
    return ModelSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_toy_graphs_take_the_layout_they_are_meant_for(layout: str) -> None:
    for sizes in SIZES.values():
        graph = toy_batch(sizes, layout)
        assert (graph.gcn_input is not None) == LAYOUTS[layout][3]
        assert (graph.mean_input is not None) == LAYOUTS[layout][3]


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_pyg_client_by_client(kind: str, layout: str, sizes: tuple[int, ...]) -> None:
    assert_equals_pyg(settings_of(kind), toy_batch(sizes, layout), classes=3)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_pyg_at_every_depth(kind: str, head: bool, layers: int) -> None:
    assert_equals_pyg(settings_of(kind, layers=layers, head=head), toy_batch(), classes=3)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_pyg_with_a_single_class(kind: str) -> None:
    assert_equals_pyg(settings_of(kind), toy_batch(classes=1), classes=1)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_pyg_on_clients_of_one_node(kind: str) -> None:
    assert_equals_pyg(settings_of(kind), toy_batch((1, 1, 5, 1)), classes=3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_tiled_weights_do_what_their_copies_do(kind: str, layout: str) -> None:
    settings, graph = settings_of(kind, head=True), toy_batch(layout=layout)
    backbone = make_backbone(settings, graph.x.width, 3)
    single = random_params(settings, graph.x.width, 3, clients=1)
    tiled = tile(single, 3)
    assert all(is_tiled(value) for value in tiled.values())
    copies = {name: value.clone() for name, value in tiled.items()}
    torch.testing.assert_close(backbone.logits(tiled, graph), backbone.logits(copies, graph), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_model_gets_the_sum_of_the_clients_gradients(kind: str, layout: str) -> None:
    settings, graph = settings_of(kind), toy_batch(layout=layout)
    backbone = make_backbone(settings, graph.x.width, 3)
    single = {n: v.requires_grad_() for n, v in random_params(settings, graph.x.width, 3, clients=1).items()}
    copies = {n: v.detach().repeat(3, *[1] * (v.dim() - 1)).requires_grad_() for n, v in single.items()}
    shared = torch.autograd.grad(backbone.logits(tile(single, 3), graph).square().sum(), list(single.values()))
    separate = torch.autograd.grad(backbone.logits(copies, graph).square().sum(), list(copies.values()))
    for ours, theirs in zip(shared, separate, strict=True):
        torch.testing.assert_close(ours, theirs.sum(0, keepdim=True), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("nodes", [[0, 3, 8, 13, 15, 26], [14, 9, 2], [11], []], ids=str)
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_view_gives_the_rows_of_the_whole(kind: str, layers: int, head: bool, nodes: list[int]) -> None:
    settings = settings_of(kind, layers=layers, head=head)
    for layout in LAYOUTS:
        graph = toy_batch(layout=layout)
        chosen = torch.tensor(nodes, dtype=torch.int64)
        chosen = chosen[graph.segments.client[chosen].argsort(stable=True)]
        backbone, rng = make_backbone(settings, graph.x.width, 3), Streams.of(0, graph.ids)
        params = {n: v.requires_grad_() for n, v in random_params(settings, graph.x.width, 3, clients=3).items()}
        viewed = backbone.logits(params, graph, rng, View(graph, chosen))
        whole = backbone.logits(params, graph, rng)[chosen]
        torch.testing.assert_close(viewed, whole, atol=1e-5, rtol=1e-5)
        ours = torch.autograd.grad(viewed.square().sum(), list(params.values()))
        theirs = torch.autograd.grad(whole.square().sum(), list(params.values()))
        for left, right in zip(ours, theirs, strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_hears_nothing_from_the_others(kind: str) -> None:
    graph, settings = toy_batch(), settings_of(kind)
    params = {n: v.requires_grad_() for n, v in random_params(settings, graph.x.width, 3, clients=3).items()}
    logits = make_backbone(settings, graph.x.width, 3).logits(params, graph)
    (of_first,) = torch.autograd.grad(logits[graph.segments.client == 0].sum(), [params["layer1.bias"]])
    assert of_first[0].any() and not of_first[1:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_the_same_alone_and_together_and_off_in_evaluation(kind: str) -> None:
    graph, settings = toy_batch(), settings_of(kind)
    backbone = make_backbone(settings, graph.x.width, 3)
    params = random_params(settings, graph.x.width, 3, clients=3)
    together = backbone.logits(params, graph, Streams.of(0, graph.ids))
    evaluated = backbone.logits(params, graph)
    assert not torch.allclose(together, evaluated)
    assert torch.equal(evaluated, backbone.logits(params, graph))
    for k, name in enumerate(graph.ids):
        own = {n: v[k : k + 1] for n, v in params.items()}
        alone = backbone.logits(own, graph.select([name]), Streams.of(0, [name]))
        torch.testing.assert_close(alone, together[graph.segments.client == k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_dropout_are_those_of_the_masked_network(kind: str) -> None:
    """Two layers: the second sees `mask * relu(first)`, worked out from the same stream."""
    graph, settings = toy_batch((11,)), settings_of(kind, dropout=0.25)
    params = random_params(settings, graph.x.width, 3, clients=1)
    rng = Streams.of(0, graph.ids)
    kept, scale = dropout_mask(rng.fork("layer", 1), 0.25, graph.segments, 8)
    ours = {n: v.clone().requires_grad_() for n, v in params.items()}
    theirs = {n: v[0].clone().requires_grad_() for n, v in params.items()}
    logits = make_backbone(settings, graph.x.width, 3).logits(ours, graph, rng)
    one = graph.client_data(0)
    hidden = F.relu(pyg_layer(kind, theirs, "layer1", one.x, one.edge_index)) * (kept > 0) * scale
    rest = {n.replace("layer2", "layer1"): v for n, v in theirs.items() if not n.startswith("layer1")}
    expected = pyg_logits(settings_of(kind, layers=1), rest, hidden, one.edge_index)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    mine = torch.autograd.grad(logits.square().sum(), list(ours.values()))
    wanted = torch.autograd.grad(expected.square().sum(), list(theirs.values()))
    for left, right in zip(mine, wanted, strict=True):
        torch.testing.assert_close(left[0], right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_dropout_keeps_the_mean(p: float) -> None:
    graph = toy_batch((2000, 2000, 2000))
    dropped = dropout(torch.ones(6000, 16), Streams.of(0, graph.ids), p, graph.segments)
    kept_share = max(1, round((1 - p) * 256)) / 256
    assert set(dropped.unique().tolist()) <= {0.0, float(torch.tensor(1 / kept_share))}
    error = math.sqrt((1 - kept_share) / kept_share / dropped.numel())
    assert abs(float(dropped.mean()) - 1) <= 5 * error


def test_dropout_without_a_stream_or_a_probability_does_nothing() -> None:
    graph, h = toy_batch(), torch.ones(27, 4)
    assert dropout(h, None, 0.5, graph.segments) is h
    assert dropout(h, Streams.of(0, graph.ids), 0.0, graph.segments) is h


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_pass_changes_neither_weights_nor_features(kind: str) -> None:
    graph, settings = toy_batch(), settings_of(kind, head=True)
    params = random_params(settings, graph.x.width, 3, clients=3)
    before, x = {n: v.clone() for n, v in params.items()}, graph.x.dense().clone()
    make_backbone(settings, graph.x.width, 3).logits(params, graph, Streams.of(0, graph.ids))
    assert all(torch.equal(params[n], before[n]) for n in params)
    assert torch.equal(graph.x.dense(), x)


class TestInit:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("head", [False, True])
    def test_one_model_reproducible_and_within_glorots_bounds(self, kind: str, head: bool) -> None:
        backbone = make_backbone(settings_of(kind, head=head, layers=3), 5, 4)
        tree = backbone.init(torch.Generator().manual_seed(0))
        again = backbone.init(torch.Generator().manual_seed(0))
        assert all(value.shape[0] == 1 for value in tree.values())
        assert all(torch.equal(tree[n], again[n]) for n in tree)
        assert not any(tree[n].any() for n in tree if n.endswith(".bias"))
        first = tree["layer1.self" if kind == "sage" else "layer1.weight"]
        # FedSage's W acts on [h || mean of neighbours], so it has twice the inputs.
        limit = math.sqrt(6 / ((2 * 5 if kind == "sage" else 5) + 8))
        assert 0.7 * limit < float(first.abs().max()) <= limit

    def test_widths(self) -> None:
        assert make_backbone(settings_of("gcn", layers=3), 5, 4).widths() == [5, 8, 8, 4]
        assert make_backbone(settings_of("gcn", layers=3, head=True), 5, 4).widths() == [5, 8, 8, 8]
        assert make_backbone(settings_of("gcn", layers=1), 5, 4).widths() == [5, 4]

    def test_a_classifying_gat_layer_has_one_head(self) -> None:
        tree = Gat(settings_of("gat", heads=4), 5, 3).init(torch.Generator())
        assert tree["layer1.weight"].shape == (1, 5, 4, 2)
        assert tree["layer2.weight"].shape == (1, 8, 1, 3)
        with_head = Gat(settings_of("gat", heads=4, head=True), 5, 3).init(torch.Generator())
        assert with_head["layer2.weight"].shape == (1, 8, 4, 2)

    def test_gprgnn_starts_as_personalised_pagerank(self) -> None:
        graph, settings = toy_batch((11,)), settings_of("gprgnn", hops=6, teleport=0.2)
        backbone = GprGnn(settings, graph.x.width, 3)
        params = backbone.init(torch.Generator().manual_seed(0))
        one = graph.client_data(0)
        hidden = F.relu(one.x @ params["layer1.weight"][0]) @ params["layer2.weight"][0]
        expected = APPNP(K=6, alpha=0.2)(hidden, one.edge_index)
        torch.testing.assert_close(backbone.logits(params, graph), expected, atol=1e-6, rtol=1e-5)

    def test_personal_names_count_layers_from_the_end(self) -> None:
        gcn = make_backbone(settings_of("gcn", head=True), 5, 3)
        assert gcn.personal_names(0) == []
        assert gcn.personal_names(1) == ["head.weight", "head.bias"]
        assert gcn.personal_names(2) == ["layer2.weight", "layer2.bias", "head.weight", "head.bias"]
        assert set(gcn.personal_names(99)) == set(gcn.init(torch.Generator()))
        sage = make_backbone(settings_of("sage"), 5, 3)
        assert sage.personal_names(1) == ["layer2.self", "layer2.neighbour", "layer2.bias"]

    def test_layer_names_do_not_run_into_each_other(self) -> None:
        deep = make_backbone(settings_of("mlp", layers=11), 5, 3)
        assert deep.personal_names(1) == ["layer11.weight", "layer11.bias"]

    def test_an_unknown_kind_is_named(self) -> None:
        with pytest.raises(ConfigError, match="unknown model 'gcnn': did you mean 'gcn'"):
            make_backbone(settings_of("gcnn"), 5, 3)

    def test_every_kind_of_the_settings_exists(self) -> None:
        assert set(BACKBONES) == {*KINDS, "gap"}, "gap has noise, and tests of its own"

    def test_embed_is_what_the_head_sees(self) -> None:
        graph, settings = toy_batch(), settings_of("gcn", head=True)
        backbone = make_backbone(settings, graph.x.width, 3)
        params = random_params(settings, graph.x.width, 3, clients=3)
        owner = graph.segments.client
        by_hand = torch.einsum("nh,nhc->nc", F.relu(backbone.embed(params, graph)), params["head.weight"][owner])
        torch.testing.assert_close(backbone.logits(params, graph), by_hand + params["head.bias"][owner])


@pytest.fixture
def planetoid_cora(tmp_path: Path) -> Data:
    raw = Path(__file__).resolve().parents[2] / "../shared/datasets/Planetoid/Cora/raw"
    if not raw.is_dir():
        pytest.skip(f"needs the raw files of Cora in {raw}")
    shutil.copytree(raw, tmp_path / "Cora" / "raw")
    return Planetoid(str(tmp_path), "Cora")[0]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_equals_pyg_on_cora(kind: str, planetoid_cora: Data) -> None:
    data = planetoid_cora
    members = torch.arange(2708).split([1500, 1000, 208])
    roles = [torch.ones(m.numel(), dtype=torch.int8) for m in members]
    for x in (data.x, data.x.to_sparse_csr()):
        cut = batch_of(Data(x=x, edge_index=data.edge_index, y=data.y), ["a", "b", "c"], members, roles, [False] * 3)
        assert_equals_pyg(settings_of(kind, hidden=16), cut, classes=7)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize(("layers", "head"), [(1, False), (2, False), (3, True)])
def test_rows_of_a_large_graph_are_those_of_all_at_once(
    kind: str, layout: str, layers: int, head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = toy_batch(layout=layout)
    backbone = make_backbone(ModelSettings(kind=kind, layers=layers, hidden=8, head=head), graph.x.width, 3)
    one = backbone.init(torch.Generator().manual_seed(1))
    params = {name: torch.cat([value * (k + 1) for k in range(3)]) for name, value in one.items()}
    with torch.no_grad():
        at_once = backbone.logits(params, graph)
        monkeypatch.setattr("suture.nn.backbones.LARGE", 0)
        monkeypatch.setattr("suture.nn.backbones.ROWS_AT_ONCE", 5)  # blocks begin and end inside clients
        by_rows = backbone.logits(params, graph)
    assert at_once.abs().max() > 0.1
    assert torch.allclose(by_rows, at_once, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("viewed", [False, True])
def test_the_order_of_product_and_propagation_changes_rounding_only(kind: str, layout: str, viewed: bool) -> None:
    graph = toy_batch(layout=layout)
    view = View(graph, torch.tensor([0, 3, 8, 9, 12, 20, 26])) if viewed else None
    outcomes = []
    for narrow_first in (False, True):
        settings = ModelSettings(kind=kind, layers=2, hidden=8, narrow_first=narrow_first)
        backbone = make_backbone(settings, graph.x.width, 3)
        start = backbone.init(torch.Generator().manual_seed(1))
        params = {name: torch.cat([value * (k + 1) for k in range(3)]).requires_grad_() for name, value in start.items()}
        out = backbone.logits(params, graph, view=view)
        grads = torch.autograd.grad((out * torch.arange(3)).sum(), list(params.values()))
        outcomes.append([out.detach(), *grads])
    for before, after in zip(*outcomes, strict=True):
        assert torch.allclose(after, before, atol=1e-4, rtol=1e-4)
    assert outcomes[0][0].abs().max() > 0.1
    if layout == "dense, narrow":
        assert ("gcn_input_once" if kind == "gcn" else "mean_input_once") in vars(graph)

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph

from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, batch_of
from suture.nn.backbones import make_backbone
from suture.nn.export import GprPropagation, state_for_pyg, to_module, to_pyg
from suture.nn.module import ModuleBackbone
from suture.settings import ModelSettings

KINDS = ("gcn", "sage", "gat", "gprgnn", "mlp")
FEATURES, CLASSES = 6, 3


@pytest.fixture
def graph() -> GraphBatch:
    torch.manual_seed(0)
    data = Data(x=torch.randn(25, FEATURES), edge_index=erdos_renyi_graph(25, 0.2), y=torch.randint(CLASSES, (25,)))
    members = torch.arange(25).split([15, 10])
    return batch_of(data, ["a", "b"], members, [torch.ones(15), torch.ones(10)], [False, False])


def settings_of(kind: str, *, head: bool = False, layers: int = 2) -> ModelSettings:
    return ModelSettings(kind, layers=layers, hidden=8, heads=4, hops=4, head=head)  # type: ignore[arg-type]


def random_params(settings: ModelSettings, clients: int = 2) -> Tree:
    rng = torch.Generator().manual_seed(1)
    single = make_backbone(settings, FEATURES, CLASSES).init(rng)
    return {n: v + 0.3 * torch.randn(clients, *v.shape[1:], generator=rng) for n, v in single.items()}


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_module_predicts_what_we_predict(kind: str, head: bool, layers: int, graph: GraphBatch) -> None:
    settings = settings_of(kind, head=head, layers=layers)
    params = random_params(settings)
    ours = make_backbone(settings, FEATURES, CLASSES).logits(params, graph)
    for k in range(2):
        one = graph.client_data(k)
        exported = to_pyg(params, settings, FEATURES, CLASSES, row=k)
        torch.testing.assert_close(exported(one.x, one.edge_index), ours[graph.segments.client == k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_made_of_stock_modules_only(kind: str) -> None:
    settings = settings_of(kind, head=True)
    exported = to_pyg(random_params(settings), settings, FEATURES, CLASSES)
    ours = [m for m in exported.modules() if not type(m).__module__.startswith(("torch.", "torch_geometric."))]
    assert [type(m) for m in ours] == ([GprPropagation] if kind == "gprgnn" else [])


def test_a_state_dict_loads_into_plain_pyg(graph: GraphBatch) -> None:
    """What a user without Suture does: a file and ten lines of PyG."""
    settings = settings_of("gcn", head=True)
    params = random_params(settings)
    file = safetensors.torch.save(state_for_pyg(params, settings, row=1))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2 = GCNConv(FEATURES, 8), GCNConv(8, 8)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            hidden = self.layer1(x, edge_index).relu()
            return self.head(self.layer2(hidden, edge_index).relu())  # type: ignore[no-any-return]

    net = Net()
    net.load_state_dict(safetensors.torch.load(file))
    ours = make_backbone(settings, FEATURES, CLASSES).logits(params, graph)[15:]
    one = graph.client_data(1)
    torch.testing.assert_close(net(one.x, one.edge_index), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_a_copy_under_the_modules_own_names(kind: str) -> None:
    settings = settings_of(kind)
    params = random_params(settings)
    state = state_for_pyg(params, settings)
    assert set(state) == set(to_pyg(params, settings, FEATURES, CLASSES).state_dict())
    before = {name: value.clone() for name, value in params.items()}
    for value in state.values():
        assert value.is_contiguous()
        value.zero_()
    assert all(torch.equal(params[name], before[name]) for name in params)


@pytest.mark.parametrize("kind", KINDS)
def test_the_exported_module_can_be_trained_on(kind: str, graph: GraphBatch) -> None:
    settings = settings_of(kind)
    exported = to_pyg(random_params(settings), settings, FEATURES, CLASSES)
    assert not exported.training
    one = graph.client_data(0)
    exported.train()(one.x, one.edge_index).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in exported.parameters())
    dropouts = [m.p for m in exported.modules() if isinstance(m, nn.Dropout)]
    assert dropouts == [0.5]


def test_exporting_does_not_touch_the_global_generator() -> None:
    settings = settings_of("gat")
    before = torch.get_rng_state()
    to_pyg(random_params(settings), settings, FEATURES, CLASSES)
    to_module({}, lambda features, classes: nn.Linear(features, classes), FEATURES, CLASSES)
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_of_another_model_are_refused() -> None:
    params = random_params(settings_of("gcn"))
    with pytest.raises(ConfigError, match="not those of a gcn with 2 layers, 99 features"):
        to_pyg(params, settings_of("gcn"), 99, CLASSES)
    with pytest.raises(ConfigError, match="not those of a gcn with 3 layers"):
        to_pyg(params, settings_of("gcn", layers=3), FEATURES, CLASSES)
    with pytest.raises(ConfigError, match=r"'layer1\.weight' is no part of a sage model"):
        to_pyg(params, settings_of("sage"), FEATURES, CLASSES)
    with pytest.raises(ConfigError, match=r"'mask\.layer1' is no part of a gcn model"):
        state_for_pyg(params | {"mask.layer1": torch.ones(2, 1)}, settings_of("gcn"))


class Normed(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.conv, self.norm = GCNConv(features, classes), nn.BatchNorm1d(classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index))  # type: ignore[no-any-return]


def test_a_users_module_comes_back_with_its_row(graph: GraphBatch) -> None:
    backbone = ModuleBackbone(ModelSettings(), FEATURES, CLASSES, Normed)
    rng = torch.Generator().manual_seed(2)
    single = backbone.init(rng)
    params = {n: v + torch.rand(2, *v.shape[1:], generator=rng) for n, v in single.items()}
    ours = backbone.logits(params, graph)
    for k in range(2):
        one = graph.client_data(k)
        module = to_module(params, Normed, FEATURES, CLASSES, row=k)
        assert isinstance(module, Normed) and not module.training
        torch.testing.assert_close(module(one.x, one.edge_index), ours[graph.segments.client == k])

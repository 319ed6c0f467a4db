"""Trained models as plain PyTorch Geometric modules, for people who do not have Suture.

`to_pyg` gives a `torch_geometric.nn.Sequential` of stock layers, called as `module(x, edge_index)`; a model that was trained
on edges with weights (`weighted`) as `module(x, edge_index, edge_weight)`. `arguments` says which. `state_for_pyg` is its
state dict, fit for a safetensors file, and the same for both. Layers that PyG lacks (`OURS`) need nothing but torch and PyG,
so that their source can be pasted. A user's own module comes back as itself, with the trained values.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, Sequential
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.nn.backbones import make_backbone
from suture.nn.module import ModuleBackbone, ModuleFactory, takes_weights
from suture.settings import ModelSettings

WITH_EDGES = "x, edge_index -> x"
WITH_WEIGHTS = "x, edge_index, edge_weight -> x"
WITHOUT_EDGES = "x -> x"

# Our name of a layer's part to PyG's.
PARTS = {
    "gcn": {"weight": "lin.weight", "bias": "bias"},
    "sage": {"self": "lin_r.weight", "neighbour": "lin_l.weight", "bias": "lin_l.bias"},
    "gat": {"weight": "lin.weight", "source": "att_src", "target": "att_dst", "bias": "bias"},
    "mlp": {"weight": "weight", "bias": "bias"},
    "gprgnn": {"weight": "weight", "bias": "bias"},
}

# Weights of generated embeddings (methods/feddep/fused.py), which are zero on any graph that a method has not mended.
GENERATED = ".embedding"


class GprPropagation(nn.Module):
    r"""sum_j gamma_j \hat A^j x, the last step of GPR-GNN, which has no stock layer in PyG. Shape: gamma [hops + 1]."""

    def __init__(self, hops: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(hops + 1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Propagate `x` [N, C]."""
        (source, target), weight = gcn_norm(edge_index, edge_weight, num_nodes=x.shape[0], dtype=x.dtype)
        out = self.gamma[0] * x
        for gamma in self.gamma[1:]:
            x = torch.zeros_like(x).index_add(0, target, weight.unsqueeze(1) * x[source])
            out = out + gamma * x
        return out


class WeightedMeanConv(nn.Module):
    """PyG's `SAGEConv` with weights: own features, and the mean of the neighbours' by what their edges weigh."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(in_channels, out_channels)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in_channels] to [N, out_channels]; without `edge_weight` all edges weigh alike."""
        source, target = edge_index
        weight = torch.ones_like(x[source, 0]) if edge_weight is None else edge_weight.to(x.dtype)
        total = x.new_zeros(x.shape[0]).index_add(0, target, weight)
        share = weight / total[target]
        mean = torch.zeros_like(x).index_add(0, target, share.unsqueeze(1) * x[source])
        out: Tensor = self.lin_l(mean) + self.lin_r(x)
        return out


OURS: tuple[type[nn.Module], ...] = (GprPropagation, WeightedMeanConv)
"""Layers that have no stock layer in PyG."""


def arguments(module: nn.Module, *, weighted: bool) -> tuple[str, ...]:
    """What an exported module, or a user's own, is called with; `weighted`: it was trained on edges with weights."""
    return ("x", "edge_index", "edge_weight") if weighted and takes_weights(module) else ("x", "edge_index")


def to_pyg(
    params: Tree, settings: ModelSettings, features: int, classes: int, row: int = 0, *, weighted: bool = False
) -> nn.Module:
    """The model in one row of `params` as a PyG module, in evaluation mode; `weighted` where it heard edges by weight."""
    state = state_for_pyg(params, settings, row)
    weighted = weighted and not make_backbone(settings, features, classes).ignores_weights
    # On the meta device nothing is drawn or allocated before the trained values move in.
    with torch.device("meta"):
        steps = _layers(params, settings, features, classes, weighted)
        module = _sequential(weighted, steps)
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            f"these parameters are not those of a {settings.kind} with {settings.layers} layers, {features} features and "
            f"{classes} classes; export a model with the settings it was trained with"
        ) from error
    return module.eval()


def state_for_pyg(params: Tree, settings: ModelSettings, row: int = 0) -> dict[str, Tensor]:
    """The state dict of `to_pyg`'s module, such as `layer1.lin.weight`; the tensors are copies."""
    if settings.kind not in PARTS:
        raise ConfigError(f"PyG has no layers for the backbone {settings.kind}; take its parameters as they are")
    return {
        _pyg_name(name, settings.kind): _pyg_layout(name, value[row]).detach().clone().contiguous()
        for name, value in params.items()
        if not name.endswith(GENERATED)
    }


def to_module(params: Tree, factory: ModuleFactory, features: int, classes: int, row: int = 0) -> nn.Module:
    """A user's own module with the values in one row of `params`, in evaluation mode."""
    module = ModuleBackbone(ModelSettings(), features, classes, factory).build()
    trained = {name: value[row].detach() for name, value in params.items()}
    module.load_state_dict(module.state_dict() | trained)
    return module.eval()


def _pyg_name(name: str, kind: str) -> str:
    layer, _, part = name.partition(".")
    if layer in ("head", "hops"):
        return name
    if not layer.startswith("layer") or part not in PARTS[kind]:
        raise ConfigError(f"parameter {name!r} is no part of a {kind} model, so it cannot be exported to PyG")
    return f"{layer}.{PARTS[kind][part]}"


def _pyg_layout(name: str, value: Tensor) -> Tensor:
    if name.endswith((".weight", ".self", ".neighbour")):
        return value.flatten(1).T  # torch stores [out, in]
    return value.unsqueeze(0) if name.endswith((".source", ".target")) else value


def _sequential(weighted: bool, steps: OrderedDict[str, object]) -> nn.Module:
    """PyG's Sequential with a call of its own.

    PyG puts the call of whichever Sequential it compiled last into the class, from where those that it could not compile (it
    finds modules by the last part of their name, so not ours) would take it, whatever their layers are.
    """
    module = Sequential("x, edge_index, edge_weight" if weighted else "x, edge_index", steps)
    # Bound to the model, as PyG binds what it compiles; a copy of the model is bound to its own.
    vars(module)["forward"] = MethodType(_ByWeight.forward if weighted else _Plain.forward, module)
    return cast(nn.Module, module)


class _Plain:
    """A call. Its name is what a pickled model looks for."""

    def forward(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return _through(self, {"x": x, "edge_index": edge_index})


class _ByWeight:
    """A call with weights."""

    def forward(self: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return _through(self, {"x": x, "edge_index": edge_index, "edge_weight": edge_weight})


def _through(module: Any, values: dict[str, Tensor | None]) -> Tensor:
    for layer in module._children:
        values["x"] = getattr(module, layer.name)(*(values[name] for name in layer.param_names))
    return cast(Tensor, values["x"])


def _layers(params: Tree, settings: ModelSettings, features: int, classes: int, weighted: bool) -> OrderedDict[str, object]:
    steps: OrderedDict[str, object] = OrderedDict()
    widths = make_backbone(settings, features, classes).widths()
    for index, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
        steps[f"layer{index}"] = _layer(f"layer{index}", params, settings.kind, fan_in, fan_out, weighted)
        if index < settings.layers:
            steps[f"relu{index}"] = nn.ReLU()
            steps[f"dropout{index}"] = nn.Dropout(settings.dropout)
    if settings.head:
        steps["relu"] = nn.ReLU()
        steps["head"] = nn.Linear(widths[-1], classes)
    if settings.kind == "gprgnn":
        steps["hops"] = (GprPropagation(settings.hops), WITH_WEIGHTS if weighted else WITH_EDGES)
    return steps


def _layer(name: str, params: Tree, kind: str, fan_in: int, fan_out: int, weighted: bool) -> tuple[nn.Module, str]:
    if kind == "gcn":
        return GCNConv(fan_in, fan_out), WITH_WEIGHTS if weighted else WITH_EDGES
    if kind == "sage":
        return (WeightedMeanConv(fan_in, fan_out), WITH_WEIGHTS) if weighted else (SAGEConv(fan_in, fan_out), WITH_EDGES)
    if kind == "gat":
        heads = params[f"{name}.source"].shape[1]
        return GATConv(fan_in, fan_out // heads, heads), WITH_EDGES
    return nn.Linear(fan_in, fan_out), WITHOUT_EDGES

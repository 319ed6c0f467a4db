"""Any `torch.nn.Module` called as `module(x, edge_index)` as a backbone, run client by client.

Where edges have weights, a module whose `forward` has an argument `edge_weight` is given them under that name.
Parameters and floating-point buffers (such as running statistics) are stacked into a tree like everybody else's, so every
method works on them; only the batched speed of the built-in backbones is given up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn import Sequential

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch, View
from suture.nn.backbones import Backbone
from suture.nn.layers import rows

ModuleFactory = Callable[[int, int], nn.Module]
"""(number of features, number of classes) to a fresh module."""


@contextmanager
def _seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Modules draw from the global generators, so these are seeded inside and put back after."""
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed & (2**63 - 1))
        if cuda:
            torch.cuda.manual_seed(seed & (2**63 - 1))
        yield


def _content(module: nn.Module) -> Tree:
    """What is trained or averaged, without a client axis. Tied parameters appear once, under their first name."""
    distinct = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return {n: v for n, v in module.state_dict().items() if n in distinct and v.is_floating_point()}


def takes_weights(module: nn.Module) -> bool:
    """Whether a module is to be called with `edge_weight` where edges have weights."""
    if not getattr(module, "supports_edge_weight", True):
        return False  # PyG's ready-made networks have the argument even where no layer of theirs reads it
    if isinstance(module, Sequential):
        return "edge_weight" in module.signature.param_dict
    return "edge_weight" in inspect.signature(module.forward).parameters


@dataclass(frozen=True)
class ModuleBackbone(Backbone):
    """A user's module behind the interface of the built-in backbones."""

    factory: ModuleFactory

    @property
    def ignores_weights(self) -> bool:
        """Whether the module has no argument for them."""
        return not takes_weights(self.build())

    def build(self, seed: int = 0) -> nn.Module:
        """A fresh module."""
        with _seeded(seed):
            return self.factory(self.features, self.classes)

    def init(self, rng: torch.Generator) -> Tree:
        """The module's own initial values."""
        return {name: value.unsqueeze(0).clone() for name, value in _content(self.build(rng.initial_seed())).items()}

    def frozen_names(self) -> frozenset[str]:
        """Buffers and parameters the user has frozen: they travel and are averaged, but no gradient reaches them."""
        module = self.build()
        trained = {name for name, value in module.named_parameters() if value.requires_grad}
        return frozenset(_content(module)) - trained

    def logits(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """Class scores [N, C], one forward pass a client."""
        module = self.build().to(graph.device).train(rng is not None)
        x, bounds = graph.x.dense(), graph.segments.bounds
        owner = graph.segments.client[graph.edge_index[1]]
        weight = graph.edge_weight if takes_weights(module) else None
        outputs = []
        for k in range(len(graph.ids)):
            own = {name: value[k] for name, value in params.items()}
            inputs = (x[bounds[k] : bounds[k + 1]], graph.edge_index[:, owner == k] - bounds[k])
            more = {} if weight is None else {"edge_weight": weight[owner == k]}
            with _seeded(0 if rng is None else int(rng.keys[k]), graph.device):
                outputs.append(torch.func.functional_call(module, own, inputs, more))
        return rows(torch.cat(outputs), view)

    def embed(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """A module shows no inner layer, so its embedding is its output."""
        return self.logits(params, graph, rng, view)

    def personal_names(self, personal_layers: int) -> list[str]:
        """Parameters of the module's last `personal_layers` named submodules that have any."""
        names = list(self.init(torch.Generator()))
        owners = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        chosen = owners[len(owners) - min(personal_layers, len(owners)) :]
        return [name for name in names if name.rpartition(".")[0] in chosen]

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Unused: a module is initialised whole."""
        raise NotImplementedError

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """Unused: a module is applied whole."""
        raise NotImplementedError

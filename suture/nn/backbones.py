"""Backbones with a client axis: GCN, GraphSAGE, GAT, GPR-GNN, MLP, GAP.

A backbone is settings plus pure functions: `init` makes one model [1, ...], `embed` and `logits` run K models on K
graphs at once. With `settings.head` the last layer is followed by a linear classifier; otherwise it is the classifier.
Legend: K clients, N nodes, F features, H hidden, C classes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, activate, segment_product, sparse_product
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch, View
from suture.graph.embeddings import MendedFeatures
from suture.nn import layers
from suture.nn.aggregates import noised_hops, width_of
from suture.nn.sampler import Block, SampledBatch
from suture.plugins import Door, check_class
from suture.settings import ModelSettings

# Without a tape, activations of more numbers than this are computed so many rows at a time.
LARGE, ROWS_AT_ONCE = 1 << 26, 1 << 16
FIRST, GAP, SUMS = "layer1", "gap", "noised sums"
BESIDE = f"{FIRST}.beside"
"""Weights [K, D, H] of what nodes carry beside their features (`suture.graph.embeddings`), for methods that put it there."""


@dataclass(frozen=True)
class Backbone(ABC):
    """What every network offers to methods."""

    rows_apart: ClassVar[bool] = False
    """Whether a layer computes some nodes of a view without computing all."""

    settings: ModelSettings
    features: int
    classes: int

    @property
    def ignores_weights(self) -> bool:
        """Whether edges that weigh more are heard no louder."""
        return False

    def for_run(self, seed: int) -> Backbone:
        """This network in a run with this seed; itself, unless it draws something that all rounds share."""
        return self

    def widths(self) -> list[int]:
        """F, then the output width of every layer before the head."""
        hidden = [self.settings.hidden] * self.settings.layers
        return [self.features, *hidden] if self.settings.head else [self.features, *hidden[:-1], self.classes]

    def init(self, rng: torch.Generator) -> Tree:
        """Fresh weights [1, ...]."""
        widths = self.widths()
        tree: Tree = {}
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(widths), start=1):
            tree |= self.init_layer(f"layer{index}", fan_in, fan_out, rng)
        return tree | (layers.linear_init("head", widths[-1], self.classes, rng) if self.settings.head else {})

    @abstractmethod
    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Fresh weights of one layer."""

    @abstractmethod
    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """One layer before bias and activation, [N, H]; of the nodes in `view` only if there is one."""

    def embed(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """Output of the last layer before head and activation, [N, H] or [B, H] of a view's nodes.

        With `rng`, dropout is on (training).
        """
        h, last = self.last_input(params, graph, rng), f"layer{self.settings.layers}"
        out = self._layer(last, params, h, graph, rng, view)
        return activate(out, params[f"{last}.bias"], (view or graph).segments, relu=False)

    def last_input(self, params: Tree, graph: GraphBatch, rng: Streams | None = None) -> Tensor | Features:
        """What the last layer is given: the features, or the activations of the layer before [N, H]."""
        h = self.entered(params, graph.x)
        for index in range(1, self.settings.layers):
            out = self._layer(f"layer{index}", params, h, graph, rng)
            h = self._finish(params[f"layer{index}.bias"], out, graph.segments, rng, index)
        return h

    def entered(self, params: Tree, x: Features) -> Tensor | Features:
        """What the first layer is given of features; by default these."""
        return x

    def _layer(
        self,
        name: str,
        params: Tree,
        h: Tensor | Features,
        graph: GraphBatch,
        rng: Streams | None = None,
        view: View | None = None,
    ) -> Tensor:
        """`apply_layer`; where there are weights for what nodes carry beside their features, the first hears that too."""
        out = self.apply_layer(name, params, h, graph, view)
        if name != FIRST or BESIDE not in params or not isinstance(graph.x, MendedFeatures):
            return out
        beside = layers.dropout(graph.x.embedding, rng and rng.fork(BESIDE), self.settings.dropout, graph.segments)
        return out + segment_product(layers.rows(beside, view), params[BESIDE], (view or graph).segments)

    def logits(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """Class scores [N, C], or [B, C] of a view's nodes."""
        large = graph.num_nodes * self.settings.hidden > LARGE and self.rows_apart
        if large and rng is None and view is None and not torch.is_grad_enabled():
            return self._logits_by_rows(params, graph)
        return self.classify(params, self.embed(params, graph, rng, view), (view or graph).segments)

    def _logits_by_rows(self, params: Tree, graph: GraphBatch) -> Tensor:
        """The same, some nodes at a time: then one layer's activations are in memory, not three or four."""
        everybody, widths = torch.arange(graph.num_nodes, device=graph.device), self.widths()
        h = self.entered(params, graph.x)
        if isinstance(h, Features) and not isinstance(h.matrix, SparseMatrix):
            h = h.matrix
        for index in range(1, self.settings.layers + 1):
            name, last = f"layer{index}", index == self.settings.layers
            out = torch.empty(graph.num_nodes, self.classes if last else widths[index], device=graph.device)
            # Sparse features are projected once for all nodes; so is what then takes little memory.
            narrow = self.settings.narrow_first and 2 * out.shape[1] <= widths[index - 1]
            at_once = graph.num_nodes if narrow or isinstance(h, Features) else ROWS_AT_ONCE
            for nodes in torch.split(everybody, at_once):
                view = View(graph, nodes)
                rows = self._layer(name, params, h, graph, view=view)
                rows = activate(rows, params[f"{name}.bias"], view.segments, relu=not last)
                out[nodes[0] : nodes[-1] + 1] = self.classify(params, rows, view.segments) if last else rows
            h = out
        return out

    def frozen_names(self) -> frozenset[str]:
        """Entries of the tree that no gradient reaches."""
        return frozenset()

    def personal_names(self, personal_layers: int) -> list[str]:
        """Parameters of the last `personal_layers` layers, the head counted as one (for FedPer)."""
        order = [f"layer{i}" for i in range(1, self.settings.layers + 1)] + (["head"] if self.settings.head else [])
        chosen = order[len(order) - min(personal_layers, len(order)) :]
        return [name for name in self.init(torch.Generator()) if name.split(".")[0] in chosen]

    def _finish(self, bias: Tensor, out: Tensor, segments: Segments, rng: Streams | None, index: int) -> Tensor:
        """Bias, ReLU and dropout of a hidden layer."""
        if rng is None or self.settings.dropout == 0:
            return activate(out, bias, segments)
        kept, scale = layers.dropout_mask(rng.fork("layer", index), self.settings.dropout, segments, out.shape[1])
        return activate(out, bias, segments, kept=kept, scale=scale)

    def classify(self, params: Tree, h_NH: Tensor, segments: Segments) -> Tensor:
        """Class scores of embeddings: the head after a ReLU; without a head the embeddings themselves."""
        if not self.settings.head:
            return h_NH
        scores = segment_product(torch.relu(h_NH), params["head.weight"], segments)
        return activate(scores, params["head.bias"], segments, relu=False)


class Gcn(Backbone):
    """Kipf and Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017."""

    rows_apart: ClassVar[bool] = True

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Weight [1, F, H], bias [1, H]."""
        return layers.linear_init(name, fan_in, fan_out, rng)

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """Normalised propagation."""
        return layers.gcn(h, params[f"{name}.weight"], graph, view, narrow_first=self.settings.narrow_first)


class Sage(Backbone):
    """Hamilton et al., Inductive representation learning on large graphs, NeurIPS 2017; mean aggregator."""

    rows_apart: ClassVar[bool] = True

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Weights for the node itself and for the mean of its neighbours, one bias."""
        # One matrix on [h || mean], so its fan-in is doubled.
        shape = (1, fan_in, fan_out)
        return {
            f"{name}.self": layers.glorot(shape, 2 * fan_in, fan_out, rng),
            f"{name}.neighbour": layers.glorot(shape, 2 * fan_in, fan_out, rng),
            f"{name}.bias": torch.zeros(1, fan_out),
        }

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """Own projection plus the mean of the neighbours' projection."""
        own, neighbour = params[f"{name}.self"], params[f"{name}.neighbour"]
        return layers.sage(h, own, neighbour, graph, view, narrow_first=self.settings.narrow_first)

    def sampled_logits(self, params: Tree, batch: SampledBatch, rng: Streams | None = None) -> Tensor:
        """Class scores [B, C] of a batch's seeds from sampled neighbourhoods."""
        h = self.entered(params, batch.inputs)
        for index, block in enumerate(batch.blocks[:-1], start=1):
            out = self._hear_beside(f"layer{index}", params, h, block, rng)
            h = self._finish(params[f"layer{index}.bias"], out, block.segments, rng, index)
        last, block = f"layer{len(batch.blocks)}", batch.blocks[-1]
        out = activate(self._hear_beside(last, params, h, block, rng), params[f"{last}.bias"], block.segments, relu=False)
        return self.classify(params, out, block.segments)

    def _hear_beside(self, name: str, params: Tree, h: Tensor | Features, block: Block, rng: Streams | None) -> Tensor:
        """A sampled layer, as `_layer`."""
        out = self._sampled_layer(name, params, h, block)
        if BESIDE not in params or not isinstance(h, MendedFeatures):
            return out
        beside = layers.dropout(h.embedding[block.targets], rng and rng.fork(BESIDE), self.settings.dropout, block.segments)
        return out + segment_product(beside, params[BESIDE], block.segments)

    def _sampled_layer(self, name: str, params: Tree, h: Tensor | Features, block: Block) -> Tensor:
        own, neighbour = params[f"{name}.self"], params[f"{name}.neighbour"]
        if isinstance(h, Features):
            # Projecting before gathering: an input node is projected once, however often it was sampled.
            if block.own is None:
                raise ValueError("a block whose inputs are features has those of its outputs too")
            return block.own.times(own) + sparse_product(block.mean, h.times(neighbour))
        mixed = sparse_product(block.mean, h)
        return segment_product(h[block.targets], own, block.segments) + segment_product(mixed, neighbour, block.segments)


class Gat(Backbone):
    """Velickovic et al., Graph attention networks, ICLR 2018; heads are joined; a classifying layer has one."""

    @property
    def ignores_weights(self) -> bool:
        """Attention decides what a neighbour weighs."""
        return True

    def _heads(self, name: str) -> int:
        classifies = not self.settings.head and name == f"layer{self.settings.layers}"
        return 1 if classifies else self.settings.heads

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Weight [1, F, A, H/A], attention vectors [1, A, H/A] for both ends, bias."""
        heads = self._heads(name)
        each = fan_out // heads
        return {
            f"{name}.weight": layers.glorot((1, fan_in, heads, each), fan_in, heads * each, rng),
            f"{name}.source": layers.glorot((1, heads, each), heads, each, rng),
            f"{name}.target": layers.glorot((1, heads, each), heads, each, rng),
            f"{name}.bias": torch.zeros(1, fan_out),
        }

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """Attention."""
        weight, source, target = (params[f"{name}.{part}"] for part in ("weight", "source", "target"))
        return layers.rows(layers.gat(h, weight, source, target, graph).flatten(1), view)


class Mlp(Backbone):
    """A perceptron that never looks at edges."""

    @property
    def ignores_weights(self) -> bool:
        """As it ignores edges."""
        return True

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Weight and bias."""
        return layers.linear_init(name, fan_in, fan_out, rng)

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """A linear map."""
        return layers.rows(layers.project(h, params[f"{name}.weight"], graph.segments), view)


class GprGnn(Mlp):
    """Chien et al., Adaptive universal generalized PageRank graph neural network, ICLR 2021."""

    @property
    def ignores_weights(self) -> bool:
        """It propagates as a GCN does."""
        return False

    def init(self, rng: torch.Generator) -> Tree:
        """The perceptron and the hop weights gamma [1, hops + 1], started as personalised PageRank."""
        teleport, hops = self.settings.teleport, self.settings.hops
        gamma = teleport * (1 - teleport) ** torch.arange(hops + 1, dtype=torch.float32)
        gamma[-1] = (1 - teleport) ** hops
        return super().init(rng) | {"hops.gamma": gamma.unsqueeze(0)}

    def logits(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """sum_j gamma_j A^j MLP(x)."""
        h = super().logits(params, graph, rng)
        gamma_NJ = params["hops.gamma"][graph.segments.client]
        out = gamma_NJ[:, :1] * h
        for hop in range(1, self.settings.hops + 1):
            h = sparse_product(graph.gcn_operator, h)
            out = out + gamma_NJ[:, hop : hop + 1] * h
        return layers.rows(out, view)


@dataclass(frozen=True)
class Gap(Mlp):
    """A perceptron on a node's features and on noised sums over its neighbours: GAP, see `suture.nn.aggregates`."""

    seed: int = 0
    """From which the noise follows."""

    def for_run(self, seed: int) -> Gap:
        """With the noise of this run."""
        return replace(self, seed=seed)

    def init_layer(self, name: str, fan_in: int, fan_out: int, rng: torch.Generator) -> Tree:
        """Weight and bias; in the first layer also a weight for the sums, [1, J W, H]."""
        tree = layers.linear_init(name, fan_in, fan_out, rng)
        if name == FIRST:
            width = self.settings.gap_hops * width_of(self.settings, self.classes)
            tree[f"{name}.sums"] = layers.glorot((1, width, fan_out), width, fan_out, rng)
        return tree

    def apply_layer(
        self, name: str, params: Tree, h: Tensor | Features, graph: GraphBatch, view: View | None = None
    ) -> Tensor:
        """A linear map of a node's own row; in the first layer also of the sums over its neighbours."""
        out = layers.project(h, params[f"{name}.weight"], graph.segments)
        if isinstance(h, Features):
            out = out + segment_product(self.sums(graph), params[f"{name}.sums"], graph.segments)
        return layers.rows(out, view)

    def sums(self, graph: GraphBatch) -> Tensor:
        """The noised sums [N, J W], computed once for a graph."""
        return graph.once(SUMS, self._key, lambda: noised_hops(graph, self.settings, self.classes, self.seed))

    @property
    def _key(self) -> tuple[ModelSettings, int, int]:
        return self.settings, self.classes, self.seed

    def embed(self, params: Tree, graph: GraphBatch, rng: Streams | None = None, view: View | None = None) -> Tensor:
        """As every backbone; after the sums a node needs nobody else, so that only the nodes of a view are computed."""
        if view is None:
            return super().embed(params, graph, rng)
        if view is not graph.train:
            return super().embed(params, self._alone(graph, view), rng)
        return super().embed(params, graph.once("training rows", self._key, lambda: self._alone(graph, view)), rng)

    def _alone(self, graph: GraphBatch, view: View) -> GraphBatch:
        """The nodes of a view with their sums, without edges."""
        nodes, sums = view.nodes, self.sums(graph)
        rows = replace(
            graph,
            segments=view.segments,
            x=graph.x.take(nodes, view.segments),
            edge_index=graph.edge_index[:, :0],
            y=graph.y[nodes],
            role=graph.role[nodes],
            node_id=graph.node_id[nodes],
            edge_weight=None,
            pairs=None,
        )
        rows.once(SUMS, self._key, lambda: sums[nodes])
        return rows


BACKBONES: dict[str, type[Backbone]] = {"gcn": Gcn, "sage": Sage, "gat": Gat, "gprgnn": GprGnn, "mlp": Mlp, GAP: Gap}
DOOR = Door("model", "suture.backbones", BACKBONES, lambda thing, how: check_class(thing, how, Backbone, "backbone"))


def make_backbone(settings: ModelSettings, features: int, classes: int) -> Backbone:
    """The backbone a settings object names."""
    return DOOR.recall(settings.kind)(settings, features, classes)

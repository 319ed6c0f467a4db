"""Message-passing layers with a client axis. Each equals PyG's layer of the same name, client by client (tested).

Edges have a direction (a node hears from the sources of the edges into it) and may have weights: those of `gcn` are PyG's,
`sage` averages by them, and in `gat`, whose attention decides what a neighbour weighs, they have no place.

Legend: K clients, N nodes, E edges, F input width, H output width, A attention heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suture.core.kernels import Segments, segment_product, segment_softmax, sparse_product
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch, View


def glorot(shape: tuple[int, ...], fan_in: int, fan_out: int, rng: torch.Generator) -> Tensor:
    """Uniform in +-sqrt(6 / (fan_in + fan_out))."""
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return torch.empty(shape, device="cpu").uniform_(-limit, limit, generator=rng)


def linear_init(name: str, fan_in: int, fan_out: int, rng: torch.Generator, *, bias: bool = True) -> Tree:
    """A weight [1, F, H] and a zero bias [1, H]."""
    tree = {f"{name}.weight": glorot((1, fan_in, fan_out), fan_in, fan_out, rng)}
    return tree | ({f"{name}.bias": torch.zeros(1, fan_out)} if bias else {})


def project(h: Tensor | Features, weight_KFH: Tensor, segments: Segments) -> Tensor:
    """H W with each client's own W, for hidden activations and for input features alike."""
    return h.times(weight_KFH) if isinstance(h, Features) else segment_product(h, weight_KFH, segments)


def rows(h_NH: Tensor, view: View | None) -> Tensor:
    """The rows a view asks for."""
    return h_NH if view is None else h_NH[view.nodes]


def narrows(weight_KFH: Tensor) -> bool:
    """Whether a product leaves so few columns that propagating after it is cheaper, even for all nodes instead of some."""
    return 2 * weight_KFH.shape[-1] <= weight_KFH.shape[-2]


def gcn(
    h: Tensor | Features, weight_KFH: Tensor, graph: GraphBatch, view: View | None = None, *, narrow_first: bool = False
) -> Tensor:
    r"""\hat A h W (Kipf and Welling), of the nodes in `view` only if there is one; the bias comes with the activation."""
    if view is not None and isinstance(h, Tensor):
        if narrow_first and narrows(weight_KFH):
            return sparse_product(view.gcn_operator, project(h, weight_KFH, graph.segments))
        return segment_product(sparse_product(view.gcn_operator, h), weight_KFH, view.segments)
    if isinstance(h, Features) and (mixed := graph.gcn_input if not narrow_first else graph.gcn_input_once) is not None:
        return rows(mixed.times(weight_KFH), view)
    return rows(sparse_product(graph.gcn_operator, project(h, weight_KFH, graph.segments)), view)


def sage(
    h: Tensor | Features,
    self_KFH: Tensor,
    neighbour_KFH: Tensor,
    graph: GraphBatch,
    view: View | None = None,
    *,
    narrow_first: bool = False,
) -> Tensor:
    """Own h W_self plus the mean of the neighbours' h W_neighbour (FedSage equation 1 with the mean aggregator)."""
    if view is not None and isinstance(h, Tensor):
        if narrow_first and narrows(self_KFH):
            own, heard = (project(h, weight, graph.segments) for weight in (self_KFH, neighbour_KFH))
            return own[view.nodes] + sparse_product(view.mean_operator, heard)
        own = segment_product(h[view.nodes], self_KFH, view.segments)
        return own + segment_product(sparse_product(view.mean_operator, h), neighbour_KFH, view.segments)
    own = project(h, self_KFH, graph.segments)
    if isinstance(h, Features) and (mixed := graph.mean_input if not narrow_first else graph.mean_input_once) is not None:
        return rows(own + mixed.times(neighbour_KFH), view)
    return rows(own + sparse_product(graph.mean_operator, project(h, neighbour_KFH, graph.segments)), view)


def gat(h: Tensor | Features, weight_KFAH: Tensor, source_KAH: Tensor, target_KAH: Tensor, graph: GraphBatch) -> Tensor:
    """Attention over neighbours and self (Velickovic et al.), [N, A, H]; heads are joined by the caller."""
    clients, width, heads, out = weight_KFAH.shape
    z = project(h, weight_KFAH.reshape(clients, width, heads * out), graph.segments).view(-1, heads, out)
    owner = graph.segments.client
    loops = torch.arange(graph.num_nodes, device=z.device)
    source = torch.cat([graph.edge_index[0], loops])
    target = torch.cat([graph.edge_index[1], loops])
    score = (z * source_KAH[owner]).sum(-1)[source] + (z * target_KAH[owner]).sum(-1)[target]
    weight = segment_softmax(torch.nn.functional.leaky_relu(score, 0.2), target, graph.num_nodes)
    return torch.zeros_like(z).index_add(0, target, z[source] * weight.unsqueeze(-1))


def dropout_mask(rng: Streams, p: float, segments: Segments, width: int) -> tuple[Tensor, float]:
    """(above 0 for units that stay [N, width], scale). Shares are exact in steps of 1/256, the scale too."""
    kept_of_256 = max(1, round((1 - p) * 256))
    return rng.bytes_below(kept_of_256, segments.ptr, width), 256 / kept_of_256


def dropout(h_NH: Tensor, rng: Streams | None, p: float, segments: Segments) -> Tensor:
    """Zero elements with probability p and rescale the rest; without a stream (evaluation) nothing happens."""
    if rng is None or p == 0:
        return h_NH
    kept, scale = dropout_mask(rng, p, segments, h_NH.shape[1])
    return h_NH * (kept > 0).to(h_NH.dtype).mul_(scale)

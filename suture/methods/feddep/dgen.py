"""DGen, FedDEP's generator of deep neighbours (section 3.1), and the search for what it is to resemble.

    n~_v   = softplus(theta_d Enc(v))                          how many neighbours v misses
    z~_v^p = tanh(theta_f^p [Enc(v) + N(0, 1)]),  p = 1..P     their embeddings, of which the first round(n~_v) count
    z_v    = mean of those of them that Ber(r) keeps           what embedding-fused convolution attaches to v

Legend: K clients, N nodes, P most generated neighbours of a node, D width of an embedding, M - 1 other clients, C prototypes
of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix, activate, segment_product
from suture.core.streams import Streams
from suture.core.tree import Tree, prefixed, under
from suture.graph.batch import Features, GraphBatch
from suture.graph.matching import nearest_of_listed
from suture.nn import layers
from suture.nn.backbones import Sage

ENCODER = "encoder."


@dataclass(frozen=True)
class Generated:
    """Missing neighbours of every node: predicted number [N], embeddings one slot after the other, each [N, D]."""

    count: Tensor
    slots: tuple[Tensor, ...]

    @property
    def used(self) -> Tensor:
        """Which slots hold a neighbour: the first round(n~_v), bool [N, P]."""
        place = torch.arange(len(self.slots), device=self.count.device)
        return place < self.count.detach().round().unsqueeze(1)

    def rows(self) -> Tensor:
        """The embeddings of the slots in use, node after node, [R, D]."""
        return torch.stack(self.slots, 1)[self.used]

    def mean(self, chosen_NP: Tensor) -> Tensor:
        """Agg(z~_v): the mean over the chosen slots, zero where there are none, [N, D]."""
        share_NP = chosen_NP.to(self.count.dtype) / chosen_NP.sum(1, keepdim=True).clamp_min(1)
        return torch.stack([share_NP[:, p : p + 1] * z for p, z in enumerate(self.slots)]).sum(0)


@dataclass(frozen=True)
class DeepGenerator:
    """Encoder (GraphSAGE whose outputs have width D), count head and embedding head."""

    encoder: Sage
    most: int

    @property
    def width(self) -> int:
        """D."""
        return self.encoder.classes

    def init(self, rng: torch.Generator) -> Tree:
        """Weights [1, ...]: `encoder.*`, `count.*` and `embedding.*`."""
        tree = prefixed(ENCODER, self.encoder.init(rng))
        tree |= layers.linear_init("count", self.width, 1, rng)
        heads = layers.glorot((1, self.width, self.most * self.width), self.width, self.width, rng)
        # A slot that few nodes use learns little: it should stay near zero rather than repeat the noise.
        tree |= {"embedding.weight": heads * 0.1}
        return tree | {"embedding.bias": torch.zeros(1, self.most * self.width)}

    def __call__(self, params: Tree, graph: GraphBatch, rng: Streams, dropout: Streams | None = None) -> Generated:
        """Missing neighbours of every node; `rng` draws the noise, and with `dropout` the encoder drops units."""
        code = torch.relu(self.encoder.logits(under(ENCODER, params), graph, dropout))
        segments = graph.segments
        count = activate(segment_product(code, params["count.weight"], segments), params["count.bias"], segments, relu=False)
        noisy = code + rng.normal(segments.ptr, self.width)
        weights = torch.split(params["embedding.weight"], self.width, 2)
        biases = torch.split(params["embedding.bias"], self.width, 1)
        slots = (segment_product(noisy, weight.contiguous(), segments) for weight in weights)
        mended = (torch.tanh(activate(slot, bias, segments, relu=False)) for slot, bias in zip(slots, biases, strict=True))
        return Generated(F.softplus(count).squeeze(1), tuple(mended))


def bernoulli(used_NP: Tensor, r: float, segments: Segments, rng: Streams) -> Tensor:
    """Ber_r: every slot in use stays with probability r, independently, bool [N, P]."""
    return used_NP & (rng.uniform(segments.ptr, used_NP.shape[1]) < r)


@torch.no_grad()
def nearest_listed(z_ND: Tensor, listed: SparseMatrix, table_TD: Tensor) -> tuple[Tensor, Tensor]:
    """For each node the closest to its z of the rows of `table_TD` that are listed for it: (row [N, D], whether any [N])."""
    some = listed.rowptr.diff() > 0
    found, nodes = torch.zeros_like(z_ND), torch.nonzero(some).squeeze(1)
    if nodes.numel():
        table = Features(table_TD, Segments(torch.tensor([0, table_TD.shape[0]])))
        found[nodes] = table_TD[nearest_of_listed(z_ND[nodes], listed.take_rows(nodes), table)]
    return found, some


@torch.no_grad()
def nearest_of_each(z_ND: Tensor, sets_KMCD: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Sum over the M - 1 sets of the closest member to each z [N, D], and of those members' squared lengths [N]."""
    clients, others, size, width = sets_KMCD.shape
    if others == 0:
        return torch.zeros_like(z_ND), z_ND.new_zeros(z_ND.shape[0])
    flat = sets_KMCD.reshape(clients, others * size, width)
    length = flat.square().sum(2)
    apart = length[segments.client] - 2 * segment_product(z_ND, flat.transpose(1, 2), segments)
    best = apart.view(-1, others, size).argmin(2)  # in each set
    entry = best + torch.arange(others, device=best.device) * size + (segments.client * others * size).unsqueeze(1)
    table = flat.reshape(-1, width)
    return F.embedding_bag(entry, table, mode="sum"), length.flatten()[entry].sum(1)

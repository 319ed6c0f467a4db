"""The classifier of [local || global] embeddings, and the clients' loss (FedGGR, equations 4 and 5).

Legend: K clients, N nodes of all clients, B nodes of a batch, L and G widths of local and global embeddings, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from suture.core.kernels import Segments, activate, segment_product
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.nn.layers import dropout, linear_init
from suture.training.batches import Batch

HEAD = "fusion"
"""The names of its parameters begin so."""


@dataclass(frozen=True)
class Fusion:
    """Settings and pure functions of the classifier's weights [K, ...]."""

    relu: bool
    """Of [local || global] before the classifier."""
    dropout: float
    """Dropped share of [local || global] while training."""
    branch_dropout: float
    """Share of training nodes for which one of the two is hidden."""

    def init(self, widths: Sequence[int], classes: int, rng: torch.Generator) -> Tree:
        """Random; what an embedding of one number for each class says is taken as it is."""
        head = linear_init(HEAD, sum(widths), classes, rng)
        parts = torch.split(head[f"{HEAD}.weight"][0], list(widths))
        weight = torch.cat([torch.eye(classes) if part.shape[0] == classes else part for part in parts])
        return head | {f"{HEAD}.weight": weight.unsqueeze(0)}

    def classify(self, params: Tree, fused: Tensor, segments: Segments) -> Tensor:
        """Equation (4) without its softmax, [B, C]."""
        fused = torch.relu(fused) if self.relu else fused
        scores = segment_product(fused, params[f"{HEAD}.weight"], segments)
        return activate(scores, params[f"{HEAD}.bias"], segments, relu=False)

    def loss(self, params: Tree, local_BL: Tensor, batch: Batch, z_NG: Tensor, z_grad_NG: Tensor) -> Tensor:
        """Equation (5) of each client [K]; going backward adds the gradient of Z to `z_grad_NG`.

        Without the server's graph G is 0.
        """
        nodes, width = batch.view.nodes, local_BL.shape[1]
        fused = local_BL
        if z_NG.shape[1]:
            fused = torch.cat([local_BL, z_NG[nodes]], 1)
            register_multi_grad_hook((fused,), partial(_add_rows, z_grad_NG, nodes, width), mode="any")
        return self.loss_of(params, fused, width, batch)

    def loss_of(self, params: Tree, fused: Tensor, local_width: int, batch: Batch) -> Tensor:
        """Equation (5) of each client [K], of [local || global]."""
        segments = batch.view.segments
        if fused.shape[1] > local_width:
            fused = self.hide_branches(fused, local_width, segments, batch.rng.fork("branches"))
        fused = dropout(fused, batch.rng.fork("fusion"), self.dropout, segments)
        return batch.loss_of(self.classify(params, fused, segments))

    def hide_branches(self, fused: Tensor, width: int, segments: Segments, rng: Streams) -> Tensor:
        """Half of `branch_dropout` of the rows lose their local part, another half the global one."""
        if self.branch_dropout == 0:
            return fused
        draw = rng.uniform(segments.ptr).to(fused.dtype)
        local, shared = draw >= self.branch_dropout / 2, draw < 1 - self.branch_dropout / 2
        return torch.cat([fused[:, :width] * local, fused[:, width:] * shared], 1)


def _add_rows(z_grad_NG: Tensor, nodes: Tensor, local_width: int, fused_grad: Tensor) -> None:
    z_grad_NG.index_add_(0, nodes, fused_grad[:, local_width:])


def one_of(z_grads: Sequence[Tensor], which: str) -> Tensor:
    """The gradient of Z that is returned, of those of the local epochs: the first, the last or their mean."""
    if which == "mean":
        return torch.stack(list(z_grads)).mean(0)
    return z_grads[0] if which == "first" else z_grads[-1]

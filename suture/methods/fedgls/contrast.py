"""A contrastive loss between two embeddings of the same nodes, each client among its own nodes.

Similarities are computed block by block, in both passes, so that memory does not grow with N^2.
Legend: K clients, N nodes, H width, B rows of a block.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suture.core.kernels import Differentiable, Segments

BLOCK_ENTRIES = 1 << 22
"""Similarities held at once: 16 MB, a few times over."""


def contrastive_loss(z_NH: Tensor, h_NH: Tensor, segments: Segments, temperature: float) -> Tensor:
    """FedGLS equations (8) and (9), [K], differentiable in z: node i's z_i is pulled to h_i and away from all others.

    mean_i of -log [ e^{cos(z_i, h_i) / t} / sum_{j != i} (e^{cos(z_i, h_j) / t} + e^{cos(z_i, z_j) / t}) ]

    The positive pair is not in the denominator. A client with a single node has nothing to be told apart from: zero.
    """
    unit_z, unit_h = F.normalize(z_NH), F.normalize(h_NH.detach())
    loss: Tensor = _Contrast.apply(unit_z, unit_h, segments, temperature)
    return loss


class _Contrast(Differentiable):
    """Of unit vectors; the gradient is written down in the forward pass, while the similarities are at hand."""

    @staticmethod
    def forward(ctx: Any, z_NH: Tensor, h_NH: Tensor, segments: Segments, temperature: float) -> Tensor:
        loss_K, grad_NH = z_NH.new_zeros(segments.clients), torch.zeros_like(z_NH)
        for client, (first, last) in enumerate(pairwise(segments.bounds)):
            size = last - first
            if size < 2:
                continue
            z, h, grad = z_NH[first:last], h_NH[first:last], grad_NH[first:last]
            for start in range(0, size, max(1, BLOCK_ENTRIES // size)):
                rows = torch.arange(start, min(start + max(1, BLOCK_ENTRIES // size), size), device=z.device)
                own, place = z[rows], rows - start
                to_h, to_z = (own @ h.T).div_(temperature), (own @ z.T).div_(temperature)
                positive = to_h[place, rows].clone()
                to_h[place, rows] = to_z[place, rows] = -torch.inf
                top = torch.maximum(to_h.amax(1), to_z.amax(1))
                share_h, share_z = (score.sub_(top.unsqueeze(1)).exp_() for score in (to_h, to_z))
                total = share_h.sum(1) + share_z.sum(1)
                loss_K[client] += (total.log() + top - positive).sum() / size
                # The shares are divided by their total last, where there are fewer numbers.
                part = (total * temperature * size).reciprocal().unsqueeze(1)
                grad[rows] += (share_h @ h + share_z @ z) * part - h[rows] / (temperature * size)
                grad += share_z.T @ (own * part)
        ctx.save_for_backward(grad_NH)
        ctx.segments = segments
        return loss_K

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad_NH,) = ctx.saved_tensors
        return grad_NH * grads[0][ctx.segments.client].unsqueeze(1), None, None, None

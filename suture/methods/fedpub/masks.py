"""Weights seen through learnt masks, with the two penalties that FED-PUB puts on them.

A mask stands in a tree under `MASK` and the name of its weight. Trees come back from checkpoints in another order, so
wherever masks are strung together it is by name. Legend: K clients, M entries that have a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suture.core.kernels import Differentiable
from suture.core.tree import Tree, squared_distance

MASK = "mask/"


class _Masked(Differentiable):
    """The product and both penalties at once, because each pass over the weights of all clients counts.

    Made of single operations, the penalties would take longer than the rest of a client's epoch.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product = weight * mask
        drift = product - anchor
        ctx.save_for_backward(weight, mask, drift)
        # Masks start at one, so that for long the sign, and with it |mask|, takes no pass of its own.
        ctx.positive = float(mask.amin()) >= 0
        size = (mask if ctx.positive else mask.abs()).flatten(1).sum(1)
        return product, size, torch.linalg.vector_norm(drift.flatten(1), 2, 1).square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, mask, drift = ctx.saved_tensors
        axes = (-1, *[1] * (weight.dim() - 1))
        grad_product, grad_size, grad_distance = grads[0], grads[1].view(axes), grads[2].view(axes)
        grad = torch.addcmul(grad_product, drift, 2 * grad_distance)
        # At zero, where any value from -1 to 1 would do, the sign is 1.
        sign = grad_size if ctx.positive else torch.copysign(grad_size, mask)
        grad_mask = torch.addcmul(sign, grad, weight)
        return grad.mul_(mask), grad_mask, None


def weights_of(params: Tree) -> Tree:
    """Everything but the masks."""
    return {name: value for name, value in params.items() if not name.startswith(MASK)}


def masks_of(params: Tree) -> Tree:
    """The masks, under the names of their weights, sorted."""
    return {name.removeprefix(MASK): params[name] for name in sorted(params) if name.startswith(MASK)}


def masked_model(params: Tree, anchor: Tree) -> tuple[Tree, Tensor, Tensor]:
    """(weights times masks, sum of |mask| [K], squared distance of the masked weights from `anchor` [K])."""
    model, masks = weights_of(params), masks_of(params)
    plain = {name: value for name, value in model.items() if name not in masks}
    distance = squared_distance(plain, anchor)
    size = torch.zeros_like(distance)
    for name, mask in masks.items():
        model[name], own_size, own_distance = _Masked.apply(model[name], mask, anchor[name])
        size, distance = size + own_size, distance + own_distance
    return model, size, distance


def shrunk(params: Tree, by: float) -> Tree:
    """Masks nearer to zero by so much, none beyond it: the proximal operator of the L1 norm."""
    return params | {
        MASK + name: torch.sign(mask) * (mask.abs() - by).clamp_min(0) for name, mask in masks_of(params).items()
    }


def pruned(params: Tree, threshold: float) -> tuple[Tree, Tensor | None]:
    """Weights times masks, zero where a mask is below the threshold; and where none is, bool [K, M], None if nowhere."""
    model, masks = weights_of(params), masks_of(params)
    for name, mask in masks.items():
        model[name] = model[name] * mask
    # Masks start at one, so that the smallest mostly tells that nothing is hidden.
    if all(float(mask.min()) >= threshold for mask in masks.values()):
        return model, None
    visible = {name: mask.abs() >= threshold for name, mask in masks.items()}
    for name, shown in visible.items():
        model[name] = model[name].mul_(shown)
    return model, torch.cat([shown.flatten(1) for shown in visible.values()], 1)

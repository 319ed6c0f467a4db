"""Weights seen through learnt masks, with the two penalties that FED-PUB puts on them.

A mask stands in a tree under `MASK` and the name of its weight. Trees come back from checkpoints in another order, so
wherever masks are strung together it is by name. Legend: K clients, M entries that have a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suture.tree import Tree, squared_distance

MASK = "mask/"


class _Masked(torch.autograd.Function):
    """The product and both penalties at once, client by client.

    One client's tensors fit a processor's cache, everybody's do not: written as operations on all of them, the masks
    would cost more time than the rest of a local epoch.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, anchor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        product, drift = torch.empty_like(mask), torch.empty_like(mask)
        sizes, distances = [], []
        for k in range(mask.shape[0]):
            torch.mul(weight[k], mask[k], out=product[k])
            torch.sub(product[k], anchor[k], out=drift[k])
            sizes.append(mask[k].abs().sum())
            distances.append(torch.linalg.vector_norm(drift[k]))
        ctx.save_for_backward(weight, mask, drift)
        return product, torch.stack(sizes), torch.stack(distances).square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, mask, drift = ctx.saved_tensors
        grad_product, grad_size, grad_distance = grads
        grad_weight, grad_mask = torch.empty_like(mask), torch.empty_like(mask)
        for k in range(mask.shape[0]):
            grad = torch.addcmul(grad_product[k], drift[k], 2 * grad_distance[k])
            torch.mul(grad, mask[k], out=grad_weight[k])
            # The size's gradient is the mask's sign; at zero, where any value from -1 to 1 will do, it is 1.
            torch.copysign(grad_size[k], mask[k], out=grad_mask[k]).addcmul_(grad, weight[k])
        return grad_weight, grad_mask, None


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
        model[name], own_size, own_distance = _Masked.apply(model[name], mask, anchor[name])  # type: ignore[no-untyped-call]
        size, distance = size + own_size, distance + own_distance
    return model, size, distance


def pruned_model(params: Tree, threshold: float) -> Tree:
    """Weights times masks, zero where a mask is below the threshold."""
    model, masks = weights_of(params), masks_of(params)
    whole = hides_nothing(masks, threshold)
    for name, mask in masks.items():
        model[name] = model[name] * (mask if whole else mask * (mask.abs() >= threshold))
    return model


def visible_entries(params: Tree, threshold: float) -> Tensor | None:
    """Which entries masks let through, bool [K, M]; None if they let all of them."""
    masks = masks_of(params)
    if hides_nothing(masks, threshold):
        return None
    return torch.cat([(mask.abs() >= threshold).flatten(1) for mask in masks.values()], 1)


def hides_nothing(masks: Tree, threshold: float) -> bool:
    """True only if every entry is at least the threshold. Masks start at one, so that the smallest mostly tells."""
    return all(float(mask.min()) >= threshold for mask in masks.values())

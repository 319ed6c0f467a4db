"""Optimisers of K clients at once: what they remember, and one step.

A loss is one number per client [K]; their sum is differentiated, and since no client's loss depends on another's weights,
row k of every gradient is client k's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from suture.core.tree import Tree, map_tree
from suture.settings import TrainingSettings

Moments = Tree
"""Optimiser memory [K, ...]: `step` int64 [K], and for each parameter `name.first`, `name.second` (Adam only)."""


def fresh_moments(params: Tree, settings: TrainingSettings) -> Moments:
    """Optimiser memory before the first step."""
    clients = next(iter(params.values())).shape[0]
    device = next(iter(params.values())).device
    moments = {"step": torch.zeros(clients, dtype=torch.int64, device=device)}
    if settings.optimizer == "adam":
        for name, value in params.items():
            moments[f"{name}.first"] = torch.zeros_like(value, memory_format=torch.contiguous_format)
            moments[f"{name}.second"] = torch.zeros_like(value, memory_format=torch.contiguous_format)
    return moments


def optimise(params: Tree, grads: Tree, moments: Moments, active: Tensor, settings: TrainingSettings) -> None:
    """One optimiser step of the active clients, in place.

    Neighbours in the batch that made the same number of steps move together, stacked; the others apart, because Adam's bias
    correction depends on a client's own count and a client that sat out must not move at all.
    """
    steps = moments["step"]
    groups = _runs(active.tolist(), steps.tolist())
    if not groups:
        return
    parts = [(name, group) for group, _ in groups for name in grads]

    def pieces(tree: Tree, suffix: str = "") -> list[Tensor]:
        return [tree[name + suffix][group] for name, group in parts]

    with torch.no_grad():
        # The fused kernel walks raw memory: parameter, gradient and moments must lie in the same order.
        leaves, slopes = pieces(params), [slope.contiguous() for slope in pieces(grads)]
        if settings.optimizer == "adam":
            counts = torch.tensor([count for _, count in groups for _ in grads], dtype=torch.float32, device=steps.device)
            adam(
                leaves,
                slopes,
                pieces(moments, ".first"),
                pieces(moments, ".second"),
                [],
                list(counts.unbind()),
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                eps=1e-8,
                maximize=False,
            )
        else:
            sgd(
                leaves,
                slopes,
                [None] * len(leaves),
                weight_decay=settings.weight_decay,
                momentum=0,
                lr=settings.lr,
                dampening=0,
                nesterov=False,
                maximize=False,
            )
    steps += active.long()


def leaves_of(params: Tree) -> Tree:
    """The same values, to be differentiated."""
    return map_tree(lambda value: value.detach().requires_grad_(), params)


def slopes(loss_K: Tensor, leaves: Tree) -> Tree:
    """Every client's gradient of its loss [K] in its leaves, [K, ...]; zero where the loss does not depend on one."""
    grads = torch.autograd.grad(loss_K.sum(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def stepped(
    params: Tree, grads: Tree, moments: Moments, settings: TrainingSettings, active: Tensor | None = None
) -> tuple[Tree, Moments]:
    """(parameters, moments) after one optimiser step of the active clients, bool [K], or of all; nothing is changed."""
    params = map_tree(lambda value: value.detach().clone(memory_format=torch.contiguous_format), params)
    moments = map_tree(Tensor.clone, moments)
    everybody = torch.ones_like(moments["step"], dtype=torch.bool)
    optimise(params, grads, moments, everybody if active is None else active, settings)
    return params, moments


def descend(
    loss: Callable[[Tree], Tensor],
    params: Tree,
    moments: Moments,
    settings: TrainingSettings,
    active: Tensor | None = None,
) -> tuple[Tree, Moments, Tensor]:
    """One optimiser step of a side network on `loss`: (parameters, moments, loss before the step [K]); nothing is changed.

    For what is trained beside the model and not on batches, such as a generator. What does more between gradient and step
    uses `leaves_of`, `slopes` and `stepped` itself.
    """
    # Copies of their own, because a product of tiled weights rounds differently.
    leaves = leaves_of(map_tree(lambda value: value.clone(memory_format=torch.contiguous_format), params))
    loss_K = loss(leaves)
    params, moments = stepped(leaves, slopes(loss_K, leaves), moments, settings, active)
    return params, moments, loss_K.detach()


def _runs(active: list[bool], steps: list[int]) -> list[tuple[slice, int]]:
    """Longest runs of active clients with the same number of steps, and that number."""
    runs: list[tuple[slice, int]] = []
    for k in range(len(active)):
        if not active[k]:
            continue
        if runs and runs[-1][0].stop == k and runs[-1][1] == steps[k]:
            runs[-1] = (slice(runs[-1][0].start, k + 1), steps[k])
        else:
            runs.append((slice(k, k + 1), steps[k]))
    return runs

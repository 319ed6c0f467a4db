"""Optimisers of K clients at once: what they remember, and one step.

A loss is one number per client [K]; their sum is differentiated, and since no client's loss depends on another's weights,
row k of every gradient is client k's own gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from suture.core.tree import Tree, column, map_tree
from suture.privacy.mechanisms import clip_factors
from suture.settings import TrainingSettings

Moments = Tree
"""Optimiser memory [K, ...]: `step` int64 [K], and for each parameter `name.first`, `name.second`; plain SGD has neither.
Where there is a `name.sum`, gradients are added up in it."""
STEP, SUM = "step", "sum"


def in_round(settings: TrainingSettings, number: int) -> TrainingSettings:
    """The settings with the learning rate of round `number` (from 1; 0: as in the first).

    A pure function of the number, so a client that sat out rounds, a resumed run and an owner elsewhere all agree.
    """
    done = max(number - 1, 0)
    if settings.schedule == "cosine":
        share = (1 + math.cos(math.pi * min(done / settings.rounds, 1))) / 2
    elif settings.schedule == "step":
        share = settings.schedule_factor ** (done // settings.schedule_step)
    else:
        return settings
    return replace(settings, lr=settings.lr * share)


def fresh_moments(params: Tree, settings: TrainingSettings) -> Moments:
    """Optimiser memory before the first step."""
    first = next(iter(params.values()))
    moments = {STEP: torch.zeros(first.shape[0], dtype=torch.int64, device=first.device)}
    for name, value in params.items():
        for kind in kept_moments(settings):
            moments[f"{name}.{kind}"] = torch.zeros_like(value, memory_format=torch.contiguous_format)
    return moments


def kept_moments(settings: TrainingSettings) -> tuple[str, ...]:
    """What is remembered of each parameter."""
    if settings.optimizer == "sgd":
        return ("first",) if settings.momentum > 0 else ()
    return "first", "second"


def optimise(params: Tree, grads: Tree, moments: Moments, active: Tensor, settings: TrainingSettings) -> None:
    """One optimiser step of the active clients, in place; `settings.lr` is the rate of this step.

    Neighbours in the batch that made the same number of steps move together, stacked; the others apart, because Adam's bias
    correction depends on a client's own count and a client that sat out must not move at all.
    """
    steps = moments[STEP]
    groups = _runs(active.tolist(), steps.tolist())
    if not groups:
        return
    if settings.clip > 0:
        factor_K = clip_factors(grads, settings.clip)
        grads = {name: value * column(factor_K, value) for name, value in grads.items()}
    parts = [(name, group) for group, _ in groups for name in grads]

    def pieces(tree: Tree, suffix: str = "") -> list[Tensor]:
        return [tree[name + suffix][group] for name, group in parts]

    with torch.no_grad():
        # The fused kernel walks raw memory: parameter, gradient and moments must lie in the same order.
        leaves, downhill = pieces(params), [value.contiguous() for value in pieces(grads)]
        memory = [pieces(moments, f".{kind}") for kind in kept_moments(settings)]
        if parts and f"{parts[0][0]}.{SUM}" in moments:
            _add_up(pieces(moments, f".{SUM}"), leaves, downhill, settings)
        if settings.optimizer == "sgd":
            # A first moment of zeros is what torch's own begins with: the first gradient as it is.
            sgd(
                leaves,
                downhill,
                list(memory[0]) if memory else [None] * len(leaves),
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
                lr=settings.lr,
                dampening=0,
                nesterov=False,
                maximize=False,
            )
        else:
            counts = torch.tensor([count for _, count in groups for _ in grads], dtype=torch.float32, device=steps.device)
            first, second = memory
            (adam if settings.optimizer == "adam" else adamw)(
                leaves,
                downhill,
                first,
                second,
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
    steps += active.long()


def _add_up(sums: list[Tensor], leaves: list[Tensor], downhill: list[Tensor], settings: TrainingSettings) -> None:
    """Remember what is stepped along; AdamW's decay is no part of it."""
    decay = 0.0 if settings.optimizer == "adamw" else settings.weight_decay
    for total, leaf, slope in zip(sums, leaves, downhill, strict=True):
        total.add_(slope).add_(leaf, alpha=decay)


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
    everybody = torch.ones_like(moments[STEP], dtype=torch.bool)
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

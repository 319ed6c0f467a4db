"""What clients and server share of their optimisers: moments that travel, and the steps of the server.

    training.moments   clients step by            they send        the server
    own                the optimiser              w_k              w <- the mean of w_k
    averaged           the optimiser              w_k, m_k, v_k    means of all three, handed out together
    server             plain SGD, w_k <- w - lr g    sum of g      w <- a step of the optimiser along the mean of those sums

Clients whose Adam remembers their own gradients alone pull apart: a coordinate that is quiet at one client and loud at the
others is scaled up by the first one's small v_k. With averaged moments, and with one optimiser at the server, everybody
scales alike. `server` makes one step a round, however many local steps there are; with one local step it is exactly central
training on the mean gradient.

Whatever moved clients, the server may go on from their mean with an optimiser of its own (`training.server_optimizer`; Reddi
et al., Adaptive federated optimization, ICLR 2021, algorithm 2; momentum: Hsu et al., 2019), D = mean of w_k - w:

    none       w <- w + lr D
    momentum   m <- b1 m + D;                w <- w + lr m                                               FedAvgM
    adam       m <- b1 m + (1 - b1) D;       v <- b2 v + (1 - b2) D^2;                 w <- w + lr m / (sqrt(v) + tau)
    yogi       as adam, but                  v <- v - (1 - b2) D^2 sign(v - D^2)

with lr, b1, b2, tau the settings server_lr, server_beta1, server_beta2, server_tau; m begins at 0, v at tau^2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from suture.core.tree import Tree, map_tree
from suture.settings import TrainingSettings
from suture.training.optimisers import STEP, SUM, Moments, fresh_moments, in_round, kept_moments, stepped


def local_settings(settings: TrainingSettings) -> TrainingSettings:
    """By which clients step: plain SGD where the optimiser is the server's."""
    if settings.moments != "server":
        return settings
    # Adam and SGD add the decay to the gradient, so that it is in the sum; AdamW's is no part of the gradient.
    decay = 0.0 if settings.optimizer == "adamw" else settings.weight_decay
    return replace(settings, optimizer="sgd", momentum=0.0, weight_decay=decay)


def client_memory(params: Tree, settings: TrainingSettings, *, sums: bool) -> Moments:
    """What a client's optimiser remembers before the first step; with `sums` also the gradients of a round, added up."""
    moments = fresh_moments(params, local_settings(settings))
    if sums or settings.moments == "server":
        zeros = {name: torch.zeros_like(value, memory_format=torch.contiguous_format) for name, value in params.items()}
        moments |= {f"{name}.{SUM}": value for name, value in zeros.items()}
    return moments


def at_round_start(moments: Moments, settings: TrainingSettings) -> Moments:
    """What a client's optimiser goes on with: sums begin anew, and all of it where nothing is kept."""
    if not settings.keep_optimizer:
        return map_tree(torch.zeros_like, moments)
    return {name: torch.zeros_like(value) if name.endswith(f".{SUM}") else value for name, value in moments.items()}


def told(moments: Moments, names: Iterable[str], settings: TrainingSettings) -> Tree:
    """What a client sends of its memory of these parameters; counts of steps as floats, so that they can be averaged."""
    if settings.moments == "own":
        return {}
    if settings.moments == "server":
        return {f"{name}.{SUM}": moments[f"{name}.{SUM}"] for name in names}
    kept = {f"{name}.{kind}": moments[f"{name}.{kind}"] for name in names for kind in kept_moments(settings)}
    return {STEP: moments[STEP].float(), **kept}


def taken(moments: Moments, received: Tree) -> Moments:
    """A client's memory with what the server sent in its place."""
    known = {name: value for name, value in received.items() if name in moments}
    if STEP in known:
        known[STEP] = known[STEP].round().to(moments[STEP].dtype)
    return moments | known


def server_step(params: Tree, mean: Tree, sums: Tree, memory: Tree, settings: TrainingSettings) -> tuple[Tree, Tree]:
    """(parameters, memory) of the server after a round.

    `mean` are the clients' mean parameters; where they sent mean `sums` of gradients, only those that no gradient reaches.
    """
    if settings.moments == "server":
        trained = {name: value for name, value in params.items() if name not in mean}
        moved, memory = _optimised(trained, sums, memory, settings)
        return moved | mean, memory
    if steps_at_server(settings):
        return _advanced(params, mean, memory, settings)
    return mean, memory


def steps_at_server(settings: TrainingSettings) -> bool:
    """Whether the server does not simply take the mean."""
    return settings.server_optimizer != "none" or settings.server_lr != 1


def _optimised(params: Tree, sums: Tree, memory: Tree, settings: TrainingSettings) -> tuple[Tree, Tree]:
    """One step of the clients' optimiser along the mean of their gradients."""
    grads = {name: sums[f"{name}.{SUM}"] for name in params}
    params = {name: value.to(grads[name].device) for name, value in params.items()}
    memory = memory or fresh_moments(params, settings)
    # What clients added to their gradients already is not added again, nor clipped twice.
    decay = settings.weight_decay if settings.optimizer == "adamw" else 0.0
    now = in_round(settings, int(memory[STEP][0]) + 1)
    return stepped(params, grads, memory, replace(now, weight_decay=decay, clip=0.0))


def _advanced(params: Tree, mean: Tree, memory: Tree, settings: TrainingSettings) -> tuple[Tree, Tree]:
    """The table above."""
    kind, rate, tau = settings.server_optimizer, settings.server_lr, settings.server_tau
    b1, b2 = settings.server_beta1, settings.server_beta2
    moved, kept = Tree(), Tree()
    for name, value in mean.items():
        w = params[name].to(value.device)
        d = value - w
        if kind == "none":
            moved[name] = w + rate * d
            continue
        m = b1 * memory.get(f"{name}.first", torch.zeros_like(d)) + (d if kind == "momentum" else (1 - b1) * d)
        kept[f"{name}.first"] = m
        if kind == "momentum":
            moved[name] = w + rate * m
            continue
        v, square = memory.get(f"{name}.second", torch.full_like(d, tau**2)), d.square()
        v = b2 * v + (1 - b2) * square if kind == "adam" else v - (1 - b2) * square * torch.sign(v - square)
        kept[f"{name}.second"] = v
        moved[name] = w + rate * m / (v.sqrt() + tau)
    return moved, kept

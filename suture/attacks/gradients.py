"""Features of training nodes from one update of a model: look for nodes whose gradient is the update.

Zhu, Liu and Han, Deep leakage from gradients, NeurIPS 2019; Geiping et al., Inverting gradients, NeurIPS 2020 (cosine
distance). The gradient of a first layer is a sum over nodes of (their features, propagated) x (a vector): with few training
nodes it spans their features, and linear programs find these in it (`suture.attacks.rows`). Otherwise the search starts
from its leading singular vectors and goes on by descent.

Dummy nodes have no edges: a network then sees the propagated features of a real node as those of a dummy one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.attacks.attack import Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import mean_bounds
from suture.attacks.rows import guessed_rows, programmed, right, row_space
from suture.attacks.scenes import Scene, some_rows
from suture.attacks.updates import Update, as_far_as_it_travels, updates
from suture.core.kernels import Segments
from suture.core.message import Kind, Model
from suture.core.tree import Tree
from suture.graph.batch import Features, GraphBatch

MOST_NODES = 16
"""Dummy nodes; who trains on more is looked at as if these were all."""
SILENT = 1e-3
"""What weight decay does to features that nobody has, as a share of the largest movement."""
CLEAR = 100.0
"""How far singular values must fall behind the features of a few nodes."""
STEPS, RATE = 60, 0.05
MOST_VICTIMS = 2
"""Each takes a search of its own."""
Floats = NDArray[np.float64]


def dummies(x: Tensor, y: Tensor, like: GraphBatch) -> GraphBatch:
    """Training nodes without edges."""
    count, segments = x.shape[0], Segments(torch.tensor([0, x.shape[0]]))
    nobody = torch.zeros(2, 0, dtype=torch.int64)
    ones = torch.ones(count, dtype=torch.int8)
    ids = torch.arange(count)
    return GraphBatch(("dummy",), segments, Features(x, segments), nobody, y, ones, ids, target=like.target)


def first_layer(step: Tree, features: int) -> Tensor:
    """How the weights of each feature moved, [F, H]."""
    first = next((v[0] for v in step.values() if v.dim() == 3 and v.shape[1] == features), None)
    if first is None:
        raise NotTried("no layer that travels has a weight for each feature")
    return first.nan_to_num(0)


def spanned(first: Tensor, count: int, clock: Clock) -> list[Floats]:
    """Rows that a gradient of few nodes spans, by linear programs; none if it is of more, or is no gradient."""
    space = row_space(first.T.double().numpy(), least=1, silent=SILENT, faint=1.0)
    if space.rank > count or space.gap < CLEAR:
        return []
    rows: list[Floats] = []
    for row in programmed(space, first.shape[0], 4 * count, clock):
        if row.any() and (not rows or right(row[None], np.stack(rows))[1][0] < 0.99):
            rows.append(row)
    return rows[:count]


def start_from(first: Tensor, count: int) -> Tensor:
    """The directions that the first layer moved in, [count, F], each with the sign that makes most of it positive."""
    directions = torch.linalg.svd(first, full_matrices=False)[0].T[:count]
    directions = directions * directions.sum(1, keepdim=True).sign()
    missing = count - directions.shape[0]
    return torch.cat([directions, directions.abs().mean(0).repeat(missing, 1)]) if missing > 0 else directions


def inverted(update: Update, scene: Scene, count: int, clock: Clock) -> Floats:
    """Rows [count, F] whose gradient points where the update went."""
    # What no gradient reaches, as the weights of experts, is told for all of them.
    task, (method, start) = scene.task, as_far_as_it_travels(scene.method, update.before)
    moved = {name: value for name, value in update.before.items() if name in start and start[name].shape == value.shape}
    step = {name: value - update.after[name] for name, value in moved.items()}
    first = first_layer(step, scene.task.features)
    if rows := spanned(first, count, clock):
        clock.did(STEPS)
        return np.stack(rows)
    names = [name for name, value in step.items() if value.is_floating_point() and bool(value.abs().sum() > 0)]
    leaves = {name: value.detach().requires_grad_() for name, value in start.items()}
    x = start_from(first, count).clone().requires_grad_()
    y_logits = torch.zeros(count, task.classes, requires_grad=True)
    optimiser = torch.optim.Adam([{"params": [x], "lr": RATE}, {"params": [y_logits], "lr": 0.1}])
    for _ in range(STEPS):
        if clock.over:
            break
        graph = dummies(x, torch.zeros(count, dtype=torch.int64), scene.graph)
        try:
            logits = method.predict(graph, Model(graph.ids, leaves), task)
        except (KeyError, AttributeError, TypeError) as error:
            raise NotTried(f"{method.name}'s model predicts with something that does not travel with it") from error
        loss = -(torch.softmax(y_logits, 1) * torch.log_softmax(logits, 1)).sum(1).mean()
        made = torch.autograd.grad(loss, [leaves[n] for n in names], create_graph=True, materialize_grads=True)
        apart = 1 - _cosine(list(made), [step[name] for name in names])
        x.grad, y_logits.grad = torch.autograd.grad(apart, [x, y_logits], materialize_grads=True)
        optimiser.step()
        with torch.no_grad():
            x.clamp_(min=0)
        clock.did()
    return np.asarray(x.detach().double().nan_to_num(0).clamp(min=0).numpy(), float)


def _cosine(left: list[Tensor], right: list[Tensor]) -> Tensor:
    dot = torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()
    sizes = [torch.stack([value.square().sum() for value in side]).sum().clamp_min(1e-20).sqrt() for side in (left, right)]
    return dot / (sizes[0] * sizes[1])


class Inversion(Attack):
    """See the module docstring."""

    name = "gradients"
    target = "features of training nodes, from an update of a model"
    paper = "Zhu, Liu and Han 2019; Geiping et al. 2020"
    uses = frozenset({Kind.WEIGHTS, Kind.MASKS})
    knows = ("how many training nodes the owner has", "that features are not negative")
    guess = "a row of a public graph of the same kind, or their mean"
    long = 1

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """The first update of every victim; rows are compared with the nearest training row."""
        if scene.task.link or scene.graph.target.kind != "class":
            raise NotTried("gradients of a class are inverted, and here no node has one")
        success, guess, exact = [], [], []
        clock.plan(STEPS * min(MOST_VICTIMS, len(heard)), "steps of descent")
        for victim, ears in list(heard.items())[:MOST_VICTIMS]:
            if clock.over and clock.done:
                break
            own = scene.own(victim)
            truth = some_rows(own, own.nodes_in(1).numpy())
            if not len(truth) or (truth < 0).any():
                raise NotTried("a feature is negative somewhere, or nobody trains")
            rows = inverted(updates(ears, scene, 1)[0], scene, min(MOST_NODES, len(truth)), clock)
            hits, cosine = right(rows, truth)
            success += cosine.tolist()
            guess += guessed_rows(scene, ears, truth, len(rows)).tolist()
            exact += hits.tolist()
        gains = mean_bounds(np.array(success) - np.array(guess))
        hits_of = (sum(exact), len(exact))
        return Measured("cosine", float(np.mean(success)), float(np.mean(guess)), *gains, len(success), hits_of)

"""Local training for K clients at once: batches, per-client loss, per-client optimiser.

The objective returns one loss per client; their sum is differentiated, and since no client's loss depends on another's
weights, row k of every gradient is client k's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.graph.batch import GraphBatch, View
from suture.kernels import client_sum
from suture.nn.backbones import Backbone, Sage
from suture.nn.sampler import SampledBatch, sample_batch
from suture.settings import TrainingSettings
from suture.streams import Streams
from suture.tree import Tree

Moments = Tree
"""Optimiser memory [K, ...]: `step` int64 [K], and for each parameter `name.first`, `name.second` (Adam only)."""


@dataclass(frozen=True)
class Batch:
    """Training nodes of one optimiser step, and the stream that drops units."""

    graph: GraphBatch
    view: View
    rng: Streams
    sampled: SampledBatch | None = None

    @property
    def counts(self) -> Tensor:
        """Nodes of each client in the batch, int64 [K]."""
        return self.view.segments.ptr.diff()

    def logits(self, backbone: Backbone, params: Tree) -> Tensor:
        """Class scores [B, C] with dropout on."""
        if self.sampled is not None and isinstance(backbone, Sage):
            return backbone.sampled_logits(params, self.sampled, self.rng)
        return backbone.logits(params, self.graph, self.rng, self.view)

    def cross_entropy(self, backbone: Backbone, params: Tree) -> Tensor:
        """Mean cross-entropy of each client's nodes in the batch, [K]; zero for a client without any."""
        logits = self.logits(backbone, params)
        loss = torch.nn.functional.cross_entropy(logits, self.graph.y[self.view.nodes], reduction="none")
        return client_sum(loss, self.view.segments) / self.counts.clamp_min(1)


def batches(graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """One epoch. Mini-batch b holds the b-th batch of every client that has so many."""
    nodes, segments = graph.train.nodes, graph.train.segments
    if settings.batch_size == 0:
        yield Batch(graph, graph.train, rng.fork("dropout"))
        return
    shuffled = nodes[rng.fork("shuffle").shuffle(segments.ptr)]
    place = torch.arange(nodes.numel(), device=graph.device) - segments.ptr[:-1][segments.client]
    number = place // settings.batch_size
    for b in range(int(number.max()) + 1 if nodes.numel() else 0):
        chosen = shuffled[number == b]
        sampled = None
        if settings.fanouts:
            sampled = sample_batch(graph, chosen, settings.fanouts, rng.fork("sample", b), replace=settings.replace)
        yield Batch(graph, View(graph, chosen), rng.fork("dropout", b), sampled)


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

    Clients that made the same number of steps move together, stacked; the others one by one, because Adam's bias
    correction depends on a client's own count and a client that sat out must not move at all.
    """
    steps = moments["step"]
    if bool(active.all()) and bool((steps == steps[0]).all()):
        groups: list[slice | int] = [slice(None)]
    else:
        groups = torch.nonzero(active).squeeze(1).tolist()
    leaves = []
    for group in groups:
        for name in grads:
            leaf = params[name].data[group].requires_grad_()
            leaf.grad = grads[name][group]
            leaves.append((leaf, name, group))
    optimizer = _optimizer([leaf for leaf, _, _ in leaves], settings)
    if settings.optimizer == "adam":
        for leaf, name, group in leaves:
            count = steps[0] if isinstance(group, slice) else steps[group]
            optimizer.state[leaf] = {
                "step": count.float(),
                "exp_avg": moments[f"{name}.first"][group],
                "exp_avg_sq": moments[f"{name}.second"][group],
            }
    optimizer.step()
    steps += active.long()


def _optimizer(leaves: list[Tensor], settings: TrainingSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        return torch.optim.Adam(leaves, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(leaves, lr=settings.lr, weight_decay=settings.weight_decay)


def sum_terms(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss of each client [K] from its named terms."""
    return torch.stack(list(terms.values())).sum(0)


Objective = Callable[[Tree, Batch], Tensor]
"""(parameters [K, ...], batch) to the loss of each client [K]."""


def train_locally(
    graph: GraphBatch,
    start: Tree,
    moments: Moments,
    objective: Objective,
    settings: TrainingSettings,
    rng: Streams,
    frozen: frozenset[str] = frozenset(),
) -> tuple[Tree, Moments, Tensor]:
    """`local_epochs` epochs from `start`: (new parameters, new moments, mean loss of the last epoch [K]).

    The arguments are left untouched. Parameters named in `frozen` get no gradient.
    """
    clients = len(graph.ids)
    # Still one copy for all if the server sent everybody the same: the first step then reads less memory.
    params = {name: value.expand(clients, *value.shape[1:]) for name, value in start.items()}
    # Frozen entries are a module's buffers, which a forward pass may overwrite.
    params |= {name: params[name].clone() for name in frozen}
    moments = {name: value.clone() for name, value in moments.items()}
    trained = [name for name in params if name not in frozen]
    loss_sum = torch.zeros(clients, device=graph.device)
    first_step = True
    for epoch in range(settings.local_epochs):
        loss_sum, seen = torch.zeros(clients, device=graph.device), torch.zeros(clients, device=graph.device)
        for batch in batches(graph, settings, rng.fork("epoch", epoch)):
            for name in trained:
                params[name] = params[name].detach().requires_grad_()
            loss = objective(params, batch)
            grads = torch.autograd.grad(loss.sum(), [params[name] for name in trained], materialize_grads=True)
            for name in trained:
                params[name] = params[name].detach().clone() if first_step else params[name].detach()
            first_step = False
            active = batch.counts > 0
            optimise(params, dict(zip(trained, grads, strict=True)), moments, active, settings)
            loss_sum += loss.detach() * active
            seen += active
        loss_sum /= seen.clamp_min(1)
    return params, moments, loss_sum

"""Local training for K clients at once: batches, per-client loss, per-client optimiser.

The objective returns one loss per client; their sum is differentiated, and since no client's loss depends on another's
weights, row k of every gradient is client k's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from suture.core.kernels import Segments, client_mean, segments_of
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch, Pairs, View
from suture.graph.links import pair_keys, sample_non_edges
from suture.nn.backbones import Backbone, Sage
from suture.nn.sampler import SampledBatch, sample_batch
from suture.privacy.mechanisms import poisson_sample, private_gradient
from suture.settings import TrainingSettings

Moments = Tree
"""Optimiser memory [K, ...]: `step` int64 [K], and for each parameter `name.first`, `name.second` (Adam only)."""


@dataclass(frozen=True)
class LinkTarget:
    """Pairs to tell apart. Shapes: left and right [P] rows of a batch's view, label [P], client [P]."""

    left: Tensor
    right: Tensor
    label: Tensor
    client: Tensor


@dataclass(frozen=True)
class Batch:
    """One optimiser step's training nodes (or the end nodes of its training pairs), and the stream that drops units."""

    graph: GraphBatch
    view: View
    rng: Streams
    sampled: SampledBatch | None = None
    links: LinkTarget | None = None
    due: Tensor | None = None
    """DP-SGD: which clients make this step, bool [K], be it without any example; None: those that have one."""

    @property
    def active(self) -> Tensor:
        """Clients that make this step, bool [K]."""
        return self.counts > 0 if self.due is None else self.due

    @cached_property
    def counts(self) -> Tensor:
        """Examples of each client in the batch, nodes or pairs, int64 [K]."""
        if self.links is None:
            return self.view.segments.ptr.diff()
        return torch.bincount(self.links.client, minlength=len(self.graph.ids))

    def logits(self, backbone: Backbone, params: Tree) -> Tensor:
        """The network's output [B, C] at the view's nodes, with dropout on."""
        if self.sampled is not None and isinstance(backbone, Sage):
            return backbone.sampled_logits(params, self.sampled, self.rng)
        return backbone.logits(params, self.graph, self.rng, self.view)

    def cross_entropy(self, backbone: Backbone, params: Tree) -> Tensor:
        """Mean cross-entropy of each client's examples, [K]; zero for a client without any.

        A node's loss is over its classes; a pair's is binary, its score being the inner product of its ends' outputs.
        """
        out, clients = self.logits(backbone, params), len(self.graph.ids)
        if self.links is None:
            loss = F.cross_entropy(out, self.graph.y[self.view.nodes], reduction="none")
            return client_mean(loss, self.view.segments.client, clients)
        link = self.links
        score = (out[link.left] * out[link.right]).sum(1)
        loss = F.binary_cross_entropy_with_logits(score, link.label, reduction="none")
        return client_mean(loss, link.client, clients)


def batches(graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """One epoch. Mini-batch b holds the b-th batch of every client that has so many."""
    if settings.dp_sigma > 0:
        yield from _poisson_batches(graph, settings, rng)
        return
    if graph.pairs is not None:
        yield from _link_batches(graph, graph.pairs, settings, rng)
        return
    nodes, segments = graph.train.nodes, graph.train.segments
    if settings.batch_size == 0:
        yield Batch(graph, graph.train, rng.fork("dropout"))
        return
    for b, chosen in enumerate(_portions(segments, settings.batch_size, rng)):
        yield _batch(View(graph, nodes[chosen]), settings, rng.fork("batch", b))


def _portions(segments: Segments, size: int, rng: Streams) -> Iterator[Tensor]:
    """Rows of each mini-batch: every client's rows shuffled, then `size` at a time, sorted by client."""
    shuffled = rng.fork("shuffle").shuffle(segments.ptr)
    place = torch.arange(shuffled.numel(), device=shuffled.device) - segments.ptr[:-1][segments.client]
    number = place // size
    for b in range(int(number.max()) + 1 if number.numel() else 0):
        yield shuffled[number == b]


def _poisson_batches(graph: GraphBatch, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """As many steps as an epoch of mini-batches has, each with its own draw of every client's training nodes."""
    if graph.pairs is not None:
        raise ConfigError(
            "training.dp_sigma protects nodes as training examples; in link prediction an edge also carries messages to "
            "other examples, so it would protect nothing: set training.dp_sigma=0"
        )
    nodes, segments = graph.train.nodes, graph.train.segments
    count_K = graph.num_train
    size_K = expected_batch(graph, settings)
    steps_K = -(-count_K // size_K.clamp_min(1))
    for b in range(int(steps_K.max()) if steps_K.numel() else 0):
        stream, due = rng.fork("batch", b), b < steps_K
        drawn = poisson_sample(segments, size_K / count_K.clamp_min(1), stream.fork("draw")) & due[segments.client]
        yield Batch(graph, View(graph, nodes[drawn]), stream, due=due)


def expected_batch(graph: GraphBatch, settings: TrainingSettings) -> Tensor:
    """Training nodes each client expects in a step of DP-SGD, int64 [K]."""
    return graph.num_train.clamp_max(settings.batch_size) if settings.batch_size else graph.num_train


def _examples(batch: Batch, settings: TrainingSettings) -> Iterator[Batch]:
    """The j-th example of every client that has so many, for j = 0, 1, ..., each a batch of its own."""
    segments = batch.view.segments
    place = torch.arange(batch.view.nodes.numel(), device=batch.graph.device) - segments.ptr[:-1][segments.client]
    for j in range(int(batch.counts.max())):
        yield _batch(View(batch.graph, batch.view.nodes[place == j]), settings, batch.rng.fork("example", j))


def _batch(view: View, settings: TrainingSettings, rng: Streams, links: LinkTarget | None = None) -> Batch:
    sampled = None
    if settings.fanouts:
        sampled = sample_batch(view.graph, view.nodes, settings.fanouts, rng.fork("sample"), replace=settings.replace)
    return Batch(view.graph, view, rng.fork("dropout"), sampled, links)


def _link_batches(graph: GraphBatch, pairs: Pairs, settings: TrainingSettings, rng: Streams) -> Iterator[Batch]:
    """Training edges, all or `batch_size` at a time, each batch with as many fresh non-edges."""
    edges = pairs.nodes[:, pairs.role == 1]
    owner = graph.segments.client[edges[0]]
    order = torch.argsort(owner, stable=True)
    edges, segments = edges[:, order], segments_of(owner, len(graph.ids))
    known = pair_keys(edges, graph.num_nodes).sort().values
    everything = torch.arange(edges.shape[1], device=graph.device)
    portions = _portions(segments, settings.batch_size, rng) if settings.batch_size else iter([everything])
    for b, chosen in enumerate(portions):
        stream, present = rng.fork("batch", b), edges[:, chosen]
        counts = torch.bincount(graph.segments.client[present[0]], minlength=len(graph.ids))
        absent = sample_non_edges(graph, counts, known, stream)
        ends = torch.cat([present, absent], 1)
        nodes, row = torch.unique(ends, return_inverse=True)
        label = torch.cat([torch.ones(present.shape[1]), torch.zeros(absent.shape[1])]).to(graph.device)
        target = LinkTarget(row[0], row[1], label, graph.segments.client[ends[0]])
        yield _batch(View(graph, nodes), settings, stream, target)


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


def sum_terms(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss of each client [K] from its named terms."""
    return torch.stack(list(terms.values())).sum(0)


Objective = Callable[[Tree, Batch], Tensor]
"""(parameters [K, ...], batch) to the loss of each client [K]."""


def _gradient(params: Tree, trained: Sequence[str], objective: Objective, batch: Batch) -> tuple[Tree, Tensor]:
    """Every client's gradient [K, ...] and loss [K]."""
    loss = objective(params, batch)
    grads = torch.autograd.grad(loss.sum(), [params[name] for name in trained], materialize_grads=True)
    return dict(zip(trained, grads, strict=True)), loss.detach()


def _private_gradient(
    params: Tree, trained: Sequence[str], objective: Objective, batch: Batch, settings: TrainingSettings
) -> tuple[Tree, Tensor]:
    """The gradient of DP-SGD (`suture.privacy.mechanisms`) and the mean loss of the batch [K]."""
    loss_sum = torch.zeros(len(batch.graph.ids), device=batch.graph.device)

    def examples() -> Iterator[tuple[Tree, Tensor]]:
        for example in _examples(batch, settings):
            grads, loss = _gradient(params, trained, objective, example)
            present = example.counts > 0
            loss_sum.add_(loss * present)
            yield grads, present

    like = {name: params[name].detach() for name in trained}
    expected = expected_batch(batch.graph, settings)
    grads = private_gradient(examples(), like, settings.dp_clip, settings.dp_sigma, expected, batch.rng)
    return grads, loss_sum / batch.counts.clamp_min(1)


def train_locally(
    graph: GraphBatch,
    start: Tree,
    moments: Moments,
    objective: Objective,
    settings: TrainingSettings,
    rng: Streams,
    frozen: frozenset[str] = frozenset(),
    epochs: range | None = None,
) -> tuple[Tree, Moments, Tensor]:
    """`local_epochs` epochs from `start`: (new parameters, new moments, mean loss of the last epoch [K]).

    The arguments are left untouched. Parameters named in `frozen` get no gradient. With `settings.dp_sigma` above zero every
    step is one of DP-SGD; the objective is then given one example of each client at a time, and whatever else it adds to an
    example's loss (a proximal term, say) is clipped with it. `epochs` are
    those of them to run, for a method that does something between two epochs.
    """
    clients, private = len(graph.ids), settings.dp_sigma > 0
    # Still one copy for all if the server sent everybody the same: the first step then reads less memory.
    params = {name: value.expand(clients, *value.shape[1:]) for name, value in start.items()}
    # Frozen entries are a module's buffers, which a forward pass may overwrite.
    buffers = {name: params[name] for name in frozen}
    params |= {name: value.clone() for name, value in buffers.items()}
    moments = {name: value.clone() for name, value in moments.items()}
    trained = [name for name in params if name not in frozen]
    loss_sum = torch.zeros(clients, device=graph.device)
    first_step = True
    for epoch in range(settings.local_epochs) if epochs is None else epochs:
        loss_sum, seen = torch.zeros(clients, device=graph.device), torch.zeros(clients, device=graph.device)
        for batch in batches(graph, settings, rng.fork("epoch", epoch)):
            for name in trained:
                params[name] = params[name].detach().requires_grad_()
            if private:
                grads, loss = _private_gradient(params, trained, objective, batch, settings)
            else:
                grads, loss = _gradient(params, trained, objective, batch)
            for name in trained:
                value = params[name].detach()
                params[name] = value.clone(memory_format=torch.contiguous_format) if first_step else value
            first_step = False
            optimise(params, grads, moments, batch.active, settings)
            told = batch.counts > 0
            loss_sum += loss * told
            seen += told
        loss_sum /= seen.clamp_min(1)
    # What a forward pass writes into buffers, such as running statistics, would leave the client without noise.
    return params | ({name: value.clone() for name, value in buffers.items()} if private else {}), moments, loss_sum

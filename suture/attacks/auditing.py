"""Audits: the real code of a method's mechanisms, run on a client's data with canaries in it, against its own account.

An audit of DP-SGD runs `train_locally` with the method's network and loss, as `local_update` does, with one difference: the
optimiser is plain SGD, from whose steps the noised gradients can be read. Whoever accounts for DP-SGD assumes that they are
seen, whatever the optimiser makes of them, so nothing else is audited than what is promised. The upper bound is of exactly
what was run: these steps, at the rate with which the enlarged client draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suture.attacks.canaries import GradientCanaries, draw_canaries, enlarged, sum_canaries
from suture.attacks.feddep_canaries import edge_canaries, mean_canaries
from suture.attacks.link_canaries import gcn_canaries, row_canaries, stitch_link_canaries
from suture.core.message import Nothing, Record
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, Task
from suture.methods.averaging import Averaging
from suture.methods.feddep import FedDep
from suture.methods.fedgcn import FedGcn
from suture.privacy.accountant import SLACK, dp_sgd_epsilon, facts_of, one_draw
from suture.privacy.audited import CONFIDENCE, Audited, Heard, Shape, lower_bounds, needed_epsilon, rates
from suture.privacy.gdp import composed_mu, gaussian_epsilon
from suture.privacy.mechanisms import (
    DrawnEdges,
    Level,
    NoisyGradients,
    NoisyLinks,
    NoisyMeans,
    NoisyRows,
    NoisySums,
    SampledNeighbours,
)
from suture.settings import TrainingSettings
from suture.training.batches import Batch, expected_batch
from suture.training.local import Objective, sum_terms, train_locally
from suture.training.optimisers import fresh_moments

LEARNING_RATE = 0.1
"""Of the audit's SGD; it moves the network, and cancels in a score."""


@dataclass(frozen=True)
class Effort:
    """How hard an audit tries."""

    canaries: int = 1000
    rounds: int = 20
    """Rounds of DP-SGD at most; the run's own if these are fewer."""
    delta: float = SLACK
    seed: int = 0
    """Of coins and canaries."""


def audit(method: Method[Any, Any], graph: GraphBatch, task: Task, effort: Effort) -> Iterator[Audited]:
    """Every mechanism of a method at one client, whose graph this is."""
    if not method.mechanisms():
        raise ConfigError(
            f"{method.name} promises nothing that could be audited: set training.dp_sigma, or model.kind=gap, or take feddep"
        )
    for used in method.mechanisms():
        if isinstance(used, NoisyGradients):
            yield audited_training(method, used, graph, task, effort)
        elif isinstance(used, NoisySums):
            yield audited_sums(method, used, graph, task, effort)
        elif isinstance(used, SampledNeighbours) and used.fanouts:
            yield audited_draw(used, graph, effort)
        elif isinstance(used, DrawnEdges):
            yield audited_edges(_feddep(method), used, graph, task, effort)
        elif isinstance(used, NoisyMeans):
            yield audited_means(_feddep(method), used, graph, effort)
        elif isinstance(used, NoisyRows):
            yield from audited_rows(method, used, graph, task, effort)
        elif isinstance(used, NoisyLinks):
            yield from audited_links(method, used, graph, task, effort)


# DP-SGD


@dataclass(frozen=True)
class Lesson:
    """What a step of a method trains with noise, of one client: from which weights, on which loss, how and how often."""

    start: Tree
    frozen: frozenset[str]
    settings: TrainingSettings
    rounds: int
    loss: Callable[[Tree, Batch, Clients[Any]], Tensor]
    state: Record

    @staticmethod
    def of(method: Averaging[Any, Any, Any, Any], used: NoisyGradients, graph: GraphBatch, task: Task) -> Lesson:
        """Of `local_update`; or of the network behind FedDEP's prototypes."""
        fresh = Clients(graph, Nothing(graph.ids), Streams.of(task.seed, graph.ids, "init"), task)
        state: Any = method.init_clients(fresh)
        if used.step == "local_update":
            start, frozen = dict(state.params), method.frozen_names(task)

            def own(params: Tree, batch: Batch, clients: Clients[Any]) -> Tensor:
                return sum_terms(method.loss_terms(params, batch, start, clients))

            return Lesson(start, frozen, method.training, method.training.rounds, own, state)
        network, initial, settings = _feddep(method).pretraining(task)

        def labels(params: Tree, batch: Batch, clients: Clients[Any]) -> Tensor:
            return batch.loss(network, params)

        return Lesson(initial, network.frozen_names(), settings, 1, labels, state)

    def among(self, canaries: GradientCanaries, clients: Clients[Any]) -> Objective:
        """The loss of an example, which may be a canary."""

        def real(params: Tree, batch: Batch) -> Tensor:
            return self.loss(params, batch, clients)

        return lambda params, batch: canaries.loss(params, batch, real)


def audited_training(
    method: Method[Any, Any], used: NoisyGradients, graph: GraphBatch, task: Task, effort: Effort
) -> Audited:
    """DP-SGD as a step of an averaging method does it."""
    if not isinstance(method, Averaging):
        raise ConfigError(f"{method.name} trains in a way of its own, which cannot be audited")
    size = int(graph.num_train[0])
    if size == 0:
        raise ConfigError(f"{graph.ids[0]} has no training node, so that there is nothing to audit; choose another --client")
    heard, rate, steps = _train(method, used, graph, task, effort)

    def epsilon_of(noise: float) -> float:
        if rate == 1:
            return gaussian_epsilon(composed_mu(noise, steps), effort.delta)
        return min(bound for bound in dp_sgd_epsilon([(noise, rate, steps)], effort.delta) if bound is not None)

    bounds = lower_bounds(heard, effort.delta, Shape(rate, steps), epsilon_of)
    ran = f"{steps} steps with noise {used.sigma:g}, each of {100 * rate:.3g} % of the examples"
    told = (graph.ids[0], "DP-SGD", "one training node's loss", heard.score.numel(), effort.delta)
    return Audited(*told, epsilon_of(used.sigma), bounds, ran)


def _for_canaries(settings: TrainingSettings, graph: GraphBatch, canaries: int) -> TrainingSettings:
    """Plain SGD, and as large a share of the enlarged client in a step as of the real one."""
    size = int(graph.num_train[0])
    share = int(expected_batch(graph, settings)[0]) / size
    batch = max(1, round(share * (size + canaries))) if share < 1 else 0
    plain = replace(settings, optimizer="sgd", momentum=0.0, weight_decay=0.0, schedule="constant")
    return replace(plain, lr=LEARNING_RATE, batch_size=batch)


def _train(
    method: Averaging[Any, Any, Any, Any], used: NoisyGradients, graph: GraphBatch, task: Task, effort: Effort
) -> tuple[Heard, float, int]:
    """(scores, rate, steps) of a training with canaries."""
    small = Lesson.of(method, used, graph, task)
    settings = _for_canaries(small.settings, graph, effort.canaries)
    trained = [name for name in small.start if name not in small.frozen]
    canaries = GradientCanaries.among(graph, small.start, trained, effort.canaries, settings.dp_clip, effort.seed)
    larger = enlarged(graph, None, len(canaries.places), role=1)
    lesson = Lesson.of(method, used, larger, task)
    params, expected = dict(lesson.start), int(expected_batch(larger, settings)[0])
    score = torch.zeros(len(canaries.places), dtype=torch.float64)
    moments, epochs = fresh_moments(params, settings), 0
    for number in range(1, min(lesson.rounds, effort.rounds) + 1):
        clients = Clients(larger, lesson.state, Streams.of(task.seed, larger.ids, "ask", number), task, number)
        for epoch in range(settings.local_epochs):
            canaries.sign, before, epochs = -canaries.sign, canaries.at(params), epochs + 1
            params, moments, _ = train_locally(
                larger,
                params,
                moments,
                lesson.among(canaries, clients),
                settings,
                clients.rng,
                lesson.frozen,
                range(epoch, epoch + 1),
            )
            score += canaries.sign * (before - canaries.at(params)) * expected / (settings.lr * settings.dp_clip)
    examples = int(larger.num_train[0])
    return Heard(score, canaries.included), expected / examples, epochs * -(-examples // expected)


# GAP and NFDP


def audited_sums(method: Method[Any, Any], used: NoisySums, graph: GraphBatch, task: Task, effort: Effort) -> Audited:
    """Sums over neighbours; at node level without the steps of DP-SGD, which are audited by themselves."""
    heard = sum_canaries(graph, method.model, task.classes, effort.canaries, effort.seed)

    def epsilon_of(noise: float) -> float:
        return gaussian_epsilon(composed_mu(noise, used.hops), effort.delta)

    bounds = lower_bounds(heard, effort.delta, Shape(1.0, used.hops), epsilon_of)
    ran = f"{used.hops} hops with noise {used.sigma:g}"
    hides = f"whom a node tells, up to {used.most}" if used.most else "one edge"
    told = (graph.ids[0], "GAP", hides, effort.canaries, effort.delta)
    return Audited(*told, epsilon_of(used.multiplier), bounds, ran)


def audited_draw(used: SampledNeighbours, graph: GraphBatch, effort: Effort) -> Audited:
    """One draw of neighbours, at nodes with as many of them as three quarters of the client's have at most."""
    fanout = used.fanouts[0]
    degree = max(fanout + 1, facts_of(graph)[0].degree_at(0.75))
    promised = one_draw(degree, fanout, replace=used.replace)
    heard = draw_canaries(graph, degree, fanout, used.replace, effort.canaries, effort.seed)
    bounds = lower_bounds(heard, promised.delta)
    ran = f"one draw of {fanout} of {degree} neighbours"
    told = (graph.ids[0], "NFDP", "one edge in a node's list of neighbours", effort.canaries, promised.delta)
    return Audited(*told, promised.epsilon, bounds, ran)


# FedDEP's own


def _feddep(method: Method[Any, Any]) -> FedDep:
    if not isinstance(method, FedDep):
        raise ConfigError(f"{method.name} draws edges or tells means in a way of its own, which cannot be audited")
    return method


def audited_edges(method: FedDep, used: DrawnEdges, graph: GraphBatch, task: Task, effort: Effort) -> Audited:
    """Edges drawn once, which is a promise of delta alone: how often does an edge show that is there?

    (0, delta) is refuted where edges that are there show more often, by more than delta, than those that are not.
    """
    heard = edge_canaries(method, graph, task, effort.canaries, effort.seed)
    found = rates(heard, 0.5, 1 - CONFIDENCE)
    shown, put_in = int(heard.score[heard.included].sum()), int(heard.included.sum())
    ran = f"{100 * used.share:.3g} % of edges drawn: {shown} of {put_in} showed"
    told = (graph.ids[0], "NFDP", "one edge, in both directions", effort.canaries, used.share)
    return Audited(*told, 0.0, {"test": needed_epsilon(found, used.share)}, ran, max(0.0, found.beta - found.alpha))


def audited_means(method: FedDep, used: NoisyMeans, graph: GraphBatch, effort: Effort) -> Audited:
    """Means of groups with noise, told once."""
    heard = mean_canaries(method, effort.canaries, effort.seed)

    def epsilon_of(noise: float) -> float:
        return gaussian_epsilon(composed_mu(noise, 1), effort.delta)

    bounds = lower_bounds(heard, effort.delta, Shape(1.0, 1), epsilon_of)
    ran = f"one telling of means of {method.smallest} nodes with noise {used.sigma:g}"
    hides = "one node's part of a mean, given the network and the groups"
    told = (graph.ids[0], "Gaussian means", hides, effort.canaries, effort.delta)
    return Audited(*told, epsilon_of(used.sigma), bounds, ran)


# What is told over known links


def audited_rows(
    method: Method[Any, Any], used: NoisyRows, graph: GraphBatch, task: Task, effort: Effort
) -> Iterator[Audited]:
    """Predictions that stitching tells: a node's rows, and one known link."""
    if not isinstance(method, Averaging):
        raise ConfigError(f"{method.name} stitches in a way of its own, which cannot be audited")
    levels = used.levels({used.step: used.times}, facts_of(graph)[0].degree_at(1.0))
    ran = f"{used.times} steps of stitching with noise {used.sigma:g}"
    for level, canaries in zip(levels, (row_canaries, stitch_link_canaries), strict=True):
        yield _at_level(level, canaries(method, graph, task, effort.canaries, effort.seed), graph, effort, ran)


def audited_links(
    method: Method[Any, Any], used: NoisyLinks, graph: GraphBatch, task: Task, effort: Effort
) -> Iterator[Audited]:
    """FedGCN's sums over known links: one link, and one node."""
    if not isinstance(method, FedGcn):
        raise ConfigError(f"{method.name} tells sums in a way of its own, which cannot be audited")
    ran = f"{len(used.steps)} steps of sums with noise {used.sigma:g}"
    for level, node in zip(used.levels(dict.fromkeys(used.steps, 1), 0), (False, True), strict=True):
        heard = gcn_canaries(method, graph, task, effort.canaries, effort.seed, node=node)
        yield _at_level(level, heard, graph, effort, ran)


def _at_level(level: Level, heard: Heard, graph: GraphBatch, effort: Effort, ran: str) -> Audited:
    """Against the account of one thing that is hidden."""

    def epsilon_of(noise: float) -> float:
        return gaussian_epsilon(composed_mu(noise, 1), effort.delta)

    bounds = lower_bounds(heard, effort.delta, Shape(1.0, 1), epsilon_of)
    told = (graph.ids[0], level.name, level.hides, heard.score.numel(), effort.delta)
    return Audited(*told, gaussian_epsilon(level.mu, effort.delta), bounds, ran)


def client_graph(graph: GraphBatch, client: str | None) -> GraphBatch:
    """The graph of the client to audit; of the one with the most training nodes if none is named."""
    if client is not None and client not in graph.ids:
        raise ConfigError(f"there is no client {client!r}; there are {', '.join(graph.ids)}")
    chosen = client if client is not None else graph.ids[int(graph.num_train.argmax())]
    return graph.select([chosen])

"""Averages that a few wrong updates cannot spoil, and who sent them.

    median          of every coordinate. Yin et al., ICML 2018
    trimmed-mean    of every coordinate, without the f largest and f smallest values. Yin et al., ICML 2018
    krum            the one update whose n - f - 2 nearest others are nearest. Blanchard et al., NeurIPS 2017
    multi-krum      the mean of the n - f updates with the best such scores

All of them need fewer than half of the updates to be wrong, and ignore the clients' weights: a client that lies about its
update can lie about its size. An update with NaN or infinity is left out by all of them. Legend: K clients, P entries of an
update.

Who is suspected is a question of its own, because Krum leaves somebody out in every round, guilty or not; the others then
fit their data and hardly move any more, while whoever is left out still does. So distances from the median are compared only
in rounds in which the clients usually move at least MOVING of what they have moved at most, and a suspect is who is, on
average over these rounds, GAP times farther out than anybody trusted. On Cora with five clients, 30 rounds, three seeds and
all four rules, honest clients stay below 1.05, and one that trains on flipped labels is at 1.14 or more.
(docs/federation.md has the table.)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from suture.core.message import Message
from suture.core.tree import Tree
from suture.errors import ConfigError, IntegrityError

M = TypeVar("M", bound=Message)
Rule = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"]
AGGREGATE = ("aggregate",)
"""The one row of a reply that has been aggregated."""
MOVING, GAP = 0.7, 1.1
FARTHEST = 100.0
"""So far one round can count, so that one enormous update does not make everything after it look harmless."""


def flatten(tree: Tree) -> Tensor:
    """[K, P], float64."""
    return torch.cat([value.flatten(1).double() for value in tree.values()], 1)


def unflatten(row_P: Tensor, like: Tree) -> Tree:
    """One row back to a tree with K = 1."""
    out: Tree = {}
    start = 0
    for name, value in like.items():
        size = value[0].numel()
        out[name] = row_P[start : start + size].view(1, *value.shape[1:]).to(value.dtype)
        start += size
    return out


def krum_scores(update_KP: Tensor, wrong: int) -> Tensor:
    """The sum of squared distances to the K - f - 2 nearest others, [K]."""
    clients = update_KP.shape[0]
    near = max(1, clients - wrong - 2)
    distance = torch.cdist(update_KP, update_KP).square()
    distance.fill_diagonal_(float("inf"))
    return distance.sort(1).values[:, :near].sum(1)


def centre(update_KP: Tensor, rule: Rule, wrong: int) -> Tensor:
    """The aggregate [P] of K updates of which at most `wrong` are wrong."""
    clients = update_KP.shape[0]
    if rule == "median":
        ordered = update_KP.sort(0).values
        return (ordered[(clients - 1) // 2] + ordered[clients // 2]) / 2
    if rule == "trimmed-mean":
        cut = min(wrong, (clients - 1) // 2)
        return update_KP.sort(0).values[cut : clients - cut].mean(0)
    chosen = krum_scores(update_KP, wrong).argsort()
    return update_KP[chosen[:1] if rule == "krum" else chosen[: max(1, clients - wrong)]].mean(0)


@dataclass
class Robust:
    """Aggregates the replies of summed steps by a robust rule, and remembers who was far from the others."""

    rule: Rule
    wrong: int
    """f, how many clients may be wrong."""
    steps: frozenset[str]
    distance: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    most: float = 0.0
    """The largest usual distance so far."""

    def fold(self, step: str, reply: M) -> M:
        """A reply with one row; other steps' replies as they are."""
        if step not in self.steps:
            return reply
        trees = {name: value for name, value in reply.contents() if isinstance(value, dict)}
        joined = {f"{name}/{key}": tensor for name, tree in trees.items() for key, tensor in tree.items()}
        if not joined:
            return reply
        update_KP = flatten(joined)
        usable = update_KP.isfinite().all(1)
        if not bool(usable.any()):
            raise IntegrityError(f"no client sent a finite update in {step}, so there is nothing to aggregate")
        self._remember(reply.ids, update_KP, usable)
        good = update_KP[usable]
        middle = centre(good, self.rule, max(0, self.wrong - (len(update_KP) - len(good))))
        row = unflatten(middle, joined)
        values: dict[str, object] = {name: {key: row[f"{name}/{key}"] for key in tree} for name, tree in trees.items()}
        for name, value in reply.contents():
            if isinstance(value, Tensor):
                values[name] = value[usable].median(0, keepdim=True).values
        return dataclasses.replace(reply, ids=AGGREGATE, **values)

    def _remember(self, ids: tuple[str, ...], update_KP: Tensor, usable: Tensor) -> None:
        good = update_KP[usable]
        away = torch.full((len(ids),), float("inf"), dtype=good.dtype)
        away[usable] = (good - centre(good, "median", self.wrong)).norm(dim=1)
        usual = float(away[usable].median().clamp_min(1e-12))
        self.most = max(self.most, usual)
        for name, length in zip(ids, away.tolist(), strict=True):
            if usual >= MOVING * self.most or length == float("inf"):
                self.distance[name] = self.distance.get(name, 0.0) + min(length / usual, FARTHEST)
                self.rounds[name] = self.rounds.get(name, 0) + 1

    def evidence(self) -> list[object]:
        """For a checkpoint."""
        return [self.distance, self.rounds, self.most]

    def recall(self, evidence: list[Any]) -> None:
        """From a checkpoint."""
        self.distance, self.rounds, self.most = evidence

    def suspicion(self) -> dict[str, float]:
        """How far each client's updates were from the median on average, 1 being the usual distance of a round."""
        return {name: total / self.rounds[name] for name, total in self.distance.items()}

    def suspects(self) -> list[str]:
        """Clients, fewer than half, that are set apart from all others by a gap; the worst first."""
        far = sorted(self.suspicion().items(), key=lambda item: item[1])
        for place in range(len(far) // 2 + 1, len(far)):
            if far[place][1] >= GAP * far[place - 1][1]:
                return [name for name, _ in reversed(far[place:])]
        return []


def check_rule(name: str, rule: str, steps: frozenset[str], secure: bool, beyond: str) -> None:
    """Refuse a rule for a method that does not average, or secure aggregation with it or `beyond` what it hides."""
    if rule != "mean" and not steps:
        raise ConfigError(f"{name} does not just average its clients' models; training.aggregation={rule} is not for it")
    if rule != "mean" and secure:
        raise ConfigError(f"training.aggregation={rule} must see single updates, which secure aggregation hides; choose one")
    if secure and beyond:
        raise ConfigError(f"{name} {beyond}; secure aggregation is not for it")

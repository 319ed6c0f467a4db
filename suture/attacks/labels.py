"""The class distribution of a victim's training nodes, from what it says of classes or from how it moves a model.

- Counts of classes, where a method sends them, are read; and so is what follows them closely: FedTAD's reliability of
  classes, sums over their training nodes, and FedGTA's first moments, means of what is predicted.
- Class means: a class without one is not there; the rest is guessed to be as elsewhere.
- Models: the first update of the classifying layer, compared with what shadow owners with known distributions do to it (Gu
  and Bai, LDIA: Label distribution inference attack against federated learning in edge computing, 2023): the same step is
  run on nodes of a public graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import mean_bounds
from suture.attacks.scenes import Scene, label_share
from suture.attacks.shadows import decoded, ridge
from suture.attacks.updates import last_said, told_params, training_step, updates
from suture.core.message import Kind, Message, Rows
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch, pieces_of
from suture.method import Clients
from suture.methods.fedpub.wire import SparseModel

SHADOWS, TOGETHER = 60, 20
"""Owners that the attacker makes up, and how many of them train at the same time."""
BEFORE_TRAINING = ("sum_near_anchors",)
"""Steps in which owners are told what they train beside."""
NEARLY_COUNTS = {"fedtad": ("tell_reliability", "classes"), "fedgta": ("local_update", "mixed")}
"""Of methods that send statistics of classes: the step, and the field, that begins with a number for each class."""
Floats = NDArray[np.float64]


def nearly_told(heard: Heard, scene: Scene) -> Floats | None:
    """What the victim says of its classes in numbers that are close to how many nodes each has."""
    step, field = NEARLY_COUNTS.get(scene.method.name, ("", ""))
    said = last_said(heard, step, "up", heard.victim)
    if said is None:
        return None
    numbers = getattr(said.message, field)[0, : scene.task.classes].double().nan_to_num(0).clamp(min=0).numpy()
    return np.asarray(numbers / numbers.sum(), float) if numbers.sum() > 0 else None


def told(heard: Heard, classes: int, elsewhere: Floats) -> Floats | None:
    """What the victim itself says of its classes, if it does: counts, or which of them have a mean."""
    said = last_said(heard, training_step(heard), "up", heard.victim)
    if said is None:
        return None
    means = None
    for path, value in said.message.tensors().items():
        kind = said.message.kind_of(path)
        if kind is Kind.COUNTS and tuple(value.shape[1:]) == (classes,):
            counts = np.asarray(value[0].double().clamp(min=0).numpy(), float)
            # Only zeros and ones say which classes there are, not how many nodes each has.
            means = counts > 0
            if (counts > 1).any() and counts.sum() > 0:
                return np.asarray(counts / counts.sum(), float)
        elif kind is Kind.PROTOTYPES and value.dim() == 3 and value.shape[1] == classes and means is None:
            means = np.asarray((value[0].abs().sum(1) > 0).numpy(), bool)
    if means is None or not means.any():
        return None
    shares = np.where(means, elsewhere, 0)
    return np.asarray(shares / shares.sum() if shares.sum() > 0 else means / means.sum(), float)


def learned(heard: Heard, scene: Scene, public: GraphBatch, nodes: int) -> Floats:
    """From the first update of the classifying layer, by what shadow owners of known distributions do to it."""
    update = updates(heard, scene, 1)[0]
    names = [n for n, v in update.after.items() if n in update.before and v.shape[-1] == scene.task.classes and v.dim() > 1]
    frames = [frames[0] for frames in heard.frames(training_step(heard), "down").values()]
    if not names or not frames:
        raise NotTried("no layer that travels has an output for each class")
    asked = heard.recorded.read(frames[0])
    if not isinstance(asked, SparseModel) and any(isinstance(value, Rows) for _, value in asked.contents()):
        raise NotTried(f"{scene.method.name} hands out something of single nodes, which shadow owners do not have")
    # The server and all others together know the same of a victim's shadows.
    key = (public.num_nodes, scene.graph.ids.index(heard.victim), nodes, sent_as(asked))
    moves, shares = scene.once(key, partial(shadowed, public, nodes, heard, scene, asked, update.before, names))
    fitted = ridge(moves, shares, 1.0)
    found = decoded(_moved(update.after, update.before, names), fitted)[0].clip(0)
    return np.asarray(found / found.sum() if found.sum() > 0 else np.full_like(found, 1 / found.size), float)


def sent_as(message: Message) -> int:
    """A short name for what a message says."""
    return zlib.crc32(b"".join(value.contiguous().numpy().tobytes() for value in message.tensors().values()))


def shadowed(
    public: GraphBatch, nodes: int, heard: Heard, scene: Scene, asked: Message, before: Tree, names: list[str]
) -> tuple[Floats, Floats]:
    """(where shadow owners take a model [S, ...], their class distributions [S, C])."""
    moves, shares = [], []
    for first in range(0, SHADOWS, TOGETHER):
        graph = shadow_owners(public, nodes, scene.task.classes, range(first, first + TOGETHER))
        moves.append(_moved(told_params(trained_by(graph, heard, scene, asked), scene, before), before, names))
        shares += [label_share(graph.select([name]), scene.task.classes) for name in graph.ids]
    return np.concatenate(moves), np.stack(shares)


def trained_by(graph: GraphBatch, heard: Heard, scene: Scene, asked: Message) -> Message:
    """What the owners of these graphs answer, told what the first of those that were heard was told."""
    copies = [0] * len(graph.ids)
    clients = replace(scene.clients(graph), rng=Streams.of(scene.task.seed, graph.ids, "shadow"), round=1)
    state: Any = scene.method.init_clients(clients)
    for step in BEFORE_TRAINING:
        for frames in heard.frames(step, "down").values():
            told = heard.recorded.read(frames[-1]).take(copies, graph.ids)
            state, _ = getattr(scene.method, step)(Clients(graph, state, clients.rng, scene.task, 1), told)
            break
    train = getattr(scene.method, training_step(heard))
    reply: Message = train(Clients(graph, state, clients.rng, scene.task, 1), asked.take(copies, graph.ids))[1]
    return reply


def _moved(after: Tree, before: Tree, names: list[str]) -> Floats:
    """Where a layer went, for each client one vector of length one, [K, ...]."""
    steps = [(after[name].float() - before[name].float()).flatten(1).double().nan_to_num(0) for name in names]
    whole = torch.cat(steps, 1).numpy()
    return np.asarray(whole / np.linalg.norm(whole, axis=1, keepdims=True).clip(1e-300), float)


def shadow_owners(public: GraphBatch, nodes: int, classes: int, numbers: Iterable[int]) -> GraphBatch:
    """Owners of some nodes of a public graph, all of which train, each with a random class distribution."""
    label, members, names = public.y.numpy(), [], []
    for number in numbers:
        rng = np.random.default_rng(number)
        weight = rng.dirichlet(np.full(classes, 0.5))[label] / np.bincount(label, minlength=classes).clip(1)[label]
        weight = weight + 1e-9 / label.size
        chosen = rng.choice(label.size, min(nodes, label.size), replace=False, p=weight / weight.sum())
        members.append(torch.from_numpy(np.sort(chosen)))
        names.append(f"shadow-{number:03}")
    roles = [public.role.new_ones(one.numel()) for one in members]
    return pieces_of(public, names, members, roles, [False] * len(names))


def agreement(guess: Floats, truth: Floats) -> float:
    """How much two distributions overlap: 1 - their total variation distance."""
    return float(1 - np.abs(guess - truth).sum() / 2)


class Labels(Attack):
    """See the module docstring."""

    name = "labels"
    target = "the class distribution of an owner"
    paper = "Gu and Bai 2023"
    uses = frozenset({Kind.WEIGHTS, Kind.MASKS, Kind.PROTOTYPES, Kind.STATISTICS})
    knows = ("a public graph with labels", "how many training nodes the owner has")
    long = 1
    guess = "it is as elsewhere, or all classes are equally many"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """One distribution for each victim."""
        if scene.task.link or scene.graph.target.kind != "class":
            raise NotTried("nodes here have no single class")
        success, guesses = [], []
        even = np.full(scene.task.classes, 1 / scene.task.classes)
        for victim, ears in clock.each(heard.items(), OWNERS):
            public = scene.public(ears)
            elsewhere = label_share(public, scene.task.classes)
            found = nearly_told(ears, scene)
            found = found if found is not None else told(ears, scene.task.classes, elsewhere)
            found = found if found is not None else learned(ears, scene, public, int(scene.own(victim).num_train[0]))
            truth = scene.label_shares[victim]
            success.append(agreement(found, truth))
            guesses.append([agreement(elsewhere, truth), agreement(even, truth)])
        # The better of the two guesses, whichever that is here.
        guess = max(np.array(guesses).T, key=lambda values: float(values.mean()))
        low, high = mean_bounds(np.array(success) - guess)
        exact = (sum(value > 1 - 1e-6 for value in success), len(success))
        return Measured("overlap", float(np.mean(success)), float(np.mean(guess)), low, high, len(success), exact)

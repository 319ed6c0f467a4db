"""Which words (features) occur at a victim, read off what it does to weights that only a present word can move.

A first layer's weights of a word that no node has get no gradient. What an optimiser then does to them depends on nothing
but the weights themselves, so whoever sees them before and after can do the same: a word whose weights went elsewhere is
there. Moments that come down with a model are where its optimiser goes on from; a control variate (SCAFFOLD) is what is
stepped along without a gradient. Gradients of FedSage+'s output layer are mixtures of rows, and zero for words that no row
has. Sums over nodes that have a number for each feature (FedGram) say it themselves.
After Melis et al., Exploiting unintended feature leakage in collaborative learning, IEEE S&P 2019, section 4.1.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import Trial, auc_gain_by_owner
from suture.attacks.rows import answers
from suture.attacks.scenes import Scene, nodes_with
from suture.attacks.updates import Update, updates
from suture.core.message import Kind
from suture.core.tree import map_tree
from suture.methods.scaffold import CONTROL, Scaffold
from suture.training.optimisers import SUM, in_round, stepped
from suture.training.shared import at_round_start, client_memory, local_settings, taken

ROUNDS = 5
"""Updates that are looked at."""
MOST_ANSWERS = 300
"""Answers of FedSage+ that are looked at."""
STILL = 1e-4
"""What rounding makes of no movement, as a share of the longest; a step of an optimiser is far longer."""
SILENT = 1e-7
"""What single precision makes of a zero, as a share of the largest entry."""
Floats = NDArray[np.float64]


def moved(found: list[Update], scene: Scene, steps: int) -> Floats:
    """How far each word's weights went from where they go if the word is absent, [F]."""
    training, features = scene.method.training, scene.task.features
    names = [n for n, v in found[0].after.items() if v.dim() == 3 and v.shape[1] == features and n in found[0].before]
    if not names:
        raise NotTried("no layer that travels has a weight for each feature")
    start = {name: found[0].before[name] for name in names}
    moments, away = client_memory(start, training, sums=True), np.zeros(features)
    control = map_tree(torch.zeros_like, start)
    for update in found:
        params = {name: update.before[name] for name in names}
        moments = at_round_start(taken(moments, update.moments), training)
        common = {name: update.moments.get(name + CONTROL, torch.zeros_like(control[name])) for name in names}
        slope = {name: common[name] - control[name] for name in names}
        for _ in range(steps):
            params, moments = stepped(params, slope, moments, in_round(local_settings(training), update.round))
        if isinstance(scene.method, Scaffold):
            control = {name: control[name] + moments[f"{name}.{SUM}"] / steps - common[name] for name in names}
        for name in names:
            away += (update.after[name] - params[name])[0].abs().amax(1).double().numpy()
    return np.where(away > STILL * away.max(), away / len(found), 0.0)


def steps_of(scene: Scene, client: str) -> int:
    """Optimiser steps in a round, from the number of a client's training nodes."""
    training, nodes = scene.method.training, int(scene.own(client).num_train[0])
    batches = -(-nodes // training.batch_size) if training.batch_size else 1
    return training.local_epochs * max(1, batches)


def mixed(heard: Heard, scene: Scene) -> Floats | None:
    """The largest entry of each word in the first answers about a victim's rows, [F]."""
    largest: Floats | None = None
    for number, answer in enumerate(answers(heard, scene.graph.ids)):
        if number == MOST_ANSWERS:
            break
        size = np.abs(answer.mixtures).max(0)
        size = np.where(size > SILENT * size.max(), size, 0)
        largest = size if largest is None else np.maximum(largest, size)
    return largest


def counted(heard: Heard, scene: Scene) -> Floats | None:
    """What a victim told of each word itself, [F]: sums over its nodes with a number for each, if it sends such."""
    for step, way in heard.steps:
        frames = heard.frames(step, way).get(heard.victim, []) if way == "up" else []
        message = heard.recorded.peek(frames[0]) if frames else None
        for path, value in message.tensors().items() if message is not None else ():
            if message is not None and message.kind_of(path) is Kind.STATISTICS and value.shape == (1, scene.task.features):
                heard.recorded.use(frames[0])
                return np.asarray(value[0].abs().double().nan_to_num(0).numpy(), float)
    return None


class Words(Attack):
    """See the module docstring."""

    name = "words"
    target = "which features occur at an owner"
    paper = "Melis et al. 2019"
    uses = frozenset({Kind.WEIGHTS, Kind.MASKS, Kind.MOMENTS, Kind.GRADIENTS, Kind.STATISTICS})
    knows = ("how common each feature is elsewhere", "how many training nodes the owner has", "the optimiser")
    guess = "what is common elsewhere occurs here too"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Words of all victims together."""
        scores, present, parts = [], [], list[Trial]()
        for victim, ears in clock.each(heard.items(), OWNERS):
            there = (nodes_with(scene.own(victim)) > 0).numpy()
            if there.all() or not there.any():
                continue
            found = mixed(ears, scene) if ("offer", "up") in ears.steps else counted(ears, scene)
            score = found if found is not None else moved(updates(ears, scene, ROUNDS), scene, steps_of(scene, victim))
            scores.append(score)
            present.append(there)
            public = scene.public(ears)
            parts.append((score, there, nodes_with(public).double().numpy() / public.num_nodes))
        if not scores:
            raise NotTried("every feature occurs at every owner, as numbers do: there is nothing to find out")
        right = [bool(((score > 0) == there).all()) for score, there in zip(scores, present, strict=True)]
        trials = int(sum(map(len, present)))
        return Measured("AUC", *auc_gain_by_owner(parts), trials, (sum(right), len(right)))

"""What an attacker hears of a victim's local training: the model it started from and the model it ended with.

The server sees both. All others together know the mean that came down next and all its terms but one: they subtract, which
takes how much the victim weighs. One owner can subtract itself only, and is left with the mean of all others; a server that
is shown sums alone can subtract nobody, and is left with the mean of all. Models that
travel without the entries that masks removed (FED-PUB) are put together again from what is known of these. What came down
with a model, such as moments of an optimiser, is known too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from suture.attacks.attack import NotTried
from suture.attacks.hearing import Heard, Said
from suture.attacks.scenes import Scene
from suture.core.tree import Tree, prefixed
from suture.errors import IntegrityError
from suture.method import Method
from suture.methods.averaging import sizes_of
from suture.methods.fedgram.method import GRAM_OF
from suture.methods.fedpub.method import layout_of
from suture.methods.fedpub.wire import SparseModel, restored
from suture.methods.suture.method import Suture
from suture.methods.suture.settling import MIXTURE, OWN
from suture.settings import TrainingSettings
from suture.training.optimisers import SUM
from suture.training.shared import steps_at_server

TRAINING = ("local_update", "train_with_anchors")
"""The steps in which clients train a model that travels; FedGGR's second is weighed by nodes, whatever is set."""


@dataclass(frozen=True)
class Update:
    """Parameters [1, ...] before and after a client's local training, and which round it was."""

    round: int
    before: Tree
    after: Tree
    moments: Tree = field(default_factory=dict)
    """What came down with the parameters: moments of an optimiser, SCAFFOLD's control variate."""
    described: Tree = field(default_factory=dict)
    """What a model describes nodes by beside its parameters, and everybody was told (FedGram)."""


def training_step(heard: Heard) -> str:
    """The one of these steps that was heard."""
    found = [step for step, _ in heard.steps if step in TRAINING]
    return found[0] if found else TRAINING[0]


def updates(heard: Heard, scene: Scene, most: int | None = None, *, last: bool = False) -> list[Update]:
    """The first (or last) updates of the victim, or of those it cannot be told from; raises `NotTried` if there are none."""
    alone = heard.by_server and training_step(heard) not in heard.sealed
    found = _seen_by_server(heard, scene, most, last) if alone else _by_subtraction(heard, scene, most, last)
    if not found:
        raise NotTried(f"{scene.method.name} does not send trained models, or not all of one")
    return found


def _seen_by_server(heard: Heard, scene: Scene, most: int | None, last: bool) -> list[Update]:
    step = training_step(heard)
    down = heard.frames(step, "down").get(heard.victim, [])
    up = {frame.ask: frame for frame in heard.frames(step, "up").get(heard.victim, [])}
    found = []
    for number, frame in _chosen(list(enumerate(down, 1)), most, last):
        if frame.ask not in up:
            continue
        down_message, reply = heard.recorded.read(frame), heard.recorded.read(up[frame.ask])
        before = told_params(down_message, scene)
        after = _stepped(before, reply, scene.method.training) | told_params(reply, scene, before)
        if after:
            start = {name: before[name] for name in after if name in before}
            found.append(Update(number, start, after, told_moments(down_message), told_description(heard)))
    return found


def _by_subtraction(heard: Heard, scene: Scene, most: int | None, last: bool) -> list[Update]:
    """Of the mean, with what the attackers have sent taken out."""
    if not is_mean(scene.method, training_step(heard)):
        raise NotTried(f"{scene.method.name} does not promise that what it hands out is the mean of what its clients sent")
    friends, step = sorted(heard.attackers or ()), training_step(heard)
    down, up = heard.frames(step, "down"), heard.frames(step, "up")
    # Everybody is handed the same.
    handed = down.get(friends[0] if friends else heard.victim, [])
    rounds = [frame.ask for frame in handed]
    weight = weights(scene, step)
    strangers = [name for name in scene.graph.ids if name not in friends]
    found = []
    for number, (ask, following) in _chosen(list(enumerate(itertools.pairwise(rounds), 1)), most, last):
        own = [_at(heard, scene, up.get(name, []), ask) for name in friends]
        if any(tree is None for tree in own) or scene.method.training.participation < 1:
            continue
        before, mean = (_at(heard, scene, handed, at) for at in (ask, following))
        start = next(heard.recorded.read(frame) for frame in handed if frame.ask == ask)
        if not before or not mean:
            continue
        left = sum(weight[name] for name in strangers)
        total = left + sum(weight[name] for name in friends)
        known = [weight[friend] for friend in friends]
        sent = [name for name in mean if all(tree is None or name in tree for tree in own)]
        after = {name: (total * mean[name] - _total(name, own, known)) / left for name in sent} if friends else mean
        begun = {name: before[name] for name in after if name in before}
        found.append(Update(number, begun, after, told_moments(start), told_description(heard)))
    return found


def _total(name: str, trees: list[Tree | None], weight: list[float]) -> Tensor:
    return torch.stack([w * tree[name] for w, tree in zip(weight, trees, strict=True) if tree is not None]).sum(0)


def _at(heard: Heard, scene: Scene, frames: list[Any], ask: int) -> Tree | None:
    frame = next((one for one in frames if one.ask == ask), None)
    return None if frame is None else told_params(heard.recorded.read(frame), scene)


def _chosen(things: list[Any], most: int | None, last: bool) -> list[Any]:
    return things if most is None else things[-most:] if last else things[:most]


def told_params(message: object, scene: Scene, known: Tree | None = None) -> Tree:
    """The model [K, ...] in a message; entries that did not travel are as `known` [1, ...], or as everybody begins."""
    if isinstance(message, SparseModel):
        initial = scene.method.initial_params(scene.task)
        layout = layout_of(initial)
        missing = layout.join(known or initial).expand(len(message.ids), -1)
        try:
            return layout.split(restored(message, layout.entries, missing.clone).float())
        except IntegrityError:  # noise in its place, whose bits and numbers do not fit: no model
            return {}
    found = getattr(message, "params", {})
    return {name: value.float() for name, value in found.items()} if isinstance(found, Mapping) else {}


def told_moments(message: object) -> Tree:
    """The moments [K, ...] in a message; none in most."""
    found = getattr(message, "moments", {})
    return dict(found) if isinstance(found, Mapping) else {}


def told_description(heard: Heard) -> Tree:
    """What everybody was told to describe nodes by, under the names that a model has it by."""
    said = heard.says("learn", "down", most=1)
    return prefixed(GRAM_OF, getattr(said[0].message, "gram", {})) if said else {}


def as_far_as_it_travels(method: Method[Any, Any], params: Tree) -> tuple[Method[Any, Any], Tree]:
    """A method that predicts with what its clients send, and that: of a mixture without the expert that stays at home."""
    if not isinstance(method, Suture) or not method.own or MIXTURE not in params:
        return method, params
    sent = {name: value for name, value in params.items() if not name.startswith(OWN)}
    say = sent[MIXTURE][:, :-1].clamp_min(1e-9)
    return replace(method, own=False), sent | {MIXTURE: say / say.sum(1, keepdim=True)}


def _stepped(before: Tree, reply: object, training: TrainingSettings) -> Tree:
    """Where plain SGD has gone, if a client sent the sum of its gradients in the place of a model."""
    if training.moments != "server":
        return {}
    sums = getattr(reply, "moments", {})
    return {name: value - training.lr * sums[f"{name}.{SUM}"] for name, value in before.items() if f"{name}.{SUM}" in sums}


def weights(scene: Scene, step: str) -> dict[str, float]:
    """How much each client weighs in the mean."""
    sizes = sizes_of(scene.graph, scene.method.training) if step == TRAINING[0] else scene.graph.sizes
    return dict(zip(scene.graph.ids, sizes.tolist(), strict=True))


def is_mean(method: Method[Any, Any], step: str) -> bool:
    """Whether everybody is handed the weighted mean of what everybody sent."""
    training = method.training
    return step in method.sums and training.moments != "server" and not steps_at_server(training)


def last_said(heard: Heard, step: str, direction: str, client: str) -> Said | None:
    """The last message of a step to or from a client, if it was heard."""
    frames = heard.frames(step, direction).get(client, [])
    return Said(frames[-1].ask, client, heard.recorded.read(frames[-1])) if frames else None

"""Whether a node was trained on: what was trained on has the smaller loss.

Yeom et al., Privacy risk in machine learning: analyzing the connection to overfitting, CSF 2018 (a threshold on the loss),
under the model that the victim sent last, or under what can be told of it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import Trial, auc_gain_by_owner
from suture.attacks.scenes import Scene
from suture.attacks.updates import as_far_as_it_travels, updates
from suture.core.message import Kind, Model
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch
from suture.methods.fedgram.method import GRAM_OF
from suture.methods.fedpub.masks import weights_of

TRAIN, TEST = 1, 3
Floats = NDArray[np.float64]


def class_scores(scene: Scene, params: Tree, graph: GraphBatch) -> torch.Tensor:
    """Logits [N, C] of a model that travelled, on somebody's graph."""
    method, params = as_far_as_it_travels(scene.method, params)
    wanted = weights_of(method.initial_params(scene.task))
    if not wanted.keys() <= params.keys():
        raise NotTried(f"a part of {method.name}'s model never travels")
    model = Model(graph.ids, {name: params[name] for name in params if name in wanted or name.startswith(GRAM_OF)})
    try:
        with torch.no_grad():
            return method.predict(graph, model, scene.task)
    except (KeyError, AttributeError, TypeError) as error:
        raise NotTried(f"{scene.method.name}'s model predicts with something that does not travel with it") from error


def losses(scene: Scene, params: Tree, graph: GraphBatch, nodes: torch.Tensor) -> Floats:
    """The cross-entropy of single nodes."""
    logits = class_scores(scene, params, graph)[nodes]
    each = torch.nn.functional.cross_entropy(logits, graph.y[nodes].long(), reduction="none")
    return np.asarray(each.double().nan_to_num(1e9, 1e9, 1e9).numpy(), float)


class Membership(Attack):
    """See the module docstring."""

    name = "membership"
    target = "whether a node was trained on"
    paper = "Yeom et al. 2018"
    uses = frozenset({Kind.WEIGHTS, Kind.MASKS})
    knows = ("features, label and neighbours of the nodes in question",)
    guess = "chance: who trains was drawn at random"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Training nodes against test nodes of all victims."""
        if scene.task.link or scene.graph.target.kind != "class":
            raise NotTried("losses of single nodes are compared, and here no node has one class")
        parts: list[Trial] = []
        asked = 0
        for victim, ears in clock.each(heard.items(), OWNERS):
            own = scene.own(victim)
            nodes = torch.cat([own.nodes_in(TRAIN), own.nodes_in(TEST)])
            training = (own.role[nodes] == TRAIN).numpy()
            if training.all() or not training.any():
                continue
            last = updates(ears, scene, 1, last=True)[-1]
            parts.append((-losses(scene, last.after | last.described, own, nodes).clip(max=50), training, None))
            asked += training.size
        if not parts:
            raise NotTried("no owner has both training and test nodes")
        return Measured("AUC", *auc_gain_by_owner(parts), asked)

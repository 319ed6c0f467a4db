"""Whether a node is an owner's at all: the means of groups of nodes that FedDEP tells lie nearer to those they are of.

The attacker trains the network of line 1 on nodes in question, whoever has them, from the weights that everybody starts
from, and asks how much nearer a node's embedding is to the nearest mean of the victim than, on the mean, to those of the
other owners. After Homer et al., Resolving individuals contributing trace amounts of DNA to highly complex mixtures, PLoS
Genetics 2008: nearer to a mean than others of the same kind are. Where means have noise, distances in many dimensions are
mostly noise: then it is asked how far a mean lies in the node's own direction, where there is noise of one dimension only
(Dwork et al., Robust traceability from trace amounts, FOCS 2015).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import Trial, auc_gain_by_owner
from suture.attacks.scenes import Scene, merged
from suture.core.message import Kind
from suture.core.streams import Streams
from suture.method import Clients
from suture.methods.feddep import FedDep

MOST_NODES = 3000
"""Nodes that are asked about, of all owners together; an induced graph on more takes minutes to learn from."""
TOLD, PASSED_ON = "prototype", "remember"
"""The steps that means go up and down with."""
Floats = NDArray[np.float64]


def told_means(heard: Heard, ids: tuple[str, ...]) -> dict[str, Tensor]:
    """The means [C, D] of each owner whose means were heard; whoever tells nothing, so zeros, is left out."""
    means = {name: heard.recorded.read(frames[0]) for name, frames in heard.frames(TOLD, "up").items()}
    found = {name: message.centres[0] for name, message in means.items() if hasattr(message, "centres")}
    for name, frames in heard.frames(PASSED_ON, "down").items():
        others = [other for other in sorted(ids) if other != name]
        centres = getattr(heard.recorded.read(frames[0]), "centres", None)
        if centres is not None and not heard.by_server:
            found |= dict(zip(others, centres[0], strict=True))
    return {name: value for name, value in found.items() if bool(value.any())}


def nearness(rows: Tensor, means: dict[str, Tensor], victim: str) -> Floats:
    """How much nearer rows are to the nearest mean of the victim than to those of others, [N]."""
    apart = {name: torch.cdist(rows, value).min(1).values.double() for name, value in means.items()}
    others = torch.stack([value for name, value in apart.items() if name != victim]).mean(0)
    return np.asarray((others - apart[victim]).numpy(), float)


def traced(rows: Tensor, means: dict[str, Tensor], victim: str) -> Floats:
    """The same by the mean of the victim that lies farthest in the direction of a row, as all are seen from their middle."""
    middle, seen = torch.cat(list(means.values())).mean(0), rows - rows.mean(0)
    along = {name: (seen @ (value - middle).T).max(1).values.double() for name, value in means.items()}
    others = torch.stack([value for name, value in along.items() if name != victim]).mean(0)
    return np.asarray((along[victim] - others).numpy(), float)


class Presence(Attack):
    """See the module docstring."""

    name = "presence"
    target = "whether a node is an owner's"
    paper = "Homer et al. 2008; Dwork et al. 2015"
    uses = frozenset({Kind.PROTOTYPES})
    knows = ("features, labels and neighbours of the nodes in question, and that each is some owner's",)
    guess = "chance"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Nodes of the victim against nodes of all others."""
        method, graph = scene.method, scene.graph
        if not isinstance(method, FedDep) or (TOLD, "up") not in next(iter(heard.values())).steps:
            raise NotTried(f"owners of {method.name} tell no means of groups of their nodes")
        drawn = np.random.default_rng(0).permutation(graph.num_nodes)[:MOST_NODES]
        nodes = torch.from_numpy(np.sort(drawn))
        owner, asked = graph.segments.client[nodes].numpy(), merged(graph).induced(nodes)
        state = method.init_clients(scene.clients(asked))
        shadow = Clients(asked, state, Streams.of(scene.task.seed, asked.ids, "shadow"), scene.task, 1)
        rows = method.embeddings(shadow)
        score = traced if method.prototype_sigma and not method.as_published else nearness
        parts: list[Trial] = []
        for victim, ears in clock.each(heard.items(), OWNERS):
            means, own = told_means(ears, graph.ids), owner == graph.ids.index(victim)
            if victim not in means or len(means) < 2 or not own.any():
                continue
            parts.append((score(rows, means, victim), own, None))
        if not parts:
            raise NotTried("too few owners have told means to compare with")
        return Measured("AUC", *auc_gain_by_owner(parts), len(parts) * len(nodes))

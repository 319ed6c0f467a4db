"""Whether two known nodes of a victim are linked: what is linked is spoken of alike.

He et al., Stealing links from graph neural networks, USENIX Security 2021, attacks 0 and 3: the more alike what is said of
two nodes, the likelier the link. Where a method sends vectors of single nodes, these are compared. Otherwise the victim's
model is asked about both nodes, each alone with its features, and its answers are compared beside the features themselves.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import Trial, auc_gain_by_owner, standardised
from suture.attacks.membership import class_scores
from suture.attacks.scenes import Scene, edgeless
from suture.attacks.shadows import node_vectors
from suture.attacks.updates import updates
from suture.core.message import Kind
from suture.graph.batch import GraphBatch

MOST_PAIRS = 2000
"""Links of one victim that are asked about, and as many pairs that are none."""
Floats = NDArray[np.float64]


def pairs_of(graph: GraphBatch, seed: int = 0) -> tuple[Tensor, NDArray[np.bool_]]:
    """Linked and unlinked pairs of nodes [2, P], equally many, and which are linked."""
    first, second = graph.edge_index
    linked = torch.stack([first, second])[:, first < second]
    rng = torch.Generator().manual_seed(seed)
    linked = linked[:, torch.randperm(linked.shape[1], generator=rng)[:MOST_PAIRS]]
    known = set((graph.edge_index[0] * graph.num_nodes + graph.edge_index[1]).tolist())
    drawn = torch.randint(0, graph.num_nodes, (2, 4 * linked.shape[1] + 64), generator=rng)
    free = [a != b and a * graph.num_nodes + b not in known for a, b in drawn.T.tolist()]
    other = drawn[:, torch.tensor(free, dtype=torch.bool)][:, : linked.shape[1]]
    return torch.cat([linked, other], 1), np.arange(linked.shape[1] + other.shape[1]) < linked.shape[1]


def alikeness(vectors: Tensor, pairs: Tensor) -> Floats:
    """The cosine of what sets two vectors apart from the mean of all."""
    unit = torch.nn.functional.normalize((vectors - vectors.mean(0)).double(), dim=1)
    return np.asarray((unit[pairs[0]] * unit[pairs[1]]).sum(1).numpy(), float)


def alike_features(graph: GraphBatch, pairs: Tensor) -> Floats:
    """The same of nodes' features."""
    return alikeness(graph.x.dense(), pairs)


class Links(Attack):
    """See the module docstring."""

    name = "links"
    target = "whether two known nodes are linked"
    paper = "He et al. 2021"
    uses = frozenset({Kind.WEIGHTS, Kind.MASKS, Kind.EMBEDDINGS})
    knows = ("features of both nodes",)
    guess = "nodes with similar features are linked"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Links of all victims, against as many pairs that are not linked."""
        if scene.task.link:
            raise NotTried("links are what is predicted here, and some of them are hidden on purpose")
        parts: list[Trial] = []
        asked = 0
        for victim, ears in clock.each(heard.items(), OWNERS):
            own = scene.own(victim)
            pairs, linked = pairs_of(own)
            if linked.all() or not linked.any():
                continue
            by_features = scene.once(("alike", victim), partial(alike_features, own, pairs))
            sent = node_vectors(ears)
            if sent is not None and len(sent.values) == own.num_nodes:
                found = alikeness(torch.from_numpy(sent.values), pairs)
            else:
                last = updates(ears, scene, 1, last=True)[-1]
                scores = class_scores(scene, last.after | last.described, edgeless(own))
                said = torch.log_softmax(scores.nan_to_num(0), 1)
                found = standardised(alikeness(said, pairs)) + standardised(by_features)
            parts.append((found, linked, by_features))
            asked += linked.size
        if not parts:
            raise NotTried("no owner has links")
        return Measured("AUC", *auc_gain_by_owner(parts), asked)

"""Features from embeddings and codes of single nodes: an auto-encoder's second half, learned on a public graph.

The attacker lets the victim's own step run on a public graph (`suture.attacks.shadows`), learns by least squares to go back
from vectors to features, and applies that to the victim's vectors. After Duddu, Boutet and Shejwalkar, Quantifying privacy
leakage in graph embedding, MobiQuitous 2020 (an auto-encoder's decoder).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import mean_bounds
from suture.attacks.rows import right
from suture.attacks.scenes import Scene
from suture.attacks.shadows import decoded, node_vectors, ridge, shadow_vectors
from suture.core.message import Kind

Floats = NDArray[np.float64]
MOST_FEATURES = 1 << 26
"""Numbers of a feature matrix that is made dense."""


def cosines(left: Floats, right: Floats) -> Floats:
    """Of rows with rows; 0 where one is empty."""
    length = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(1) / np.where(length > 0, length, 1), float)


class Codes(Attack):
    """See the module docstring."""

    name = "codes"
    target = "features of nodes, from embeddings or codes of them"
    paper = "Duddu, Boutet and Shejwalkar 2020"
    uses = frozenset({Kind.EMBEDDINGS})
    knows = ("a public graph of the same kind",)
    guess = "the mean features of the public graph"
    views = ("server",)

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Every node of every victim."""
        success, guess, exact = [], [], []
        for victim, ears in clock.each(heard.items(), OWNERS):
            sent = node_vectors(ears)
            if sent is None:
                continue
            public = scene.public(ears)
            truth, known = scene.own(victim).x.dense().double().numpy(), public.x.dense().double().numpy()
            if known.size > MOST_FEATURES:
                raise NotTried("the features are too many for a decoder by least squares")
            pairs = shadow_vectors(ears, scene, sent, public)
            mean = known.mean(0, keepdims=True)
            if len(pairs) != len(known) or len(sent.values) != len(truth):
                raise NotTried(f"the vectors that {scene.method.name} sends are of groups of nodes, not of single ones")
            found = decoded(sent.values, ridge(pairs, known))
            success += cosines(found, truth).tolist()
            guess += cosines(np.repeat(mean, len(truth), 0), truth).tolist()
            exact += right(found.clip(0), truth)[0].tolist()
        if not success:
            raise NotTried(f"nobody sends vectors of single nodes in {scene.method.name}")
        bounds = mean_bounds(np.array(success) - np.array(guess))
        hits = (sum(exact), len(exact))
        return Measured("cosine", float(np.mean(success)), float(np.mean(guess)), *bounds, len(success), hits)

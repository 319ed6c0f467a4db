"""Who is who in the next round, if messages came without names: what a victim sends resembles what it sent before.

Messages of one round are matched with those of a later one by the cosine of what sets each apart from the others, all at
once (Kuhn, The Hungarian method, 1955). After Orekondy et al., Gradient-Leaks: understanding and controlling
deanonymization in federated learning, 2018.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from suture.attacks.attack import Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import share_bounds
from suture.attacks.scenes import Scene
from suture.core.message import Kind
from suture.privacy.disclosure import EVALUATION_STEP
from suture.privacy.tape import Frame

ROUNDS = 4
"""Pairs of consecutive rounds that are matched, from the middle of the run."""
SMALL = 64
"""Numbers of a message below which nothing sets it apart."""
TELLING = frozenset({Kind.WEIGHTS, Kind.GRADIENTS, Kind.EMBEDDINGS, Kind.PROTOTYPES, Kind.SIGNATURES, Kind.FEATURES})
Floats = NDArray[np.float64]


def fingerprint(heard: Heard, frame: Frame) -> Floats:
    """What a message says, as one vector."""
    message = heard.recorded.peek(frame)
    told = [v.flatten() for path, v in message.tensors().items() if v.is_floating_point() and _tells(message.kind_of(path))]
    return np.concatenate([value.double().nan_to_num(0).numpy() for value in told]) if told else np.zeros(0)


def _tells(kind: Kind | None) -> bool:
    return kind in TELLING


def matched(earlier: list[Floats], later: list[Floats]) -> int:
    """How many of the later vectors are assigned to the earlier one at the same place."""
    shortest = min(vector.size for vector in (*earlier, *later))
    one, two = (_apart(np.stack([vector[:shortest] for vector in side])) for side in (earlier, later))
    rows, columns = scipy.optimize.linear_sum_assignment(-(one @ two.T))
    return int((rows == columns).sum())


def _apart(vectors: Floats) -> Floats:
    """Unit vectors of what sets each apart from their mean."""
    centred = vectors - vectors.mean(0)
    return np.asarray(centred / np.linalg.norm(centred, axis=1, keepdims=True).clip(1e-300), float)


class Reidentification(Attack):
    """See the module docstring."""

    name = "identity"
    target = "which message of the next round is from the same owner"
    paper = "Orekondy et al. 2018"
    guess = "chance: one in as many as there are owners"
    views = ("server",)

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """The step that says most, round after round."""
        ears, ids = next(iter(heard.values())), scene.graph.ids
        steps = [step for step, way in ears.steps if way == "up" and step != EVALUATION_STEP]
        hits = trials = 0
        for step in reversed(steps):
            frames = ears.frames(step, "up")
            rounds = min(len(frames.get(name, [])) for name in ids)
            middle = max(0, (rounds - 1) // 2 - ROUNDS // 2)
            for number in clock.each(range(middle, min(middle + ROUNDS, rounds - 1)), "pairs of rounds"):
                now, following = ([fingerprint(ears, frames[name][at]) for name in ids] for at in (number, number + 1))
                if min(vector.size for vector in (*now, *following)) < SMALL:
                    clock.plan(clock.done, clock.unit)
                    break
                ears.recorded.use(frames[ids[0]][number])
                hits += matched(now, following)
                trials += len(ids)
            if trials:
                break
        if not trials or len(ids) < 2:
            raise NotTried("no owner sends more than a few numbers twice")
        chance = 1 / len(ids)
        low, high = share_bounds(hits, trials)
        return Measured("share", hits / trials, chance, low - chance, high - chance, trials, (hits, trials))

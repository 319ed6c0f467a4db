r"""Lower bounds on epsilon from canaries: what an attacker has really told apart, against what an account promises.

m canaries are put into the data or left out by fair coins, the mechanism is run once, and each canary gets a score, higher
where it seems to have been in. Three bounds follow, each wrong with a probability of at most `doubt`:

    guesses   Steinke, Nasr and Jagielski, Privacy auditing with one (1) training run, NeurIPS 2023, theorem 5.2: of some
              guesses about canaries (the others are passed over) so many are right that under (epsilon, delta) it would be
              a wonder. For any mechanism and any canaries, and weak if there are few.
    test      a threshold is chosen on one half of the canaries. On the other half alpha of those left out and beta of those
              put in lie above it, with Clopper-Pearson limits: beta <= e^epsilon alpha + delta, and the same for what lies
              below. For any mechanism, with canaries that do not disturb one another.
    noise     alpha and beta of a threshold half-way, and the mechanism's own shape: N(k, s^2 T) against N(0, s^2 T), where k
              of T steps drew the canary, with probability q each, can be told apart no better than
                  beta(alpha, s) = sum_k P[Bin(T, q) = k] Phi(k / (s sqrt(T)) + Phi^-1(alpha))
              The largest s with which beta could be is the noise that is *there*, and its epsilon, by the very account that
              promised the upper bound, is a lower bound. For Gaussian mechanisms only, where it is nearly tight, as by
              Nasr et al., Tight auditing of differentially private machine learning, USENIX Security 2023.

The largest of them is the audited epsilon, so each gets a third of the doubt there may be. A fault in the code (too little
noise, no clipping, the same noise twice) shows up as a lower bound above the upper one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch
from scipy.special import bdtr, betaincinv, ndtr, ndtri
from torch import Tensor

from suture.privacy.gdp import least

CONFIDENCE = 0.95
SHARES = (0.1, 0.3, 1.0)
"""Of the canaries that are guessed about; each has its part of the doubt."""
LEAST_NOISE, MOST_NOISE = 1e-3, 1e5
AUDIT = "audit.json"


@dataclass(frozen=True)
class Heard:
    """What an auditor has of every canary: its score, and whether it was in; both [m]."""

    score: Tensor
    included: Tensor


@dataclass(frozen=True)
class Shape:
    """A Gaussian mechanism: in each of `steps` a record is drawn with probability `rate` and changes a sum by at most 1."""

    rate: float
    steps: int

    def power(self, noise: float, alpha: float) -> float:
        """The beta of the best threshold on summed scores that has this alpha."""
        seen = ndtr(np.arange(self.steps + 1) / (noise * math.sqrt(self.steps)) + ndtri(alpha))
        return float((self._drawn * seen).sum())

    @cached_property
    def _drawn(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How probable it is to be drawn 0, 1, ... times."""
        return np.asarray(scipy.stats.binom.pmf(np.arange(self.steps + 1), self.steps, self.rate))


@dataclass(frozen=True)
class Rates:
    """Clopper-Pearson limits of what lies above a threshold: of canaries left out at most, of those put in at least."""

    alpha: float
    beta: float


def lower_bounds(
    heard: Heard,
    delta: float,
    shape: Shape | None = None,
    epsilon_of: Callable[[float], float] | None = None,
    confidence: float = CONFIDENCE,
) -> dict[str, float]:
    """The bounds by name, all of them right with this confidence; `epsilon_of` a noise is the account under audit."""
    doubt = (1 - confidence) / 3
    found = {"guesses": guesses_bound(heard, delta, doubt), "test": threshold_bound(heard, delta, doubt)}
    if shape is not None and epsilon_of is not None:
        noise = noise_there(heard, shape, doubt)
        found["noise"] = epsilon_of(noise) if noise < MOST_NOISE else 0.0
    return found


# Guesses


def chance_of(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most how probable so many right guesses are under (epsilon, delta): theorem 5.2, as in its appendix D."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    if right == 0:
        return 1.0
    fewer = np.arange(1, right + 1)
    below = bdtr(np.arange(right)[::-1] - 1, guesses, accuracy)  # fewer than right - 1, right - 2, ... of them
    below[-1] = 0.0
    most = float(bdtr(right - 1, guesses, accuracy))
    alpha = float(((most - below) / fewer).max())
    return min(1.0, 1 - most + 2 * canaries * delta * alpha)


def guesses_bound(heard: Heard, delta: float, doubt: float) -> float:
    """The best epsilon that some share of guesses refutes: as many highest scores are said to be in as lowest to be out."""
    order, canaries = torch.argsort(heard.score, descending=True), heard.score.numel()
    best = 0.0
    for share in SHARES:
        each = int(share * canaries / 2)
        told_in, told_out = heard.included[order[:each]], heard.included[order[canaries - each :]]
        right = int(told_in.sum()) + int((~told_out).sum())
        best = max(best, _refuted(canaries, 2 * each, right, delta, doubt / len(SHARES)))
    return best


def _refuted(canaries: int, guesses: int, right: int, delta: float, doubt: float) -> float:
    if not guesses or chance_of(canaries, guesses, right, 0.0, delta) >= doubt:
        return 0.0
    top = 1.0
    while chance_of(canaries, guesses, right, top, delta) < doubt:
        top *= 2
    # Rounded down, as it bounds from below.
    return least(lambda e: chance_of(canaries, guesses, right, e, delta) >= doubt, 0.0, top, 40) * (1 - 1e-9)


# Tests


def rates(heard: Heard, threshold: float, doubt: float) -> Rates:
    """For a threshold that these canaries did not choose; each limit takes half the doubt."""
    above, included = heard.score > threshold, heard.included
    ins, outs = int(included.sum()), int((~included).sum())
    return Rates(
        at_most(int((above & ~included).sum()), outs, doubt / 2), at_least(int((above & included).sum()), ins, doubt / 2)
    )


def _best_threshold(score: Tensor, included: Tensor) -> float:
    """Where the tested quantities of the two sides, with a pseudo-count each, are farthest apart in normal deviates."""
    values = torch.unique(score)
    if values.numel() < 2:
        return float(values[0]) if values.numel() else 0.0
    between = (values[1:] + values[:-1]) / 2
    inside, outside = score[included].sort().values, score[~included].sort().values
    above_in = inside.numel() - torch.searchsorted(inside, between)
    above_out = outside.numel() - torch.searchsorted(outside, between)
    beta = (above_in + 2) / (inside.numel() + 4)
    alpha = (above_out + 2) / (outside.numel() + 4)
    apart = torch.special.ndtri(beta.double()) - torch.special.ndtri(alpha.double())
    return float(between[int(apart.argmax())])


def at_most(hits: int, tries: int, doubt: float) -> float:
    """Clopper-Pearson's upper limit of a probability."""
    return 1.0 if hits >= tries else float(betaincinv(hits + 1, tries - hits, 1 - doubt))


def at_least(hits: int, tries: int, doubt: float) -> float:
    """Clopper-Pearson's lower limit of a probability."""
    return 0.0 if hits == 0 else float(betaincinv(hits, tries - hits + 1, doubt))


def threshold_bound(heard: Heard, delta: float, doubt: float) -> float:
    """The epsilon that alpha and beta of one threshold need, whatever the mechanism."""
    middle = heard.score.numel() // 2
    chosen = _best_threshold(heard.score[:middle], heard.included[:middle])
    found = rates(Heard(heard.score[middle:], heard.included[middle:]), chosen, doubt)
    return needed_epsilon(found, delta)


def needed_epsilon(found: Rates, delta: float) -> float:
    """The least epsilon with which a mechanism of this delta could have these rates."""
    pairs = ((found.beta, found.alpha), (1 - found.alpha, 1 - found.beta))
    return max(0.0, *(math.log((more - delta) / less) if more > delta else 0.0 for more, less in pairs))


def noise_there(heard: Heard, shape: Shape, doubt: float) -> float:
    """The most noise, as a multiple of what a canary may change, with which scores could be told apart so well."""
    found = rates(heard, shape.rate * shape.steps / 2, doubt)
    if shape.power(LEAST_NOISE, found.alpha) < found.beta or found.beta <= found.alpha:
        return LEAST_NOISE if found.beta > found.alpha else MOST_NOISE
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    return math.exp(least(lambda log: shape.power(math.exp(log), found.alpha) < found.beta, low, high, 50))


@dataclass(frozen=True)
class Audited:
    """One mechanism of one client, audited."""

    client: str
    mechanism: str
    hides: str
    canaries: int
    delta: float
    upper: float
    """What the account says of exactly what was run."""
    bounds: Mapping[str, float]
    run: str
    """What was run, in words."""
    least_delta: float | None = None
    """Where delta is all that is promised: how large it is at least."""

    @property
    def lower(self) -> float:
        """The audited epsilon."""
        return max(self.bounds.values())

    @property
    def holds(self) -> bool:
        """Whether the account has not been refuted."""
        return self.lower <= self.upper

    def as_json(self) -> dict[str, object]:
        """For `audit.json`."""
        return {**vars(self), "bounds": dict(self.bounds), "lower": self.lower, "holds": self.holds}

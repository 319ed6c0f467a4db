r"""The Gaussian mechanism, exactly: what noise of deviation sigma on something that one record changes by Delta is worth.

With mu = Delta / sigma it is mu-GDP (Dong, Roth and Su, Gaussian differential privacy, JRSS-B 2022): telling if a record is
in is as hard as telling N(0, 1) from N(mu, 1). Mechanisms after one another, each chosen by what the earlier ones gave,
are sqrt(sum mu_i^2)-GDP. For every epsilon (Balle and Wang, ICML 2018, theorem 8)

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr, ndtr


def composed_mu(multiplier: float, times: int) -> float:
    """The mu of so many Gaussian mechanisms whose noise is `multiplier` times what a record changes."""
    return math.sqrt(times) / multiplier


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at which a mu-GDP mechanism is (epsilon, delta)-private."""
    if mu == 0:
        return 0.0
    # e^epsilon overflows where the probability it stands before vanishes.
    second = math.exp(min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
    return max(0.0, float(ndtr(mu / 2 - epsilon / mu)) - second)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-private."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    top = 1.0
    while gaussian_delta(mu, top) > delta:
        top *= 2
    return least(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 0.0, top)


def least(holds: Callable[[float], bool], low: float, high: float, halvings: int = 60) -> float:
    """The least number between `low` and `high` from which on something holds, rounded up; it holds at `high`."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

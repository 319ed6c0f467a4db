"""How much better than alone, and how sure that is: differences paired by seed, with an interval.

Seeds that draw their own training and test nodes from the same graph share most of them, so that their differences are
less independent than they look. The interval is the corrected resampled t of Nadeau and Bengio (2003): the variance of the
mean of n differences is s^2 (1/n + tested/trained) in place of s^2 / n. Where masks are given, all seeds test the same
nodes, and only the randomness of training is in the interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Gain:
    """Better (above 0) or worse than training alone, in the metric's own unit, its sign turned where smaller is better."""

    mean: float
    half: float | None
    """Half of the 95 % interval; None: one seed tells none."""
    better: int
    """Seeds in which it is better."""
    seeds: int

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """The upper end of it."""
        return None if self.half is None else self.mean + self.half

    @property
    def is_sure(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def is_loss(self) -> bool:
        """Whether it lies below 0."""
        return self.high is not None and self.high < 0


def gain(differences: Sequence[float], resampled: float) -> Gain | None:
    """From one difference a seed; `resampled` is tested per trained node, 0 with given masks. None: there is none."""
    known = [value for value in differences if not math.isnan(value)]
    if not known:
        return None
    n, better = len(known), sum(value > 0 for value in known)
    mean = statistics.fmean(known)
    if n < 2:
        return Gain(mean, None, better, n)
    deviation = statistics.stdev(known) * math.sqrt(1 / n + resampled)
    return Gain(mean, float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation, better, n)

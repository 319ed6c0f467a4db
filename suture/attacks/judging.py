"""How sure a success is: areas under curves, shares and means with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
FEW = 30
"""Resampling fewer trials than this makes too narrow an interval."""
Floats = NDArray[np.float64]
Trial = tuple[ArrayLike, ArrayLike, ArrayLike | None]
"""Of one owner: scores, which are of the kind that is looked for, and the guess's scores if it is not chance."""


def auc(scores: ArrayLike, positive: ArrayLike) -> float:
    """The area under the ROC curve; equal scores count half."""
    return float(_placements(np.asarray(scores, float), np.asarray(positive, bool))[0].mean())


def _placements(scores: Floats, positive: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """What share of the negatives each positive is above, and of the positives each negative is below."""
    if positive.all() or not positive.any():
        raise ValueError("an area under a curve needs both kinds of examples")
    order = scipy.stats.rankdata(scores)
    above = (order[positive] - scipy.stats.rankdata(scores[positive])) / (~positive).sum()
    below = 1 - (order[~positive] - scipy.stats.rankdata(scores[~positive])) / positive.sum()
    return above, below


def auc_gain(scores: ArrayLike, positive: ArrayLike, guess: ArrayLike | None = None) -> tuple[float, float, float, float]:
    """(AUC, the guess's AUC, low, high of their difference); no guess is one by chance, 0.5.

    DeLong et al., Comparing the areas under two or more correlated receiver operating characteristic curves, 1988.
    """
    kinds = np.asarray(positive, bool)
    above, below = _placements(np.asarray(scores, float), kinds)
    success, other = float(above.mean()), 0.5
    if guess is not None:
        above_guess, below_guess = _placements(np.asarray(guess, float), kinds)
        # Who would do worse than chance takes chance.
        if above_guess.mean() > other:
            other = float(above_guess.mean())
            above, below = above - above_guess, below - below_guess
    spread = np.sqrt(_variance(above) / above.size + _variance(below) / below.size)
    width = scipy.stats.norm.ppf((1 + CONFIDENCE) / 2) * spread
    gain = success - other
    return success, other, float(gain - width), float(gain + width)


def auc_gain_by_owner(parts: Sequence[Trial]) -> tuple[float, float, float, float]:
    """The same where scores are compared within each owner only; means over owners.

    What is said of several owners, and what is true of them, may hang together. So the deviation of the mean is taken to be
    as large as it can be, the mean of the deviations, and not smaller because owners are many.
    """
    each = [auc_gain(scores, positive, guess) for scores, positive, guess in parts]
    success, guess, low, high = np.mean(each, axis=0)
    return float(success), float(guess), float(low), float(high)


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else 1.0


def share_bounds(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if hits == 0 else float(scipy.stats.beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(scipy.stats.beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def mean_bounds(gains: Sequence[float] | Floats, seed: int = 0) -> tuple[float, float]:
    """Of the mean of independent trials: Student's for a few, else by resampling them; a single trial says nothing."""
    values = np.asarray(gains, float)
    if values.size < 2:
        return -np.inf, np.inf
    if values.size < FEW:
        width = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size)
        return float(values.mean() - width), float(values.mean() + width)
    drawn = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    means = values[drawn].mean(1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def standardised(scores: ArrayLike) -> Floats:
    """Mean 0 and deviation 1, so that scores of several victims can stand together."""
    values = np.asarray(scores, float)
    spread = values.std()
    return np.asarray((values - values.mean()) / (spread if spread > 0 else 1.0), float)

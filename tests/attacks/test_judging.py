"""Areas, shares and means with their intervals, against what they must be by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from suture.attacks.judging import auc, auc_gain, auc_gain_by_owner, mean_bounds, share_bounds


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[positive] for n in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(np.mean(pairs))


def test_bounds_of_an_area_cover_what_they_should() -> None:
    """The true area of two normals that lie one deviation apart is Phi(1 / sqrt 2)."""
    truth, rng, inside = stats.norm.cdf(1 / np.sqrt(2)), np.random.default_rng(0), 0
    for _ in range(400):
        positive = np.arange(120) < 50
        _, guess, low, high = auc_gain(rng.standard_normal(120) + positive, positive)
        inside += low <= truth - guess <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_an_attack_gains_nothing_over_itself() -> None:
    rng = np.random.default_rng(1)
    scores, positive = rng.standard_normal(50), np.arange(50) < 20
    success, guess, low, high = auc_gain(scores, positive, scores)
    assert success == guess and low == high == 0


def test_owners_that_say_the_same_do_not_make_a_result_surer() -> None:
    """Scores of noise, the same for all owners, whose truths are the same: still no more than 5 % of intervals miss 0."""
    rng, missed = np.random.default_rng(2), 0
    for _ in range(300):
        positive, scores = np.arange(100) < 40, rng.standard_normal(100)
        # Each owner's scores have another level, which says nothing of the truth.
        parts = [(scores + 3 * owner, positive, None) for owner in range(4)]
        success, guess, low, high = auc_gain_by_owner(parts)
        assert success == pytest.approx(auc(scores, positive)) and guess == 0.5
        missed += not low <= 0 <= high
    assert missed / 300 <= 0.08


def test_bounds_of_shares() -> None:
    """Against the definition: so many hits or more, or fewer, have probability 2.5 % at the bounds."""
    low, high = share_bounds(30, 40)
    assert stats.binom.sf(29, 40, low) == pytest.approx(0.025)
    assert stats.binom.cdf(30, 40, high) == pytest.approx(0.025)
    assert share_bounds(0, 10)[0] == 0 and share_bounds(10, 10)[1] == 1


def test_a_single_trial_says_nothing() -> None:
    low, high = mean_bounds([0.7])
    assert low == -np.inf and high == np.inf
    low, high = mean_bounds(np.random.default_rng(0).normal(0.5, 0.1, 200))
    assert 0.47 < low < 0.5 < high < 0.53

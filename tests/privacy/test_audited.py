"""Bounds from canaries against mechanisms whose epsilon is known: they must not claim too much, nor too little."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from suture.privacy.audited import Heard, Shape, at_least, at_most, chance_of, lower_bounds, noise_there
from suture.privacy.gdp import composed_mu, gaussian_delta, gaussian_epsilon

DELTA = 1e-5


def simulated(noise: float, shape: Shape, canaries: int, seed: int, signal: float = 1.0) -> Heard:
    """Scores as the Gaussian mechanism gives them, without any of our code."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    drawn = rng.binomial(shape.steps, shape.rate, canaries)
    score = included * drawn * signal + rng.normal(0, noise * math.sqrt(shape.steps), canaries)
    return Heard(torch.from_numpy(score), torch.from_numpy(included))


def refuted(noise: float, shape: Shape, claimed: float, runs: int, signal: float = 1.0) -> int:
    """In how many runs a claimed noise is refuted."""
    upper = epsilon_of(claimed, shape)
    return sum(
        max(lower_bounds(simulated(noise, shape, 600, seed, signal), DELTA, shape, lambda s: epsilon_of(s, shape)).values())
        > upper
        for seed in range(runs)
    )


def epsilon_of(noise: float, shape: Shape) -> float:
    """Exact where all are drawn; a monotone stand-in elsewhere, as only noises are compared."""
    return gaussian_epsilon(composed_mu(noise, shape.steps) * shape.rate, DELTA)


@pytest.mark.parametrize("shape", [Shape(1.0, 1), Shape(1.0, 16), Shape(0.2, 30)])
def test_a_true_claim_is_hardly_ever_refuted(shape: Shape) -> None:
    """All three bounds together may be wrong in 5 % of runs; in 80 runs that is 4, and 10 would be beyond chance."""
    noise = math.sqrt(shape.steps) * shape.rate / 1.5
    assert refuted(noise, shape, noise, 80) < 10


@pytest.mark.parametrize("shape", [Shape(1.0, 1), Shape(1.0, 16), Shape(0.2, 30)])
def test_half_the_noise_and_twice_the_signal_are_refuted(shape: Shape) -> None:
    noise = math.sqrt(shape.steps) * shape.rate / 1.5
    assert refuted(noise / 2, shape, noise, 10) == 10
    assert refuted(noise, shape, noise, 10, signal=2.0) == 10


def test_a_mechanism_that_says_nothing_is_not_accused() -> None:
    shape = Shape(1.0, 4)
    found = [
        lower_bounds(simulated(1e6, shape, 600, seed), DELTA, shape, lambda s: epsilon_of(s, shape)) for seed in range(40)
    ]
    assert sum(max(bounds.values()) > 0.3 for bounds in found) <= 6


def test_the_bound_by_noise_comes_near_the_truth_with_many_canaries() -> None:
    shape = Shape(1.0, 9)
    assert noise_there(simulated(2.0, shape, 200_000, 0), shape, 0.05) == pytest.approx(2.0, rel=0.03)
    assert noise_there(simulated(2.0, shape, 200_000, 0), shape, 0.05) > 2.0


def test_right_guesses_of_randomised_response_are_as_probable_as_the_binomial_says() -> None:
    """With delta = 0 theorem 5.2 is tight for randomised response: counted by simulation."""
    rng = np.random.default_rng(0)
    right = rng.binomial(100, 1 / (1 + math.exp(-1.0)), 100_000)
    assert chance_of(100, 100, 80, 1.0, 0.0) == pytest.approx((right >= 80).mean(), abs=0.005)
    assert chance_of(100, 100, 80, 1.0, 1e-3) > chance_of(100, 100, 80, 1.0, 0.0)
    assert chance_of(100, 100, 0, 1.0, 0.0) == 1.0


def test_limits_of_a_probability_cover_it() -> None:
    rng = np.random.default_rng(0)
    hits = rng.binomial(50, 0.1, 2000)
    assert np.mean([at_most(int(h), 50, 0.05) < 0.1 for h in hits]) <= 0.05 + 0.01
    assert np.mean([at_least(int(h), 50, 0.05) > 0.1 for h in hits]) <= 0.05 + 0.01
    assert (at_least(0, 5, 0.05), at_most(5, 5, 0.05)) == (0.0, 1.0)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_the_gaussian_mechanisms_delta_is_its_integral(mu: float) -> None:
    """sup over sets of P - e^epsilon Q, by summing the positive part of the densities."""
    epsilon, x = 0.7, np.linspace(-15, 25, 400_001)
    positive = np.clip(norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), 0, None).sum() * (x[1] - x[0])
    assert gaussian_delta(mu, epsilon) == pytest.approx(positive, abs=1e-6)
    assert gaussian_delta(mu, gaussian_epsilon(mu, DELTA)) == pytest.approx(DELTA, rel=1e-6)
    assert gaussian_epsilon(1e-9, DELTA) == 0.0
    assert math.isfinite(gaussian_epsilon(200.0, DELTA))

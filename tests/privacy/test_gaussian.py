"""The discrete Gaussian against its definition, against the continuous one, and bit by bit where words are tied."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.privacy.gaussian import (
    BASE,
    COLUMNS_BITS,
    DIGIT,
    LOW_BITS,
    PROBABILITY_BITS,
    deviation_of,
    discrete_gaussian,
    probabilities,
    table,
)
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import grid_for, private_gradient

SECRET = Keystream(bytes(range(32)))


def test_the_table_is_the_distribution_exactly() -> None:
    """In whole multiples of 2^-120: what all columns together give each value is its probability."""
    found: Counter[int] = Counter()
    full = 1 << (PROBABILITY_BITS - COLUMNS_BITS)
    made = table()
    for column, threshold in enumerate(made.thresholds):
        found[int(made.values[2 * column + 1])] += threshold
        found[int(made.values[2 * column])] += full - threshold
    columns = 1 << COLUMNS_BITS
    shares = probabilities(DIGIT, columns)
    assert [found[value - columns // 2] for value in range(columns)] == shares
    assert sum(shares) == 1 << PROBABILITY_BITS
    x = np.arange(-10000, 10000)
    exact = np.exp(-(x**2) / (2 * DIGIT**2)) / (DIGIT * math.sqrt(2 * math.pi))
    mine = np.array([shares[value + columns // 2] for value in x.tolist()], dtype=float) / 2.0**PROBABILITY_BITS
    assert np.abs(mine / exact - 1).max() < 1e-12


@pytest.mark.parametrize("digits", [2, 3])
def test_noise_is_gaussian(digits: int) -> None:
    """Moments, Kolmogorov-Smirnov, and the lowest digit flat: a coarser grid would show there."""
    whole = discrete_gaussian(SECRET, 200_000, digits)
    drawn = whole.double() / deviation_of(digits)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    assert abs(float(drawn.mean())) < 4 / 200_000**0.5
    assert float(drawn.var()) == pytest.approx(1.0, abs=4 * (2 / 200_000) ** 0.5)
    assert float((drawn**4).mean()) == pytest.approx(3.0, abs=4 * (96 / 200_000) ** 0.5)
    assert stats.chisquare(np.bincount(whole.numpy() % 64, minlength=64)).pvalue > 1e-3
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 4 / 200_000**0.5
    assert deviation_of(digits) == pytest.approx(DIGIT * BASE ** (digits - 1), rel=1e-4)


def test_streams_are_chacha20_and_keys_their_own() -> None:
    words = Keystream(bytes(32)).words(8).numpy().view(np.uint8)
    # RFC 8439, appendix A.1, test vector 1: key, counter and nonce of zeros.
    assert bytes(words[:16]).hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    forks = [SECRET, SECRET.fork("a"), SECRET.fork("b"), SECRET.fork("a", "b"), SECRET.fork("a").fork("b")]
    assert len({tuple(one.words(2).tolist()) for one in forks}) == len(forks)
    assert torch.equal(SECRET.fork("a").words(5), SECRET.fork("a").words(9)[:5])


@dataclass(frozen=True)
class Fixed:
    """Words that were thought out."""

    first: int
    more: int
    tied: bool = False

    def fork(self, *labels: int | str) -> Fixed:
        return Fixed(self.first, self.more, self.tied or "tie" in labels)

    def words(self, count: int) -> Tensor:
        word = self.more if self.tied else self.first
        return torch.tensor([word - (1 << 64) if word >= 1 << 63 else word] * count)


def test_a_tie_is_decided_by_another_word() -> None:
    made = table()
    column = next(c for c in range(40_000, 60_000) if made.thresholds[c] % (1 << 56) > 1000)
    threshold = made.thresholds[column]
    word = column << LOW_BITS | threshold >> 56
    own, other = int(made.values[2 * column + 1]), int(made.values[2 * column])
    below = threshold & ((1 << 56) - 1)
    assert own != other
    assert int(made.chosen(Fixed(word, below - 1), 1)[0]) == own
    assert int(made.chosen(Fixed(word, below), 1)[0]) == other


def _rows(gradients: Tensor) -> list[tuple[Tree, Tensor]]:
    return [({"a": row.view(1, 4, 5)}, torch.tensor([True])) for row in gradients]


def _drawn(gradients: Tensor, sigma: float = 0.5) -> Tensor:
    stream = Streams(torch.tensor([1]), SECRET)
    return private_gradient(_rows(gradients), {"a": torch.zeros(1, 4, 5)}, 0.7, sigma, torch.tensor([1]), stream)["a"]


def test_one_example_moves_the_sum_by_no_more_than_the_clip() -> None:
    """Under the same noise, whatever the example is: long, short, not finite."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(6, 20, generator=generator) * torch.tensor([[1e-3], [1.0], [1e6], [1e30], [0.0], [3.0]])
    gradients[3, 0] = float("inf")
    gradients[4, 1] = float("nan")
    everything = _drawn(gradients)
    assert everything.isfinite().all()
    for i in range(6):
        moved = float((everything - _drawn(gradients[torch.arange(6) != i])).norm())
        assert moved <= 0.7 * (1 + 1e-5)
        assert (moved == 0) == (i in (3, 4)), "what is not finite counts as none"


def test_the_mean_is_that_of_clipped_gradients() -> None:
    """Against the float sum of the simulation, with the noise taken off."""
    gradients = torch.randn(5, 20, generator=torch.Generator().manual_seed(1))
    silent = _drawn(torch.zeros(1, 20))
    factor = (0.7 / gradients.norm(dim=1, keepdim=True)).clamp_max(1.0)
    assert torch.allclose((_drawn(gradients) - silent).flatten(), (gradients * factor).sum(0), atol=1e-5)
    assert float(silent.std()) == pytest.approx(0.35, rel=0.5)


def test_noise_makes_up_for_the_grid() -> None:
    """The deviation is sigma times what a rounded gradient can be long, for small models and absurd ones."""
    for sigma in (1e-2, 1.0, 50.0, 1e3):
        for numbers in (10, 200_000, 10**9):
            grid, digits = grid_for(sigma, 2.0, numbers)
            longest = 2.0 + grid * math.sqrt(numbers) / 2
            assert sigma * longest <= grid * deviation_of(digits) <= sigma * longest * (1 + 1e-6)
            assert longest < 2.0 * 1.002
    with pytest.raises(ConfigError, match="beyond what can be drawn"):
        grid_for(1e-9, 1.0, 10)
    with pytest.raises(ConfigError, match="dp_clip"):
        grid_for(1.0, 1e-30, 10)

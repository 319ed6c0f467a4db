"""Numbers that belong to pairs, and noise on means, under an owner's key."""

from __future__ import annotations

import math

import pytest
import torch

from suture.core.streams import unit
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import secret_means

SECRET = Keystream(bytes(range(32)))


def test_a_pair_has_one_number_whoever_stands_beside_it() -> None:
    one, other = torch.tensor([3, 5, 7, -1, 3]), torch.tensor([4, 5, 2**40, 6, 4])
    words = SECRET.of_pairs(one, other)
    assert torch.equal(SECRET.of_pairs(other, one), words), "in both directions"
    assert words[0] == words[4] and len(set(words.tolist())) == 4
    for k in range(5):
        assert torch.equal(SECRET.of_pairs(one[[k]], other[[k]]), words[[k]])
    assert not torch.equal(SECRET.fork("other").of_pairs(one, other), words)
    assert SECRET.of_pairs(one[:0], other[:0]).shape == (0,)


def test_numbers_of_pairs_are_even_and_independent() -> None:
    """Neighbouring pairs, which a graph is full of: by counts in ten classes, and between neighbours."""
    one = torch.arange(20_000)
    numbers = unit(SECRET.of_pairs(one, one + 1))
    counts = torch.histc(numbers, 10, 0, 1)
    # Chi square with 9 degrees of freedom: beyond 33.7 in one of ten thousand keys, and this key is fixed.
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 33.7
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1])) < 4 / math.sqrt(20_000)


@pytest.mark.parametrize(("change", "sigma"), [(0.4, 1.0), (2.0, 0.5), (0.01, 20.0)])
def test_noise_on_means_has_the_size_that_is_accounted_for(change: float, sigma: float) -> None:
    means = torch.nn.functional.normalize(torch.randn(1, 200, 100, generator=torch.Generator().manual_seed(1)), dim=2) / 5
    told = secret_means(means, change, sigma, SECRET, "sigma")
    noise = (told - means).double()
    # Of 20,000 numbers a deviation is right to half a percent; rounding makes it a thousandth larger at most.
    assert float(noise.std()) == pytest.approx(change * sigma, rel=0.03)
    assert abs(float(noise.mean())) < 5 * change * sigma / math.sqrt(20_000)
    assert torch.equal(secret_means(means, change, sigma, SECRET, "sigma"), told)

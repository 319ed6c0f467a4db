r"""Gaussian noise on a grid, from 64-bit words that nobody else knows.

Noise in floating point gives itself away: not every float can be the sum of a float and a float noise, so that low bits tell
which value was hidden (Mironov, CCS 2012; Haney et al., 2022). Here both are whole numbers of a grid. What is added is
the discrete Gaussian (Canonne, Kamath and Steinke, NeurIPS 2020), which for zero-concentrated and Renyi privacy costs what
the continuous one of the same deviation costs:

    Pr[X = x] is proportional to exp(-x^2 / (2 s^2)) for whole x

It is drawn in two or more digits. With Z_0, Z_1 of deviation s_0 and X = k Z_1 + Z_0,

    Pr[X = x] is proportional to exp(-x^2 / (2 s^2)) * sum_z exp(-(z - k x / (k^2 + 1))^2 / (2 t^2)),
    s = s_0 sqrt(k^2 + 1),  t = s_0 / sqrt(k^2 + 1) = 8

and the sum is the same for every x up to a factor of 1 +- 3 exp(-2 pi^2 t^2), that is 1 +- 1e-548 (Poisson summation;
Micciancio and Walter, CRYPTO 2017, in general). One more digit, k X + Z, makes it finer again by k.

A digit is drawn by Walker's alias table of probabilities in whole multiples of 2^-120: the upper bits of a word choose a
column, the lower ones are compared with its threshold, and where they are equal (once in 2^48 draws) another word decides.
Cut off are values beyond 16 deviations. A draw is so within 2^-103 of the discrete Gaussian in total variation (2^-120 for
each of 2^16 columns; the tails are 2^-180), and a step on a million numbers in two digits within 2^-82: nothing next to any
delta.

What is not covered: how long a draw takes (Jin et al., IEEE S&P 2022) hardly depends on its values, but tables are read at
secret places, and nobody has made sure what a neighbour on the same processor sees of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from suture.core.streams import Secret

DIGIT = 2048
"""s_0."""
BASE = 256
"""k."""
COLUMNS_BITS = 16
LOW_BITS = 64 - COLUMNS_BITS
PROBABILITY_BITS = 120
REFINED_BITS = PROBABILITY_BITS - 64
"""Bits of a column's threshold that the first word does not show."""
REFINED = (1 << REFINED_BITS) - 1
PORTION = 8192


@dataclass(frozen=True)
class AliasTable:
    """Two values for each column: the first one below its threshold, the second from there on."""

    thresholds: tuple[int, ...]
    """In units of 2^-120, of at most 2^104 each."""
    upper: NDArray[np.uint64]
    """Their upper bits, which most words are decided by."""
    values: NDArray[np.int64]
    """[2 * columns], the second one of each column first: below is 1, not below is 0."""

    def chosen(self, secret: Secret, count: int) -> NDArray[np.int64]:
        """So many independent draws."""
        words = secret.fork("digit").words(count).numpy().view(np.uint64)
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, PORTION):  # which stay in the processor's cache
            part = words[start : start + PORTION]
            column = (part >> np.uint64(LOW_BITS)).view(np.int64)
            rest = part & np.uint64((1 << LOW_BITS) - 1)
            bound = self.upper.take(column, mode="clip")
            below = rest < bound
            for place in np.flatnonzero(rest == bound):
                more = int(secret.fork("tie", start + int(place)).words(1)[0]) & REFINED
                below[place] = more < self.thresholds[column[place]] & REFINED
            self.values.take(2 * column + below, mode="clip", out=out[start : start + PORTION])
        return out


def probabilities(deviation: int, columns: int) -> list[int]:
    """The discrete Gaussian at -columns/2 .. columns/2 - 1, in whole multiples of 2^-PROBABILITY_BITS that add up to one."""
    with localcontext() as context:
        context.prec = 90
        scale, square = Decimal(2) ** 280, Decimal(deviation) ** 2
        ratio, shrink = ((exponent / square).exp() for exponent in (Decimal(-1) / 2, Decimal(-1)))
        step, factor = int(ratio * scale), int(shrink * scale)
    weights = [1 << 280]
    for _ in range(columns // 2):  # rho(x + 1) = rho(x) exp(-(2x + 1) / (2 s^2))
        weights.append(weights[-1] * step >> 280)
        step = step * factor >> 280
    both = [*weights[:0:-1], *weights[:-1]]
    total, unit = sum(both), 1 << PROBABILITY_BITS
    shares = [weight * unit // total for weight in both]
    shares[columns // 2] += unit - sum(shares)
    return shares


@cache
def table() -> AliasTable:
    """The table of one digit; the same for everybody, and made once."""
    columns = 1 << COLUMNS_BITS
    left, full = probabilities(DIGIT, columns), 1 << (PROBABILITY_BITS - COLUMNS_BITS)
    thresholds, alias = [full] * columns, list(range(columns))
    short = [c for c, share in enumerate(left) if share < full]
    long = [c for c, share in enumerate(left) if share >= full]
    while short and long:
        c, rich = short.pop(), long[-1]
        thresholds[c], alias[c] = left[c], rich
        left[rich] -= full - left[c]
        if left[rich] < full:
            short.append(long.pop())
    upper = np.array([threshold >> REFINED_BITS for threshold in thresholds], dtype=np.uint64)
    values = np.stack([np.array(alias), np.arange(columns)], axis=1).reshape(-1) - columns // 2
    return AliasTable(tuple(thresholds), upper, values)


def deviation_of(digits: int) -> float:
    """S of noise in so many digits."""
    square = 1.0
    for _ in range(digits - 1):
        square = square * BASE**2 + 1
    return float(DIGIT * square**0.5)


def discrete_gaussian(secret: Secret, count: int, digits: int = 2) -> Tensor:
    """Whole numbers with the deviation `deviation_of(digits)`, int64 [count]."""
    total = np.zeros(count, dtype=np.int64)
    for digit in range(digits):
        total = total * BASE + table().chosen(secret.fork(digit), count)
    return torch.from_numpy(total)

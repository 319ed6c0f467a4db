"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

NOTHING = "–"
BARS = "▁▂▃▄▅▆▇█"


def percent(value: float | None, decimals: int = 2) -> str:
    """0.8123 to `81.23`."""
    return NOTHING if value is None or math.isnan(value) else f"{100 * value:.{decimals}f}"


def score(value: float | None, share: bool, decimals: int = 2) -> str:
    """A share as percent without its sign; another number with so many digits behind the point that three mean something."""
    if share or value is None or math.isnan(value):
        return percent(value, decimals)
    return f"{value:.{_behind(value, decimals)}f}"


def _behind(value: float, decimals: int) -> int:
    """Digits behind the point of a number that is no share."""
    return decimals + 1 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def score_spread(spread: tuple[float, float] | None, several: bool, share: bool = True, decimals: int = 2) -> str:
    """Mean and deviation, `81.23 ±0.42`; the mean alone if there was one run."""
    if spread is None or math.isnan(spread[0]):
        return NOTHING
    mean, deviation = spread
    alone = score(mean, share, decimals)
    if not several or math.isnan(deviation):
        return f"{alone} ±{NOTHING}" if several else alone
    return f"{alone} ±{percent(deviation, decimals) if share else f'{deviation:.{_behind(mean, decimals)}f}'}"


def megabytes(count: float) -> str:
    """Millions of bytes, three digits: `0.04`, `7.64`, `402`, `12300`."""
    return three_digits(count / 1e6)


def three_digits(value: float) -> str:
    """A positive number with about three digits that mean something."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"


def byte_size(count: float) -> str:
    """Bytes with the unit that suits them: `740 B`, `1.61 kB`, `402 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, thing: str) -> str:
    """`1 client`, `5 clients`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def listed(thing: str, values: Sequence[object]) -> str:
    """`seed 0`, `seeds 0, 1, 2`."""
    return f"{thing if len(values) == 1 else f'{thing}s'} {', '.join(map(str, values))}"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of `width` characters or fewer, from its own lowest to its own highest value."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((value - low) / step)] for value in values)

from __future__ import annotations

import math

import pytest

from suture.report.text import BARS, byte_size, count, duration, listed, megabytes, percent, score_spread, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(740, "740 B"), (1610, "1.61 kB"), (402_123_500, "402 MB"), (1.23e10, "12.3 GB"), (0, "0 B")]
)
def test_byte_size(number: int, text: str) -> None:
    assert byte_size(number) == text


def test_megabytes() -> None:
    assert [megabytes(n) for n in (35_000, 7_640_000, 80_424_300, 402_123_500)] == ["0.04", "7.64", "80.4", "402"]


def test_percent() -> None:
    assert percent(0.81234) == "81.23" and percent(None) == percent(math.nan) == "–"
    assert score_spread((0.8, 0.0123), several=True) == "80.00 ±1.23"
    assert score_spread((0.8, 0.0), several=False) == "80.00"


def test_a_deviation_has_the_digits_of_its_mean() -> None:
    told = [(0.5421, 0.1074), (104.62, 3.14), (1595.7, 53.323), (123456.7, 8.9)]
    shown = ["0.542 ±0.107", "104.6 ±3.1", "1596 ±53", "123457 ±9"]
    assert [score_spread(one, several=True, share=False) for one in told] == shown
    assert score_spread((1595.7, math.nan), several=True, share=False) == "1596 ±–"


def test_plurals() -> None:
    assert count(1, "client") == "1 client" and count(2, "client") == "2 clients"
    assert listed("seed", [0]) == "seed 0" and listed("seed", [0, 1]) == "seeds 0, 1"


class TestSparkline:
    def test_rises_with_its_values(self) -> None:
        assert sparkline(range(8), 8) == BARS

    def test_long_curves_are_averaged_to_the_width(self) -> None:
        assert sparkline([0.0] * 50 + [1.0] * 50, 4) == "▁▁██"

    def test_flat_empty_and_undefined(self) -> None:
        assert sparkline([0.5, 0.5], 10) == "▁▁" and sparkline([], 10) == ""
        assert sparkline([math.nan, 0.0, 1.0], 10) == "▁█"

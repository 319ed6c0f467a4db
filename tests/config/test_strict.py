"""Values against annotations: from files by `strict`, built in Python by `check_fields`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from suture.config.strict import check_fields, strict
from suture.errors import ConfigError
from suture.settings import (
    Cosine,
    Count,
    DroppedShare,
    NonNegative,
    OpenShare,
    Positive,
    PositiveShare,
    Share,
    TrainingSettings,
    Whole,
)


@dataclasses.dataclass(frozen=True)
class Inner:
    steps: Annotated[int, Field(ge=1)] = 1


@dataclasses.dataclass(frozen=True)
class Outer:
    mu: Annotated[float, Field(ge=0)]
    kind: Literal["soft", "hard"] = "soft"
    limit: float | None = None
    widths: tuple[int, ...] = ()
    inner: Inner = Inner()


def test_strict_builds_nested_dataclasses() -> None:
    built = strict(Outer, {"mu": 1, "widths": [2, 3], "limit": 0.5, "inner": {"steps": 2}}, "fedx")
    assert built == Outer(1.0, "soft", 0.5, (2, 3), Inner(2))
    assert isinstance(built.mu, float)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "fedx.mu is missing: it must be a number >= 0"),
        ({"mu": -0.1}, "fedx.mu must be a number >= 0, got -0.1"),
        ({"mu": "1"}, 'fedx.mu must be a number >= 0, got "1"'),
        ({"mu": True}, "fedx.mu must be a number >= 0, got true"),
        ({"mu": 1, "limit": "x"}, 'fedx.limit must be a number, got "x"'),
        ({"mu": 1, "kind": "sotf"}, "unknown fedx.kind 'sotf': did you mean 'soft'? known: hard, soft"),
        ({"mu": 1, "inner": {"step": 1}}, "unknown fedx.inner key 'step': did you mean 'steps'? known: steps"),
        ({"mu": 1, "inner": {"steps": 0}}, "fedx.inner.steps must be an integer >= 1, got 0"),
        ({"mu": 1, "inner": 0}, "fedx.inner must be a table, got 0"),
    ],
)
def test_strict_refuses(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        strict(Outer, values, "fedx")
    assert str(error.value) == sentence


def test_fields_that_fit_are_left_as_they_are() -> None:
    built = Outer(1, "hard", None, (1, 2), Inner(3))
    check_fields(built, "fedx")
    assert type(built.mu) is int


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"mu": -1}, "fedx.mu must be a number >= 0, got -1"),
        ({"mu": "1"}, 'fedx.mu must be a number >= 0, got "1"'),
        ({"mu": float("nan")}, "fedx.mu must be a number >= 0, got nan"),
        ({"kind": "sotf"}, "unknown fedx.kind 'sotf': did you mean 'soft'? known: hard, soft"),
        ({"limit": "x"}, 'fedx.limit must be a number, got "x"'),
        ({"widths": (1, 2.5)}, "fedx.widths must be a list of integers, got [1, 2.5]"),
        ({"inner": Inner(0)}, "fedx.inner.steps must be an integer >= 1, got 0"),
        ({"inner": 3}, "fedx.inner must be of type Inner, got 3"),
    ],
)
def test_fields_that_do_not_fit_are_told_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_fields(dataclasses.replace(Outer(1.0), **changed), "fedx")
    assert str(error.value) == sentence


class Opaque:
    """A type that TOML knows nothing of."""


@dataclasses.dataclass(frozen=True)
class Holding:
    held: Opaque | None = None


def test_a_field_of_any_other_class_is_checked_by_that_class() -> None:
    check_fields(Holding(Opaque()), "mine")
    with pytest.raises(ConfigError, match=r"^mine.held must be another value, got 3$"):
        check_fields(Holding(3), "mine")  # type: ignore[arg-type]


def test_settings_built_in_python_are_checked_too() -> None:
    check_fields(TrainingSettings(), "training")
    with pytest.raises(ConfigError, match=r"^training.momentum must be a number >= 0 and < 1, got 1.0$"):
        check_fields(TrainingSettings(momentum=1.0), "training")


@dataclasses.dataclass(frozen=True)
class Bounded:
    whole: Whole = 0
    count: Count = 1
    non_negative: NonNegative = 0
    positive: Positive = 1
    share: Share = 0
    positive_share: PositiveShare = 1
    dropped_share: DroppedShare = 0
    open_share: OpenShare = 0.5
    cosine: Cosine = 0


BOUNDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "whole": ((0, 7), (-1, 0.5)),
    "count": ((1, 7), (0, 1.5)),
    "non_negative": ((0, 1e9), (-1e-9,)),
    "positive": ((1e-9, 1e9), (0, -1)),
    "share": ((0, 1), (-1e-9, 1 + 1e-9)),
    "positive_share": ((1e-9, 1), (0, 1 + 1e-9)),
    "dropped_share": ((0, 1 - 1e-9), (-1e-9, 1)),
    "open_share": ((1e-9, 1 - 1e-9), (0, 1)),
    "cosine": ((-1, 1), (-1 - 1e-9, 1 + 1e-9)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_names_of_bounds_hold_what_they_say(name: str) -> None:
    inside, outside = BOUNDS[name]
    for value in inside:
        check_fields(dataclasses.replace(Bounded(), **{name: value}), "mine")  # type: ignore[arg-type]
    for value in outside:
        with pytest.raises(ConfigError, match=f"^mine.{name} must be"):
            check_fields(dataclasses.replace(Bounded(), **{name: value}), "mine")  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Holder:
    inner: Bounded | None = None
    more: tuple[int, ...] | None = None


def test_a_table_that_may_be_absent_is_checked_where_it_is_there() -> None:
    assert strict(Holder, {"inner": None}, "mine") == Holder()
    assert strict(Holder, {"inner": {"count": 3}, "more": [1, 2]}, "mine") == Holder(Bounded(count=3), (1, 2))
    with pytest.raises(ConfigError, match=r"^mine\.inner\.count must be an integer >= 1"):
        strict(Holder, {"inner": {"count": 0}}, "mine")
    check_fields(Holder(), "mine")
    with pytest.raises(ConfigError, match=r"^mine\.inner must be of type Bounded"):
        check_fields(Holder(inner=3), "mine")  # type: ignore[arg-type]

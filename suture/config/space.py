"""Where a search looks for better values: declared beside a setting's bounds (`settings.Search`), or derived from them.

    training.lr = 0.001..0.1        a range; a factor counts where it spans ten or more of them from above 0
    hops = 1, 2                     choices

A method that declares nothing is searched in all of its own numbers: a tenth to ten times the default, a quarter to four
times for whole numbers, the whole range for shares. Nothing is derived where a default of 0 says nothing of a scale, nor for
words and switches, which make another method of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from suture.config.strict import schemas
from suture.config.toml import parsed, written
from suture.errors import ConfigError
from suture.settings import ModelSettings, Search, TrainingSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = str | int | float | bool
SHARED = {"training": TrainingSettings, "model": ModelSettings}
"""What all methods have, and each is searched in for itself."""
ORDER_OF_MAGNITUDE = 10.0
INSET = 0.05
"""How far a derived range stays from a bound that must not be reached."""


@dataclass(frozen=True)
class Space:
    """The values that one setting may take in a search: a range, or choices."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: tuple[Value, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        return f"{self.low:g}..{self.high:g}{', by factors' if self.log else ''}"

    def rounded(self, value: Value) -> Value:
        """A value as it is tried: three digits are enough, and people can read them."""
        return value if self.choices or self.whole else float(f"{value:.3g}")

    def holds(self, value: object) -> bool:
        """Whether a value is one of it."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


Spaces = Mapping[str, Space]
"""By key, as it stands after a method's name: `mu`, `training.lr`."""


def spaces_of(method: type[DataclassInstance], own: frozenset[str]) -> dict[str, Space]:
    """Where a method is searched: its own settings, then those of its training and its network."""
    declared = _declared(method)
    mine = {name: space for name, space in declared.items() if name in own}
    if not mine:
        mine = {name: space for name, space in _derived(method).items() if name in own}
    shared = {f"{section}.{name}": space for section, kind in SHARED.items() for name, space in _declared(kind).items()}
    return {**mine, **shared}


def _declared(kind: type[DataclassInstance]) -> dict[str, Space]:
    hints, found = get_type_hints(kind, include_extras=True), dict[str, Space]()
    for field in dataclasses.fields(kind):
        marks = [mark for mark in _marks(hints[field.name]) if isinstance(mark, Search)]
        if marks:
            mark, whole = marks[-1], schemas(kind)[field.name].get("type") == "integer"
            found[field.name] = Space(mark.low, mark.high, mark.log and not mark.choices, whole, mark.choices)
    return found


def _marks(hint: Any) -> tuple[Any, ...]:
    return (
        *getattr(hint, "__metadata__", ()),
        *(mark for part in get_args(hint) for mark in getattr(part, "__metadata__", ())),
    )


def _derived(kind: type[DataclassInstance]) -> dict[str, Space]:
    told = schemas(kind)
    fields = (field for field in dataclasses.fields(kind) if field.name in told)
    made = {field.name: _by_bounds(told[field.name], field.default) for field in fields}
    return {name: space for name, space in made.items() if space is not None}


def _by_bounds(schema: Mapping[str, Any], default: object) -> Space | None:
    """From what a setting may be and what it is by default."""
    if "enum" in schema or isinstance(default, bool) or not isinstance(default, int | float) or default <= 0:
        return None
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    if schema.get("type") == "integer":
        return Space(max(low, math.ceil(default / 4)), min(high, default * 4), log=True, whole=True)
    if schema.get("type") != "number":
        return None
    if math.isfinite(low) and math.isfinite(high):
        inset = INSET * (high - low)
        return Space(low + inset * ("exclusiveMinimum" in schema), high - inset * ("exclusiveMaximum" in schema))
    return Space(default / ORDER_OF_MAGNITUDE, default * ORDER_OF_MAGNITUDE, log=True)


def parse_space(text: str) -> tuple[str, Space]:
    """`training.lr=0.001..0.1` or `training.moments=own,averaged`: what `--search` says."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals or not value:
        raise ConfigError(f"--search {text} should be KEY=LOW..HIGH or KEY=A,B,C, such as training.lr=0.001..0.1")
    low, dots, high = value.partition("..")
    if not dots:
        choices = tuple(_value(word.strip(), text) for word in value.split(",") if word.strip())
        if len(set(choices)) < 2:
            raise ConfigError(f"--search {text} leaves nothing to choose; give two values or more, such as {key}=1,2")
        return key, Space(choices=choices)
    ends = [_value(end.strip(), text) for end in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or not ends[0] < ends[1]:  # type: ignore[operator]
        raise ConfigError(f"--search {text} is no range; give two numbers, the smaller first, such as {key}=0.001..0.1")
    first, last = float(ends[0]), float(ends[1])
    log = first > 0 and last / first >= ORDER_OF_MAGNITUDE
    return key, Space(first, last, log, whole=all(isinstance(end, int) for end in ends))


def _value(word: str, text: str) -> Value:
    value = parsed(word)
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"--search {text} has the value {written(value)}, which is neither a number nor a word")
    return value

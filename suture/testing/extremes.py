"""The ends of what a method's hyper-parameters may be, read off their types.

`Annotated[float, Field(ge=0, le=1)]` has the ends 0 and 1; an open end is approached; where there is none, a large value
takes its place. Literals and truth values have each of theirs. A method may refuse a value with a `ConfigError`, but it must
not break on it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic.fields import FieldInfo

from suture.method import Method

NEAR = 1e-6
"""How near an open end is approached."""
LARGE = {int: 3, float: 100.0}
"""In place of no upper end. Counts of epochs, hops and the like must not make tests last."""
_COMMON = {field.name for field in dataclasses.fields(Method)}


@dataclass(frozen=True)
class Extreme:
    """A hyper-parameter and one of its extreme values."""

    name: str
    value: object
    end: bool
    """Its type ends there; otherwise it stands for all that is large."""


def extremes(kind: type[Method[Any, Any]]) -> Iterator[Extreme]:
    """Every hyper-parameter of its own with each of its extreme values, the defaults left out."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if field.name not in _COMMON:
            for value, end in dict(_ends(hints[field.name])).items():
                if (type(value), value) != (type(field.default), field.default):
                    yield Extreme(field.name, value, end)


def _ends(hint: Any, *bounds: object) -> list[tuple[Any, bool]]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ends(parts[0], *bounds, *parts[1:])
    if origin is Literal:
        return [(part, True) for part in parts]
    if origin in (Union, types.UnionType):
        return [end for part in parts for end in _ends(part, *bounds)]
    if hint is type(None):
        return [(None, True)]
    if hint is bool:
        return [(False, True), (True, True)]
    return _numbers(hint, bounds) if hint in LARGE else []


def _numbers(hint: type[int] | type[float], bounds: tuple[object, ...]) -> list[tuple[float, bool]]:
    """The lower end, the upper end, and 0 if it is between them."""
    near = 1 if hint is int else NEAR
    low, high, ends = 0.0, float(LARGE[hint]), False
    for bound in (part for one in bounds for part in (one.metadata if isinstance(one, FieldInfo) else [one])):
        match bound:
            case annotated_types.Ge(ge=value) | annotated_types.Gt(gt=value):
                low = float(str(value)) + (near if isinstance(bound, annotated_types.Gt) else 0)
            case annotated_types.Le(le=value) | annotated_types.Lt(lt=value):
                high, ends = float(str(value)) - (near if isinstance(bound, annotated_types.Lt) else 0), True
    between = [(hint(0), True)] if low < 0 < high else []
    return [(hint(low), True), (hint(high), ends), *between]

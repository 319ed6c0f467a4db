"""What a step declares: the type of its message and of its reply. Nothing else is unpacked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from suture.core.message import Message
from suture.core.packing import kind_of
from suture.errors import IntegrityError
from suture.method import Method


@dataclass(frozen=True)
class Signature:
    """The declared message and reply of a step; None where the declaration only says `Message`."""

    message: type[Message] | None
    reply: type[Message] | None


@cache
def signature(method: type[Method[Any, Any]], step: str) -> Signature:
    """Read a step's annotations; a base that declares it with type variables is read as `method` binds them."""
    declaring = next(kind for kind in method.__mro__ if step in vars(kind))
    bound = _bindings(method, declaring, {})
    hints = get_type_hints(vars(declaring)[step])
    returned = get_args(hints.pop("return"))[1]
    hints.pop("clients", None)
    (message,) = hints.values()
    return Signature(_concrete(message, bound), _concrete(returned, bound))


Bindings = dict[TypeVar, Any]


def _bindings(kind: type, declaring: type, bound: Bindings) -> Bindings:
    """What the type variables of `declaring` stand for, seen from `kind`, whose own stand for `bound`."""
    if kind is declaring:
        return bound
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = get_origin(base) or base
        if issubclass(origin, declaring):
            given = [bound.get(one, one) if isinstance(one, TypeVar) else one for one in get_args(base)]
            return _bindings(origin, declaring, dict(zip(getattr(origin, "__parameters__", ()), given, strict=False)))
    raise TypeError(f"{kind.__name__} is not derived from {declaring.__name__}")


def _concrete(hint: object, bound: Bindings) -> type[Message] | None:
    named = bound.get(hint, hint) if isinstance(hint, TypeVar) else hint
    return named if isinstance(named, type) and issubclass(named, Message) and named is not Message else None


@cache
def wire_types(method: type[Method[Any, Any]]) -> Mapping[str, type[Message]]:
    """The message types a method's own modules know, by name; the most derived module wins."""
    found: dict[str, type[Message]] = {}
    for kind in reversed(method.__mro__):
        module = sys.modules.get(kind.__module__)
        for value in vars(module).values() if module else ():
            if isinstance(value, type) and issubclass(value, Message):
                found[value.__name__] = value
    return found


def read(data: bytes, declared: type[Message] | None, known: Mapping[str, type[Message]]) -> Message:
    """Unpack as the declared type, or, where any message will do, as the type of that name among the known ones."""
    if declared is None:
        name = kind_of(data)
        if name not in known:
            raise IntegrityError(f"expected one of {', '.join(sorted(known))}, got {name!r}; it was refused")
        declared = known[name]
    return declared.unpack(data)

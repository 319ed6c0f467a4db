"""JSON headers that came from somebody else: weighed before they are parsed, and read in one way only.

A parser makes objects of every bracket and comma, some twenty times as large as the text; nested ones recurse, and a number
of thousands of digits takes as long as a step. All of that can be seen in the text, at a fraction of the cost: what would
take many times its size is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

MOST_DIGITS = 32
"""In a row. A number of ours has at most 21."""
MOST_TIMES = 8
"""So many times its text may a parsed header take in memory, and `FREE` bytes; with the text for the parser, and one for who
reads on, this is the ten times that a party may take for what it is sent."""
FREE = 1 << 20
"""Bytes that any header may take: short ones may be as dense as they like."""

# Bytes that CPython takes for each, at most, its parser's own lists included. tests/adversary/test_fuzz.py measures them.
_ENTRY, _LIST, _OBJECT, _STRING = 48, 96, 240, 64
_KEY = 280
"""Its places in the object, in the list of pairs and in the parser's memory of keys."""
_ESCAPED = 12
"""For each character of a text with escapes: a wide one makes all of them wide, and the text is put together of pieces."""
_COST = {ord("["): _LIST, ord("{"): _OBJECT, ord(","): _ENTRY, ord(":"): _KEY, ord("]"): 0, ord("}"): 0}

_TOKEN = re.compile(rb'("[^"\\]*+")|("(?:[^"\\]*+\\.)++[^"\\]*+")|(\d{%d})|[\[\]{},:]' % (MOST_DIGITS + 1), re.DOTALL)
"""Texts without and with escapes, long numbers, structure. Possessive: the engine otherwise remembers every character it
might go back to, at 76 bytes each."""
_PLAIN, _WITH_ESCAPES, _LONG_NUMBER = 1, 2, 3


@dataclass(frozen=True)
class HeaderBounds:
    """How large a header may be."""

    size: int
    """Bytes."""
    elements: int
    """Entries of lists and objects, over all of them."""
    depth: int
    """Of one in the other."""


def read_header(data: bytes | memoryview, bounds: HeaderBounds, *, finite: bool) -> dict[str, Any]:
    """The object, or a `ValueError` that says in a few words what is wrong; `finite`: without NaN and infinity."""
    if len(data) > bounds.size:
        raise ValueError(f"it has {len(data):,} bytes, at most {bounds.size:,} are read")
    _weigh(data, bounds)
    text = str(data, "ascii")  # ours write everything else as escapes; one wide character would make all of it wide
    try:
        content = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_number if finite else None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def _weigh(data: bytes | memoryview, bounds: HeaderBounds) -> None:
    """Refuse what a parser would make too much of.

    Brackets and digits inside of texts are no structure. From a text on that is not closed, what is counted means nothing:
    there the parser ends too, and refuses.
    """
    left, elements, depth = MOST_TIMES * len(data) + FREE, 0, 0
    for token in _TOKEN.finditer(data):
        start, end = token.span()
        if token.lastindex == _PLAIN:
            left -= _STRING + end - start
        elif token.lastindex == _WITH_ESCAPES:
            left -= _STRING + _ESCAPED * (end - start)
        elif token.lastindex == _LONG_NUMBER:
            raise ValueError(f"it holds a number of more than {MOST_DIGITS} digits")
        else:
            sign = data[start]
            left -= _COST[sign]
            depth += (sign in b"[{") - (sign in b"]}")
            elements += sign in b"[{,"
        if left < 0 or elements > bounds.elements:
            raise ValueError("it has too many entries")
        if depth > bounds.depth:
            raise ValueError("it is nested too deeply")
        if token.lastindex == _WITH_ESCAPES:
            _check_whole(token[_WITH_ESCAPES])


def _check_whole(text: bytes) -> None:
    """Halves of characters cannot be written to any file or screen. `UnicodeEncodeError` is a `ValueError`."""
    if b"\\ud" in text or b"\\uD" in text:
        json.loads(text).encode()


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers of an object that says a thing twice could each believe another half."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("it says a thing twice")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")

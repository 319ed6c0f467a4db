"""JSON headers that came from somebody else: weighed before they are parsed, and read in one way only.

A parser makes objects of every bracket and comma, some twenty times as large as the text; nested ones recurse, and a number
of thousands of digits takes as long as a step. All of that can be seen in the text, at a fraction of the cost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

MOST_DIGITS = 32
"""In a row. A number of ours has at most 21."""
BYTES_A_LIST = 6
"""So long is a list or an object on average, at least, if there are many."""
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""Possessive: the engine otherwise remembers every character it might go back to, at 76 bytes each."""
_LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS + 1}}}")
_NOT_BRACKETS = re.compile(r"[^\[\]{}]+")
_SURROGATE = re.compile(r"\\u[dD]")


@dataclass(frozen=True)
class HeaderBounds:
    """How large a header may be."""

    size: int
    """Bytes."""
    elements: int
    """Entries of lists and objects, over all of them."""
    depth: int
    """Of one in the other."""


def read_header(data: bytes, bounds: HeaderBounds, *, finite: bool) -> dict[str, Any]:
    """The object, or a `ValueError` that says in a few words what is wrong; `finite`: without NaN and infinity."""
    if len(data) > bounds.size:
        raise ValueError(f"it has {len(data):,} bytes, at most {bounds.size:,} are read")
    text = data.decode()
    # Brackets and digits inside of texts are no structure; what is not closed ends the text, and is refused by the parser.
    bare = _TEXT.sub('""', text)
    _weigh(bare, bounds)
    try:
        content = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_number if finite else None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    if _SURROGATE.search(text):
        # Halves of characters cannot be written to any file or screen. UnicodeEncodeError is a ValueError.
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _weigh(bare: str, bounds: HeaderBounds) -> None:
    nested = bare.count("[") + bare.count("{")
    # An empty object is three characters and 72 bytes; ours name what they hold.
    if nested > 1024 + len(bare) // BYTES_A_LIST or bare.count(",") + nested > bounds.elements:
        raise ValueError("it has too many entries")
    if _LONG_NUMBER.search(bare):
        raise ValueError(f"it holds a number of more than {MOST_DIGITS} digits")
    depth = 0
    for bracket in _NOT_BRACKETS.sub("", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > bounds.depth:
            raise ValueError("it is nested too deeply")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers of an object that says a thing twice could each believe another half."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("it says a thing twice")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")

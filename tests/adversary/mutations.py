"""Damage that an attacker would do: to bytes, to JSON headers, and to the messages inside frames."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

DEEP = "[" * 3000 + "]" * 3000
"""Deeper than a parser may go."""
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**31 - 1, -(2**31), 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf"), 3e38, "", "x", "client-00", "client-99", "0", "1e9",
    "../../x", "/etc/passwd", "a/b", "a\x00b", "\x1b[2J", "\ud800", "\u202e", "x" * 5000, "fedavg", "census", "params",
    "float32", "several", [], {}, [[]], [None], [0], [-1], [2**62, 4], [0, 2**62], [[], {}], {"": 0},
    {"a": {"b": {"c": {}}}}, [1] * 1000, ["x"] * 300, {str(k): k for k in range(200)},
]  # fmt: skip
DENSE: list[tuple[str, Callable[[int], str], str]] = [
    ("{", lambda k: f'"{k:x}":0', "}"),
    ("{", lambda k: f'"{k:024x}":[]', "}"),
    ("[", lambda k: "0", "]"),
    ("[", lambda k: "1e0", "]"),
    ("[", lambda k: str(1000 + k), "]"),
    ("[", lambda k: '"ab"', "]"),
    ("[", lambda k: "[]", "]"),
    ("[", lambda k: "[0,0,0]", "]"),
    ("[", lambda k: '{"a":0}', "]"),
    ("[", lambda k: "{}", "]"),
    ("[", lambda k: '"\\u20ac\\n"', "]"),
    ('["\\ud83d\\ude00', lambda k: "xxxxxxxxxx", '"]'),
]
"""(start, entry, end) of what takes many times its text in memory."""


def dense(kind: int, many: int) -> str:
    """So many entries of one of these kinds."""
    left, each, right = DENSE[kind]
    return left + ",".join(each(k) for k in range(many)) + right


class Mutator:
    """Changes recorded traffic; the same seed makes the same changes."""

    def __init__(self, seed: int, recorded: list[bytes]) -> None:
        self.random, self.recorded = random.Random(seed), recorded

    def changed(self, data: bytes) -> bytes:
        """One of the ways below, now and then two."""
        ways = (self.bits, self.cut, self.grown, self.spliced, self.header, self.header, self.inner, self.inner, self.length)
        for _ in range(1 if self.random.random() < 0.8 else 2):
            data = self.random.choice(ways)(data)
        return data

    def bits(self, data: bytes) -> bytes:
        """Some bits flipped, most of them near the start, where headers are."""
        changed = bytearray(data)
        reach = len(changed) if self.random.random() < 0.3 else min(len(changed), 400)
        for _ in range(self.random.randrange(1, 9)):
            if changed:
                changed[self.random.randrange(reach)] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def cut(self, data: bytes) -> bytes:
        """Without a piece, or without its end."""
        start = self.random.randrange(len(data) + 1)
        return data[:start] + (b"" if self.random.random() < 0.5 else data[start + self.random.randrange(1, 64) :])

    def grown(self, data: bytes) -> bytes:
        """With a piece too many."""
        start, size = self.random.randrange(len(data) + 1), self.random.choice([1, 4, 8, 100, 5000])
        more = self.random.randbytes(size) if self.random.random() < 0.5 else data[start : start + size]
        return data[:start] + more + data[start:]

    def spliced(self, data: bytes) -> bytes:
        """The start of one and the end of another."""
        other = self.random.choice(self.recorded)
        return data[: self.random.randrange(len(data) + 1)] + other[self.random.randrange(len(other) + 1) :]

    def length(self, data: bytes) -> bytes:
        """Another length of the header."""
        length = self.random.choice([0, 1, 2**31, 2**32 - 1, len(data), self.random.randrange(2**16)])
        return data[:4] + length.to_bytes(4, "little") + data[8:]

    def header(self, data: bytes) -> bytes:
        """The frame's header with one entry changed."""
        return self._with_header(data, 0)

    def inner(self, data: bytes) -> bytes:
        """The header of a message inside the frame changed; the frame's own, if there is none."""
        start = data.find(b"SUT1")
        return self._with_header(data, max(start, 0))

    def _with_header(self, data: bytes, start: int) -> bytes:
        end = start + 8 + int.from_bytes(data[start + 4 : start + 8], "little")
        try:
            header = json.loads(data[start + 8 : end])
        except (ValueError, RecursionError):
            return self.bits(data)
        text = self._text(self.edited(header))
        return data[: start + 4] + len(text).to_bytes(4, "little") + text + data[end:]

    def _text(self, header: Any) -> bytes:
        text = json.dumps(header)
        if self.random.random() < 0.02:
            text = text.replace("null", DEEP, 1) if "null" in text else text[:-1] + ',"more":' + DEEP + "}"
        if self.random.random() < 0.01:
            text = text[:-1] + ',"more":"' + "y" * 900_000 + '"}'
        if self.random.random() < 0.02 and text.startswith("{"):
            text = text[:-1] + "," + text[1:]  # every key twice
        if self.random.random() < 0.003:
            text = text[:-1] + ',"more":' + self.dense() + "}"
        return text.encode("utf-8", "surrogatepass")

    def dense(self) -> str:
        """What a parser makes most of, for its length."""
        return dense(self.random.randrange(len(DENSE)), self.random.randrange(1000, 100_000))

    def edited(self, value: Any) -> Any:
        """One place of a JSON value with another content, gone, or twice."""
        if isinstance(value, dict) and value and self.random.random() < 0.9:
            key = self.random.choice(list(value))
            way = self.random.random()
            if way < 0.1:
                return {k: v for k, v in value.items() if k != key}
            if way < 0.2:
                return {**value, str(self.random.choice(VALUES))[:50]: self.random.choice(VALUES)}
            return {**value, key: self.edited(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.85:
            place = self.random.randrange(len(value))
            way = self.random.random()
            if way < 0.1:
                return value[:place] + value[place + 1 :]
            if way < 0.2:
                return [*value[:place], value[place], *value[place:]]
            return [*value[:place], self.edited(value[place]), *value[place + 1 :]]
        if type(value) is int and self.random.random() < 0.4:
            return value + self.random.choice([-2, -1, 1, 2, 10, 1000])
        return self.random.choice(VALUES)

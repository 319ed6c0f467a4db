"""Ctrl-C and `kill`: before training they end the program at once, during training after the current round."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REMARK = b"\nfinishing this round; Ctrl-C once more stops at once\n"


class Halt(BaseException):
    """A signal that ends the program at once; not an `Exception`, so that nothing on the way swallows it."""


@contextmanager
def halting() -> Iterator[None]:
    """Let both signals raise `Halt`."""
    before = {number: signal.signal(number, _halt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _halt(number: int, frame: FrameType | None) -> None:
    raise Halt


class Stopper:
    """Remembers the first signal that comes once training has begun; any other raises `Halt`."""

    def __init__(self) -> None:
        self.training = False
        self.asked = False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.training:
            raise Halt
        self.asked = True
        # A signal can come in the middle of a print, where print must not be called again.
        os.write(2, REMARK)

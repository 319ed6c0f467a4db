"""Who answers at the moment: the coordinator's job listens for every owner's pulse, and calls where it hears nothing.

FLARE notices a lost party after half a minute, and one that hangs not at all. Here every answer of an owner counts as a sign
of life; an owner that has given none for a moment is called, in a thread of its own, for nothing but a sign. So a run whose
rounds are quicker than that costs no call, and whoever has not answered for `SILENCE` seconds is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

EVERY = 0.5
"""Seconds without a sign after which an owner is called, and between two such calls."""
PING_SECONDS = 1.25
"""How long such a call waits."""
SILENCE = 2.0
"""Seconds without a sign after which an owner is called silent: a call went out in them and had time to be answered."""


class Pulse:
    """Watches owners from `start` to `stop`. `ping` calls one of them and raises if there is no answer."""

    def __init__(self, owners: Sequence[str], ping: Callable[[str], object]) -> None:
        self._ping = ping
        self._last = dict.fromkeys(owners, time.monotonic())
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(owner,), daemon=True) for owner in owners]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; a call that is under way ends by itself."""
        self._ended.set()

    def heard(self, owner: str) -> None:
        """The owner has given a sign of life."""
        self._last[owner] = time.monotonic()

    def silence(self, owner: str) -> float:
        """Seconds since the last sign."""
        return time.monotonic() - self._last[owner]

    def silent(self) -> dict[str, float]:
        """Owners that do not answer, and for how many seconds they have not."""
        return {owner: round(since, 1) for owner in self._last if (since := self.silence(owner)) > SILENCE}

    def _watch(self, owner: str) -> None:
        while not self._ended.wait(EVERY):
            if self.silence(owner) < EVERY:
                continue
            try:
                self._ping(owner)
            except Exception:
                continue  # the time since the last sign says all there is to say
            self.heard(owner)

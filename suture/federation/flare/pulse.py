"""Who answers at the moment: the coordinator's job listens for every owner's pulse, and calls where it hears nothing.

FLARE notices a lost party after half a minute, and one that hangs not at all. Here every answer of an owner counts as a sign
of life; an owner that has given none for a moment is called, in a thread of its own, for nothing but a sign. So a run whose
rounds are quicker than that costs no call, and whoever has not answered for `SILENCE` seconds is named.

With a sign comes what the owner has to do (`Work`). On a machine that does much else FLARE has lost an answer on its way;
whoever waits for one from an owner that has long had nothing to do waits in vain, and asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EVERY = 0.5
"""Seconds without a sign after which an owner is called, and between two such calls."""
PING_SECONDS = 1.25
"""How long such a call waits."""
SILENCE = 2.0
"""Seconds without a sign after which an owner is called silent: a call went out in them and had time to be answered."""


LOST = 30.0
"""Seconds without anything to do, at the least, after which an owner's answer is lost."""
SLOWEST = 100_000
"""Bytes a second: a request or an answer that may still be on its way at this speed is not lost."""


@dataclass
class Work:
    """At an owner: what it is doing. Several threads may answer at once."""

    under_way: int = 0
    since: float = field(default_factory=time.monotonic)
    last_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def done(self, answer: Callable[[], bytes]) -> bytes:
        """Answer, and remember that it was done."""
        with self._lock:
            self.under_way += 1
        told = b""
        try:
            told = answer()
            return told
        finally:
            with self._lock:
                self.under_way, self.since, self.last_bytes = self.under_way - 1, time.monotonic(), len(told)

    def told(self) -> list[float]:
        """For a sign of life: seconds without anything to do, and the bytes of the last answer."""
        return [0.0 if self.under_way else time.monotonic() - self.since, float(self.last_bytes)]


class Pulse:
    """Watches owners from `start` to `stop`. `ping` calls one of them and raises if there is no answer."""

    def __init__(self, owners: Sequence[str], ping: Callable[[str], object]) -> None:
        self._ping = ping
        self._last = dict.fromkeys(owners, time.monotonic())
        self._work: dict[str, tuple[float, object]] = {}
        """When a sign came that an owner was called for, and what it said."""
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

    def has_lost(self, owner: str, request_bytes: int, begun: float) -> bool:
        """Whether the answer to a call that began then will not come: by what the owner's last sign said.

        One that says nothing that can be read is at work.
        """
        at, told = self._work.get(owner, (begun, None))
        if not isinstance(told, list) or len(told) != 2 or not all(isinstance(one, float) for one in told):
            return False
        idle, answer_bytes = told
        return bool(min(idle, at - begun) > LOST + (request_bytes + abs(answer_bytes)) / SLOWEST)

    def _watch(self, owner: str) -> None:
        while not self._ended.wait(EVERY):
            if self.silence(owner) < EVERY:
                continue
            try:
                self._work[owner] = (time.monotonic(), self._ping(owner))
            except Exception:
                continue  # the time since the last sign says all there is to say
            self.heard(owner)

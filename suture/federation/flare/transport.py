"""NVIDIA FLARE as the transport: one coordinator, one warm process per owner, direct calls, mutual TLS.

All that passes through FLARE is the bytes of our own frames.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from suture.federation.flare.pulse import PING_SECONDS, SILENCE, Pulse
from suture.federation.wire.reasons import AnswerLost, Unreachable

SECONDS_BETWEEN_LOOKS = 0.5
GIVEN_UP = 30.0
"""Seconds without any sign of life after which a call is given up, however long its step may take."""

# FLARE formats every request it receives for a debug line, written or not: 6 ms a megabyte in which no other thread runs.
ConsumableBufferList.__repr__ = lambda self: f"{len(self)} buffers"


class FlareTransport:
    """Calls owners' published `answer`, one direct call each."""

    def __init__(self, proxies: list[Any], hurry: Callable[[], bool] = lambda: False) -> None:
        """`hurry` says whether the run is to end: then nobody waits for an owner that gives no sign of life."""
        self._hurry = hurry
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._job_aborted: dict[str, Signal] = {proxy.name: proxy.backend.abort_signal for proxy in proxies}
        self._given_up: dict[str, Signal] = {}
        for proxy in proxies:
            self._give_up(proxy)
        self._pool = ThreadPoolExecutor(4 * max(1, len(proxies)), thread_name_prefix="call")
        self.pulse = Pulse(self.owners, lambda owner: self._proxies[owner](timeout=PING_SECONDS).alive())
        self.pulse.start()

    @property
    def owners(self) -> tuple[str, ...]:
        """Every owner in this job, in the order of their names."""
        return tuple(sorted(self._proxies))

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        """One call; whatever goes wrong on the way, the owner did not answer."""
        proxy = self._proxies[owner]
        waiting = self._pool.submit(lambda: proxy(timeout=timeout).answer(request))
        try:
            reply = self._result(owner, waiting, len(request))
        except AnswerLost:
            self._give_up(proxy)
            raise
        except Exception as error:
            self._give_up(proxy)
            raise Unreachable(f"no answer ({error})") from error
        self.pulse.heard(owner)
        if not isinstance(reply, bytes):
            raise Unreachable(f"its answer is {type(reply).__name__}, not bytes")
        return reply

    def _give_up(self, proxy: Any) -> None:
        """End the calls to this owner that are still waiting: a job cannot end before them. Later calls are new ones."""
        if proxy.name in self._given_up:
            self._given_up[proxy.name].trigger(True)
        proxy.backend.abort_signal = self._given_up[proxy.name] = Signal(self._job_aborted[proxy.name])

    def close(self) -> None:
        """Let nothing wait any more."""
        self.pulse.stop()
        for proxy in self._proxies.values():
            self._give_up(proxy)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _result(self, owner: str, waiting: Future[Any], request_bytes: int) -> Any:
        """The call's result; given up early if the owner's process gives no sign of life any more, or has nothing to do.

        A call to a party that was restarted meanwhile would hang until its timeout, which has to allow for long steps; so
        would one whose answer was lost.
        """
        begun = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                return waiting.result(SECONDS_BETWEEN_LOOKS)
            since = self.pulse.silence(owner)
            if since > (SILENCE if self._hurry() else GIVEN_UP):
                raise Unreachable(f"its process has given no sign of life for {since:.0f} s")
            if self.pulse.has_lost(owner, request_bytes, begun):
                waited = time.monotonic() - begun
                raise AnswerLost(f"its answer was lost on the way: it has nothing to do, and was waited for {waited:.0f} s")

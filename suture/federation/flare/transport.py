"""NVIDIA FLARE as the transport: one coordinator, one warm process per owner, direct calls, mutual TLS.

FLARE starts, in every party's job process, one installed class that the job names (`Coordinating` at the coordinator,
`Answering` at an owner); jobs carry no code. All that passes through FLARE is the bytes of our own frames.
Coordinator and owner are given their work by subclasses (`suture.federation.flare.parties`): engines know no methods.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.collab import collab
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from suture.core.storage import Json
from suture.federation.flare.places import TOPIC
from suture.federation.wire.exchange import Unreachable

SERVER = "server"
SECONDS_BETWEEN_PINGS = 8.0
PINGS = 3
"""So many unanswered ones in a row, and a process is gone."""

# FLARE formats every request it receives for a debug line, written or not: 6 ms a megabyte in which no other thread runs.
ConsumableBufferList.__repr__ = lambda self: f"{len(self)} buffers"


class FlareTransport:
    """Calls owners' published `answer`, one direct call each."""

    def __init__(self, proxies: list[Any]) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._job_aborted: dict[str, Signal] = {proxy.name: proxy.backend.abort_signal for proxy in proxies}
        self._given_up: dict[str, Signal] = {}
        for proxy in proxies:
            self._give_up(proxy)
        self._pool = ThreadPoolExecutor(4 * max(1, len(proxies)), thread_name_prefix="call")

    @property
    def owners(self) -> tuple[str, ...]:
        """Every owner in this job, in the order of their names."""
        return tuple(sorted(self._proxies))

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        """One call; whatever goes wrong on the way, the owner did not answer."""
        proxy = self._proxies[owner]
        waiting = self._pool.submit(lambda: proxy(timeout=timeout).answer(request))
        try:
            reply = self._result(proxy, waiting)
        except Exception as error:
            self._give_up(proxy)
            raise Unreachable(f"no answer ({error})") from error
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
        for proxy in self._proxies.values():
            self._give_up(proxy)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _result(proxy: Any, waiting: Future[Any]) -> Any:
        """The call's result; given up early if the owner's process is not there any more.

        A call to a party that was restarted meanwhile would hang until its timeout, which has to allow for long steps.
        """
        missed = 0
        while True:
            with contextlib.suppress(TimeoutError):
                return waiting.result(SECONDS_BETWEEN_PINGS)
            try:
                proxy(timeout=SECONDS_BETWEEN_PINGS).alive()
                missed = 0
            except Exception as error:
                missed += 1
                if missed >= PINGS:
                    raise Unreachable("its process is gone") from error


class Coordinating(FLComponent):  # type: ignore[misc]
    """The coordinator's job process."""

    take_home: Path
    """What is put here can be downloaded by the operator after the job."""

    @collab.main  # type: ignore[untyped-decorator]
    def main(self) -> None:
        """FLARE calls this once all owners' processes are up."""
        transport = FlareTransport(list(collab.clients))
        try:
            self.conduct(transport)
        finally:
            transport.close()

    @abstractmethod
    def conduct(self, transport: FlareTransport) -> None:
        """Carry out what was ordered."""

    @abstractmethod
    def command(self, wanted: dict[str, Json]) -> dict[str, Json]:
        """Answer the operator while the job runs."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listen to the operator from the start."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_app_command(TOPIC, self._on_command)
            self.take_home = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())) / TOPIC

    def _on_command(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Json]:
        return self.command(data if isinstance(data, dict) else {})


class Answering:
    """An owner's job process."""

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """FLARE calls this before any request."""
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Load what is needed to answer."""

    @abstractmethod
    def respond(self, request: bytes) -> bytes:
        """Answer one frame."""

    @collab.publish  # type: ignore[untyped-decorator]
    def alive(self) -> bool:
        """Whether there is still a process here, be it busy."""
        return True

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, request: bytes) -> bytes:
        """All that can be asked here, and by the coordinator only: owners never serve each other."""
        if collab.caller != SERVER:
            raise PermissionError("only the coordinator is answered")
        return self.respond(request)

"""Calls to the owners of a run: repeated while they fail at once, to all at the same time, and never more than needed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from suture.core.storage import Json
from suture.errors import IntegrityError, SutureError
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import FaultSettings
from suture.federation.wire.reasons import AnswerLost, BadReply, Unreachable
from suture.seam import Transport

Request = tuple[dict[str, Json], bytes]
"""Header and body."""
Answers = dict[str, Frame]
"""By owner."""
Failures = dict[str, Exception]
"""By owner, why there is no answer."""
MOST_LOST = 3
"""Answers to one request that may get lost on their way before the owner counts as lost."""


@dataclass
class Calls:
    """The way to the owners of one run."""

    transport: Transport
    run: str
    faults: FaultSettings
    owed: dict[str, list[Request]] = field(default_factory=dict)
    """What an owner is told with the next call to it."""

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(4, 2 * len(self.transport.owners)), thread_name_prefix="ask")

    def one(self, owner: str, requests: Sequence[Request]) -> list[Frame]:
        """One exchange with one owner, repeated while it fails at once; what it is owed goes first."""
        owed = self.owed.get(owner, [])
        frames = [Frame({"run": self.run, **header}, body) for header, body in (*owed, *requests)]
        data = self._delivered(owner, Frame.several(frames).pack())
        try:
            answers = Frame.unpack(data).parts()
            refusals = [frame.refused for frame in answers if frame.refused is not None]
        except IntegrityError as error:
            raise BadReply(str(error)) from error
        if refusals:
            raise refusals[0]
        if len(answers) != len(frames):
            raise BadReply(f"it answers {len(answers)} of {len(frames)} requests")
        if not all(answer.is_to(frame.digest) for frame, answer in zip(frames, answers, strict=True)):
            raise BadReply("it answers another request than was made")
        self.owed.pop(owner, None)
        return answers[len(owed) :]

    def _delivered(self, owner: str, request: bytes) -> bytes:
        begun, lost = time.monotonic(), 0
        while True:
            try:
                data = self.transport.call(owner, request, self.faults.step_timeout)
                break
            except AnswerLost:
                lost += 1  # whoever answered once gives the same answer again
                if lost == MOST_LOST:
                    raise
            except Unreachable:
                if time.monotonic() - begun >= self.faults.patience:
                    raise
                time.sleep(min(1.0, self.faults.patience / 5))
        if not isinstance(data, bytes) or len(data) > self.faults.max_reply_bytes:
            raise BadReply(f"its reply is larger than {self.faults.max_reply_bytes} bytes, or no bytes at all")
        return data

    def all(self, requests: Mapping[str, Request]) -> tuple[Answers, Failures]:
        """All owners at once, one request each."""
        good, bad = self.each({owner: [request] for owner, request in requests.items()})
        return {owner: frames[0] for owner, frames in good.items()}, bad

    def each(self, requests: Mapping[str, Sequence[Request]]) -> tuple[dict[str, list[Frame]], Failures]:
        """The same with several requests for each owner, and as many answers."""
        waiting = {owner: self._pool.submit(self.one, owner, wanted) for owner, wanted in requests.items()}
        good: dict[str, list[Frame]] = {}
        bad: Failures = {}
        for owner, answer in waiting.items():
            try:
                good[owner] = answer.result()
            except SutureError as error:
                bad[owner] = error
        return good, bad

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

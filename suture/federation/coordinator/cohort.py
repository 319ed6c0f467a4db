"""The coordinator's side: a cohort of owners behind a transport.

Faults are handled here, whatever the transport:

- a call that gets no answer is repeated (which is harmless) until `patience` is over; the owner is then lost;
- an iteration in which an owner got lost is begun anew without it, or the run stops and waits (`on_loss`); since a method's
  body always sees complete replies, no method has to know. An absent owner is tried again before every iteration;
- a reply that is malformed, of another type or shape than declared, too large or not finite is refused by name. Its sender
  is treated as lost, and is not tried again.

A call costs several milliseconds whatever is in it, so calls that can be saved are: the test of a round travels with its
last step where the test does not depend on the step's replies, and an owner is told to retain its model with whatever it
is asked next. Both are what they were when they travelled alone, to the ledgers too; only a test that travelled too early,
because an iteration asked more often than the one before, is in the owner's ledger and not in ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, cast

import torch
from pydantic import Field

from suture.core.message import Message, Model
from suture.core.storage import Json
from suture.engines.robust import Robust
from suture.errors import SutureError
from suture.federation.wire.exchange import (
    BadReply,
    Expectations,
    Frame,
    Refused,
    Unreachable,
    check_finite,
    read,
    signature,
    wire_types,
)
from suture.federation.wire.sealed import SecureAsk
from suture.method import Clients, Method, Scores, Task
from suture.seam import Audit, Cohort, CohortBase, Common, Ledger, M, NoLedger, R, S, Transport, V
from suture.settings import Count, Positive


@dataclass(frozen=True)
class FaultSettings:
    """What the coordinator does when something goes wrong."""

    step_timeout: Positive = 600.0
    """Seconds an owner may take for one step."""
    patience: Annotated[float, Field(ge=0)] = 10.0
    """Seconds for which a call that fails at once is repeated."""
    on_loss: Literal["wait", "continue"] = "wait"
    """A lost owner: wait (stop at the last finished round until it is back), or continue without it."""
    min_owners: Count = 2
    """continue: the smallest number of owners a round may have."""
    max_reply_bytes: Count = 1 << 30
    """A larger reply is refused."""


NOT_OPENED = "not opened yet"
"""Why an owner is absent that was not called yet."""
Request = tuple[dict[str, Json], bytes]
"""Header and body."""


class OwnersLost(SutureError):
    """Owners that did not answer, by name; the run can be resumed once they are back."""

    def __init__(self, lost: Mapping[str, str]) -> None:
        self.lost = dict(lost)
        super().__init__("; ".join(f"owner {name} is lost: {why}" for name, why in lost.items()))


@dataclass
class Fleet(Common, Generic[S]):
    """What a cohort and its samples have in common."""

    method: Method[Any, S]
    run: str
    transport: Transport
    terms: dict[str, Json]
    faults: FaultSettings
    audit: Audit
    ledger: Ledger
    pool: ThreadPoolExecutor
    base: int = 0
    secure: bool = False
    robust: Robust | None = None
    absent: dict[str, str] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)
    scores: Scores | None = None
    expectations: Expectations = field(default_factory=Expectations)
    owed: dict[str, list[Request]] = field(default_factory=dict)
    """What an owner is told with the next call to it."""
    test: Message | None = None
    """What everybody is tested with after this iteration, if that is known already."""
    begun: tuple[str, int] = ("", 0)
    """Name of the iteration's body, and how often owners had been asked before it."""
    asks: dict[str, int] = field(default_factory=dict)
    """How often a body asked in its last iteration."""
    tested: tuple[int, dict[str, Frame]] = (0, {})
    """Answers to a test that travelled with the step of this number."""

    def call(self, owner: str, requests: Sequence[Request]) -> list[Frame]:
        """One exchange with one owner, repeated while it fails at once; what it is owed goes first."""
        owed = self.owed.get(owner, [])
        frames = [Frame({"run": self.run, **header}, body) for header, body in (*owed, *requests)]
        request = Frame.several(frames).pack()
        begun = time.monotonic()
        while True:
            try:
                data = self.transport.call(owner, request, self.faults.step_timeout)
                break
            except Unreachable:
                if time.monotonic() - begun >= self.faults.patience:
                    raise
                time.sleep(min(1.0, self.faults.patience / 5))
        if not isinstance(data, bytes) or len(data) > self.faults.max_reply_bytes:
            raise BadReply(f"its reply is larger than {self.faults.max_reply_bytes} bytes, or no bytes at all")
        answers = Frame.unpack(data).parts()
        for frame in answers:
            if "refused" in frame.header:
                raise Refused(frame.text("refused")[:500])
        if len(answers) != len(frames):
            raise BadReply(f"it answers {len(answers)} of {len(frames)} requests")
        self.owed.pop(owner, None)
        return answers[len(owed) :]

    def call_all(self, requests: Mapping[str, Request]) -> tuple[dict[str, Frame], dict[str, Exception]]:
        """(answers, failures) by owner; all are called at once."""
        good, bad = self.call_each({owner: [request] for owner, request in requests.items()})
        return {owner: frames[0] for owner, frames in good.items()}, bad

    def call_each(self, requests: Mapping[str, Sequence[Request]]) -> tuple[dict[str, list[Frame]], dict[str, Exception]]:
        """The same with several requests for each owner, and as many answers."""
        waiting = {owner: self.pool.submit(self.call, owner, wanted) for owner, wanted in requests.items()}
        good: dict[str, list[Frame]] = {}
        bad: dict[str, Exception] = {}
        for owner, answer in waiting.items():
            try:
                good[owner] = answer.result()
            except SutureError as error:
                bad[owner] = error
        return good, bad


class RemoteCohort(CohortBase[Fleet[S]], Generic[S]):
    """All owners, or a sample of them; see `suture.seam`."""

    def __init__(self, fleet: Fleet[S], ids: Sequence[str]) -> None:
        super().__init__(fleet, ids)
        self._fleet = fleet

    @staticmethod
    def start(
        method: Method[Any, S],
        task: Task,
        run: str,
        transport: Transport,
        terms: dict[str, Json],
        audit: Audit,
        *,
        faults: FaultSettings | None = None,
        ledger: Ledger | None = None,
        secure: bool = False,
        robust: Robust | None = None,
    ) -> RemoteCohort[S]:
        """Nobody is called before `restore` or the first iteration."""
        pool = ThreadPoolExecutor(max(4, 2 * len(transport.owners)), thread_name_prefix="ask")
        settings = faults or FaultSettings()
        fleet = Fleet(method, run, transport, terms, settings, audit, ledger or NoLedger(), pool, task=task)
        fleet.secure, fleet.robust = secure, robust
        fleet.absent = dict.fromkeys(transport.owners, NOT_OPENED)
        return RemoteCohort(fleet, transport.owners)

    @property
    def absent(self) -> dict[str, str]:
        """Owners that are lost at the moment, with the reason."""
        return dict(self._fleet.absent)

    @property
    def present(self) -> tuple[str, ...]:
        """The owners that are here: only they are sampled."""
        return tuple(name for name in self._ids if name not in self._fleet.absent)

    def states(self) -> list[S]:
        """Nothing: what owners keep stays with them."""
        return []

    def restore(self, states: Sequence[S], asked: int) -> None:
        """Continue from a checkpoint: owners go back to the step it was written after."""
        self._fleet.asked = self._fleet.base = asked

    def committed(self) -> None:
        """Owners may forget what was before this step."""
        self._fleet.base = self._fleet.asked

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None) -> V:
        """One iteration; where an owner is lost on the way and the settings allow it, anew without that owner."""
        fleet = self._fleet
        number = fleet.asked
        fleet.test, fleet.begun = test, (body.__name__, number)
        self._welcome()
        while True:
            try:
                result = body(server, cast(Cohort, self))
                fleet.asks[body.__name__] = fleet.asked - number
                self._settle()
                return result
            except Stopped:
                raise
            except OwnersLost as error:
                self._miss(error.lost)
                fleet.asked = number
                fleet.reports.clear()
                fleet.kept.clear()

    def _settle(self) -> None:
        """Tell owners that were not asked in this iteration what they are owed: a checkpoint knows one iteration's debts."""
        fleet = self._fleet
        _, bad = fleet.call_each({owner: [] for owner in list(fleet.owed) if owner not in fleet.absent})
        self._stop_if_refused(bad)
        if bad:
            self._miss({owner: str(error) for owner, error in bad.items()})

    def _welcome(self) -> None:
        """Open the run at everybody who is not here yet, or here again."""
        fleet = self._fleet
        wanted = [owner for owner in fleet.absent if owner not in fleet.banned]
        header: dict[str, Json] = {"verb": "open", "number": fleet.asked, "terms": fleet.terms}
        owed, fleet.owed = fleet.owed, {}  # nothing else can be said to an owner before the run is open there
        good, bad = fleet.call_all(dict.fromkeys(wanted, (header, b"")))
        fleet.owed = owed
        for owner in good:
            if fleet.absent.pop(owner) != NOT_OPENED:
                fleet.audit.note("owner is back", owner=owner, number=fleet.asked)
        self._stop_if_refused(bad)
        lost = {owner: str(error) for owner, error in bad.items()}
        if lost or fleet.absent:
            self._miss(lost)

    def _miss(self, lost: Mapping[str, str]) -> None:
        """Go on without these owners, or stop."""
        fleet = self._fleet
        for owner, why in lost.items():
            fleet.absent[owner] = why
            fleet.audit.note("owner is lost", owner=owner, reason=why, number=fleet.asked)
        here = len(self._ids) - len(fleet.absent)
        if fleet.absent and (fleet.faults.on_loss == "wait" or here < fleet.faults.min_owners):
            raise Stopped(fleet.absent)

    def _stop_if_refused(self, bad: Mapping[str, Exception]) -> None:
        refusals = {owner: error for owner, error in bad.items() if isinstance(error, Refused)}
        for owner, error in refusals.items():
            self._fleet.audit.note("refused by an owner", run=self._fleet.run, owner=owner, reason=str(error))
        if refusals:
            raise Refused("; ".join(f"owner {owner} refuses: {error}" for owner, error in refusals.items()))

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run a step at every owner of the cohort."""
        fleet = self._fleet
        if not getattr(step, "__is_step__", False):
            raise TypeError(f"{step} is not a declared step of {type(fleet.method).__name__}; decorate it with @step")
        fleet.asked += 1
        if fleet.secure and step.__name__ in fleet.method.sums:
            return cast(R, self._secure_ask(step, message.select(self._ids)))
        replies = self._exchange("ask", step, message.select(self._ids))
        reply = cast(R, self._joined(replies))
        return fleet.robust.fold(step.__name__, reply) if fleet.robust else reply

    def _secure_ask(self, step: Callable[..., Any], message: Message) -> Message:
        """The weighted mean of everybody's reply, and no single one of them."""
        fleet, kind = self._fleet, signature(step).reply
        missing = {owner: fleet.absent[owner] for owner in message.ids if owner in fleet.absent}
        if missing or kind is None:
            raise Stopped(missing)
        fleet.ledger.record(fleet.asked, step.__name__, "down", message)
        bodies = {owner: message.select([owner]).pack() for owner in message.ids}
        asking = SecureAsk(fleet.call_all, message.ids, fleet.asked, fleet.base, step.__name__, fleet.round)
        reply, lost = asking.run(kind, bodies, fleet.faults.on_loss == "continue")
        self._stop_if_refused(lost)
        reasons = {owner: str(error) for owner, error in lost.items()}
        if reply is None:
            raise OwnersLost(reasons)
        if lost:
            self._miss(reasons)
        check_finite(reply)
        fleet.ledger.record(fleet.asked, step.__name__, "up", reply)
        return reply

    def _joined(self, replies: Mapping[str, Message]) -> Message:
        parts = [replies[owner] for owner in self._ids if owner in replies]
        return type(parts[0]).concat(parts)

    def _exchange(self, verb: str, step: Callable[..., Any], message: Message) -> dict[str, Message]:
        """The checked replies of everybody the message is for; raises `OwnersLost` if one is missing."""
        fleet, name = self._fleet, step.__name__
        missing = {owner: fleet.absent[owner] for owner in message.ids if owner in fleet.absent}
        if missing:
            raise Stopped(missing)
        fleet.ledger.record(fleet.asked, name, "down", message)
        good, bad = self._answers(verb, name, message)
        self._stop_if_refused(bad)
        declared, known = signature(step).reply, wire_types(type(fleet.method))
        replies: dict[str, Message] = {}
        for owner, frame in good.items():
            try:
                reply = _checked(owner, frame, fleet.asked, read(frame.body, declared, known))
                self._check_finite(owner, name, reply)
                replies[owner] = reply
            except SutureError as error:
                bad[owner] = BadReply(str(error))
        if replies:
            odd = fleet.expectations.odd(name, replies)
            bad |= {owner: BadReply(why) for owner, why in odd.items()}
        for owner, why in bad.items():
            if not isinstance(why, Unreachable):
                fleet.banned.add(owner)
                fleet.audit.note("reply refused", owner=owner, step=name, number=fleet.asked, reason=str(why))
        if bad:
            raise OwnersLost({owner: str(why) for owner, why in bad.items()})
        fleet.ledger.record(fleet.asked, name, "up", self._joined(replies))
        return replies

    def _answers(self, verb: str, step: str, message: Message) -> tuple[dict[str, Frame], dict[str, Exception]]:
        """(answers, failures) by owner; a test that has travelled already is not sent again."""
        fleet = self._fleet
        (number, tested), fleet.tested = fleet.tested, (0, {})
        if verb == "evaluate" and number == fleet.asked and tested.keys() == set(message.ids):
            return tested, {}
        requests = {owner: [self._request(verb, step, message, owner)] for owner in message.ids}
        test = fleet.test if verb == "ask" and self._is_last_ask() else None
        if test is not None:
            for owner in message.ids:
                requests[owner].append(self._request("evaluate", fleet.method.evaluate.__name__, test, owner))
        good, bad = fleet.call_each(requests)
        if test is not None:
            fleet.tested = (fleet.asked, {owner: frames[1] for owner, frames in good.items()})
        return {owner: frames[0] for owner, frames in good.items()}, bad

    def _request(self, verb: str, step: str, message: Message, owner: str) -> Request:
        fleet = self._fleet
        header: dict[str, Json] = {"verb": verb, "step": step, "number": fleet.asked, "base": fleet.base}
        return header | ({"round": fleet.round} if verb == "ask" else {}), message.select([owner]).pack()

    def _is_last_ask(self) -> bool:
        """Whether the iteration asks for the last time and asks everybody, if it goes like the one before."""
        fleet = self._fleet
        body, before = fleet.begun
        here = set(fleet.transport.owners) - fleet.absent.keys()
        return fleet.asks.get(body) == fleet.asked - before and here <= set(self._ids)

    def _check_finite(self, owner: str, step: str, reply: Message) -> None:
        """Refuse NaN, unless robust aggregation leaves it out and names its sender: then the run can go on."""
        fleet = self._fleet
        try:
            check_finite(reply)
        except BadReply as error:
            if fleet.robust is None or step not in fleet.robust.steps:
                raise
            fleet.audit.note("reply left out", owner=owner, step=step, number=fleet.asked, reason=str(error))

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is; an absent owner keeps the scores it last told."""
        fleet = self._fleet
        while True:
            here = [owner for owner in self._ids if owner not in fleet.absent]
            try:
                replies = self._exchange("evaluate", fleet.method.evaluate, deployed.select(here))
                break
            except Stopped:
                raise
            except OwnersLost as error:
                self._miss(error.lost)
        fresh = cast(Scores, RemoteCohort(fleet, here)._joined(replies))
        known = fleet.scores if fleet.scores is not None else _no_scores(self._ids)
        fleet.scores = known.replace_rows(fresh)
        return fleet.scores

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """Owners keep their own complete models; the coordinator gets none. They are told with the next call."""
        fleet = self._fleet
        for owner in ids:
            if fleet.absent.get(owner, NOT_OPENED) == NOT_OPENED:
                fleet.owed[owner] = [self._request("retain", fleet.method.evaluate.__name__, deployed, owner)]
        return None

    def finish(self, deployed: Message | None) -> None:
        """Everybody gets the reported model and makes its predictions: `deployed`, or what it has retained."""
        fleet = self._fleet
        self._welcome()  # a coordinator that was killed here has not called anybody yet
        here = [owner for owner in self._ids if owner not in fleet.absent]
        header: dict[str, Json] = {"verb": "finish", "number": fleet.asked}
        bodies = {owner: deployed.select([owner]).pack() if deployed is not None else b"" for owner in here}
        _, bad = fleet.call_all({owner: (header, bodies[owner]) for owner in here})
        for owner, error in bad.items():
            fleet.audit.note("owner did not take its model", owner=owner, reason=str(error))
        if bad and fleet.faults.on_loss == "wait":
            raise Stopped({owner: str(error) for owner, error in bad.items()})

    def close(self) -> None:
        """End the threads."""
        self._fleet.pool.shutdown(wait=False, cancel_futures=True)


class Stopped(OwnersLost):
    """The run cannot go on without these owners."""


def _checked(owner: str, frame: Frame, number: int, reply: Message) -> Message:
    if reply.ids != (owner,):
        raise BadReply(f"it answers for {', '.join(reply.ids) or 'nobody'}")
    if frame.header.get("number") != number:
        raise BadReply(f"it answers step {frame.header.get('number')!r}, asked was {number}")
    return reply


def _no_scores(ids: tuple[str, ...]) -> Scores:
    count = len(ids)
    nothing = torch.zeros(count, 3, dtype=torch.int64)
    return Scores(ids, torch.zeros(count, 3, dtype=torch.float64), nothing, torch.zeros(count))

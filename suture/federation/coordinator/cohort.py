"""The owners as a method sees them: a cohort behind a transport.

Faults are handled here, whatever the transport:

- a call that gets no answer is repeated (which is harmless) until `patience` is over; the owner is then lost;
- an iteration in which an owner got lost is begun anew without it, or the run stops and waits (`on_loss`); since a method's
  body always sees complete replies, no method has to know. An absent owner is tried again before every iteration;
- a reply that is malformed, of another type or shape than declared, too large, not finite or absurd is refused by name, and
  so is one on which the method's server fails. Its sender is treated as lost, and is not tried again; nor is an owner that
  refuses. With `on_loss` wait both end the run in one sentence.

A call costs several milliseconds whatever is in it, so calls that can be saved are: the test of a round travels with its
last step where the test does not depend on the step's replies, and an owner is told to retain its model with whatever it
is asked next. Both are what they were when they travelled alone, to the ledgers too; only a test that travelled too early,
because an iteration asked more often than the one before, is in the owner's ledger and not in ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, cast

import torch

from suture.core.message import Message, Model
from suture.core.storage import Json, sha256_of_json
from suture.engines.robust import Robust
from suture.errors import IntegrityError, StorageError
from suture.federation.coordinator.attendance import Attendance, CannotGoOn, OwnersLost, reasons
from suture.federation.coordinator.bindings import Bindings
from suture.federation.coordinator.blame import Heard, culprit
from suture.federation.coordinator.calls import Answers, Calls, Failures, Request
from suture.federation.coordinator.counted import counted
from suture.federation.coordinator.early_test import EarlyTest
from suture.federation.coordinator.replies import ReplyChecks
from suture.federation.coordinator.secure import BegunAhead, SecureAsk
from suture.federation.wire.checks import check_finite
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import FaultSettings
from suture.federation.wire.reasons import BadReply, FederationError, Reason, TooFew
from suture.federation.wire.signatures import signature
from suture.federation.wire.transcript import Purpose
from suture.method import Clients, Method, Scores, Task
from suture.seam import Audit, Cohort, CohortBase, Common, M, NoLedger, R, S, Transport, V, WireLedger, check_step

HASH_LENGTH = 64

log = logging.getLogger(__name__)


@dataclass
class RunAtCoordinator(Common, Generic[S]):
    """One run at the coordinator: what a cohort and its samples have in common."""

    method: Method[Any, S]
    terms: dict[str, Json]
    calls: Calls
    attendance: Attendance
    audit: Audit
    ledger: WireLedger
    checks: ReplyChecks
    base: int = 0
    secure: bool = False
    begun_ahead: BegunAhead = field(default_factory=BegunAhead)
    scores: Scores | None = None
    heard: Heard = field(default_factory=Heard)
    """In the iteration that is under way."""
    early: EarlyTest = field(default_factory=EarlyTest)


class OwnersCohort(CohortBase[RunAtCoordinator[S]], Generic[S]):
    """All owners, or a sample of them; see `suture.seam`."""

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
        ledger: WireLedger | None = None,
        secure: bool = False,
        robust: Robust | None = None,
        bindings: Bindings | None = None,
        left_out: Mapping[str, Reason] | None = None,
    ) -> OwnersCohort[S]:
        """Nobody is called before `restore` or the first iteration, and those that are left out never."""
        calls = Calls(transport, run, faults or FaultSettings())
        attendance = Attendance(calls, audit, bindings=bindings or Bindings())
        checks = ReplyChecks(method, task, audit, robust)
        attendance.leave_out(left_out or {})
        begun = RunAtCoordinator(method, terms, calls, attendance, audit, ledger or NoLedger(), checks, task=task)
        begun.secure = secure
        return OwnersCohort(begun, transport.owners)

    @property
    def absent(self) -> dict[str, Reason]:
        """Owners that are lost at the moment, with the reason."""
        return dict(self._common.attendance.absent)

    @property
    def held_back(self) -> dict[str, str]:
        """What owners do not tell by their policies, in their words."""
        return dict(self._common.attendance.held_back)

    @property
    def banned(self) -> dict[str, Reason]:
        """Those of them that are not asked again."""
        attendance = self._common.attendance
        return {owner: why for owner, why in attendance.absent.items() if owner in attendance.banned}

    @property
    def present(self) -> tuple[str, ...]:
        """The owners that are here: only they are sampled."""
        return tuple(self._common.attendance.here(self._ids))

    def states(self) -> list[S]:
        """Nothing: what owners keep stays with them."""
        return []

    def restore(self, states: Sequence[S], asked: int) -> None:
        """Continue from a checkpoint: owners go back to the step it was written after."""
        self._common.asked = self._common.base = asked

    def committed(self) -> None:
        """Owners may forget what was before this step."""
        self._common.base = self._common.asked

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None) -> V:
        """One iteration; where an owner is lost on the way and the settings allow it, anew without that owner."""
        run = self._common
        number = run.asked
        run.early.begin(body.__name__, number, test)
        run.begun_ahead.forget(run.attendance.absent)
        run.attendance.welcome(number, run.terms)
        while True:
            before = set(run.attendance.absent)
            try:
                result = self._gone_through(body, server)
                run.early.end(run.asked)
                self._tell_what_is_owed()
                return result
            except CannotGoOn:
                raise
            except OwnersLost as error:
                run.attendance.miss(error.lost, run.asked)
                if set(run.attendance.absent) == before:  # it would go the same way for ever
                    raise TooFew(
                        f"{body.__name__} cannot be carried out with the {len(self.present)} owners that are here, or the "
                        "share of them that is asked (training.participation); let more take part"
                    ) from error
                run.asked = number
                run.reports.clear()
                run.kept.clear()

    def _gone_through(self, body: Callable[[V, Cohort], V], server: V) -> V:
        """One iteration; where its replies cannot be combined, whoever is to blame for it is lost."""
        self._common.heard = Heard()
        try:
            result = body(server, cast(Cohort, self))
        except (FederationError, OwnersLost, StorageError):
            raise
        except Exception as error:
            self._blame(body, server, error)
            raise
        try:
            check_finite(result)
        except IntegrityError as error:
            self._blame(body, server, error)
        return result

    def _blame(self, body: Callable[[V, Cohort], V], server: V, error: Exception) -> None:
        """Raises `OwnersLost` if it is one owner's fault that an iteration fails."""
        run = self._common
        owner = culprit(body, server, self._ids, run.heard, run.checks.robust)
        if owner is not None:
            log.warning("the replies to %s cannot be combined", body.__name__, exc_info=error)
            bad: Failures = {owner: BadReply(f"its replies cannot be combined with the others' ({type(error).__name__})")}
            run.attendance.settle(bad, body.__name__, run.asked)
            raise OwnersLost(reasons(bad)) from error

    def _tell_what_is_owed(self) -> None:
        """To owners that were not asked in this iteration: a checkpoint knows one iteration's debts."""
        calls, attendance = self._common.calls, self._common.attendance
        _, bad = calls.each({owner: [] for owner in attendance.here(list(calls.owed))})
        attendance.settle(bad, "retain", self._common.asked)
        if bad:
            attendance.miss(bad, self._common.asked)

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run a step at every owner of the cohort."""
        run = self._common
        check_step(step, run.method)
        run.asked += 1
        wanted = message.select(run.attendance.without_banned(self._ids))
        if run.secure and step.__name__ in run.method.sums:
            return cast(R, self._secure_ask(step.__name__, wanted))
        reply = cast(R, self._joined(self._exchange("ask", step.__name__, wanted)))
        run.heard.replies.append(reply)
        return run.checks.robust.fold(step.__name__, reply) if run.checks.robust else reply

    def _secure_ask(self, step: str, message: Message) -> Message:
        """The weighted mean of everybody's reply, and no single one of them."""
        run, kind = self._common, signature(type(self._common.method), step).reply
        if kind is None:
            raise TypeError(f"{step} of {type(run.method).__name__} is to be summed and must declare the type of its reply")
        run.ledger.record(run.asked, step, "down", message)
        bodies = {owner: message.select([owner]).pack() for owner in message.ids}
        may_drop = run.calls.faults.on_loss == "continue"
        purpose = Purpose(run.calls.run, sha256_of_json(run.terms), run.asked)
        call = counted(run.calls.each, run.ledger, run.calls.run, step)
        asking = SecureAsk(call, message.ids, purpose, run.base, step, run.round, may_drop, run.begun_ahead)
        test = run.early.due(run.asked) if self._is_everybody() else None
        if test is not None:
            asking.along = partial(self._request, "evaluate", run.method.evaluate.__name__, test)
        reply = asking.run(kind, bodies)
        if test is not None:
            run.early.keep(run.asked, asking.travelled)
        run.attendance.settle(asking.lost, step, run.asked)
        if reply is None:
            raise OwnersLost(reasons(asking.lost))
        if asking.lost:
            run.attendance.miss(asking.lost, run.asked)
        check_finite(reply)
        return reply

    def _joined(self, replies: Mapping[str, Message]) -> Message:
        parts = [replies[owner] for owner in self._ids if owner in replies]
        return type(parts[0]).concat(parts)

    def _exchange(self, verb: str, step: str, message: Message) -> dict[str, Message]:
        """The checked replies of everybody the message is for; raises `OwnersLost` if one is missing."""
        run = self._common
        run.ledger.record(run.asked, step, "down", message)
        good, bad = self._answers(verb, step, message)
        replies = run.checks.checked(step, run.asked, good, bad)
        run.attendance.settle(bad, step, run.asked)
        if bad or not replies:
            raise OwnersLost(reasons(bad))
        run.ledger.record(run.asked, step, "up", self._joined(replies))
        return replies

    def _answers(self, verb: str, step: str, message: Message) -> tuple[Answers, Failures]:
        """(answers, failures) by owner; a test that has travelled already is not sent again."""
        run = self._common
        travelled = run.early.take(run.asked, message.ids)
        if verb == "evaluate" and travelled is not None:
            return travelled, {}
        requests = {owner: [self._request(verb, step, message, owner)] for owner in message.ids}
        test = run.early.due(run.asked) if verb == "ask" and self._is_everybody() else None
        if test is not None:
            for owner in message.ids:
                requests[owner].append(self._request("evaluate", run.method.evaluate.__name__, test, owner))
        good, bad = run.calls.each(requests)
        if test is not None:
            run.early.keep(run.asked, {owner: frames[1] for owner, frames in good.items()})
        return {owner: frames[0] for owner, frames in good.items()}, bad

    def _request(self, verb: str, step: str, message: Message, owner: str) -> Request:
        run = self._common
        header: dict[str, Json] = {"verb": verb, "step": step, "number": run.asked, "base": run.base}
        return header | ({"round": run.round} if verb == "ask" else {}), message.select([owner]).pack()

    def _is_everybody(self) -> bool:
        """Whether nobody who is here is left out of this sample."""
        run = self._common
        return set(run.attendance.here(run.calls.transport.owners)) <= set(self._ids)

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is; an absent owner keeps the scores it last told."""
        run = self._common
        while True:
            here = run.attendance.here(self._ids)
            try:
                replies = self._exchange("evaluate", run.method.evaluate.__name__, deployed.select(here))
                break
            except CannotGoOn:
                raise
            except OwnersLost as error:
                run.attendance.miss(error.lost, run.asked)
        fresh = cast(Scores, OwnersCohort(run, here)._joined(replies))
        known = run.scores if run.scores is not None else _no_scores(self._ids)
        run.scores = known.replace_rows(fresh)
        return run.scores

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """Owners keep their own complete models; the coordinator gets none. They are told with the next call."""
        run = self._common
        for owner in ids:
            if owner not in run.attendance.absent or run.attendance.never_called(owner):
                run.calls.owed[owner] = [self._request("retain", run.method.evaluate.__name__, deployed, owner)]
        return None

    def finish(self, deployed: Message | None) -> None:
        """Everybody gets the reported model and makes its predictions: `deployed`, or what it has retained."""
        run = self._common
        run.attendance.welcome(run.asked, run.terms)  # a coordinator that was killed here has not called anybody yet
        here = run.attendance.here(self._ids)
        header: dict[str, Json] = {"verb": "finish", "number": run.asked}
        bodies = {owner: deployed.select([owner]).pack() if deployed is not None else b"" for owner in here}
        good, bad = run.calls.all({owner: (header, bodies[owner]) for owner in here})
        for owner, frame in good.items():
            run.audit.note("owner has its model", run=run.calls.run, owner=owner, audit=_told_head(frame))
        run.attendance.settle(bad, "finish", run.asked)
        for owner, why in reasons(bad).items():
            run.audit.note("owner did not take its model", owner=owner, **why.as_json())
        if bad and run.calls.faults.on_loss == "wait":
            raise CannotGoOn(reasons(bad))

    def close(self) -> None:
        """End the threads."""
        self._common.calls.close()


def _told_head(frame: Frame) -> Json:
    """What an owner says its audit log ended with: it cannot deny the lines before that any more."""
    told = frame.header.get("audit")
    chain, lines = (told.get("chain"), told.get("lines")) if isinstance(told, dict) else (None, None)
    known = isinstance(chain, str) and len(chain) == HASH_LENGTH and type(lines) is int
    return {"lines": lines, "chain": chain} if known else None


def _no_scores(ids: tuple[str, ...]) -> Scores:
    count = len(ids)
    nothing = torch.zeros(count, 3, dtype=torch.int64)
    none = torch.zeros(count)
    return Scores(ids, torch.zeros(count, 3, dtype=torch.float64), nothing, none, none)

"""Who takes part at the moment: owners get lost, come back, or are not asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suture.core.storage import Json
from suture.errors import SutureError
from suture.federation.coordinator.bindings import Bindings
from suture.federation.coordinator.calls import Calls, Failures
from suture.federation.wire.reasons import BadReply, Code, FederationError, Reason, Refused, TooFew, Unreachable
from suture.seam import Audit

NOT_OPENED = Reason(Code.NOT_OPENED, "not opened yet")
"""Why an owner is absent that was not called yet."""


class OwnersLost(SutureError):
    """Owners that did not answer, by name; the run can be resumed once they are back."""

    def __init__(self, lost: Mapping[str, Reason]) -> None:
        self.lost = dict(lost)
        super().__init__("; ".join(f"owner {name} is lost: {why.text}" for name, why in lost.items()))


class CannotGoOn(OwnersLost):
    """The run cannot go on without these owners."""


@dataclass
class Attendance:
    """The owners of a run, present or absent."""

    calls: Calls
    audit: Audit
    absent: dict[str, Reason] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)
    """Owners that refused, or whose reply was refused: they are not called back, and never waited for."""
    bindings: Bindings = field(default_factory=Bindings)
    """Which data each of them began the run with."""
    held_back: dict[str, str] = field(default_factory=dict)
    """What owners say they will not tell: scores, losses."""

    def __post_init__(self) -> None:
        self.absent = dict.fromkeys(self.calls.transport.owners, NOT_OPENED)

    def here(self, ids: Sequence[str]) -> list[str]:
        """Those of these owners that are present."""
        return [owner for owner in ids if owner not in self.absent]

    def never_called(self, owner: str) -> bool:
        """Whether the owner is absent for no other reason than that nobody has called it yet."""
        return self.absent.get(owner) == NOT_OPENED

    def without_banned(self, ids: Sequence[str]) -> list[str]:
        """These owners without those that are not asked again; stops if another one of them is absent."""
        missing = {owner: self.absent[owner] for owner in ids if owner in self.absent and owner not in self.banned}
        if missing:
            raise CannotGoOn(missing)
        return [owner for owner in ids if owner not in self.banned]

    def leave_out(self, reasons: Mapping[str, Reason]) -> None:
        """Owners that could not be used before the run began: they are not asked in it."""
        self.absent |= reasons
        self.banned |= reasons.keys()

    def welcome(self, number: int, terms: dict[str, Json]) -> None:
        """Open the run at everybody who is not here yet, or here again."""
        wanted = [owner for owner in self.absent if owner not in self.banned]
        header: dict[str, Json] = {"verb": "open", "number": number, "terms": terms}
        owed, self.calls.owed = self.calls.owed, {}  # nothing else can be said to an owner before the run is open there
        good, bad = self.calls.all(dict.fromkeys(wanted, (header, b"")))
        self.calls.owed = owed
        bad |= (changed := self.bindings.broken(good))
        for owner, answer in good.items():
            if owner in changed:
                continue
            held_back = answer.header.get("held_back")
            if isinstance(held_back, str) and held_back and owner not in self.held_back:
                self.held_back[owner] = held_back[:100]
                self.audit.note("owner holds back", owner=owner, what=held_back[:100])
            if self.absent.pop(owner) != NOT_OPENED:
                self.audit.note("owner is back", owner=owner, number=number)
        self.settle(bad, "open", number)
        if bad or self.absent:
            self.miss(bad, number)

    def miss(self, lost: Mapping[str, Exception | Reason], number: int) -> None:
        """Go on with the rest, or stop."""
        for owner, why in reasons(lost).items():
            self.absent[owner] = why
            self.audit.note("owner is lost", owner=owner, number=number, **why.as_json())
        faults, everybody = self.calls.faults, len(self.calls.transport.owners)
        if self.absent and faults.on_loss == "wait":
            raise CannotGoOn(self.absent)
        if self.absent and everybody - len(self.absent) < faults.min_owners:
            if everybody - len(self.banned) >= faults.min_owners:
                raise CannotGoOn(self.absent)  # those that did not answer may come back, and are enough then
            left = everybody - len(self.absent)
            text = (
                f"{_each(self.absent)}; a round needs at least {faults.min_owners} owners (min_owners), and {left} of "
                f"{everybody} are left"
            )
            codes = {why.code for why in self.absent.values()}
            if len(codes) == 1 and not codes & {Code.BAD_REPLY, Code.NO_ANSWER, Code.NOT_OPENED}:
                raise Refused(text, *codes)  # it is the run that they refuse
            raise TooFew(text)

    def settle(self, bad: Failures, step: str, number: int) -> None:
        """An owner that refuses, or answers what cannot be used, is not asked again: its fault ends there.

        Where nobody may be left out (`on_loss` is wait) it is the end of the run, in one sentence.
        """
        ended = {owner: error for owner, error in bad.items() if not _may_come_back(error)}
        for owner, error in ended.items():
            event = "refused by an owner" if isinstance(error, Refused) else "reply refused"
            self.banned.add(owner)
            why = Reason.of(error).as_json()
            self.audit.note(event, run=self.calls.run, owner=owner, step=step, number=number, **why)
        if ended and self.calls.faults.on_loss == "wait":
            raise _the_end(ended, step)


def _each(absent: Mapping[str, Reason]) -> str:
    """Who is left out and why; who is for the same reason together."""
    by_text: dict[str, list[str]] = {}
    for owner, why in absent.items():
        by_text.setdefault(why.text, []).append(owner)
    return "; ".join(f"left out: {', '.join(owners)} ({text})" for text, owners in by_text.items())


def _may_come_back(error: Exception) -> bool:
    """Silence may end, and a run can be opened at an owner whose process is a new one."""
    return isinstance(error, Unreachable) or (isinstance(error, Refused) and error.code == Code.NOT_OPENED)


def _the_end(ended: Failures, step: str) -> FederationError:
    refusals = {owner: error for owner, error in ended.items() if isinstance(error, Refused)}
    if refusals:
        text = "; ".join(f"owner {owner} refuses: {error}" for owner, error in refusals.items())
        return Refused(text, next(iter(refusals.values())).code)
    text = "; ".join(f"what owner {owner} answers to {step} is refused: {error}" for owner, error in ended.items())
    return BadReply(f"{text} (repair it and resume, or run with --on-loss continue, which leaves it out)")


def reasons(failures: Mapping[str, Exception | Reason]) -> dict[str, Reason]:
    """Why, without the exceptions."""
    return {owner: why if isinstance(why, Reason) else Reason.of(why) for owner, why in failures.items()}

"""Who takes part at the moment: owners get lost, come back, or are not asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suture.core.storage import Json
from suture.errors import SutureError
from suture.federation.coordinator.bindings import Bindings
from suture.federation.coordinator.calls import Calls, Failures
from suture.federation.wire.reasons import Code, Reason, Refused
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
    """Owners whose reply was refused: they are not called back."""
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

    def require(self, ids: Sequence[str]) -> None:
        """Stop if one of these is absent."""
        missing = {owner: self.absent[owner] for owner in ids if owner in self.absent}
        if missing:
            raise CannotGoOn(missing)

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
        self.stop_if_refused(bad)
        if bad or self.absent:
            self.miss(bad, number, self.calls.transport.owners)

    def miss(self, lost: Mapping[str, Exception | Reason], number: int, ids: Sequence[str]) -> None:
        """Go on with the rest of `ids`, or stop."""
        for owner, why in reasons(lost).items():
            self.absent[owner] = why
            self.audit.note("owner is lost", owner=owner, number=number, **why.as_json())
        faults = self.calls.faults
        if self.absent and (faults.on_loss == "wait" or len(ids) - len(self.absent) < faults.min_owners):
            raise CannotGoOn(self.absent)

    def ban(self, owner: str, step: str, number: int, why: Exception) -> None:
        """Do not ask this owner again."""
        self.banned.add(owner)
        self.audit.note("reply refused", owner=owner, step=step, number=number, **Reason.of(why).as_json())

    def stop_if_refused(self, bad: Failures) -> None:
        """A refusal of one owner is the end of the run."""
        refusals = {owner: error for owner, error in bad.items() if isinstance(error, Refused)}
        for owner, error in refusals.items():
            self.audit.note("refused by an owner", run=self.calls.run, owner=owner, **Reason.of(error).as_json())
        if refusals:
            text = "; ".join(f"owner {owner} refuses: {error}" for owner, error in refusals.items())
            raise Refused(text, next(iter(refusals.values())).code)


def reasons(failures: Mapping[str, Exception | Reason]) -> dict[str, Reason]:
    """Why, without the exceptions."""
    return {owner: why if isinstance(why, Reason) else Reason.of(why) for owner, why in failures.items()}

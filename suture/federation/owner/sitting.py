"""One secure sum at an owner, from its keys to its opening: what was said, so that nothing is said twice differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from suture.federation.owner.opened import Answered
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.transcript import Advertised
from suture.privacy.secure_aggregation import Member


@dataclass
class Sitting:
    """Lives as long as the process and the open run: a sum that was not opened by then is begun anew, with fresh keys."""

    number: int
    member: Member
    advertised: Advertised
    session: str = ""
    members: dict[str, Advertised] = field(default_factory=dict)
    """Everybody in the sum, once their keys were checked."""
    asked: bytes = b""
    """Hash of what was asked, of whom."""
    answered: Answered = field(default_factory=lambda: Answered(""))
    """What the answer follows from: two sums of the same over different owners must not be opened."""
    survivors: tuple[str, ...] = ()
    """For whom this owner has signed."""
    told: dict[str, tuple[Frame, Frame]] = field(default_factory=dict)
    """By verb, the request and the answer: a call that is repeated gets the answer it had."""

    def once(self, frame: Frame, answer: Callable[[], Frame]) -> Frame:
        """The answer to a request; another request of the same kind is refused."""
        verb = frame.text("verb")
        if verb in self.told:
            before, said = self.told[verb]
            if before != frame:
                raise Refused(f"this sum has had its {verb}, and it was another one", Code.SECRECY)
            return said
        said = answer()
        self.told[verb] = (frame, said)
        return said


class Sittings:
    """The sums that a run has begun here: the one of this step, and the one of the next, whose keys have been handed out."""

    def __init__(self) -> None:
        self._of: dict[int, Sitting] = {}

    def begin(self, sitting: Sitting) -> None:
        """In the place of one of the same step that was not opened; older ones are over."""
        latest = {number: one for number, one in self._of.items() if number == sitting.number - 1}
        self._of = {**latest, sitting.number: sitting}

    def of(self, number: int) -> Sitting:
        """The one of this step."""
        if number not in self._of:
            raise Refused(f"no secure sum has been begun here for step {number}", Code.SECRECY)
        return self._of[number]

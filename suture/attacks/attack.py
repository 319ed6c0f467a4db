"""What an attack is: who hears what, what else is known, and how well it did against the best guess without messages.

    server   honest but curious: it follows the protocol and keeps everything it was sent and has sent
    owner    one other client: what came down to it, what it sent, and its own graph
    others   all clients but the victim, who pool what they have

What an attack knows beside messages it says in `knows`; an attack is given no truth beyond that (`suture.attacks.scenes`).
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, TypeVar, get_args

from suture.attacks.hearing import Heard
from suture.attacks.scenes import Scene
from suture.core.message import Kind
from suture.errors import SutureError

View = Literal["server", "owner", "others"]
VIEWS: tuple[View, ...] = get_args(View)
OWNERS = "owners"
"""What most attacks are counted by."""
Thing = TypeVar("Thing")
Pace = Callable[[int, int, str], None]
"""Called with how many of how many rows, owners, ... an attack has tried."""


class NotTried(SutureError):
    """Why an attack cannot be tried on a run, in one sentence."""


class Clock:
    """How long an attack may take, and how far it has come: what it had no time for is said with its result.

    `now` is the clock on the wall, or, so that a busy machine cuts nothing, `time.process_time`.
    """

    def __init__(
        self, until: float, watch: Pace = lambda done, planned, unit: None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.until, self.watch, self.now = until, watch, now
        self.done, self.planned, self.unit = 0, 0, ""

    @staticmethod
    def of(
        seconds: float, watch: Pace = lambda done, planned, unit: None, now: Callable[[], float] = time.perf_counter
    ) -> Clock:
        """From now on."""
        return Clock(now() + seconds, watch, now)

    @property
    def over(self) -> bool:
        """Whether an attack must come to its end with what it has."""
        return self.seconds_left < 0

    @property
    def seconds_left(self) -> float:
        """Until then."""
        return self.until - self.now()

    @property
    def seconds_on_the_wall(self) -> float:
        """The same for what can be stopped by the clock on the wall only; no limit where another clock counts."""
        return max(1.0, self.seconds_left) if self.now is time.perf_counter else math.inf

    def plan(self, count: int, unit: str) -> None:
        """So many rows, owners, rounds are to be tried."""
        self.planned, self.unit = count, unit
        self.watch(self.done, self.planned, self.unit)

    def did(self, count: int = 1) -> None:
        """So many more of them were tried, or need not be."""
        self.done += count
        self.watch(self.done, self.planned, self.unit)

    def each(self, things: Iterable[Thing], unit: str) -> Iterator[Thing]:
        """All of them, counted, or as many as there is time for; the first in any case."""
        listed = list(things)
        self.plan(len(listed), unit)
        for thing in listed:
            if self.over and self.done:
                return
            yield thing
            self.did()

    @property
    def cut(self) -> bool:
        """Whether something was left untried."""
        return self.done < self.planned

    @property
    def tried(self) -> tuple[int, int, str] | None:
        """(how many of, how many, of what) were tried; None for an attack that cannot be tried by parts."""
        return (self.done, self.planned, self.unit) if self.planned else None


@dataclass(frozen=True)
class Measured:
    """How well an attack did: `success` against `guess`, both by `measure`, over `trials`.

    `low` and `high` bound the advantage, success - guess, with 95 % confidence.
    """

    measure: str
    success: float
    guess: float
    low: float
    high: float
    trials: int
    exact: tuple[int, int] | None = None
    """(how many of, how many) were reconstructed without a fault, where that can be said."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def advantage(self) -> float:
        """What messages bring beyond the best guess without them."""
        return self.success - self.guess


@dataclass(frozen=True)
class Finding:
    """One attack from one view: what it found, or why it was not tried."""

    attack: str
    view: str
    target: str
    """What is guessed."""
    measured: Measured | None
    knows: tuple[str, ...] = ()
    """What the attacker needed beside messages."""
    guess: str = ""
    """What the best guess without messages is."""
    victims: tuple[str, ...] = ()
    seconds: float = 0.0
    why_not: str = ""
    tried: tuple[int, int, str] | None = None
    """(how many of, how many, of what) there was time for."""
    read: tuple[str, ...] = ()
    """Steps whose replies it has read, as far as they are of the kinds that it uses."""

    @property
    def cut(self) -> bool:
        """Whether time ran out before everything was tried: the result is of what was, and may be too small."""
        return self.tried is not None and self.tried[0] < self.tried[1]

    @property
    def how_far(self) -> str:
        """`12 of 40 rows tried`."""
        return f"{self.tried[0]} of {self.tried[1]} {self.tried[2]} tried" if self.tried else ""

    @property
    def succeeds(self) -> bool:
        """Whether it certainly beats the guess."""
        return self.measured is not None and self.measured.low > 0

    def as_json(self) -> dict[str, object]:
        """For attacks.json."""
        told: dict[str, object] = {**asdict(self), "cut": self.cut}
        if self.measured is not None:
            told["measured"] = {**asdict(self.measured), "advantage": self.measured.advantage}
        return told


class Attack(ABC):
    """See the module docstring."""

    name: ClassVar[str]
    target: ClassVar[str]
    """What is guessed, in a few words."""
    paper: ClassVar[str]
    knows: ClassVar[tuple[str, ...]] = ()
    guess: ClassVar[str]
    """What the best guess without messages is."""
    uses: ClassVar[frozenset[Kind]] = frozenset()
    """What of messages says something of nodes, labels or edges to it; what is in no attack's list was not measured."""
    views: ClassVar[tuple[View, ...]] = VIEWS
    long: ClassVar[int] = 0
    """1: it may take minutes, 2: an hour. Shorter ones go first, and it has all the time they leave."""

    @abstractmethod
    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Attack every victim with what is heard of it; raises `NotTried`."""

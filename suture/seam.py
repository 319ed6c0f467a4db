"""The seam between a run and its engine: all that an engine must give, and all that it is given.

    Cohort         the clients as a method's server script sees them     given to methods
    EngineCohort   the same as a run sees them                           given to runs
    CohortBase     what cohorts of every engine do alike                 for engines to build on
    Ledger         whoever writes down what was sent                     given to engines
    WireLedger     the same where more than messages is sent             given to the engine between owners
    Transport      whatever carries bytes between parties                given to the engine between owners
    Audit          whoever writes down what was accepted and refused     given to the same

Nothing here knows a method, a graph or a network; types that do are named for the type checker only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from torch import Tensor

from suture.core.message import Message, Model, Record
from suture.core.storage import Json
from suture.core.streams import rank

if TYPE_CHECKING:
    from suture.method import Clients, Scores, Task

S = TypeVar("S", bound=Record)
"""What a client keeps."""
V = TypeVar("V", bound=Record)
"""What the server keeps."""
M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)


F = TypeVar("F", bound=Callable[..., Any])
ASKED_IF = "__is_asked__"


def step(function: F) -> F:
    """Declare a method of a Method to be a client step: only declared steps can be asked for."""
    return step_if(lambda method: True)(function)


def step_if(asked: Callable[[Any], bool]) -> Callable[[F], F]:
    """Declare a step for which the plan asks only where `asked` holds of the method as it is set.

    Owners carry out no other: a coordinator that asked for what another setting tells would get more than was agreed on.
    """

    def declared(function: F) -> F:
        vars(function)[ASKED_IF] = asked
        return function

    return declared


def is_step(function: object) -> bool:
    """Whether it was declared to be one."""
    return hasattr(function, ASKED_IF)


def is_asked(function: object, method: object) -> bool:
    """Whether the method, as it is set, asks for this step of its own."""
    asked: Callable[[Any], bool] = getattr(function, ASKED_IF)
    return asked(method)


def check_step(function: object, method: object) -> None:
    """Refuse to ask for anything but a step that the method has said it asks for."""
    if not is_step(function):
        raise TypeError(f"{function} is not a declared step of {type(method).__name__}; decorate it with @step")
    if not is_asked(function, method):
        raise TypeError(f"{function} is a step that {type(method).__name__} does not ask for as it is set (@step_if)")


def sample_size(fraction: float, clients: int) -> int:
    """How many a random share of the clients is: at least one."""
    return max(1, round(fraction * clients))


class Cohort(Protocol):
    """The clients as the server sees them."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Who belongs to it."""

    def ask(self, step: Callable[[Clients[S], M], tuple[S, R]], message: M) -> R:
        """Run `step` at every client with its part of `message`; the reply's ids say who answered."""

    def sample(self, fraction: float) -> Cohort:
        """A random share of the clients, at least one."""

    def groups(self, most: int) -> Iterable[Cohort]:
        """All of them in random groups of at most `most`, as even as can be; a single one if they are no more than that."""

    def report(self, **values: float) -> None:
        """Show numbers of this round, such as the loss, to whoever watches the run."""

    def keep(self, **tensors: Tensor) -> None:
        """Store server-side tensors of this round, such as a similarity matrix, in the run folder for drawing."""


class EngineCohort(Cohort, Protocol):
    """What a run needs of its clients beyond what a method may ask; every engine has its own."""

    @property
    def asked(self) -> int:
        """How many times clients were asked so far."""

    def begin(self, phase: str, round: int) -> None:
        """The run is at this round (iteration) of this phase: clients are told its number, and errors say both."""

    def carry_out(self, body: Callable[[V, Cohort], V], server: V, test: Message | None = None) -> V:
        """One iteration of a phase; `test` is what everybody will be tested with after it, if that is known before it."""

    def evaluate(self, deployed: Message) -> Scores:
        """Ask everybody how good its model is, without advancing anything."""

    def retain(self, deployed: Message, ids: Sequence[str]) -> Model | None:
        """Keep the complete models of these clients: here, if given back, else at the clients."""

    def states(self) -> Sequence[Record]:
        """What the clients keep, as far as it is in this process."""

    def restore(self, states: Sequence[Any], asked: int) -> None:
        """Continue from a checkpoint."""

    def committed(self) -> None:
        """A checkpoint has been written: nobody will ask for anything before it again."""

    def take_reports(self) -> dict[str, float]:
        """The numbers reported since the last call."""

    def take_kept(self) -> dict[str, Tensor]:
        """The tensors kept since the last call."""


@dataclass(kw_only=True)
class Common:
    """What a cohort and its samples have in common, whatever the engine."""

    task: Task
    asked: int = 0
    """How many times clients were asked so far."""
    phase: str = ""
    round: int = 0
    """Where the run is: the number of the iteration inside its phase, from 1."""
    reports: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)


C = TypeVar("C", bound=Common)


class CohortBase(Generic[C]):
    """All clients, or a sample of them: the part of a cohort that no engine does in a way of its own."""

    def __init__(self, common: C, ids: Sequence[str]) -> None:
        self._common = common
        self._ids = tuple(ids)

    @property
    def ids(self) -> tuple[str, ...]:
        """Who belongs to it, present or not."""
        return self._ids

    @property
    def asked(self) -> int:
        """How many times clients were asked so far; numbers the steps and the random streams."""
        return self._common.asked

    @property
    def present(self) -> tuple[str, ...]:
        """Who can be asked at the moment; everybody, unless an engine can lose clients."""
        return self._ids

    def sample(self, fraction: float) -> Self:
        """A random share of the clients, of those that are present and at least one, whatever their order."""
        count = sample_size(fraction, len(self._ids))
        chosen = self.present
        if count < len(chosen):
            ranks = rank(self._common.task.seed, chosen, "sample", self._common.asked)
            drawn = {name for _, name in sorted(zip(ranks, chosen, strict=True))[:count]}
            chosen = tuple(name for name in chosen if name in drawn)
        return self if chosen == self._ids else type(self)(self._common, chosen)

    def groups(self, most: int) -> list[Self]:
        """Random groups of those that are present, whatever their order."""
        chosen, count = self.present, -(-len(self.present) // most)
        if count <= 1:
            return [self]
        ranks = rank(self._common.task.seed, chosen, "groups", self._common.asked)
        group = {name: place % count for place, (_, name) in enumerate(sorted(zip(ranks, chosen, strict=True)))}
        members: list[list[str]] = [[] for _ in range(count)]
        for name in chosen:
            members[group[name]].append(name)
        return [type(self)(self._common, ids) for ids in members]

    def begin(self, phase: str, round: int) -> None:
        """Remember where the run is."""
        self._common.phase, self._common.round = phase, round

    def report(self, **values: float) -> None:
        """Keep the numbers until the run takes them."""
        self._common.reports.update(values)

    def keep(self, **tensors: Tensor) -> None:
        """Keep the tensors until the run takes them."""
        self._common.kept.update({name: tensor.detach().cpu() for name, tensor in tensors.items()})

    def take_reports(self) -> dict[str, float]:
        """The numbers reported since the last call."""
        taken, self._common.reports = self._common.reports, {}
        return taken

    def take_kept(self) -> dict[str, Tensor]:
        """The tensors kept since the last call."""
        taken, self._common.kept = self._common.kept, {}
        return taken


class Ledger(Protocol):
    """Whoever writes down what was sent."""

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`."""


class WireLedger(Ledger, Protocol):
    """The same between owners, where there is more to write down than messages."""

    def record_bytes(self, number: int, step: str, direction: str, sizes: Mapping[str, int], kind: str) -> None:
        """So many bytes to or from each client that are no message, such as keys; all of them are of one kind."""


class NoLedger:
    """Nobody writes anything down."""

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """Ignore it."""

    def record_bytes(self, number: int, step: str, direction: str, sizes: Mapping[str, int], kind: str) -> None:
        """Ignore them."""


class Transport(Protocol):
    """Whatever carries frames to owners. Calls to different owners may run at the same time."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Everybody there is to call."""

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        """Deliver a request and wait for its answer; raises `Unreachable`."""


class Audit(Protocol):
    """Whoever writes down what was accepted and refused."""

    def note(self, event: str, **details: Json) -> None:
        """One line."""

    def head(self) -> dict[str, int | str]:
        """What it ends with now: how many `lines`, and the last one's hash, `chain`."""

"""The coordinator's part of a run between owners, on any transport: the same run folder as an embedded run leaves.

A run is carried out in one or several legs. A leg ends when the run is finished, when it was asked to stop, or when an
owner is lost and the run has to wait; the next leg goes on from the last finished round.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suture.config.strict import strict
from suture.core.storage import Json, make_folder, write_json
from suture.errors import ConfigError, DataError, StorageError, SutureError
from suture.federation.coordinator.cohort import NOT_OPENED, FaultSettings, OwnersLost, RemoteCohort
from suture.federation.wire.exchange import Frame, Refused, Unreachable
from suture.federation.wire.terms import terms_of
from suture.method import Method, Task
from suture.privacy.ledger import RunLedger
from suture.runs.execute import robust_for
from suture.runs.folder import Asked, RunFolder, is_begun, read_outcome, read_plan
from suture.runs.loop import Interrupted, Runner
from suture.runs.outcome import Outcome, Tick
from suture.runs.plan import FEDERATION, Plan
from suture.seam import Audit, Transport
from suture.settings import Protocol

STATUS = "status.json"
ORDER = "order.json"


@dataclass(frozen=True)
class Order:
    """What an operator orders: one method on one seed, under a resolved protocol."""

    run: str
    """Name of the run, here and at every owner."""
    method: str
    seed: int
    config: str
    """The resolved protocol in TOML, as in a run folder's config.toml."""
    dataset: str = FEDERATION
    """A label for reports."""
    faults: FaultSettings = field(default_factory=FaultSettings)
    secure: bool = False
    """Secure aggregation: the coordinator learns sums of updates only."""

    def as_json(self) -> dict[str, Json]:
        """For the job and the run folder."""
        return asdict(self)

    @staticmethod
    def read(content: dict[str, Json]) -> Order:
        """Check an order that came as JSON."""
        return strict(Order, content, "order")


def order_of(made: Plan, run: str, faults: FaultSettings, secure: bool = False) -> Order:
    """The order for a plan of one method and one seed."""
    method = made.methods[0]
    if method.sees_uncut_graph:
        raise ConfigError(f"{method.name} trains on the uncut graph, which no owner has; choose another method")
    robust_for(method, secure)
    return Order(run, method.name, made.seeds[0], made.config(), made.dataset, faults, secure)


def open_folder(order: Order, path: Path) -> tuple[RunFolder, Plan]:
    """The run's folder, new or begun, and the plan in it."""
    asked = Asked.by_federation(order.dataset, order.method, order.seed)
    is_new = not is_begun(path)
    folder = RunFolder.open(path, asked, order.config, None, every_round=True)
    if is_new:
        write_json(path / ORDER, order.as_json())
    return folder, read_plan(path)


@dataclass
class Conductor:
    """One leg of one run."""

    order: Order
    path: Path
    transport: Transport
    audit: Audit
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.tick: Tick | None = None
        self.cohort: RemoteCohort[Any] | None = None

    def carry_on(self) -> Outcome | None:
        """Go on to the end, or to where this leg has to end (None)."""
        done = read_outcome(self.path)
        if done is not None:
            return done
        self._note("running")
        try:
            with alone_in(self.path):
                outcome = self._carry_on()
        except OwnersLost as error:
            self.audit.note("waiting", run=self.order.run, reason=str(error))
            self._note("waiting", reason=str(error), lost=list(error.lost))
            return None
        except Interrupted as error:
            self._note("stopped", reason=str(error))
            return None
        except SutureError as error:
            self.audit.note("run refused", run=self.order.run, reason=str(error))
            self._note("refused" if isinstance(error, Refused) else "failed", reason=str(error))
            raise
        finally:
            if self.cohort is not None:
                self.cohort.close()
        self._note("finished")
        return outcome

    def _carry_on(self) -> Outcome:
        folder, made = open_folder(self.order, self.path)
        try:
            features, classes = self._described()
            terms = terms_of(made, features, classes, self.order.secure)
            method, protocol = made.methods[0], made.protocol
            task = Task(terms.features, terms.classes, terms.seed, link=terms.task == "link")
            return self._run(folder, method, protocol, task, terms.as_json())
        finally:
            folder.close()

    def _run(
        self, folder: RunFolder, method: Method[Any, Any], protocol: Protocol, task: Task, terms: dict[str, Json]
    ) -> Outcome:
        ledger, robust = RunLedger(folder.ledger), robust_for(method, self.order.secure)
        self.cohort = cohort = RemoteCohort.start(
            method,
            task,
            self.order.run,
            self.transport,
            terms,
            self.audit,
            faults=self.order.faults,
            ledger=ledger,
            secure=self.order.secure,
            robust=robust,
        )
        runner = Runner(method, protocol, task, cohort, ledger, folder, robust=robust)
        runner.carry_on(self._watch, self.stop)
        _, server = runner.reported()
        shared = runner.shared()
        cohort.finish(method.deploy(server, cohort.ids) if runner.shared_model else None)
        outcome = runner.outcome(self.order.dataset, None)
        folder.finish(outcome, [shared] if shared is not None else [], method)
        for owner in outcome.suspects:
            self.audit.note("suspect", run=self.order.run, owner=owner, reason="its updates do not fit the others'")
        self.audit.note("run finished", run=self.order.run, method=method.name)
        return outcome

    def _described(self) -> tuple[int, int]:
        """Features and classes, as all owners say; an owner that differs is named."""
        answers: dict[str, tuple[int, int]] = {}
        missing: dict[str, str] = {}
        for owner in self.transport.owners:
            try:
                data = self.transport.call(owner, Frame({"verb": "describe"}).pack(), self.order.faults.step_timeout)
                frame = Frame.unpack(data)
                if "refused" in frame.header:
                    raise Refused(f"owner {owner} refuses: {frame.text('refused')[:500]}")
                answers[owner] = frame.number("features"), frame.number("classes")
            except Unreachable as error:
                missing[owner] = str(error)
        if not answers or (missing and self.order.faults.on_loss == "wait"):
            raise OwnersLost(missing)
        widths = {owner: features for owner, (features, _) in answers.items()}
        if len(set(widths.values())) > 1:
            shown = ", ".join(f"{owner} has {width}" for owner, width in widths.items())
            raise DataError(f"owners must have the same features: {shown}; prepare their files alike")
        return next(iter(widths.values())), max(classes for _, classes in answers.values())

    def _watch(self, tick: Tick) -> None:
        self.tick = tick
        self._note("running")

    def _note(self, state: str, **details: Json) -> None:
        """What `suture federation status` shows."""
        tick, absent = self.tick, self.cohort.absent if self.cohort else {}
        progress: dict[str, Json] = {"phase": tick.phase, "done": tick.done, "total": tick.total} if tick else {}
        if tick:
            progress |= {"seconds": tick.seconds, "line": dict(tick.line), "validation": tick.validation}
        self.status: dict[str, Json] = {
            "run": self.order.run,
            "method": self.order.method,
            "state": state,
            "time": time.time(),
            **progress,
            "absent": {name: why for name, why in absent.items() if why != NOT_OPENED},
            **details,
        }
        if state != "running":
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / STATUS, self.status)


@contextlib.contextmanager
def alone_in(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """One process at a time: the job process of a coordinator that was killed may take a moment to notice."""
    make_folder(folder)
    with (folder / ".lock").open("w") as lock:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise StorageError(f"{folder} is in use by another process; stop that one first") from None
                time.sleep(0.2)
        yield

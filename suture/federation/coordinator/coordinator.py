"""The coordinator's part of a run between owners, on any transport: the same run folder as an embedded run leaves.

A run is carried out in one or several legs. A leg ends when the run is finished, when it was asked to stop, or when an
owner is lost and the run has to wait; the next leg goes on from the last finished round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.core.storage import make_folder, read_json, write_json
from suture.core.trusted import absolute
from suture.errors import SutureError
from suture.federation.coordinator.attendance import OwnersLost
from suture.federation.coordinator.bindings import Bindings
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.coordinator.settling import Settling
from suture.federation.wire.orders import ORDER, Order
from suture.federation.wire.reasons import Code, Reason, Refused
from suture.federation.wire.status import STATUS, State, Status
from suture.method import Method, Task
from suture.methods import DOOR, Methods, door_with
from suture.privacy.ledger import RunLedger
from suture.runs.execute import robust_for
from suture.runs.folder import Asked, RunFolder, is_begun, read_outcome, read_plan
from suture.runs.loop import Interrupted, Runner
from suture.runs.outcome import Outcome, Tick
from suture.runs.plan import Plan
from suture.runs.pulse import Pulse, alone_in, telling
from suture.seam import Audit, Transport
from suture.settings import Protocol

SETTINGS = "coordinator.json"
SECONDS_FOR_THE_ONE_BEFORE = 60.0
"""The job process of a coordinator that was killed may take so long to notice."""


def let_in(plugins: Sequence[str], home: Path) -> None:
    """Check methods of the coordinator's own, such as `fedamp.py:FedAMP`, and write down where they are."""
    door_with(plugins)
    write_json(make_folder(home) / SETTINGS, {"plugins": [absolute(one, "method") for one in plugins]})


def door_at(home: Path) -> Methods:
    """Installed methods, and those that `let_in` wrote down."""
    kept = read_json(home / SETTINGS, "coordinator's settings") if (home / SETTINGS).exists() else {}
    plugins = kept.get("plugins", [])
    return door_with(map(str, plugins if isinstance(plugins, list) else []))


def open_folder(order: Order, path: Path, door: Methods) -> tuple[RunFolder, Plan]:
    """The run's folder, new or begun, and the plan in it."""
    source, is_new = door.source(order.method, door.by_name(order.method)), not is_begun(path)
    asked = Asked.by_federation(order.dataset, order.method, order.seed, [source] if source else [])
    folder = RunFolder.open(path, asked, order.config, None, every_round=True)
    if is_new:
        write_json(path / ORDER, order.as_json())
    return folder, read_plan(path)


@dataclass
class Coordinator:
    """Carries out one order, on any transport, in one leg."""

    order: Order
    path: Path
    transport: Transport
    audit: Audit
    stop: Callable[[], bool] = lambda: False
    door: Callable[[], Methods] = lambda: DOOR
    """The methods it has; looked for when they are needed, so that one that is gone is the run's failure, not the job's."""
    regroup: Callable[[], bool] = lambda: False
    """Whether this leg is to end after its round, for another one with an owner that is back."""

    def __post_init__(self) -> None:
        self.tick: Tick | None = None
        self.pulse = Pulse(None)
        self.cohort: OwnersCohort[Any] | None = None
        self.status = Status(self.order.run, self.order.method, State.RUNNING, time.time())

    def carry_on(self) -> Outcome | None:
        """Go on to the end, or to where this leg has to end (None)."""
        done = read_outcome(self.path)
        if done is not None:
            self._note(State.FINISHED)
            return done
        try:
            with alone_in(self.path, SECONDS_FOR_THE_ONE_BEFORE), telling(self.path) as self.pulse:
                outcome = self._carry_on()
        except OwnersLost as error:
            why = Reason(Code.NO_ANSWER, str(error))
            self.audit.note("waiting", run=self.order.run, **why.as_json())
            self._note(State.STOPPED if self.stop() else State.WAITING, why)
            return None
        except Interrupted as error:
            self._note(State.STOPPED if self.stop() else State.WAITING, Reason.of(error))
            return None
        except SutureError as error:
            self.audit.note("run refused", run=self.order.run, **Reason.of(error).as_json())
            self._note(State.REFUSED if isinstance(error, Refused) else State.FAILED, Reason.of(error))
            raise
        finally:
            if self.cohort is not None:
                self.cohort.close()
        self._note(State.FINISHED)
        return outcome

    def _carry_on(self) -> Outcome:
        folder, made = open_folder(self.order, self.path, self.door())
        try:
            settling = Settling(self.order, made, folder, self.transport, self.audit, self._is_asked, self._ends)
            return self._run(folder, made.methods[0], made.protocol, settling)
        finally:
            folder.close()

    def _run(self, folder: RunFolder, method: Method[Any, Any], protocol: Protocol, settling: Settling) -> Outcome:
        terms = settling.terms()
        task = Task(terms.features, terms.classes, terms.seed, link=terms.task == "link", metric=terms.metric)
        ledger, robust = RunLedger(folder.ledger), robust_for(method, self.order.secure)
        settling.record_census(ledger)
        self.cohort = cohort = OwnersCohort.start(
            method,
            task,
            self.order.run,
            self.transport,
            terms.as_json(),
            self.audit,
            faults=self.order.faults,
            ledger=ledger,
            secure=self.order.secure,
            robust=robust,
            bindings=Bindings.of(self.path),
            left_out=settling.left_out,
        )
        runner = Runner(method, protocol, task, cohort, ledger, folder, robust=robust)
        if self.stop():
            raise Interrupted("stopped before its next round")
        runner.carry_on(self._watch, self._ends)
        _, server = runner.reported()
        shared = runner.shared()
        cohort.finish(method.deploy(server, cohort.ids) if runner.shared_model else None)
        warnings = [
            f"owner {owner} does not tell {what}: what stands for them in means and curves is zero or missing"
            for owner, what in sorted(cohort.held_back.items())
        ]
        outcome = runner.outcome(self.order.dataset, None, warnings)
        folder.finish(outcome, [shared] if shared is not None else [], method)
        for owner in outcome.suspects:
            self.audit.note("suspect", run=self.order.run, owner=owner, reason="its updates do not fit the others'")
        self.audit.note("run finished", run=self.order.run, method=method.name)
        return outcome

    def _ends(self) -> bool:
        """Whether this leg is to end after its round."""
        return self.stop() or self.regroup()

    def _is_asked(self, cohort: OwnersCohort[Any]) -> None:
        self.cohort = cohort

    def _watch(self, tick: Tick) -> None:
        self.tick = tick
        self._note(State.RUNNING)
        lost = {owner: why.text for owner, why in self.status.absent.items()}
        self.pulse.beat(self.order.method, self.order.seed, tick, owners=len(self.transport.owners), absent=lost)

    def _note(self, state: State, reason: Reason | None = None) -> None:
        """What `suture federation status` shows."""
        absent = self.cohort.absent if self.cohort else {}
        lost = {name: why for name, why in absent.items() if why.code != Code.NOT_OPENED}
        head = self.audit.head() if state != State.RUNNING else None
        self.status = Status(
            self.order.run, self.order.method, state, time.time(), tick=self.tick, absent=lost, reason=reason, audit=head
        )
        if state != State.RUNNING:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / STATUS, self.status.as_json())

"""The operator's part: submit a run, follow it from leg to leg, and bring its folder home.

A run is one or several FLARE jobs, because FLARE does not let an owner back into a running job and does not resume one. The
coordinator's folder holds the last finished round, so a new job with the same order goes on from there.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.storage import copy_files, make_folder, read_json, write_json
from suture.errors import SutureError
from suture.federation.flare.jobs import JOBS
from suture.federation.flare.kits import Kit, write_job
from suture.federation.flare.session import Session, SessionError
from suture.federation.operator.errand import note_job, read_order
from suture.federation.operator.files import JOB, STOP, followed
from suture.federation.wire.orders import ORDER, Order
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.status import STATUS, State, Status
from suture.runs.folder import read_outcome
from suture.runs.loop import Interrupted
from suture.runs.outcome import Outcome, Tick
from suture.runs.pulse import FOLLOWED_LINES, LOCK, PROGRESS, Pulse, telling

SECONDS_FOR_OWNERS = 600.0
SECONDS_TO_HEAR_STOP = 20.0
"""A job that is only starting may take so long to hear that it is to stop; then it is ended at once."""
MOST_JOBS_IN_VAIN = 3
LOOK_EVERY = 0.25


class RunLost(SutureError):
    """The run did not come to an end, and can be resumed."""


@dataclass
class Operator:
    """Orders runs, follows them and brings them home, in one session with the coordinator."""

    kit: Kit
    watch: Callable[[str, int, Tick], None] = lambda method, seed, tick: None
    stop: Callable[[], bool] = lambda: False
    remark: Callable[[str], None] = lambda text: None
    patience: float = SECONDS_FOR_OWNERS
    """Seconds to wait for owners before the first leg; once a run has begun it waits for them until somebody stops it."""
    _silent: set[str] = field(default_factory=set)
    """Owners that were said to give no sign of life."""

    def __post_init__(self) -> None:
        self.session = Session(self.kit)
        self._folders: Sequence[Path] = ()
        self._pulses: dict[str, Pulse] = {}

    def close(self) -> None:
        """End the session."""
        self.session.close()

    def carry_out(self, orders: Sequence[Order], out: Sequence[Path], running: str | None = None) -> list[Outcome]:
        """Submit these runs as one job, and again whenever a leg ends early, until all are finished.

        `running` is a job that may still be at it: it is followed if it is.
        """
        with ExitStack() as folders:
            for order, path in zip(orders, out, strict=True):
                folders.enter_context(followed(make_folder(path)))
                self._pulses[order.run] = folders.enter_context(telling(path))
                write_json(path / ORDER, order.as_json())
                (path / STOP).unlink(missing_ok=True)  # a wish of before
                note_job(path, running or "", order.run, self.kit.path)
            self._folders = out
            self._carry_out(orders, out, running)
        return [outcome for path in out if (outcome := read_outcome(path)) is not None]

    def _carry_out(self, orders: Sequence[Order], out: Sequence[Path], running: str | None) -> None:
        waiting = dict(zip([order.run for order in orders], out, strict=True))
        by_name = {order.run: order for order in orders}
        in_vain, begun = 0, running is not None
        while waiting:
            if running is not None and self.session.command(running, {"do": "status"}) is not None:
                job, running = running, None
            else:
                self._wait_for(self.kit.owners, begun)
                job = self._submit([by_name[run] for run in waiting])
            for run, path in waiting.items():
                note_job(path, job, run, self.kit.path)
            self._follow(job)
            states = self._bring_home(job, waiting)
            in_vain, begun = 0 if states else in_vain + 1, begun or bool(states)
            if in_vain:
                self._judge_in_vain(job, in_vain)
            for run, status in states.items():
                self._judge(by_name[run], status)
                if status.state == State.FINISHED:
                    waiting.pop(run)

    def _is_stopped(self) -> bool:
        """Whether somebody wants the runs to end: by a signal here, or by `suture federation stop`."""
        return self.stop() or any((path / STOP).exists() for path in self._folders)

    def _wait_for(self, owners: Sequence[str], begun: bool) -> None:
        """Until everybody is connected and gives signs of life."""
        end, said = time.monotonic() + self.patience, set[str]()
        while missing := set(owners) - self.session.connected():
            if self._is_stopped():
                raise Interrupted(f"stopped while waiting for {', '.join(sorted(missing))}")
            if missing != said:
                self._say(f"waiting for {', '.join(sorted(missing))} to connect and to answer")
                said = missing
            if time.monotonic() > end and not begun:
                raise RunLost(f"{', '.join(sorted(missing))} did not connect; start them, then resume")
            time.sleep(LOOK_EVERY)
        self._silent.clear()
        if self._is_stopped():
            raise Interrupted("stopped before its next round")

    def _submit(self, orders: Sequence[Order]) -> str:
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            job = write_job(
                Path(folder) / "job", orders[0].run, self.kit.owners, [order.as_json() for order in orders], JOBS
            )
            return self.session.submit(job)

    def _follow(self, job: str) -> None:
        """Until the job has ended."""
        wished: float | None = None
        heard = False
        while not (record := self.session.record(job)).finished:
            if self._is_stopped() and not heard:
                wished = wished or time.monotonic()
                heard = self.session.command(job, {"do": "stop"}) is not None
                if not heard and time.monotonic() - wished > SECONDS_TO_HEAR_STOP:
                    self.session.abort(job)
                    heard = True
            told = self.session.command(job, {"do": "status"})
            silent = told.get("silent") if told else None
            # While a job starts or ends nobody in it listens, and only the beat of the owners' own processes tells.
            known = set(silent) if isinstance(silent, dict) else set(self.kit.owners) - self.session.connected()
            self._name_silent(known | record.died)
            current = told.get("current") if told else None
            if isinstance(current, dict) and current:
                status = Status.read(current)
                self._show(status)
                self._call_back(job, status)
            time.sleep(LOOK_EVERY)
        self._name_silent(self._silent | record.died)

    def _name_silent(self, silent: set[str]) -> None:
        """Say at once who gives no sign of life, and who does again."""
        for owner in sorted(silent - self._silent):
            self._say(f"{owner} gives no sign of life: it was killed, hangs, or cannot be reached")
        for owner in sorted(self._silent - silent):
            self._say(f"{owner} answers again")
        self._silent = silent

    def _show(self, now: Status) -> None:
        if now.tick is not None:
            self.watch(now.method, 0, now.tick)
            if (pulse := self._pulses.get(now.run)) is not None:
                silent = dict.fromkeys(sorted(self._silent), "gives no sign of life")
                absent = silent | {owner: why.text for owner, why in now.absent.items()}
                pulse.follow(now.tick)
                pulse.beat(now.method, 0, now.tick, owners=len(self.kit.owners), absent=absent)

    def _say(self, text: str) -> None:
        """To whoever ordered the runs, and to whoever looks into their folders."""
        self.remark(text)
        for pulse in self._pulses.values():
            pulse.remark(text)

    def _call_back(self, job: str, now: Status) -> None:
        """FLARE lets nobody back into a running job: once an absent owner has connected again, begin another leg.

        An owner whose reply was refused is not called back.
        """
        may_come = now.absent and all(why.code == Code.NO_ANSWER for why in now.absent.values())
        if may_come and set(now.absent) <= self.session.connected() and not self._is_stopped():
            self._say(f"{', '.join(sorted(now.absent))} is back; going on with everybody after this round")
            self.session.command(job, {"do": "regroup"})

    def _bring_home(self, job: str, runs: Mapping[str, Path]) -> dict[str, Status]:
        """Copy what the coordinator left of each run; its state by run, for those that began."""
        states: dict[str, Status] = {}
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            home = self.session.fetch(job, Path(folder))
            for run, path in runs.items():
                if (home / run).is_dir() and not (home / run).is_symlink():
                    # What was ordered, by which kit, what is wished since, and how far it is, is for nobody else to say.
                    left = copy_files(home / run, path, skip=(ORDER, JOB, STOP, LOCK, PROGRESS, FOLLOWED_LINES))
                    if left:
                        self._say(f"{len(left)} links in the folder of {run} were left at the coordinator's")
                    states[run] = Status.read(read_json(path / STATUS, "status"))
        return states

    def _judge_in_vain(self, job: str, times: int) -> None:
        """A job has ended before any of its runs began: wait for whoever was lost and try again, but not for ever."""
        if self._is_stopped():
            raise Interrupted("stopped before its next round")
        state, missing = self.session.state(job), set(self.kit.owners) - self.session.connected()
        if not missing and times >= MOST_JOBS_IN_VAIN:
            raise RunLost(f"{times} jobs ended before the run began ({state}); see the logs of coordinator and owners")
        self._say(f"a job ended before the run began ({state}); trying again")

    def _judge(self, order: Order, status: Status) -> None:
        why = status.reason.text if status.reason else ""
        if status.state == State.REFUSED:
            raise Refused(f"{order.method}: {why}", status.reason.code if status.reason else Code.FAILED)
        if status.state == State.FAILED:
            raise RunLost(f"{order.method}: {why}")
        if status.state == State.STOPPED or (status.state == State.WAITING and self._is_stopped()):
            raise Interrupted(why or "stopped")
        if status.state == State.WAITING:
            self._say(why)


def new_run_name(method: str) -> str:
    """A name no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(3)}"


__all__ = ["JOB", "Operator", "RunLost", "SessionError", "new_run_name", "read_order"]

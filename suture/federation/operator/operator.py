"""The operator's part: submit a run, follow it from leg to leg, and bring its folder home.

A run is one or several FLARE jobs, because FLARE does not let an owner back into a running job and does not resume one. The
coordinator's folder holds the last finished round, so a new job with the same order goes on from there.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suture.core.storage import make_folder, read_json, write_json
from suture.errors import ConfigError, SutureError
from suture.federation.flare.jobs import JOBS
from suture.federation.flare.kits import Kit, write_job
from suture.federation.flare.session import Session, SessionError, wait_until
from suture.federation.wire.orders import ORDER, Order
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.status import STATUS, State, Status
from suture.runs.folder import read_outcome
from suture.runs.loop import Interrupted
from suture.runs.outcome import Outcome, Tick

JOB = "job.json"
SECONDS_FOR_OWNERS = 600.0


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
    """Seconds to wait for owners to connect, at the start and when one is lost."""

    def __post_init__(self) -> None:
        self.session = Session(self.kit)

    def close(self) -> None:
        """End the session."""
        self.session.close()

    def carry_out(self, orders: Sequence[Order], out: Sequence[Path], running: str | None = None) -> list[Outcome]:
        """Submit these runs as one job, and again whenever a leg ends early, until all are finished.

        `running` is a job that may still be at it: it is followed if it is.
        """
        for order, path in zip(orders, out, strict=True):
            make_folder(path)
            write_json(path / ORDER, order.as_json())
        waiting = dict(zip([order.run for order in orders], out, strict=True))
        by_name = {order.run: order for order in orders}
        while waiting:
            if running is not None and self.session.command(running, {"do": "status"}) is not None:
                job, running = running, None
            else:
                self._wait_for(self.kit.owners)
                job = self._submit([by_name[run] for run in waiting])
            for run, path in waiting.items():
                write_json(path / JOB, {"job": job, "run": run, "kit": str(self.kit.path)})
            self._follow(job)
            for run, status in self._bring_home(job, waiting).items():
                self._judge(by_name[run], status)
                if status.state == State.FINISHED:
                    waiting.pop(run)
        return [outcome for path in out if (outcome := read_outcome(path)) is not None]

    def _wait_for(self, owners: Sequence[str]) -> None:
        missing = set(owners) - self.session.connected()
        if missing:
            self.remark(f"waiting for {', '.join(sorted(missing))} to connect")
        if not wait_until(lambda: set(owners) <= self.session.connected(), self.patience, every=1.0):
            missing = set(owners) - self.session.connected()
            raise RunLost(f"{', '.join(sorted(missing))} did not connect; start them, then resume")

    def _submit(self, orders: Sequence[Order]) -> str:
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            job = write_job(
                Path(folder) / "job", orders[0].run, self.kit.owners, [order.as_json() for order in orders], JOBS
            )
            return self.session.submit(job)

    def _follow(self, job: str) -> None:
        """Until the job has ended."""
        asked_to_stop = False
        while not self.session.state(job).startswith("FINISHED"):
            if self.stop() and not asked_to_stop:
                asked_to_stop = self.session.command(job, {"do": "stop"}) is not None
            told = self.session.command(job, {"do": "status"})
            current = told.get("current") if told else None
            if isinstance(current, dict) and current:
                status = Status.read(current)
                self._show(status)
                self._call_back(job, status)
            time.sleep(0.5)

    def _show(self, now: Status) -> None:
        if now.tick is not None:
            self.watch(now.method, 0, now.tick)

    def _call_back(self, job: str, now: Status) -> None:
        """FLARE lets nobody back into a running job: once an absent owner has connected again, begin another leg.

        An owner whose reply was refused is not called back.
        """
        may_come = now.absent and all(why.code == Code.NO_ANSWER for why in now.absent.values())
        if may_come and set(now.absent) <= self.session.connected():
            self.remark(f"{', '.join(sorted(now.absent))} is back; going on with everybody after this round")
            self.session.command(job, {"do": "stop"})

    def _bring_home(self, job: str, runs: dict[str, Path]) -> dict[str, Status]:
        """Copy what the coordinator left of each run; its state by run."""
        states: dict[str, Status] = {}
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            home = self.session.fetch(job, Path(folder))
            for run, path in runs.items():
                if (home / run).is_dir():
                    shutil.copytree(home / run, path, dirs_exist_ok=True)
                    states[run] = Status.read(read_json(path / STATUS, "status"))
        missing = set(runs) - set(states)
        if missing == set(runs):
            raise RunLost(f"the job ended before {', '.join(sorted(missing))} began ({self.session.state(job)})")
        return states

    def _judge(self, order: Order, status: Status) -> None:
        why = status.reason.text if status.reason else ""
        if status.state == State.STOPPED and self.stop():
            raise Interrupted(why)
        if status.state == State.WAITING:
            self.remark(why)
        if status.state == State.REFUSED:
            raise Refused(f"{order.method}: {why}", status.reason.code if status.reason else Code.FAILED)
        if status.state == State.FAILED:
            raise RunLost(f"{order.method}: {why}")


def read_order(path: Path) -> tuple[Order, Path, str]:
    """The order of a run folder, the operator's kit it was given with, and its last job."""
    if not (path / ORDER).exists() or not (path / JOB).exists():
        raise ConfigError(f"{path} holds no run of a federation; give the folder that `suture federation run` made")
    order, about = read_json(path / ORDER, "order"), read_json(path / JOB, "job")
    return Order.read(order), Path(str(about["kit"])), str(about["job"])


def new_run_name(method: str) -> str:
    """A name no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(3)}"


__all__ = ["Operator", "RunLost", "SessionError", "new_run_name", "read_order"]

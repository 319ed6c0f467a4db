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

from suture.core.storage import Json, make_folder, read_json, write_json
from suture.errors import ConfigError, SutureError
from suture.federation.coordinator.conduct import ORDER, STATUS, Order
from suture.federation.flare.kits import Kit, Operator, SessionError, wait_until, write_job
from suture.federation.wire.exchange import Refused
from suture.runs.folder import read_outcome
from suture.runs.loop import Interrupted
from suture.runs.outcome import Outcome, Tick

JOB = "job.json"
SECONDS_FOR_OWNERS = 600.0


class RunLost(SutureError):
    """The run did not come to an end, and can be resumed."""


@dataclass
class Following:
    """One or several runs of one operator."""

    kit: Kit
    watch: Callable[[str, int, Tick], None] = lambda method, seed, tick: None
    stop: Callable[[], bool] = lambda: False
    remark: Callable[[str], None] = lambda text: None
    patience: float = SECONDS_FOR_OWNERS
    """Seconds to wait for owners to connect, at the start and when one is lost."""

    def __post_init__(self) -> None:
        self.operator = Operator(self.kit)

    def close(self) -> None:
        """End the session."""
        self.operator.close()

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
            if running is not None and self.operator.command(running, {"do": "status"}) is not None:
                job, running = running, None
            else:
                self._wait_for(self.kit.owners)
                job = self._submit([by_name[run] for run in waiting])
            for run, path in waiting.items():
                write_json(path / JOB, {"job": job, "run": run, "kit": str(self.kit.path)})
            self._follow(job)
            for run, state in self._bring_home(job, waiting).items():
                self._judge(by_name[run], state)
                if state.get("state") == "finished":
                    waiting.pop(run)
        return [outcome for path in out if (outcome := read_outcome(path)) is not None]

    def _wait_for(self, owners: Sequence[str]) -> None:
        missing = set(owners) - self.operator.connected()
        if missing:
            self.remark(f"waiting for {', '.join(sorted(missing))} to connect")
        if not wait_until(lambda: set(owners) <= self.operator.connected(), self.patience, every=1.0):
            missing = set(owners) - self.operator.connected()
            raise RunLost(f"{', '.join(sorted(missing))} did not connect; start them, then resume")

    def _submit(self, orders: Sequence[Order]) -> str:
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            job = write_job(Path(folder) / "job", orders[0].run, self.kit.owners, [order.as_json() for order in orders])
            return self.operator.submit(job)

    def _follow(self, job: str) -> None:
        """Until the job has ended."""
        asked_to_stop = False
        while not self.operator.state(job).startswith("FINISHED"):
            if self.stop() and not asked_to_stop:
                asked_to_stop = self.operator.command(job, {"do": "stop"}) is not None
            told = self.operator.command(job, {"do": "status"})
            current = told.get("current") if told else None
            if isinstance(current, dict):
                self._show(current)
                self._call_back(job, current)
            time.sleep(0.5)

    def _show(self, current: dict[str, Json]) -> None:
        if "done" not in current:
            return
        seconds, validation = (_number(current.get(key)) for key in ("seconds", "validation"))
        done, total, line = int(str(current["done"])), int(str(current["total"])), current.get("line")
        told = line if isinstance(line, dict) else {}
        tick = Tick(str(current["phase"]), done, total, seconds or 0.0, told, validation)
        self.watch(str(current["method"]), 0, tick)

    def _call_back(self, job: str, current: dict[str, Json]) -> None:
        """FLARE lets nobody back into a running job: once an absent owner has connected again, begin another leg."""
        absent = current.get("absent")
        if isinstance(absent, dict) and absent and set(absent) <= self.operator.connected() - self._gone(absent):
            self.remark(f"{', '.join(sorted(absent))} is back; going on with everybody after this round")
            self.operator.command(job, {"do": "stop"})

    def _gone(self, absent: dict[str, Json]) -> set[str]:
        """Owners whose replies were refused are not called back."""
        return {name for name, why in absent.items() if "no answer" not in str(why)}

    def _bring_home(self, job: str, runs: dict[str, Path]) -> dict[str, dict[str, Json]]:
        """Copy what the coordinator left of each run; its state by run."""
        states: dict[str, dict[str, Json]] = {}
        with tempfile.TemporaryDirectory(dir=self.kit.path) as folder:
            home = self.operator.fetch(job, Path(folder))
            for run, path in runs.items():
                if (home / run).is_dir():
                    shutil.copytree(home / run, path, dirs_exist_ok=True)
                    states[run] = read_json(path / STATUS, "status")  # type: ignore[assignment]
        missing = set(runs) - set(states)
        if missing == set(runs):
            raise RunLost(f"the job ended before {', '.join(sorted(missing))} began ({self.operator.state(job)})")
        return states

    def _judge(self, order: Order, state: dict[str, Json]) -> None:
        reason = str(state.get("reason", ""))
        if state.get("state") == "stopped" and self.stop():
            raise Interrupted(reason)
        if state.get("state") == "waiting":
            self.remark(reason)
        if state.get("state") == "refused":
            raise Refused(f"{order.method}: {reason}")
        if state.get("state") == "failed":
            raise RunLost(f"{order.method}: {reason}")


def read_order(path: Path) -> tuple[Order, Path, str]:
    """The order of a run folder, the operator's kit it was given with, and its last job."""
    if not (path / ORDER).exists() or not (path / JOB).exists():
        raise ConfigError(f"{path} holds no run of a federation; give the folder that `suture federation run` made")
    order, about = read_json(path / ORDER, "order"), read_json(path / JOB, "job")
    return Order.read(order), Path(str(about["kit"])), str(about["job"])  # type: ignore[arg-type]


def new_run_name(method: str) -> str:
    """A name no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(3)}"


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


__all__ = ["Following", "RunLost", "SessionError", "new_run_name", "read_order"]

"""What the operator's run folder says of a run under way: what was ordered, with which kit, its job; see `files`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from suture.core.storage import read_json, write_json
from suture.errors import ConfigError
from suture.federation.flare.kits import Kit
from suture.federation.flare.session import Session
from suture.federation.operator.files import JOB, STOP, is_followed
from suture.federation.wire.names import job_id
from suture.federation.wire.orders import ORDER, Order
from suture.runs.folder import read_outcome

SECONDS_TO_HEAR = 20.0


@dataclass(frozen=True)
class Errand:
    """A run of a federation in the operator's folder."""

    path: Path
    order: Order
    kit: Path
    job: str | None
    """The last job; None before the first."""


def read_order(path: Path) -> Errand:
    """The run in a folder."""
    if not (path / ORDER).exists() or not (path / JOB).exists():
        raise ConfigError(f"{path} holds no run of a federation; give the folder that `suture federation run` made")
    order, about = read_json(path / ORDER, "order"), read_json(path / JOB, "job")
    job, kit = about.get("job"), about.get("kit")
    if not isinstance(kit, str):
        raise ConfigError(f"{path / JOB} does not say with which kit the run was ordered; order it again")
    return Errand(path, Order.read(order), Path(kit), job_id(job) if job else None)


def note_job(path: Path, job: str, run: str, kit: Path) -> None:
    """Write down the job that is at it; an empty id: none yet."""
    write_json(path / JOB, {"job": job, "run": run, "kit": str(kit)})


def stop_run(errand: Errand, kit: Kit) -> None:
    """Let a run end after its round, wherever it is: in a round, starting, or between two jobs, waiting for an owner.

    The wish is written down first: a command that follows the run reads it, and begins no other leg.
    """
    path, job = errand.path, errand.job
    if read_outcome(path) is not None:
        raise ConfigError(f"{errand.order.run} is finished; there is nothing to stop")
    waited_for = is_followed(path)
    write_json(path / STOP, {"time": time.time()})
    session = Session(kit)
    try:
        end = time.monotonic() + SECONDS_TO_HEAR
        while job is not None and not session.state(job).startswith("FINISHED"):
            if session.command(job, {"do": "stop"}) is not None or waited_for:
                return
            if job not in session.running() or time.monotonic() > end:
                session.abort(job)
                return
            time.sleep(0.5)
    finally:
        session.close()
    if not waited_for:
        (path / STOP).unlink(missing_ok=True)
        raise ConfigError(f"{errand.order.run} is not running; `suture federation status` shows what is")

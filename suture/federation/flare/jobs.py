"""The two classes a federation's jobs name: what FLARE starts in the coordinator's and in every owner's job process.

Here the engine that carries our bytes meets those who have something to say; nothing below this module knows both.
A command that only names these classes must not wait for torch, so the parties are imported when a job begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab

from suture.core.process import prepare_process
from suture.core.storage import Json, copy_files, make_folder
from suture.errors import SutureError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.flare.kits import JobClasses
from suture.federation.flare.places import COORDINATOR, HOME, TOPIC, kit_folder
from suture.federation.flare.pulse import Work
from suture.federation.flare.transport import FlareTransport
from suture.federation.wire.reasons import Code

if TYPE_CHECKING:
    from suture.federation.coordinator.coordinator import Coordinator

SERVER = "server"
"""FLARE's name of the coordinator."""
F = TypeVar("F", bound=Callable[..., Any])
# FLARE's decorators are without types.
main_of_a_job: Callable[[F], F] = collab.main
before_any_call: Callable[[F], F] = collab.init
published: Callable[[F], F] = collab.publish


def audit_here() -> AuditLog:
    """The coordinator's audit log, in its own job process."""
    return AuditLog(make_folder(kit_folder() / HOME) / AUDIT, COORDINATOR)


def _begin() -> None:
    """Make this a process that trains. Before FLARE's clock for an answer runs: torch takes seconds."""
    prepare_process()
    import torch

    torch.set_num_threads(1)


class CoordinatorJob(FLComponent):  # type: ignore[misc]
    """Carries out the orders of a job, one after the other, and answers the operator meanwhile."""

    take_home: Path
    """What is put here can be downloaded by the operator after the job."""

    def __init__(self, orders: list[dict[str, Json]]) -> None:
        super().__init__()
        _begin()
        from suture.federation.wire.orders import Order

        try:
            self.orders = [Order.read(order) for order in orders]
        except SutureError as error:
            audit_here().note("refused", code=Code.MALFORMED.value, reason=f"an order cannot be carried out: {error}")
            raise
        self.stopping = threading.Event()
        """The operator wants the runs to end."""
        self.regrouping = threading.Event()
        """An owner is back: this leg ends, and the next one goes on with it."""
        self.finished: dict[str, Json] = {}
        self.current: Coordinator | None = None
        self.transport: FlareTransport | None = None

    @main_of_a_job
    def main(self) -> None:
        """FLARE calls this once all owners' processes are up."""
        self.transport = transport = FlareTransport(list(collab.clients), self.stopping.is_set)
        try:
            self.carry_out(transport)
        finally:
            self.transport = None  # from now on nobody listens for signs of life here
            transport.close()

    def carry_out(self, transport: FlareTransport) -> None:
        """All orders; one that is refused does not keep the next from being carried out."""
        from suture.federation.coordinator.coordinator import Coordinator, door_at
        from suture.runs.pulse import LOCK, PROGRESS

        home, audit = make_folder(kit_folder() / HOME), audit_here()
        for order in self.orders:
            place, stop = home / "runs" / order.run, self.stopping.is_set
            door, regroup = partial(door_at, home), self.regrouping.is_set
            self.current = Coordinator(order, place, transport, audit, stop, door, regroup)
            try:
                self.current.carry_on()
            except SutureError:
                # The reason is in the status and in the audit log already.
                self.logger.exception("the run %s ended", order.run)
            self.finished[order.run] = self.current.status.as_json()
            copy_files(self.current.path, self.take_home / order.run, skip=("checkpoint", LOCK, PROGRESS))
            if self.stopping.is_set() or self.regrouping.is_set():
                break

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listen to the operator from the start."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_app_command(TOPIC, self._on_command)
            self.take_home = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())) / TOPIC

    def _on_command(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Json]:
        """`status`; `stop` after the current round; `regroup`: stop this leg, as another one is to follow."""
        match data.get("do") if isinstance(data, dict) else None:
            case "stop":
                self.stopping.set()
            case "regroup":
                self.regrouping.set()
        current = self.current.status.as_json() if self.current else {}
        silent: dict[str, Json] | None = dict(self.transport.pulse.silent()) if self.transport else None
        stopping = self.stopping.is_set()
        return {"current": current, "finished": dict(self.finished), "stopping": stopping, "silent": silent}


class OwnerJob:
    """Answers for one owner, with the files that the owner's own start command named."""

    def __init__(self) -> None:
        _begin()
        from suture.federation.owner.owner import Owner

        self._owner_at = Owner.at
        self.work = Work()

    @before_any_call
    def begin(self) -> None:
        """Read the owner's graph and policy; FLARE calls this before any request."""
        self.desk = self._owner_at(kit_folder() / HOME).desk()

    @published
    def alive(self) -> list[float]:
        """A sign that there is still a process here, and whether it is busy."""
        return self.work.told()

    @published
    def answer(self, request: bytes) -> bytes:
        """All that can be asked here, and by the coordinator only: owners never serve each other."""
        if collab.caller != SERVER:
            raise PermissionError("only the coordinator is answered")
        return self.work.done(lambda: self.desk.answer(request))


JOBS = JobClasses(CoordinatorJob, OwnerJob)
"""What the jobs of a federation start."""

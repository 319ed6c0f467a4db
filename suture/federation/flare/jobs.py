"""The two classes a federation's jobs name: what FLARE starts in the coordinator's and in every owner's job process.

Here the engine that carries our bytes meets those who have something to say; nothing below this module knows both.
A command that only names these classes must not wait for torch, so the parties are imported when a job begins.
"""

from __future__ import annotations

import shutil
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
from suture.core.storage import Json, make_folder
from suture.errors import SutureError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.flare.kits import JobClasses
from suture.federation.flare.places import COORDINATOR, HOME, TOPIC, kit_folder
from suture.federation.flare.transport import FlareTransport

if TYPE_CHECKING:
    from suture.federation.coordinator.coordinator import Coordinator

SERVER = "server"
"""FLARE's name of the coordinator."""
F = TypeVar("F", bound=Callable[..., Any])
# FLARE's decorators are without types.
main_of_a_job: Callable[[F], F] = collab.main
before_any_call: Callable[[F], F] = collab.init
published: Callable[[F], F] = collab.publish


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

        self.orders = [Order.read(order) for order in orders]
        self.stopping = threading.Event()
        self.finished: dict[str, Json] = {}
        self.current: Coordinator | None = None

    @main_of_a_job
    def main(self) -> None:
        """FLARE calls this once all owners' processes are up."""
        transport = FlareTransport(list(collab.clients))
        try:
            self.carry_out(transport)
        finally:
            transport.close()

    def carry_out(self, transport: FlareTransport) -> None:
        """All orders; one that is refused does not keep the next from being carried out."""
        from suture.federation.coordinator.coordinator import Coordinator, door_at

        home = make_folder(kit_folder() / HOME)
        audit = AuditLog(home / AUDIT, COORDINATOR)
        for order in self.orders:
            place, stop = home / "runs" / order.run, self.stopping.is_set
            self.current = Coordinator(order, place, transport, audit, stop, partial(door_at, home))
            try:
                self.current.carry_on()
            except SutureError:
                # The reason is in the status and in the audit log already.
                self.logger.exception("the run %s ended", order.run)
            self.finished[order.run] = self.current.status.as_json()
            skip = shutil.ignore_patterns("checkpoint", ".lock")
            shutil.copytree(self.current.path, self.take_home / order.run, ignore=skip, dirs_exist_ok=True)
            if self.stopping.is_set():
                break

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listen to the operator from the start."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_app_command(TOPIC, self._on_command)
            self.take_home = Path(fl_ctx.get_workspace().get_run_dir(fl_ctx.get_job_id())) / TOPIC

    def _on_command(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Json]:
        """`status`, or `stop` after the current round."""
        if isinstance(data, dict) and data.get("do") == "stop":
            self.stopping.set()
        current = self.current.status.as_json() if self.current else {}
        return {"current": current, "finished": dict(self.finished), "stopping": self.stopping.is_set()}


class OwnerJob:
    """Answers for one owner, with the files that the owner's own start command named."""

    def __init__(self) -> None:
        _begin()
        from suture.federation.owner.owner import Owner

        self._owner_at = Owner.at

    @before_any_call
    def begin(self) -> None:
        """Read the owner's graph and policy; FLARE calls this before any request."""
        self.desk = self._owner_at(kit_folder() / HOME).desk()

    @published
    def alive(self) -> bool:
        """Whether there is still a process here, be it busy."""
        return True

    @published
    def answer(self, request: bytes) -> bytes:
        """All that can be asked here, and by the coordinator only: owners never serve each other."""
        if collab.caller != SERVER:
            raise PermissionError("only the coordinator is answered")
        return self.desk.answer(request)


JOBS = JobClasses(CoordinatorJob, OwnerJob)
"""What the jobs of a federation start."""

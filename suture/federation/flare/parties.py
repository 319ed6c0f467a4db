"""The two classes a federation's jobs name: what runs in the coordinator's and in an owner's job process."""

from __future__ import annotations

import shutil
import threading

import torch

from suture.core.process import settle
from suture.core.storage import Json, make_folder
from suture.errors import SutureError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.coordinator.conduct import Conductor, Order
from suture.federation.flare.places import HOME, kit_folder
from suture.federation.flare.transport import Answering, Coordinating, FlareTransport
from suture.federation.owner.site import Site

COORDINATOR = "coordinator"


class Coordinator(Coordinating):
    """Carries out the orders of a job, one after the other."""

    def __init__(self, orders: list[dict[str, Json]]) -> None:
        super().__init__()
        self.orders = [Order.read(order) for order in orders]
        self.stopping = threading.Event()
        self.finished: dict[str, Json] = {}
        self.current: Conductor | None = None

    def conduct(self, transport: FlareTransport) -> None:
        """All orders; one that is refused does not keep the next from being carried out."""
        settle()
        torch.set_num_threads(1)
        home = make_folder(kit_folder() / HOME)
        audit = AuditLog(home / AUDIT, COORDINATOR)
        for order in self.orders:
            conductor = Conductor(order, home / "runs" / order.run, transport, audit, self.stopping.is_set)
            self.current = conductor
            try:
                conductor.carry_on()
            except SutureError:
                self.log_exception_of(order)
            self.finished[order.run] = conductor.status
            skip = shutil.ignore_patterns("checkpoint", ".lock")
            shutil.copytree(conductor.path, self.take_home / order.run, ignore=skip, dirs_exist_ok=True)
            if self.stopping.is_set():
                break

    def log_exception_of(self, order: Order) -> None:
        """The reason is in the status and in the audit log already."""
        self.logger.exception("the run %s ended", order.run)

    def command(self, wanted: dict[str, Json]) -> dict[str, Json]:
        """`status`, or `stop` after the current round."""
        if wanted.get("do") == "stop":
            self.stopping.set()
        current = self.current.status if self.current else {}
        return {"current": current, "finished": dict(self.finished), "stopping": self.stopping.is_set()}


class Owner(Answering):
    """Answers for one owner, with the files that the owner's own start command named."""

    def prepare(self) -> None:
        """Read the owner's graph and policy."""
        settle()
        torch.set_num_threads(1)
        self.desk = Site.at(kit_folder() / HOME).desk()

    def respond(self, request: bytes) -> bytes:
        """See `suture.federation.owner.desk`."""
        return self.desk.answer(request)

"""`suture dashboard`: one server until Ctrl-C. Runs that were started there go on without it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from suture.core.storage import make_folder
from suture.dashboard.form import Planner
from suture.dashboard.guard import Gate
from suture.dashboard.index import Index
from suture.dashboard.live import Hub
from suture.dashboard.processes import Processes, give_way
from suture.dashboard.reports import Reports
from suture.dashboard.server import Dashboard
from suture.errors import ConfigError, StorageError
from suture.report import drawing
from suture.runs import origin

MOST_CONNECTIONS = 400
SECONDS_BETWEEN_TURNS = 0.5
"""So long it may take until Ctrl-C is noticed."""
USUAL_ROOT = Path("runs")
"""Where commands put run folders; made if there is none yet, as the form may begin the first run."""


@dataclass(frozen=True)
class Place:
    """Where a dashboard is to be, and what it may show and start."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 8642
    """0: any that is free."""
    data_root: Path | None = None
    graphs: Mapping[str, Path] = field(default_factory=dict)


def graphs_named(folders: list[Path]) -> dict[str, Path]:
    """Graph folders by name, checked."""
    found: dict[str, Path] = {}
    for folder in folders:
        path = Path(origin.named(folder))
        if path.name in found:
            raise ConfigError(f"two graph folders are called {path.name}; rename one of them")
        found[path.name] = path
    return found


def serve(place: Place, tell: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `tell` gets the address, with its token."""
    if place.root.exists() and not place.root.is_dir():
        raise StorageError(f"{place.root} is a file; give the folder that holds run folders")
    if place.root != USUAL_ROOT and not place.root.exists():
        raise StorageError(f"there is no folder {place.root}; give the folder that holds run folders, or make it first")
    make_folder(place.root)
    listening = _listening(place.host, place.port)
    port = int(listening.getsockname()[1])
    dashboard = dashboard_at(place, port)
    shown = f"[{place.host}]" if ":" in place.host else place.host
    tell(f"http://{shown}:{port}/?token={dashboard.gate.token}")
    give_way()
    threading.Thread(target=drawing.script, daemon=True).start()  # some seconds, before the first figure is asked for
    with listening:
        Server(dashboard).run([listening])


class Server(uvicorn.Server):
    """Lets those who listen go before it ends; they would have been waited for."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(
            uvicorn.Config(
                dashboard.app(),
                log_level="warning",
                access_log=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=2,
                server_header=False,
            )
        )
        self.hub = dashboard.hub

    async def main_loop(self) -> None:
        """As of uvicorn, which wakes ten times a second to see whether it should end; jobs need the processor more."""
        while not await self.on_tick(0):
            await asyncio.sleep(SECONDS_BETWEEN_TURNS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The end of every stream, then of everything else."""
        self.hub.end()
        await super().shutdown(sockets)


def dashboard_at(place: Place, port: int) -> Dashboard:
    """All parts of one start."""
    return Dashboard(
        Index(place.root), Planner(place.graphs), Processes(place.data_root), Reports(), Gate(port, place.host), Hub()
    )


def _listening(host: str, port: int) -> socket.socket:
    """A socket, or one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
        return listening
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}:{port} ({error.strerror or error}); choose another with --port, or 0 for any"
        ) from error

"""A real dashboard on loopback for tests, and a browser's session with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from suture.dashboard import serving
from suture.dashboard.server import Dashboard

GRAPH = "csbm:nodes=120,features=8,classes=3"


@dataclass
class Served:
    """A dashboard that answers, and a browser's session with it."""

    root: Path
    address: str
    dashboard: Dashboard
    browser: httpx.Client

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.browser.get(path, **more)

    def post(self, path: str, content: object, **headers: str) -> httpx.Response:
        usual = {"origin": self.address, "x-suture-form": self.dashboard.gate.form, "sec-fetch-site": "same-origin"}
        return self.browser.post(path, json=content, headers=usual | headers)

    def rows(self) -> list[dict[str, Any]]:
        self.dashboard.index.rows(0.0)
        return self.get("/api/runs?per=200").json()["rows"]

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows() if row["name"] == name)

    def until(self, name: str, *standings: str) -> dict[str, Any]:
        """Wait for a run to stand so."""
        while (row := self.row(name))["standing"] not in standings:
            assert row["standing"] not in ("failed", "damaged"), row["note"]
            time.sleep(0.2)
        return row


@contextmanager
def serving_at(root: Path, **place: Any) -> Iterator[Served]:
    """A dashboard in a thread of this process."""
    root.mkdir(exist_ok=True)
    listening = serving._listening("127.0.0.1", 0)
    port = listening.getsockname()[1]
    dashboard = serving.dashboard_at(serving.Place(root, **place), port)
    server = serving.Server(dashboard)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    address = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=address, timeout=None) as browser:
        assert browser.get("/", params={"token": dashboard.gate.token}).status_code == 200
        yield Served(root, address, dashboard, browser)
    server.should_exit = True
    thread.join(10)
    listening.close()


Serve = Callable[..., Served]

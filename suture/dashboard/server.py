"""What is answered at which address.

/                                 the page; /static/... its parts
/api/hello                        what a page must know: themes, names for the form, the word that every form carries
/api/runs                         a page of the list              /api/events          what changes in it
/api/runs/ID                      one run, its log, its audit     /api/runs/ID/events  its curves as they grow
/api/curves?id=ID&id=ID           several, to compare them        /runs/ID/report      its report
POST /api/check, /api/start       a form, checked or started      POST /api/runs/ID/stop, resume
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from suture.config.layers import protocol_names
from suture.dashboard.form import Misfit, Planner, Wish
from suture.dashboard.guard import Gate, Guard
from suture.dashboard.index import Index, Unknown
from suture.dashboard.live import Hub, ListReader, Reader, RunReader, TooMany
from suture.dashboard.processes import Processes, free_folder
from suture.dashboard.reports import REPORT_POLICY, Reports
from suture.dashboard.rows import IS_AT_IT, Row, Standing, tail_of_log
from suture.dashboard.seen import audit_of, comparing, figure_of
from suture.errors import ConfigError, SutureError
from suture.graph import datasets
from suture.methods import DOOR as METHODS
from suture.report import drawing, page
from suture.report.text import count, listed
from suture.runs import origin
from suture.runs.plan import DEFAULT_METHODS

PER_PAGE, MOST_PER_PAGE = 50, 200
MOST_COMPARED = 20
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
OWN_ASSETS = ("index.html", "dashboard.css", "dashboard.js", "list.js", "run.js", "curves.js", "form.js", "parts.js")
SHARED_ASSETS = ("report.js", "style.css")


@dataclass
class Dashboard:
    """Everything that one start of the dashboard knows."""

    index: Index
    planner: Planner
    processes: Processes
    reports: Reports
    gate: Gate
    hub: Hub = field(default_factory=Hub)

    def app(self) -> Guard:
        """The program that uvicorn serves."""
        routes = [
            _route("/", self.index_page),
            _route("/static/{name}", self.static),
            _route("/api/hello", self.hello),
            _route("/api/runs", self.list),
            _route("/api/events", self.list_events),
            _route("/api/curves", self.curves),
            _route("/api/runs/{id}", self.run),
            _route("/api/runs/{id}/events", self.run_events),
            _route("/runs/{id}/report", self.report),
            _route("/api/check", self.check, "POST"),
            _route("/api/start", self.start, "POST"),
            _route("/api/runs/{id}/stop", self.stop, "POST"),
            _route("/api/runs/{id}/resume", self.resume, "POST"),
        ]
        return Guard(Starlette(routes=routes), self.gate)

    async def index_page(self, request: Request) -> Response:
        """The page."""
        return HTMLResponse(own_asset("index.html"))

    async def static(self, request: Request) -> Response:
        """Its parts: a few files by their names, and Vega."""
        name = request.path_params["name"]
        kind = KINDS.get(Path(name).suffix, "")
        if name == "vega.js":
            text = await run_in_threadpool(drawing.script)
        elif name in OWN_ASSETS:
            text = own_asset(name)
        elif name in SHARED_ASSETS:
            text = page.asset(name)
        else:
            raise Unknown("there is no such file")
        headers = {"cache-control": "no-cache", "etag": (mark := f'"{_hashed(text)}"')}
        if request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type=kind, headers=headers)

    async def hello(self, request: Request) -> Response:
        """What a page must know before it can do anything."""
        names = sorted(METHODS.names())
        return JSONResponse(
            {
                "form": self.gate.form,
                "settings": page.settings(),
                "root": self.index.root.name or "/",
                "datasets": [info.name for info in datasets.catalogue()],
                "graphs": list(self.planner.graphs),
                "protocols": list(protocol_names()),
                "methods": names,
                "usual": [name for name in DEFAULT_METHODS if name in names],
            }
        )

    async def list(self, request: Request) -> Response:
        """One page of the list, by what is asked for."""
        query = request.query_params
        rows = await run_in_threadpool(self.index.rows)
        words, standing = query.get("q", "").lower().split(), query.get("standing", "")
        counts = {state.value: sum(row.standing == state for row in rows) for state in Standing}
        found = [row for row in rows if (not standing or row.standing == standing) and _matches(row, words)]
        each = min(_whole(query.get("per"), PER_PAGE), MOST_PER_PAGE)
        number = _whole(query.get("page"), 0)
        shown = [self._told(row) for row in found[number * each : (number + 1) * each]]
        return JSONResponse({"rows": shown, "found": len(found), "all": len(rows), "counts": counts, "per": each})

    def _told(self, row: Row) -> dict[str, Any]:
        """A line, with what only this program knows of it."""
        folder = self.index.path(row.id)
        self.processes.settle(folder, row.standing in IS_AT_IT)
        return {**row.as_json(), "stopping": self.processes.is_stopping(folder)}

    async def run(self, request: Request) -> Response:
        """One run or comparison, with the end of its log and what its audit says."""
        id = request.path_params["id"]
        row = await run_in_threadpool(self.index.row, id)
        folder = self.index.path(id)
        audit = await run_in_threadpool(audit_of, folder, self.index.root)
        told = {"row": self._told(row), "log": tail_of_log(folder), "audit": audit, "figure": figure_of([row])}
        return JSONResponse(told)

    async def curves(self, request: Request) -> Response:
        """Several runs side by side."""
        ids = request.query_params.getlist("id")
        if not 0 < len(ids) <= MOST_COMPARED:
            raise ConfigError(f"choose one run or several, at most {MOST_COMPARED}")
        rows = [await run_in_threadpool(self.index.row, id) for id in dict.fromkeys(ids)]
        told = await run_in_threadpool(comparing, self.index, rows)
        return JSONResponse({"rows": [self._told(row) for row in rows], **told})

    async def run_events(self, request: Request) -> Response:
        """A run as it goes on."""
        id = request.path_params["id"]
        await run_in_threadpool(self.index.path, id)
        return await self._stream(f"run {id}", lambda: RunReader(self.index, id))

    async def list_events(self, request: Request) -> Response:
        """The list as it changes."""
        return await self._stream("list", lambda: ListReader(self.index))

    async def _stream(self, name: str, make: Callable[[], Reader]) -> Response:
        events: AsyncIterator[bytes] = self.hub.stream(name, make)
        first = await anext(events)

        async def all_of_them() -> AsyncIterator[bytes]:
            yield first
            async for event in events:
                yield event

        return StreamingResponse(all_of_them(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def report(self, request: Request) -> Response:
        """The report of a run, made if it is not there or not of now."""
        id = request.path_params["id"]
        row = await run_in_threadpool(self.index.row, id)
        text = await run_in_threadpool(self.reports.of, id, self.index.path(id), row)
        return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})

    async def check(self, request: Request) -> Response:
        """Whether a form could be started."""
        wish = Wish.read(await _content(request))
        made = await run_in_threadpool(self.planner.plan, wish)
        runs = len(made.methods) * len(made.seeds)
        rounds = made.protocol.training.rounds
        said = f"{count(runs, 'run')} of {rounds} rounds, protocol {made.protocol.name}, {listed('seed', made.seeds)}"
        return JSONResponse({"said": said, "command": ["suture", *wish.options(self.planner.graphs)]})

    async def start(self, request: Request) -> Response:
        """Start what a form asks for."""
        wish = Wish.read(await _content(request))
        made = await run_in_threadpool(self.planner.plan, wish)
        folder = free_folder(self.index.root, f"{origin.label(made.dataset)}-{made.protocol.name}")
        asked = {"dataset": origin.label(made.dataset), "methods": ",".join(made.names), "protocol": made.protocol.name}
        await run_in_threadpool(self.processes.start, folder, wish.options(self.planner.graphs), asked)
        rows = await run_in_threadpool(self.index.rows, 0.0)
        return JSONResponse({"id": next(row.id for row in rows if row.name == folder.name)})

    async def stop(self, request: Request) -> Response:
        """Let a run end after its round."""
        folder = await run_in_threadpool(self.index.path, request.path_params["id"])
        return JSONResponse({"said": await run_in_threadpool(self.processes.stop, folder)})

    async def resume(self, request: Request) -> Response:
        """Go on with a run."""
        folder = await run_in_threadpool(self.index.path, request.path_params["id"])
        await run_in_threadpool(self.processes.resume, folder)
        return JSONResponse({"said": "going on"})


Endpoint = Callable[[Request], Awaitable[Response]]


def answered(endpoint: Endpoint) -> Endpoint:
    """Whatever the user, the disk or a folder does wrong is one sentence."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Misfit as error:
            return JSONResponse({"error": str(error), "field": error.field})  # the question was answered: it would not work
        except Unknown as error:
            return JSONResponse({"error": str(error)}, 404)
        except TooMany as error:
            return JSONResponse({"error": str(error)}, 503)
        except SutureError as error:
            return JSONResponse({"error": str(error)}, 409)

    return answer


def _route(path: str, endpoint: Endpoint, method: str = "GET") -> Route:
    return Route(path, answered(endpoint), methods=[method])


@functools.cache
def own_asset(name: str) -> str:
    """A file of `assets/`."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


@functools.cache
def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def _content(request: Request) -> Mapping[str, object]:
    try:
        content = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ConfigError("the request is no JSON") from None
    if not isinstance(content, dict):
        raise ConfigError("the request must be a JSON object")
    return content


def _whole(text: str | None, usual: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else usual


def _matches(row: Row, words: list[str]) -> bool:
    text = f"{row.name} {row.dataset} {row.protocol} {' '.join(row.methods)} {row.kind} {row.standing}".lower()
    return all(word in text for word in words)

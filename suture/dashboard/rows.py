"""One line of the list: what a run or comparison is, how far it is, what came out."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from suture.config.strict import strict
from suture.config.toml import Table, as_table, parsed_table
from suture.core.metrics import metric_for
from suture.core.metrics.metric import Task
from suture.core.storage import read_json
from suture.dashboard.folders import LAUNCH, LOG, parts, walked
from suture.errors import IntegrityError, SutureError
from suture.federation.operator.files import JOB, is_followed
from suture.federation.wire.orders import ORDER, Order
from suture.federation.wire.status import STATUS, Status
from suture.federation.wire.status import State as Leg
from suture.report.results import is_reference
from suture.report.table import headline
from suture.runs import origin
from suture.runs.folder import ASSESSMENT, CONFIG, Asked, is_begun, is_comparison, read_asked, read_outcome
from suture.runs.outcome import Outcome
from suture.runs.pulse import Progress, State, is_carried_out, is_locked, read_progress
from suture.settings import EvaluationSettings

MOST_OF_A_LOG = 8192


class Standing(StrEnum):
    """Where a run or comparison stands, as a list says it."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    RESUMABLE = "resumable"
    """Its process is gone without a word: it was killed, or the machine went down."""
    DAMAGED = "damaged"


IS_AT_IT = (Standing.STARTING, Standing.RUNNING)
CAN_GO_ON = (Standing.STOPPED, Standing.FAILED, Standing.RESUMABLE)


@dataclass(frozen=True)
class Result:
    """What a method reached: mean and sample deviation over the seeds that are finished."""

    method: str
    seeds: int
    mean: float | None
    deviation: float | None
    validation: float | None
    seconds: float
    bytes_up: float | None
    bytes_down: float | None
    """None: it is given the uncut graph, and sends nothing."""


@dataclass(frozen=True)
class Row:
    """See the module docstring. Field names are the keys that pages get."""

    id: str
    name: str
    standing: Standing
    note: str = ""
    """One sentence: why it ended, what is wrong with it, what it waits for."""
    kind: str = "run"
    """run, comparison, assessment or federation."""
    dataset: str = ""
    protocol: str = ""
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    clients: int = 0
    metric: str = ""
    share: bool = True
    greater_is_better: bool = True
    results: tuple[Result, ...] = ()
    chosen: str | None = None
    """Whose validation score is best; not a reference's, which is given the uncut graph."""
    runs: int = 1
    runs_done: int = 0
    began: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    size: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    """Of a run that is at it: phase, done, total, seconds left, bytes, owners and who of them is absent."""
    can_resume: bool = False
    can_stop: bool = False
    can_report: bool = False
    """A run that was ordered of a federation has nothing to show here before a leg of it has ended."""

    def as_json(self) -> dict[str, Any]:
        """For pages; JSON has no NaN."""
        plain: dict[str, Any] = _plain({**vars(self), "results": [vars(result) for result in self.results]})
        return plain


@dataclass(frozen=True)
class _About:
    """What was asked, wherever it stands."""

    kind: str
    asked: Asked
    config: Table
    began: float
    places: list[Path]


def row_of(folder: Path, id: str, name: str, size: Callable[[], int] | None = None) -> Row:
    """The line of a folder, whatever is in it; what cannot be read is said in it."""
    try:
        measured = size() if size is not None else walked(folder).size
        return _row(folder, id, name, measured)
    except SutureError as error:
        return Row(id, name, Standing.DAMAGED, str(error).replace(f"{folder}/", "").replace(str(folder), name))
    except FileNotFoundError:
        return Row(id, name, Standing.DAMAGED, "it went while it was looked at")
    except (OSError, ValueError, TypeError, RecursionError, OverflowError) as error:
        return Row(id, name, Standing.DAMAGED, f"it cannot be read: {error}")


def is_alive(folder: Path) -> bool:
    """Whether any process is at it: the run itself, one that follows it, or one that is only starting."""
    return is_carried_out(folder) or is_followed(folder) or is_locked(folder / LOG)


def _row(folder: Path, id: str, name: str, size: int) -> Row:
    alive = is_alive(folder)
    about = _about(folder)
    if about is None:
        return _not_begun(folder, Row(id, name, Standing.STARTING, size=size), alive)
    outcomes = [outcome for place in about.places if (outcome := read_outcome(place)) is not None]
    row = _described(Row(id, name, Standing.FINISHED, size=size, can_report=is_begun(folder)), about, outcomes)
    if len(outcomes) == len(about.places) and not alive:
        return row
    told = _progress(folder)
    if about.kind == "federation" and not outcomes:
        row = replace(row, clients=told.owners if told is not None else 0)  # owners are not planned, they come
    standing, note = _standing(folder, alive, told)
    live = _live(told, about, outcomes) if told is not None and alive else {}
    return replace(
        row,
        standing=standing,
        note=note,
        progress=live,
        can_stop=alive,
        can_resume=not alive and standing in CAN_GO_ON and _can_go_on(folder, about),
        seconds=row.seconds + (told.seconds if told is not None and told.state != State.FINISHED else 0.0),
    )


def _about(folder: Path) -> _About | None:
    """None: nothing was begun yet."""
    if is_begun(folder):
        asked, config = read_asked(folder), _config(folder)
        several = is_comparison(folder)
        kind = "federation" if asked.engine == origin.FEDERATION else "comparison" if several else "run"
        kind = "assessment" if (folder / ASSESSMENT).exists() else kind
        places = parts(folder, asked.methods, asked.seeds) if several else [folder]
        return _About(kind, asked, config, _age(folder), places)
    if (folder / ORDER).exists():
        order = Order.read(read_json(folder / ORDER, "order"))
        asked = Asked.by_federation(order.dataset, order.method, order.seed)
        return _About("federation", asked, parsed_table(order.config), _age(folder), [folder])
    return None


def _config(folder: Path) -> Table:
    try:
        return _parsed((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{CONFIG} cannot be read ({error}); start the run anew") from error


@lru_cache(maxsize=256)
def _parsed(text: str) -> Table:
    """Many runs have the same configuration, and reading it is most of the work."""
    return parsed_table(text)


def _age(folder: Path) -> float:
    """When it was begun: its configuration is written once."""
    for name in (CONFIG, ORDER, LAUNCH):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def _not_begun(folder: Path, row: Row, alive: bool) -> Row:
    """What was started from here and has not written anything yet, or never will."""
    launch = read_json(folder / LAUNCH, "record of how it was started")
    asked = {key: str(value) for key, value in as_table(launch.get("asked", {}), "asked").items()}
    methods = tuple(filter(None, asked.get("methods", "").split(",")))
    row = replace(row, dataset=asked.get("dataset", ""), methods=methods, protocol=asked.get("protocol", ""))
    row = replace(row, began=_age(folder), can_stop=alive, kind="run" if len(methods) == 1 else "comparison")
    if alive:
        return replace(row, note="loading data and cutting the graph")
    return replace(row, standing=Standing.FAILED, note=last_words(folder) or "it ended before its first round")


def last_words(folder: Path) -> str:
    """What a process that was started from here said last, as the command line says it."""
    for line in reversed(tail_of_log(folder).splitlines()):
        if line.startswith("suture: "):
            return line.removeprefix("suture: ")
    return ""


def tail_of_log(folder: Path) -> str:
    """The end of what a process that was started from here said; empty if there was none."""
    try:
        handle = os.open(folder / LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            return ""
        file.seek(max(0, about.st_size - MOST_OF_A_LOG))
        return file.read(MOST_OF_A_LOG).decode(errors="replace")


def _progress(folder: Path) -> Progress | None:
    """What was last told; one that cannot be read is as good as none."""
    with contextlib.suppress(IntegrityError):
        return read_progress(folder)
    return None


def _described(row: Row, about: _About, outcomes: Sequence[Outcome]) -> Row:
    asked, config = about.asked, about.config
    wanted = dict(as_table(config.get("evaluation", {}), "evaluation"))
    settings = strict(EvaluationSettings, wanted, "evaluation")
    told = outcomes[0].metric if outcomes else settings.metric
    metric, share, greater = _metric(told, "link" if config.get("task") == "link" else "node")
    of_method = {name: [one for one in outcomes if one.method == name] for name in asked.methods}
    results = tuple(_result(name, of_method[name], headline(settings)) for name in asked.methods)
    known = [one for one in results if one.validation is not None]
    known = [one for one in known if not is_reference(one.method)] or known
    best = max(known, key=lambda one: (one.validation or 0.0) * (1 if greater else -1), default=None)
    planned = as_table(config.get("partition", {}), "partition").get("clients", 0)
    clients = outcomes[0].clients if outcomes else int(str(planned))
    return replace(
        row,
        kind=about.kind,
        dataset=origin.label(asked.dataset) if asked.dataset else "",
        protocol=str(config.get("name", "")),
        methods=asked.methods,
        seeds=asked.seeds,
        clients=clients,
        metric=metric,
        share=share,
        greater_is_better=greater,
        results=tuple(one for one in results if one.seeds),
        chosen=best.method if best else None,
        runs=len(about.places),
        runs_done=len(outcomes),
        began=about.began,
        seconds=sum(one.seconds for one in outcomes),
    )


def _metric(told: str, task: Task) -> tuple[str, bool, bool]:
    """(its name, whether it is a share, whether greater is better); of somebody else's that was not let in, a guess."""
    try:
        metric = metric_for(told, task)
    except SutureError:
        return told, False, True
    return metric.name, metric.is_share, metric.greater_is_better


def _result(method: str, outcomes: Sequence[Outcome], column: str) -> Result:
    scores = [float(value) for one in outcomes if (value := getattr(one, column)) is not None]
    validation = [one.validation for one in outcomes if one.validation is not None]
    complete = len(scores) == len(outcomes) and bool(scores)
    return Result(
        method,
        len(outcomes),
        statistics.fmean(scores) if complete else None,
        statistics.stdev(scores) if complete and len(scores) > 1 else None,
        statistics.fmean(validation) if validation and len(validation) == len(outcomes) else None,
        _mean([one.seconds for one in outcomes]),
        None if is_reference(method) else _mean([one.bytes_up for one in outcomes]),
        None if is_reference(method) else _mean([one.bytes_down for one in outcomes]),
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _standing(folder: Path, alive: bool, told: Progress | None) -> tuple[Standing, str]:
    """Of what is not finished."""
    if alive:
        if told is None or told.state != State.RUNNING:
            first = "owners read their graphs" if (folder / ORDER).exists() else "loading data and cutting the graph"
            return Standing.STARTING, told.remarks[-1] if told is not None and told.remarks else first
        lost = "; ".join(f"{owner} {why}" for owner, why in told.absent.items())
        return Standing.RUNNING, f"without {lost}" if lost else ""
    if (folder / STATUS).exists() and not (folder / JOB).exists():  # the coordinator's own folder
        status = Status.read(read_json(folder / STATUS, "status"))
        why = status.reason.text if status.reason else ""
        ends = {Leg.FAILED: Standing.FAILED, Leg.REFUSED: Standing.FAILED, Leg.STOPPED: Standing.STOPPED}
        return ends.get(status.state, Standing.RESUMABLE), why
    if told is not None and told.state == State.STOPPED:
        return Standing.STOPPED, told.reason
    if told is not None and told.state == State.FAILED:
        return Standing.FAILED, told.reason
    return Standing.RESUMABLE, "its process ended without a word: it was killed, or the machine went down"


def _can_go_on(folder: Path, about: _About) -> bool:
    """From here: what was given in memory, or is a coordinator's, is somebody else's to go on with."""
    if about.kind == "federation":
        return (folder / JOB).exists()
    return about.asked.dataset != origin.IN_MEMORY and not about.asked.own_module and not is_comparison(folder.parent)


def _live(told: Progress, about: _About, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a list shows of a run that is at it."""
    left = told.seconds / told.done * (told.total - told.done) if told.done else None
    others = told.runs - len(outcomes) - 1
    if left is not None and others > 0:
        usual = _mean([one.seconds for one in outcomes]) or told.seconds / told.done * told.total
        left += others * usual / told.at_once
    waited = max(0.0, time.time() - told.time)
    return {
        "method": told.method,
        "seed": told.seed if told.owners == 0 else about.asked.seeds[0],
        "phase": told.phase,
        "done": told.done,
        "total": told.total,
        "seconds": told.seconds,
        "left": None if left is None else max(0.0, left - waited),
        "bytes_up": told.bytes_up,
        "bytes_down": told.bytes_down,
        "owners": told.owners,
        "absent": told.absent,
        "remarks": list(told.remarks),
        "time": told.time,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""What the user typed, and what it means once the `--config` file and the defaults have filled the gaps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from suture.commands.options import words
from suture.config.layers import load_config
from suture.core.threads import choose
from suture.errors import ConfigError, DataError
from suture.graph.cut import load_manifest
from suture.runs import origin
from suture.runs.handed import let_in_named
from suture.runs.plan import Plan, plan_as_written

T = TypeVar("T")
DEFAULT_DATASET = "cora"
DEFAULT_METHOD = "fedavg"
RUNS = Path("runs")


@dataclass(frozen=True)
class Request:
    """What to compute: the options of `compare`, `run` and `partition`; None is what was not given."""

    protocol: str | None = None
    dataset: str | None = None
    data: Path | None = None
    """A graph folder, in place of a dataset."""
    clients: int | None = None
    methods: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    overrides: tuple[str, ...] = ()
    config: Path | None = None
    manifest: Path | None = None
    single: bool = False
    """One method and one seed, as `suture run` takes them."""


@dataclass(frozen=True)
class Work:
    """How and where to compute."""

    data_root: Path | None = None
    out: Path | None = None
    json: str | None = None
    """A file, or - for stdout."""
    device: str = "cpu"
    chunk: int = 0
    threads: int | None = None
    quiet: bool = False
    engine: str | None = None
    """None: embedded, or for a run that goes on, the one it was begun with."""
    record: bool = False
    """Keep the contents of messages."""
    track: tuple[str, ...] = ()
    """Trackers, as `--track` spells them."""
    lines: bool = False
    """Tell what is done as lines of JSON on stdout, and nothing else."""
    jobs: int = 1
    """Runs of a comparison side by side; 0: one for each core."""
    commands: Path | None = None
    """A file to write the runs of a comparison to, as commands, in place of carrying them out."""
    on: str | None = None
    """Where else than here the runs of a comparison are computed."""

    @property
    def at_once(self) -> int:
        """How many runs are computed side by side."""
        return self.jobs or max(1, len(os.sched_getaffinity(0)))


def planned(request: Request) -> Plan:
    """The plan that a request means, its gaps filled; nothing is read but configuration and manifest."""
    config = load_config(request.config) if request.config else None
    in_file = (config.dataset, config.protocol, config.methods) if config else (None, None, None)
    dataset = _folder(request) or _first(request.dataset, in_file[0], DEFAULT_DATASET)
    protocol = request.protocol if request.protocol is not None else in_file[1]
    methods = request.methods if request.methods is not None else in_file[2]
    if request.single and methods is None:
        methods = (DEFAULT_METHOD,)
    if request.single and methods is not None and len(methods) > 1:
        raise ConfigError(f"`suture run` takes one method, got {', '.join(methods)}; choose one, or use `suture compare`")
    let_in_named(request.dataset, request.methods or (), request.overrides, request.protocol)  # not what the file names
    made = plan_as_written(
        dataset,
        methods,
        protocol=protocol,
        clients=request.clients,
        seeds=request.seeds,
        overrides=request.overrides,
        config=request.config,
    )
    if request.manifest:
        _check_manifest(request.manifest, request.clients)
    return made.single() if request.single else made


def _folder(request: Request) -> str | None:
    """The graph folder that was named, if one was."""
    if request.data is None:
        return None
    if request.dataset is not None:
        raise ConfigError(f"--data {request.data} and --dataset {request.dataset} are two graphs; give one of them")
    if not request.data.exists():
        raise DataError(f"{request.data} does not exist; make it of your tables with: suture import {request.data}")
    return origin.named(request.data)


def _first(typed: T | None, in_file: T | None, default: T) -> T:
    """The strongest that was given; what was given empty is given, and refused later."""
    chosen = typed if typed is not None else in_file
    return chosen if chosen is not None else default


def _check_manifest(manifest: Path, clients: int | None) -> None:
    given = len(load_manifest(manifest).partition.ids)
    if clients is not None and clients != given:
        raise ConfigError(f"--clients {clients} contradicts --manifest {manifest}, which has {given}; leave --clients out")


def run_folder(made: Plan, work: Work, suffix: str = "") -> Path:
    """`--out`, or a new folder under runs/ named after the time, the dataset and the protocol (or `suffix`)."""
    if work.out is not None:
        return work.out
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{origin.label(made.dataset)}-{suffix or made.protocol.name}"
    same_second = (RUNS / (f"{name}-{n}" if n > 1 else name) for n in range(1, 1000))
    return next(path for path in same_second if not path.exists())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """`0,1,2` to numbers."""
    try:
        found = tuple(int(part) for part in words(text))
    except ValueError:
        found = (-1,)
    if any(number < 0 for number in found):
        raise ConfigError(f"{option} must be whole numbers from 0 on, joined by commas such as 0,1,2, got {text!r}")
    return found


def use_device(work: Work, tell: Callable[[str], None]) -> Work:
    """Refuse a device that is not here, and set the number of threads: the one that was given, or the fastest just now."""
    try:
        torch.empty(1, device=work.device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {work.device} cannot be used here; choose cpu, or cuda where there is one") from error
    if work.threads is None and work.on is None:
        chosen = choose(jobs=work.at_once)
        if chosen.is_choice:
            tell(chosen.sentence())
        return replace(work, threads=chosen.threads)
    if work.threads is not None:
        torch.set_num_threads(work.threads)
    return work

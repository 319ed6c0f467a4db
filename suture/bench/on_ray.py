"""The runs of a comparison on Ray: on this machine, on the cluster that it belongs to (RAY_ADDRESS), or on another one.

Every run is a task of its own. The graph and its cuts are put into Ray's store once; a task lays them out, trains in a
folder of its own and hands the files back, so that machines need not share a disk. They need Suture in the same version.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from suture.core.forks import Died, Ended
from suture.core.progress import work
from suture.core.storage import staged_folder, write_atomically
from suture.errors import ConfigError, IntegrityError
from suture.graph.cut import Cut
from suture.runs.loop import Interrupted
from suture.runs.machine import source_hash
from suture.runs.plan import Plan

RAY = "ray"
SECONDS_BETWEEN_LOOKS = 0.5
Files = dict[str, bytes]
"""What a run folder holds, by path inside it."""
Carry = Callable[[Plan, Data, Cut, Path], None]
"""Carries one run out in a folder."""


@dataclass(frozen=True)
class Errand:
    """A run that Ray is to carry out: the plan has one method and one seed."""

    name: str
    made: Plan
    cut: Cut


def check_place(on: str, jobs: int, track: Sequence[str], *, own_module: bool) -> None:
    """Refuse a place there is not, and what other machines cannot have."""
    if on != RAY and not on.startswith(f"{RAY}://"):
        raise ConfigError(f"--on {on} is no place to compute; give ray, for this machine, or ray://HOST:PORT of a cluster")
    if importlib.util.find_spec(RAY) is None:
        raise ConfigError('Ray is not installed; install it with: pip install "suture-fl[ray]"')
    if jobs > 1:
        raise ConfigError(f"Ray decides itself how many runs it does at once; leave --jobs {jobs} out")
    if track:
        raise ConfigError(f"trackers look at runs of this machine, not of Ray's; leave --track {' '.join(track)} out")
    if own_module:
        raise ConfigError("your own module is in the memory of this process, where Ray's cannot have it; leave on out")


def refuse_own_code(made: Plan) -> None:
    """What lies in a file of this machine is not on others."""
    if foreign := [source.name for source in made.sources]:
        raise ConfigError(f"{', '.join(foreign)} is your own code, which Ray's machines do not have; leave --on out")


def carry_out(
    errands: Sequence[Errand],
    graph: Data,
    carry: Carry,
    *,
    on: str,
    threads: int,
    ended: Callable[[Ended[Files]], None],
    stop: Callable[[], bool],
) -> list[Ended[Files]]:
    """Let Ray do all of them; `ended` is called as each one ends, `stop` now and then."""
    done: list[Ended[Files]] = []
    with _connected(on) as ray, work("ray", "runs on Ray", len(errands), "runs") as going:
        shared = ray.put(graph)
        task = ray.remote(num_cpus=threads, max_retries=0)(_in_a_task)
        ours = source_hash()
        waiting = {task.remote(errand.made, shared, errand.cut, carry, threads, ours): errand.name for errand in errands}
        try:
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
                for one in ready:
                    end = _fetched(ray, one, waiting.pop(one))
                    done.append(end)
                    ended(end)
                    going.advance(note=end.name)
                if stop():
                    raise Interrupted(f"stopped with {len(waiting)} of {len(errands)} runs left")
        finally:
            for one in waiting:
                ray.cancel(one, force=True)
    return done


@contextlib.contextmanager
def _connected(on: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no machine is told that this one computes
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    where: dict[str, Any] = {"include_dashboard": False} if on == RAY else {"address": on}
    try:
        ray.init(log_to_driver=False, **where)
    except (ConnectionError, OSError, ValueError, RuntimeError, ImportError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"Ray at {on} does not answer ({why}); start it, or leave --on out") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _fetched(ray: Any, task: Any, name: str) -> Ended[Files]:
    try:
        return Ended(name, ray.get(task))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        return Ended(name, error=cause)
    except ray.exceptions.RayError as error:
        return Ended(name, error=Died(f"{name} was ended on Ray ({type(error).__name__})"))


def _in_a_task(made: Plan, graph: Data, cut: Cut, carry: Carry, threads: int, expected: str) -> Files:
    """What a worker of Ray does."""
    if source_hash() != expected:
        raise ConfigError("a machine of this Ray has another version of Suture; install the same one everywhere")
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        carry(made, graph, cut, folder)
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@contextlib.contextmanager
def kept(files: Files, path: Path | None) -> Iterator[Path]:
    """The files of a run that Ray has handed back, in its folder, all of them or none; without one, for a moment."""
    if path is None:
        with tempfile.TemporaryDirectory() as home:
            _write(files, Path(home))
            yield Path(home)
        return
    with staged_folder(path) as staged:
        _write(files, staged)
    yield path


def _write(files: Files, folder: Path) -> None:
    for name, content in files.items():
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise IntegrityError(f"Ray handed back a file {name!r}, which is in no run folder; look at who else uses it")
        write_atomically(folder / name, content)

"""A run and its trackers: they hear of every round, and none of them can end it."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from suture.core.storage import read_json, write_json
from suture.errors import ConfigError, IntegrityError
from suture.runs import origin
from suture.runs.folder import is_comparison, read_metrics, read_outcome, read_plan
from suture.runs.outcome import Line, Outcome, Tick
from suture.runs.plan import Plan
from suture.trackers.mlflow import MLflow
from suture.trackers.tensorboard import TensorBoard
from suture.trackers.tracker import Tracked, Tracker, numbers_in, parsed
from suture.trackers.wandb import WandB

TRACKERS: Mapping[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, MLflow, WandB)}
TRACKING = "tracking.json"
"""In a run folder: what each tracker knows the run as."""
RUNS = Path("runs")
SCORES = ("accuracy_client_mean", "accuracy_weighted", "accuracy_worst", "accuracy_global", "validation")
COSTS = ("bytes_up", "bytes_down", "seconds", "best_round")
Warn = Callable[[str], None]


def check_trackers(wanted: Sequence[str]) -> None:
    """Refuse, before anything is computed, trackers that there are not or that are not installed."""
    names = [type(parsed(text, TRACKERS, RUNS)).name for text in wanted]
    if len(set(names)) < len(names):
        raise ConfigError(f"a tracker is named twice: {', '.join(wanted)}; name each once")
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{name} is not installed; install it with: pip install 'suture-fl[{TRACKERS[name].extra}]'")


class Tracking:
    """The trackers of one run; one that fails is left out from then on, with a sentence."""

    def __init__(self, trackers: Sequence[Tracker], warn: Warn) -> None:
        self.trackers, self.warn = list(trackers), warn

    def begin(self, run: Tracked, folder: Path | None) -> None:
        """Begin, or go on with what the folder says each tracker knows the run as."""
        known = _known(folder)
        for tracker in tuple(self.trackers):
            with self._guarded(tracker):
                known[tracker.name] = tracker.begin(
                    Tracked(run.name, run.group, run.values, known_as=known.get(tracker.name))
                )
        if folder is not None:
            write_json(folder / TRACKING, known)

    def log(self, step: int, line: Mapping[str, Any], clients: Sequence[str]) -> None:
        """One line of metrics.jsonl."""
        values = numbers_in(line, clients)
        for tracker in tuple(self.trackers):
            with self._guarded(tracker):
                tracker.log(step, values)

    def end(self, outcome: Outcome | None) -> None:
        """The run is finished, or (None) was stopped."""
        told = {} if outcome is None else {name: getattr(outcome, name) for name in (*SCORES, *COSTS)}
        results = {name: float(value) for name, value in told.items() if value is not None}
        for tracker in tuple(self.trackers):
            with self._guarded(tracker):
                tracker.end(outcome is not None, results)

    @contextmanager
    def _guarded(self, tracker: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.trackers.remove(tracker)
            why = (str(error) or type(error).__name__).splitlines()[0][:300]
            self.warn(f"{tracker.name} does not track this run any further ({why}); the run goes on")


def _known(folder: Path | None) -> dict[str, str]:
    if folder is None or not (folder / TRACKING).exists():
        return {}
    content = read_json(folder / TRACKING, "record of trackers")
    if not all(isinstance(value, str) for value in content.values()):
        raise IntegrityError(f"{folder / TRACKING} is damaged; delete it, and the run is tracked anew")
    return {name: str(value) for name, value in content.items()}


def _described(made: Plan, method: str, seed: int, folder: Path | None) -> Tracked:
    values = {"method": method, "seed": str(seed), "dataset": made.dataset} | _flat(tomllib.loads(made.config()))
    label = origin.label(made.dataset)
    if folder is None:
        return Tracked(f"{method}-seed{seed}", label, values)
    return Tracked(folder.name, folder.parent.name if is_comparison(folder.parent) else label, values)


def _flat(content: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": str(value)}
    return flat


def _home(folder: Path | None) -> Path:
    """Beside the folder of the run or comparison, so that several of them stand side by side."""
    if folder is None:
        return RUNS
    return (folder.parent if is_comparison(folder.parent) else folder).parent


@contextmanager
def tracked(
    wanted: Sequence[str],
    made: Plan,
    method: str,
    seed: int,
    clients: Sequence[str],
    folder: Path | None,
    before: Sequence[Line],
    warn: Warn,
) -> Iterator[tuple[Callable[[Tick], None], Callable[[Outcome], None]]]:
    """Functions to call after every round, and with what came of the run; `before` are rounds of earlier, if it goes on."""
    tracking = Tracking([parsed(text, TRACKERS, _home(folder)) for text in wanted], warn)
    if not wanted:
        yield (lambda tick: None), (lambda outcome: None)
        return
    ended: list[Outcome] = []
    tracking.begin(_described(made, method, seed, folder), folder)
    for step, line in enumerate(before, start=1):
        tracking.log(step, line, clients)
    try:
        yield (lambda tick: tracking.log(tick.done, tick.line, clients)), ended.append
    finally:
        tracking.end(ended[0] if ended else None)


def track_folder(wanted: Sequence[str], folder: Path, warn: Warn) -> None:
    """Let trackers have a run whose folder has come home, as from a federation."""
    made, outcome = read_plan(folder), read_outcome(folder)
    with tracked(wanted, made, made.names[0], made.seeds[0], (), folder, read_metrics(folder), warn) as (_, ended):
        if outcome is not None:
            ended(outcome)

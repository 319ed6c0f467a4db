"""MLflow: one SQLite file, without a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from suture.trackers.tracker import Tracked, Tracker, identity

DATABASE = "mlflow.db"
EXPERIMENT = "suture"
LONGEST_VALUE, MOST_AT_ONCE = 6000, 1000
"""Of a parameter and of metrics, in MLflow."""
SECONDS_BETWEEN_WRITES = 1.0


class MLflow(Tracker):
    """`mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows them."""

    name: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def begin(self, run: Tracked) -> str:
        """A run that goes on is asked which steps it has."""
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self.folder.mkdir(parents=True, exist_ok=True)
        self.metric: Any = Metric
        self.last, self.waiting, self.told = 0, list[Any](), time.monotonic()
        with _hushed():
            self.client: Any = MlflowClient(f"sqlite:///{(self.folder / DATABASE).absolute()}")
            return self._begin(run)

    def _begin(self, run: Tracked) -> str:
        if run.known_as is not None:
            self.run: str = identity(run.known_as)
            self.client.update_run(self.run, "RUNNING")
            self.last = self._last_step()
            return self.run
        found = self.client.get_experiment_by_name(EXPERIMENT)
        place = (self.folder / "artifacts").absolute().as_uri()
        number = found.experiment_id if found else self.client.create_experiment(EXPERIMENT, artifact_location=place)
        self.run = self.client.create_run(number, run_name=f"{run.group}/{run.name}").info.run_id
        for key, value in run.values.items():
            self.client.log_param(self.run, key, value[:LONGEST_VALUE])
        return self.run

    def _last_step(self) -> int:
        names = [name for name in self.client.get_run(self.run).data.metrics if not name.startswith("result/")]
        return max((point.step for name in names for point in self.client.get_metric_history(self.run, name)), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A round that is there already is the same, and left out; the others go in one transaction a second."""
        if step > self.last:
            self._add(values, step)
        if time.monotonic() - self.told > SECONDS_BETWEEN_WRITES:
            self._write()

    def _add(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self.waiting += [self.metric(name, value, now, step) for name, value in values.items()]

    def _write(self) -> None:
        for start in range(0, len(self.waiting), MOST_AT_ONCE):
            self.client.log_batch(self.run, metrics=self.waiting[start : start + MOST_AT_ONCE])
        self.waiting, self.told = [], time.monotonic()

    def end(self, finished: bool, results: Mapping[str, float]) -> None:
        """Finished, or killed: MLflow's word for what may go on."""
        self._add({f"result/{name}": value for name, value in results.items()}, 0)
        self._write()
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")


@contextmanager
def _hushed() -> Iterator[None]:
    """MLflow tells of each table that it makes in a new file; nobody has asked."""
    logs = [logging.getLogger(name) for name in ("mlflow", "mlflow.store.db.utils", "alembic")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)

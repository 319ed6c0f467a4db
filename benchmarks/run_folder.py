"""What a run folder costs: rounds with ledger, metrics, checkpoints and pulse against rounds of the bare engine.

    python benchmarks/run_folder.py [--dataset cora] [--method fedavg] [--rounds 300] [--threads 1] [--data-root DIR]

Both do the same work: train, combine, test. A bare round is computed after every round of the run, in the same process, so
that a busy machine slows both. Means over all rounds are compared, because checkpoints are not part of every round; at most
1.1 is wanted. On a busy machine processor time says more than time: what others do is not in it, nor is waiting for a disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from suture.core.process import prepare_process

prepare_process()

import torch  # noqa: E402

import suture  # noqa: E402
from suture.core.message import Nothing  # noqa: E402
from suture.engines.embedded import EmbeddedCohort  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.runs.outcome import Tick  # noqa: E402
from suture.runs.plan import plan  # noqa: E402
from suture.runs.prepare import prepare, preprocess  # noqa: E402

WANTED, WARM_UP = 1.1, 5


class InTurns:
    """Called after every round of a run: stops the watch, computes a bare round, and starts the watch again."""

    def __init__(self, dataset: str, method: str, root: Path | None) -> None:
        made = plan(dataset, [method])
        graph = preprocess(datasets.load(dataset, root), made.protocol.preprocess)
        prepared = prepare(graph, dataset, made.protocol, seed=made.seeds[0])
        self.method = made.methods[0]
        self.body = self.method.plan()[0].body
        self.cohort = EmbeddedCohort.start(self.method, prepared.clients, prepared.task)
        self.server = self.method.init_server(prepared.task)
        self.of_run, self.bare = list[tuple[float, float]](), list[tuple[float, float]]()
        self.started = _now()

    def __call__(self, name: str, seed: int, tick: Tick) -> None:
        ended = _now()
        self.server = self.body(self.server, self.cohort)
        self.cohort.evaluate(Nothing(self.cohort.ids))
        after = _now()
        self.of_run.append((ended[0] - self.started[0], ended[1] - self.started[1]))
        self.bare.append((after[0] - ended[0], after[1] - ended[1]))
        self.started = _now()


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description="A round with its run folder against a bare one.")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    turns = InTurns(options.dataset, options.method, options.data_root)
    with tempfile.TemporaryDirectory() as folder:
        how = suture.Options(data_root=options.data_root, watch=turns)
        suture.run(options.dataset, options.method, out=Path(folder) / "run", rounds=options.rounds, options=how)
    print(f"{options.dataset}, {options.method}, {options.threads} threads, mean of {options.rounds - WARM_UP} rounds:")
    for clock, what in enumerate(("time", "processor time")):
        run, bare = (1e3 * statistics.fmean(one[clock] for one in side[WARM_UP:]) for side in (turns.of_run, turns.bare))
        print(f"{what}: with its folder {run:.2f} ms, bare {bare:.2f} ms: {run / bare:.3f} times (wanted {WANTED})")


if __name__ == "__main__":
    main()

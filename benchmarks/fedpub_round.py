"""How much longer a FED-PUB round takes than a FedAvg round of the same run.

    python benchmarks/fedpub_round.py [--dataset cora] [--clients 10] [--threads 2] [--rounds 30]
        [--rank 64] [--precision bfloat16] [--clock processor] [--data-root DIR]

Both train the clients of `fedpub-disjoint` and test every client's model after its local epochs, as the protocol does;
their rounds alternate, so that a busy machine slows both, and medians are printed. FED-PUB may take twice as
long. `--rank` and `--precision` are its `proxy_rank` and `proxy_precision`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

prepare_process()  # for both methods, and before torch is imported

import torch  # noqa: E402

from suture.config.resolve import resolve  # noqa: E402
from suture.core.message import Nothing  # noqa: E402
from suture.engines.embedded import EmbeddedCohort  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.method import Method  # noqa: E402
from suture.methods.fedavg import FedAvg  # noqa: E402
from suture.methods.fedpub.method import FedPub  # noqa: E402
from suture.runs.prepare import Prepared, prepare, preprocess  # noqa: E402

ALLOWED = 2.0
CLOCKS = {"time": time.perf_counter, "processor": time.process_time}
WARM_UP = 3


class Side:
    """One method at work."""

    def __init__(self, prepared: Prepared, method: Method[Any, Any], clock: Callable[[], float]) -> None:
        self.clock = clock
        self.body = method.plan()[0].body
        self.cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task)
        self.server = method.init_server(prepared.task)

    def milliseconds(self) -> float:
        started = self.clock()
        self.server = self.body(self.server, self.cohort)
        self.cohort.evaluate(Nothing(self.cohort.ids))
        return 1e3 * (self.clock() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="A FED-PUB round against a FedAvg round.")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of each method")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--clock", choices=CLOCKS, default="time", help="processor: of all threads; for busy machines")
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    protocol = resolve("fedpub-disjoint", options.dataset, [], clients=options.clients, method_fields={}).protocol
    data = preprocess(datasets.load(options.dataset, options.data_root), protocol.preprocess)
    prepared = prepare(data, options.dataset, protocol, seed=0)
    fedpub = FedPub(protocol.model, protocol.training, proxy_rank=options.rank, proxy_precision=options.precision)
    methods = (FedAvg(protocol.model, protocol.training), fedpub)
    sides = [Side(prepared, method, CLOCKS[options.clock]) for method in methods]
    times: list[tuple[float, ...]] = [tuple(side.milliseconds() for side in sides) for _ in range(WARM_UP + options.rounds)]
    of_fedavg, of_fedpub = (statistics.median(column) for column in zip(*times[WARM_UP:], strict=True))
    print(f"{options.dataset}, {options.clients} clients, {options.threads} threads, median of {options.rounds} rounds:")
    print(f"fedavg {of_fedavg:.1f} ms, fedpub {of_fedpub:.1f} ms: {of_fedpub / of_fedavg:.2f} times (allowed {ALLOWED})")


if __name__ == "__main__":
    main()

"""CPU seconds of a FedSage round (sampled mini-batches, protocol fedsage-louvain), and what share its parts have.

python benchmarks/sampled_round.py ../shared/datasets cora pubmed cs --clients 3 10
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

prepare_process()  # before torch is imported

import torch  # noqa: E402

from suture.config.resolve import resolve  # noqa: E402
from suture.core.streams import Streams  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.method import Method  # noqa: E402
from suture.methods import METHODS, own_fields  # noqa: E402
from suture.runs.execute import execute  # noqa: E402
from suture.runs.outcome import Tick  # noqa: E402
from suture.runs.prepare import Prepared, prepare, preprocess  # noqa: E402
from suture.settings import Protocol  # noqa: E402
from suture.training.batches import batches  # noqa: E402


def seconds_of_rounds(prepared: Prepared, method: Method[Any, Any], protocol: Protocol) -> list[float]:
    """CPU seconds of every round but the first, which builds what the others share."""
    ticks: list[float] = []

    def watch(_: Tick) -> None:
        ticks.append(time.process_time())

    execute(prepared, method, protocol, watch=watch)
    return [after - before for before, after in itertools.pairwise(ticks)]


def main() -> None:
    """Print one line for every data set and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the data sets")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fields = {name: own_fields(kind) for name, kind in METHODS.items()}
    for name in arguments.names:
        for clients in arguments.clients:
            changes = [f"training.rounds={arguments.rounds}"]
            request = resolve("fedsage-louvain", name, changes, clients=clients, method_fields=fields)
            protocol = request.protocol
            data = preprocess(datasets.load(name, arguments.root), protocol.preprocess)
            prepared = prepare(data, name, protocol, 0)
            method: Method[Any, Any] = METHODS["fedsage"](model=protocol.model, training=protocol.training)
            rounds = seconds_of_rounds(prepared, method, protocol)
            started = time.process_time()
            steps = sum(1 for _ in batches(prepared.clients, method.training, Streams.of(0, prepared.clients.ids)))
            sampling = time.process_time() - started
            median = statistics.median(rounds)
            print(
                f"{name:10} {clients:3} clients  {median:.3f} s a round (least {min(rounds):.3f}), {steps} steps of "
                f"{1000 * median / steps:.1f} ms, of which drawing the batch {1000 * sampling / steps:.1f} ms"
            )


if __name__ == "__main__":
    main()

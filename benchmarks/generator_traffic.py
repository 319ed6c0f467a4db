"""What training a generator of missing neighbours sends: FedDEP's Table 1 in megabytes, from the ledger.

    python benchmarks/generator_traffic.py [--datasets cora citeseer pubmed cs] [--clients 5] [--epochs 2] [--data-root DIR]

Bytes are those of all messages before the classifier's first round, both directions, all clients. What is sent once is
measured once; of phases that repeat, the first `--epochs` iterations are run and the rest is taken to be like them.

Table 1 is about a FedSage+ whose generator is large. Ours is 8 units wide, for privacy, so it is measured also with the 256
of the public code's first layer (and the rows that others ask for then). Exit code 1 if that one, FedDEP without Proto and
FedDEP are not in Table 1's order.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suture.config.resolve import resolve
from suture.core.message import Message
from suture.engines.embedded import EmbeddedCohort
from suture.graph import datasets
from suture.method import Method
from suture.methods import METHODS, own_fields
from suture.runs.prepare import Prepared, prepare, preprocess

ROWS: dict[str, tuple[str, dict[str, object]]] = {
    "fedsage_plus": ("fedsage_plus", {}),
    "fedsage_plus, 256": ("fedsage_plus", {"width": 256, "exchanged": 258}),
    "feddep w/o proto": ("feddep", {"proto": False}),
    "feddep": ("feddep", {}),
}


@dataclass
class Counter:
    """A ledger that only adds up."""

    total: int = 0

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """Add all bytes of a message."""
        self.total += sum(message.nbytes())


@dataclass(frozen=True)
class Traffic:
    """Bytes of what precedes the classifier: once, and in each of `epochs` epochs."""

    once: float
    each: float
    epochs: int

    @property
    def total(self) -> float:
        """Everything."""
        return self.once + self.each * self.epochs


def measure(prepared: Prepared, method: Method[Any, Any], epochs: int) -> Traffic:
    """Run all phases before the rounds, repeated ones at most `epochs` times."""
    counter = Counter()
    cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task, ledger=counter)
    server, once, each, times = method.init_server(prepared.task), 0.0, 0.0, 0
    for phase in method.plan()[:-1]:
        before, runs = counter.total, min(phase.times, epochs)
        for _ in range(runs):
            server = phase.body(server, cohort)
        sent = counter.total - before
        if phase.times == 1:
            once += sent
        else:
            each, times = sent / runs, phase.times
    return Traffic(once, each, times)


def main() -> int:
    """Print one line for each data set and method."""
    parser = argparse.ArgumentParser(description="Traffic of neighbour generators.")
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed", "cs"])
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fields = {name: own_fields(method) for name, method in METHODS.items()}
    in_order = True
    print(f"{'dataset':9} {'generator of':17} {'MB once':>9} {'MB/epoch':>9} {'epochs':>6} {'MB in all':>10}")
    for dataset in options.datasets:
        resolved = resolve("feddep-louvain", dataset, [], clients=options.clients, method_fields=fields)
        protocol = resolved.protocol
        data = preprocess(datasets.load(dataset, options.data_root), protocol.preprocess)
        prepared = prepare(data, dataset, protocol, seed=0)
        totals = []
        for row, (name, own) in ROWS.items():
            values: dict[str, Any] = {**resolved.methods.get(name, {}), **own}
            method = METHODS[name](model=protocol.model, training=protocol.training, **values)
            traffic = measure(prepared, method, options.epochs)
            totals.append(traffic.total)
            figures = f"{traffic.once / 1e6:9.3f} {traffic.each / 1e6:9.3f} {traffic.epochs:6} {traffic.total / 1e6:10.3f}"
            print(f"{dataset:9} {row:17} {figures}", flush=True)
        in_order &= totals[1:] == sorted(totals[1:], reverse=True)
    return 0 if in_order else 1


if __name__ == "__main__":
    sys.exit(main())

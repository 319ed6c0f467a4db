"""What generators of missing neighbours cost beside the classifier of the same run, and the memory of both.

    python benchmarks/generator_cost.py [--datasets pubmed cs] [--clients 10] [--methods fedsage_plus feddep]

Processor seconds of one thread. Of phases that repeat, `--times` iterations are timed after a first one, and the rest is
taken to be like them. Each line is a process of its own, and its peak memory includes loading, cutting and two rounds. Exit
code 1 if all phases before the rounds take more than 3 times the rounds, or a peak is above 6 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RATIO, PEAK_GB = 3.0, 6.0


def child(dataset: str, clients: int, name: str, times: int, root: Path | None) -> int:
    """Time one method on one data set and print its line."""
    from suture.core.process import peak_bytes, prepare_process

    prepare_process()
    import torch

    from suture.config.resolve import resolve
    from suture.engines.embedded import EmbeddedCohort
    from suture.graph import datasets
    from suture.methods import METHODS, own_fields
    from suture.runs.prepare import prepare, preprocess

    torch.set_num_threads(1)
    protocol_name = "feddep-louvain" if name == "feddep" else "fedsage-louvain"
    fields = {each: own_fields(kind) for each, kind in METHODS.items()}
    run = resolve(protocol_name, dataset, [], clients=clients, method_fields=fields)
    data = preprocess(datasets.load(dataset, root or datasets.data_root()), run.protocol.preprocess)
    prepared = prepare(data, dataset, run.protocol, seed=0)
    method: Any = METHODS[name](model=run.protocol.model, training=run.protocol.training, **run.methods.get(name, {}))
    cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task)
    server = method.init_server(prepared.task)
    seconds: dict[str, float] = {}
    for phase in method.plan():
        started = time.process_time()
        server = phase.body(server, cohort)
        first = time.process_time() - started
        again = min(times, phase.times - 1)
        for _ in range(again):
            server = phase.body(server, cohort)
        spent = time.process_time() - started
        seconds[phase.name] = first if again == 0 else first + (spent - first) / again * (phase.times - 1)
    rounds = seconds.pop("round")
    ratio, peak = sum(seconds.values()) / rounds, peak_bytes() / 1e9
    before = ", ".join(f"{phase} {value:.1f} s" for phase, value in seconds.items())
    print(
        f"{dataset:9} {clients:3} {name:13} {before}; rounds {rounds:.1f} s; ratio {ratio:.2f}; peak {peak:.2f} GB",
        flush=True,
    )
    return int(ratio > RATIO or peak > PEAK_GB)


def main() -> int:
    """A line for each data set and method."""
    parser = argparse.ArgumentParser(description="Cost of neighbour generators.")
    parser.add_argument("--datasets", nargs="+", default=["pubmed", "cs"])
    parser.add_argument("--methods", nargs="+", default=["fedsage_plus", "feddep"])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.datasets[0], options.clients, options.methods[0], options.times, options.data_root)
    failed = 0
    for dataset in options.datasets:
        for method in options.methods:
            command = [sys.executable, __file__, "--child", "--datasets", dataset, "--methods", method]
            command += ["--clients", str(options.clients), "--times", str(options.times)]
            command += ["--data-root", str(options.data_root)] if options.data_root else []
            failed |= subprocess.run(command, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""Where the time of a FedAvg round goes, part by part, and what each part would take at the machine's own limit.

    python benchmarks/limits.py [--datasets cora,pubmed] [--threads 1] [--rounds 20] [--data-root DIR]

The round is that of `round_time.py`. A dispatch mode times every operator; they are put into parts:

    part         what                                                          its limit
    products     dense and sparse ones, forward, backward and in the test      multiply-adds at the rate of a large product
    optimiser    Adam's step                                                   its traffic at the rate of a large copy
    copies       clones, concatenations, changes of layout                     none is unavoidable
    elementwise  bias, ReLU, dropout, softmax, sums, averaging                 activations and messages, each once
    dispatch     Python, and getting from one operator to the next             nothing

Whole rounds are timed without that mode, in turns with those that have it, and the fastest of each is taken. With one thread
it is processor time, which means something on a busy machine, too; with more it is time. The mode makes small operators
slower, so that parts may add up to more than a round.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from round_time import (  # prepares the process; before torch
    CLIENTS,
    CLOCKS,
    WANTED,
    Ours,
    machine_limits,
    seconds,
    unavoidable,
)

import torch  # isort: skip
from torch.utils._python_dispatch import TorchDispatchMode  # isort: skip

from suture.config.resolve import resolve
from suture.graph import datasets
from suture.methods.fedavg import FedAvg
from suture.runs.prepare import Prepared, prepare, preprocess

PARTS = {
    "products": ("mm", "bmm", "addmm", "baddbmm", "embedding_bag", "sparse"),
    "optimiser": ("_fused_adam",),
    "copies": ("clone", "copy_", "cat", "contiguous", "index_select", "_to_copy", "gather", "index"),
}
OTHER, DISPATCH = "elementwise", "dispatch"


def part_of(operator: str) -> str:
    """The part an operator such as `addmm` belongs to."""
    for part, names in PARTS.items():
        if any(operator == one or (len(one) > 5 and one in operator) for one in names):
            return part
    return OTHER


class Parts(TorchDispatchMode):
    """Milliseconds of the operators that are called inside, by part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.clock, self.found = clock, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = self.clock()
        out = func(*args, **(kwargs or {}))
        self.found[part_of(func.overloadpacket.__name__)] += 1e3 * (self.clock() - started)
        return out


def limits_of(prepared: Prepared, method: FedAvg, rates: tuple[float, float]) -> dict[str, float]:
    """Milliseconds of each part at the machine's limit."""
    work, traffic = unavoidable(prepared, method)
    weights = sum(value.numel() for value in method.initial_params(prepared.task).values()) * CLIENTS
    adam = 4 * 7 * weights
    return {
        "products": 1e3 * work / rates[0],
        "optimiser": 1e3 * adam / rates[1],
        "copies": 0.0,
        OTHER: 1e3 * (traffic - adam) / rates[1],
        DISPATCH: 0.0,
    }


def measure(
    name: str, root: Path | None, rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, float], float, Prepared, FedAvg]:
    """(milliseconds of each part, of a round, and what was run)."""
    settings = resolve("fedpub-disjoint", name, ["rounds=1", "local_epochs=1"], clients=CLIENTS, method_fields={}).protocol
    prepared = prepare(preprocess(datasets.load(name, root), settings.preprocess), name, settings, seed=0)
    method = FedAvg(model=settings.model, training=settings.training)
    ours = Ours(prepared, method)
    for _ in range(3):
        ours.round()
    times, profiles = list[float](), list[Counter[str]]()
    for _ in range(rounds):
        times.append(1e3 * seconds(ours.round, clock))
        with Parts(clock) as parts:
            ours.round()
        profiles.append(parts.found)
    whole, found = min(times), min(profiles, key=Counter.total)
    return {**found, DISPATCH: max(0.0, whole - sum(found.values()))}, whole, prepared, method


def main() -> None:
    parser = argparse.ArgumentParser(description="A round by part, against the machine's limit.")
    parser.add_argument("--datasets", default=",".join(WANTED), help="comma-separated names")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS["processor" if options.threads == 1 else "time"]
    rates = machine_limits(clock)
    print(f"{options.threads} threads, {rates[0] / 1e9:.0f} G multiply-adds/s, {rates[1] / 1e9:.1f} GB/s")
    for name in options.datasets.split(","):
        parts, whole, prepared, method = measure(name, options.data_root, options.rounds, clock)
        limits = limits_of(prepared, method, rates)
        print(f"{name}: {whole:.1f} ms a round, {sum(limits.values()) / whole:.0%} of the limit")
        for part, limit in limits.items():
            took = parts.get(part, 0.0)
            print(f"  {part:12} {took:7.2f} ms {took / whole:5.0%} of the round, at the limit {limit:6.2f} ms", flush=True)


if __name__ == "__main__":
    main()

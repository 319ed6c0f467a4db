"""Whether `--threads auto` chooses well: FedAvg rounds with one thread, with one a core, and with what it chooses.

    python benchmarks/threads.py [--dataset cora] [--spinning 4] [--rounds 40] [--turns 3] [--spins 20000] [--data-root DIR]

Every setting is a process of its own, as a command is; they take turns, first on the machine as it is and then beside so
many processes that do nothing but spin. Printed is the median time of a round, and how many times that of the best fixed
setting it is. `--spins` tries other GOMP_SPINCOUNTs than the one that `suture` sets.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suture.core.process import prepare_process

SPIN = "GOMP_SPINCOUNT"
AUTO = "auto"


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """So many processes that take all the processor time they get."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def rounds_of(dataset: str, threads: str, rounds: int, root: Path | None) -> tuple[int, float]:
    """(threads, median milliseconds of a round with its test), in this process."""
    prepare_process()
    import torch

    from suture.config.resolve import resolve
    from suture.core.message import Nothing
    from suture.core.threads import choose
    from suture.engines.embedded import EmbeddedCohort
    from suture.graph import datasets
    from suture.methods.fedavg import FedAvg
    from suture.runs.prepare import prepare, preprocess

    if threads == AUTO:
        choose()
    else:
        torch.set_num_threads(int(threads))
    protocol = resolve("fedpub-disjoint", dataset, [], clients=10, method_fields={}).protocol
    prepared = prepare(preprocess(datasets.load(dataset, root), protocol.preprocess), dataset, protocol, seed=0)
    method = FedAvg(model=protocol.model, training=protocol.training)
    cohort, server = EmbeddedCohort.start(method, prepared.clients, prepared.task), method.init_server(prepared.task)
    times = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        server = method.round(server, cohort)
        cohort.evaluate(Nothing(cohort.ids))
        times.append(1e3 * (time.perf_counter() - started))
    return torch.get_num_threads(), statistics.median(times[3:])


def in_its_own_process(options: argparse.Namespace, threads: str, spin: str) -> tuple[int, float]:
    command = [sys.executable, __file__, "--dataset", options.dataset, "--rounds", str(options.rounds), "--one", threads]
    command += ["--data-root", str(options.data_root)] if options.data_root else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_NUM"))}
    done = subprocess.run(
        command, env=environment | ({SPIN: spin} if spin else {}), check=True, capture_output=True, text=True
    )
    used, milliseconds = json.loads(done.stdout.splitlines()[-1])
    return int(used), float(milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Threads chosen by measuring, against fixed ones.")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--spinning", type=int, default=4, help="processes beside it")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--spins", default="", help="comma-separated; as `suture` sets it if empty")
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(rounds_of(options.dataset, options.one, options.rounds, options.data_root)))
        return
    cores = str(len(os.sched_getaffinity(0)))
    for spin in options.spins.split(","):
        for load in dict.fromkeys((0, options.spinning)):
            settings = dict.fromkeys(("1", cores, AUTO))
            with spinning(load):
                turns = [{one: in_its_own_process(options, one, spin) for one in settings} for _ in range(options.turns)]
            medians = {one: statistics.median(turn[one][1] for turn in turns) for one in settings}
            best = min(medians["1"], medians[cores])
            chose = "/".join(str(turn[AUTO][0]) for turn in turns)
            shown = ", ".join(f"{one} {ms:.1f} ms ({ms / best:.2f})" for one, ms in medians.items())
            print(f"{options.dataset}, {SPIN} {spin or 'ours'}, {load} spinning: {shown}; auto chose {chose}", flush=True)


if __name__ == "__main__":
    main()

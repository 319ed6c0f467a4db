"""Time and memory of training on a graph of a million nodes and ten million edges, each case in a process of its own.

python benchmarks/million.py --nodes 1000000 --edges 10000000 --cases gcn,sage,fedsage,metis

The graph has one planted community for each of ten owners and two classes that are half visible in the features. A peak is
what the system says of the whole process (VmHWM), the graph that was handed over included; a long cut runs in a process of
its own and comes on top. `--stages` says what it was
after each part of a run. Exit code 1 if a case is above its bound.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from planted import planted_graph

OWNERS, FEATURES, BOUND_GB = 10, 64, 4.0


@dataclass(frozen=True)
class Case:
    """A method, what differs from the protocol `own`, and where its owners come from."""

    method: str
    overrides: tuple[str, ...]
    kind: str = "auto"


CASES = {
    "gcn": Case("fedavg", ("model.kind=gcn",)),
    "sage": Case("fedavg", ("model.kind=sage",)),
    "fedsage": Case("fedsage", ("fedsage.batch_size=1024", "fedsage.fanout=5")),
    "fedggr": Case("fedggr", ()),
    "fedsage_plus": Case("fedsage_plus", ("fedsage_plus.generator_epochs=3", "fedsage_plus.batch_size=1024")),
    "feddep": Case("feddep", ("feddep.generator_epochs=3", "feddep.pretrain_epochs=2", "feddep.batch_size=1024")),
    "metis": Case("fedavg", ("model.kind=gcn",), "metis"),
    "louvain": Case("fedavg", ("model.kind=gcn",), "louvain"),
}


def write_graph(folder: Path, nodes: int, edges: int) -> None:
    """The graph as npy files."""
    for name, values in planted_graph(nodes, edges, OWNERS, FEATURES).items():
        np.save(folder / f"{name}.npy", values)


def child(name: str, folder: Path, rounds: int, threads: int, stages: bool) -> None:
    """Run one case in this process and print its figures as JSON."""
    from suture.core.process import peak_bytes, prepare_process

    prepare_process()
    import torch
    from torch_geometric.data import Data

    import suture
    from suture.runs.outcome import Tick

    torch.set_num_threads(threads)
    if stages:
        _tell_stages()
    case = CASES[name]
    parts = {file.stem: torch.from_numpy(np.load(file)) for file in sorted(folder.glob("*.npy"))}
    data, held = Data(**parts, directed=False), peak_bytes()
    ticks: list[float] = []
    started = time.perf_counter()

    def watch(method: str, seed: int, tick: Tick) -> None:
        ticks.append(time.perf_counter())
        logging.getLogger("suture.million").info("round %d", tick.done)

    changes = ["model.hidden=128", f"partition.kind={case.kind}", f"training.rounds={rounds}", *case.overrides]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        options = suture.Options(watch=watch)
        result = suture.run(data, case.method, overrides=changes, clients=OWNERS, out=Path(out) / "run", options=options)
    used = resource.getrusage(resource.RUSAGE_SELF)
    later = np.diff(ticks)
    figures = {
        "case": name,
        "before_gb": round(held / 1e9, 2),
        "peak_gb": round(peak_bytes() / 1e9, 2),
        "elsewhere_gb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6, 2),
        "first_round": round(ticks[0] - started, 1),
        "a_round": round(float(np.median(later)), 1) if len(later) else None,
        "in_all": round(time.perf_counter() - started, 1),
        "cpu": round(used.ru_utime + used.ru_stime, 1),
        "accuracy": round(result.outcome.accuracy_client_mean, 4),
    }
    print(json.dumps(figures))


def _tell_stages() -> None:
    """Every log line of a run, with the peak up to it."""
    from suture.core.process import peak_bytes

    class Peaks(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            now = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]
            return f"  {peak_bytes() / 1e9:5.2f} GB peak, {int(now) / 1e6:5.2f} now: {record.getMessage()}"

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Peaks())
    logging.getLogger("suture").addHandler(handler)
    logging.getLogger("suture").setLevel(logging.DEBUG)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--cases", default="gcn,sage,fedsage,metis")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--graph", type=Path, default=None, help="keep the graph here, and use it if it is there")
    parser.add_argument("--stages", action="store_true", help="print the peak after each part of a run")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.graph, options.rounds, options.threads, options.stages)
        return 0
    above = False
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as temporary:
        folder = options.graph or Path(temporary)
        if not (folder / "x.npy").exists():
            folder.mkdir(exist_ok=True)
            write_graph(folder, options.nodes, options.edges)
        print("case      peak GB  cut GB  before  first round  s/round  s in all   CPU s   test")
        for name in options.cases.split(","):
            command = [sys.executable, "-W", "ignore", __file__, "--child", name, "--graph", str(folder)]
            command += ["--rounds", str(options.rounds), "--threads", str(options.threads)]
            command += ["--stages"] * options.stages
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
            row = json.loads(lines[-1])
            above |= row["peak_gb"] > BOUND_GB
            memory = f"{row['peak_gb']:8.2f} {row['elsewhere_gb']:7.2f} {row['before_gb']:7.2f}"
            times = f"{row['first_round']:12.1f} {row['a_round'] or 0:8.1f} {row['in_all']:9.1f} {row['cpu']:7.1f}"
            print(f"{name:8} {memory} {times} {row['accuracy']:6.3f}", flush=True)
    return int(above)


if __name__ == "__main__":
    sys.exit(main())

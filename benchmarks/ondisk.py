"""A graph too large for memory, written owner after owner, trained on by FedSage and predicted on from disk.

    python benchmarks/ondisk.py --nodes 20000000 --edges 100000000 --features 64 --folder /big/disk/graph

Owners hold equally many nodes; edges go both ways and stay inside an owner (those between owners would be lost in the cut).
Classes are half visible in the features, and one node in fifty has a label: half of these train. Each stage is a process of
its own: its peak resident size (VmHWM, mapped pages included) and processor time are printed. The folder is left where it
is if it was named, and removed otherwise. Exit code 1 if a stage is above `--bound` GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

OWNERS, CLASSES = 10, 2


def write(folder: Path, nodes: int, edges: int, features: int) -> None:
    """The graph, an owner at a time."""
    import scipy.sparse as sp

    from suture.graph.stored import Writer

    rng = np.random.default_rng(0)
    sizes = [len(part) for part in np.array_split(np.empty(nodes, dtype=np.int8), OWNERS)]
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder, [f"owner-{k}" for k in range(OWNERS)], sizes, features)
    start = 0
    for size in sizes:
        y = rng.integers(0, CLASSES, size)
        for rows in np.array_split(np.arange(size), max(1, size // (1 << 18))):
            x = rng.standard_normal((rows.size, features), dtype=np.float32)
            x[np.arange(rows.size), y[rows]] += 1
            role = rng.choice(np.arange(4, dtype=np.int8), rows.size, p=[0.98, 0.01, 0.005, 0.005])
            writer.nodes(x, y[rows], role, start + rows)
        count = edges // OWNERS
        source, target = (rng.integers(0, size, count, dtype=np.int32) for _ in range(2))
        once = sp.coo_array((np.ones(count, dtype=np.bool_), (source, target)), shape=(size, size)).tocsr()
        del source, target
        both = (once + once.T.tocsr()).tocsr()
        writer.edges(np.diff(both.indptr), both.indices)
        start += size
    writer.close()


def stage(name: str, options: argparse.Namespace) -> dict[str, object]:
    """One stage in this process."""
    from suture.core.process import peak_bytes

    begun, more = time.process_time(), {}
    if name == "write":
        write(options.folder, options.nodes, options.edges, options.features)
    else:
        import torch

        from suture.runs import stored

        torch.set_num_threads(options.threads)
        changes = [f"fedsage.batch_size={options.batch}", "fedsage.fanout=5", f"model.hidden={options.hidden}"]
        result = stored.train(options.folder, overrides=changes, rounds=options.rounds)
        more = {"train_cpu": round(time.process_time() - begun, 1), "test": result.history[-1]["test"]}
        said = np.load(stored.predict(options.folder, result, options.folder), mmap_mode="r")
        right = [np.mean(said[at] == np.load(options.folder / "y.npy", mmap_mode="r")[at]) for at in (slice(0, 100_000),)]
        more["accuracy_of_100000"] = round(float(right[0]), 4)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"stage": name, "cpu": round(used.ru_utime + used.ru_stime, 1), "peak_gb": round(peak_bytes() / 1e9, 2), **more}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bound", type=float, default=8.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stage", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(stage(options.stage, options)))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows = []
        for name in ("write", "train"):
            if name == "write" and (folder / "stored.json").exists():
                continue
            command = [sys.executable, "-W", "ignore", __file__, "--stage", name, "--folder", str(folder)]
            for key in ("nodes", "edges", "features", "hidden", "batch", "rounds", "threads"):
                command += [f"--{key}", str(getattr(options, key))]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"nodes": options.nodes, "edges": options.edges, "stages": rows}, indent=1) + "\n"
        )
    return int(any(row["peak_gb"] > options.bound for row in rows))


if __name__ == "__main__":
    sys.exit(main())

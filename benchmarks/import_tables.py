"""Time and memory of `suture import` on a generated CSV graph; by default a million nodes and ten million edges.

python benchmarks/import_tables.py --nodes 1000000 --edges 10000000 --features 64
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

ROWS_AT_ONCE = 100_000


def write_nodes(path: Path, nodes: int, features: int, rng: np.random.Generator) -> None:
    with path.open("wb") as file:
        for start in range(0, nodes, ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, nodes - start)
            x = rng.standard_normal((rows, features)).astype(np.float32)
            noise = rng.standard_normal(rows)
            columns = {"account": [f"A{number:08d}" for number in range(start, start + rows)]}
            frame = pl.DataFrame(columns).with_columns(
                bank=pl.Series(rng.integers(0, 10, rows)).cast(pl.String).str.replace("^", "bank-"),
                kind=pl.Series(rng.choice(["private", "firm", "state"], rows)),
                fraud=pl.Series((x[:, 0] + noise > 2.5).astype(np.int8)),
                **{f"f{number}": x[:, number] for number in range(features)},
            )
            frame.write_csv(file, include_header=start == 0, float_precision=5)


def write_edges(path: Path, nodes: int, edges: int, rng: np.random.Generator) -> None:
    with path.open("wb") as file:
        for start in range(0, edges, 10 * ROWS_AT_ONCE):
            rows = min(10 * ROWS_AT_ONCE, edges - start)
            # One end in a hundred is no account of the table.
            ends = rng.integers(0, nodes + nodes // 100, (2, rows))
            ends[0] = np.minimum(ends[0], nodes - 1)
            frame = pl.DataFrame({"payer": ends[0], "payee": ends[1], "amount": rng.integers(1, 1000, rows)})
            named = pl.format("A{}", pl.col("payer", "payee").cast(pl.String).str.zfill(8))
            frame.with_columns(named).write_csv(file, include_header=start == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as name:
        folder, rng = Path(name), np.random.default_rng(0)
        write_nodes(folder / "nodes.csv", asked.nodes, asked.features, rng)
        write_edges(folder / "edges.csv", asked.nodes, asked.edges, rng)
        sizes = ", ".join(f"{file.name} {file.stat().st_size / 1e6:,.0f} MB" for file in sorted(folder.iterdir()))
        print(f"generated {sizes}", flush=True)
        command = [sys.executable, "-m", "suture", "import", str(folder / "out"), "--nodes", str(folder / "nodes.csv")]
        command += ["--edges", str(folder / "edges.csv"), "--id", "account", "--label", "fraud", "--owner", "bank"]
        command += ["--source", "payer", "--target", "payee", "--weight", "amount"]
        start = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        # On a machine that others use too, CPU seconds say more than the clock.
        print(
            f"\nimport of {asked.nodes:,} nodes and {asked.edges:,} edges: {seconds:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} CPU s, peak {used.ru_maxrss / 1e6:.2f} GB"
        )


if __name__ == "__main__":
    main()

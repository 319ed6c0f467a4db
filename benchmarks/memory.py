"""Peak memory of whole runs (loading, cutting, training, testing), each in a process of its own.

    python benchmarks/memory.py [--cases cs,arxiv-size,thousand] [--data-root DIR] [--json FILE]

Exit code 1 if a case is above its bound.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A run and the memory it may take."""

    dataset: str
    clients: int
    bound_gb: float
    overrides: tuple[str, ...] = ()


CASES = {
    "cs": Case("cs", 10, 2.0, ("local_epochs=1",)),
    "arxiv-size": Case("csbm:nodes=170000,degree=14.1,features=128,classes=40,communities=10", 20, 4.0),
    "thousand": Case(
        "csbm:nodes=100000,degree=6,features=500,classes=5,communities=200", 1000, 4.0, ("partition.kind=random",)
    ),
}


def child(name: str, root: Path | None) -> None:
    """Run one case in this process and print its figures as JSON."""
    from suture.core.process import peak_bytes, prepare_process

    prepare_process()
    import suture

    case = CASES[name]
    started = time.perf_counter()
    result = suture.run(
        case.dataset,
        "fedavg",
        clients=case.clients,
        overrides=["rounds=3", *case.overrides],
        options=suture.Options(data_root=root),
    )
    figures = {
        "case": name,
        "clients": result.outcome.clients,
        "peak_gb": round(peak_bytes() / 1e9, 3),
        "bound_gb": case.bound_gb,
        "seconds_a_round": round(result.outcome.seconds / result.outcome.rounds, 3),
        "seconds_in_all": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(figures))


def main() -> int:
    parser = argparse.ArgumentParser(description="Peak memory of whole runs.")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.data_root)
        return 0
    root = ["--data-root", str(options.data_root)] if options.data_root else []
    results = []
    print(f"{'case':12} {'clients':>7} {'peak GB':>8} {'bound':>6} {'s/round':>8} {'s in all':>8}")
    for name in options.cases.split(","):
        command = [sys.executable, "-W", "ignore", __file__, "--child", name, *root]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        row = json.loads(lines[-1])
        results.append(row)
        print(
            f"{name:12} {row['clients']:7} {row['peak_gb']:8.2f} {row['bound_gb']:6.1f} "
            f"{row['seconds_a_round']:8.2f} {row['seconds_in_all']:8.1f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(any(row["peak_gb"] > row["bound_gb"] for row in results))


if __name__ == "__main__":
    sys.exit(main())

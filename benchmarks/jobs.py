"""How much sooner a comparison is done with several runs side by side, and whether its files are the same.

    python benchmarks/jobs.py [--jobs 2] [--methods local,fedavg,fedpub,gcfl] [--seeds 0,1,2] [--rounds 100] [--turns 3]

`suture compare` on Cora, as one process with as many threads as there are cores, as one process with one thread, and with
`--jobs`, in turns, so that a busy machine slows all of them; medians are printed. *runs* is from the first run's beginning
to the last one's end, *command* is all of it: imports, loading, cuts, the table and the page as well. Every metrics file
with `--jobs` must be that of one process with as many threads, byte for byte. Two quiet cores, twelve runs: at least 1.6
times as fast as one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

WANTED = 1.6


@dataclass
class Side:
    """One way to carry the comparison out, and its seconds in every turn."""

    name: str
    options: tuple[str, ...]
    runs: list[float] = field(default_factory=list)
    command: list[float] = field(default_factory=list)

    def carry_out(self, asked: list[str], out: Path) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "suture", "compare", *asked, *self.options, "--out", str(out), "-q"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.command.append(time.perf_counter() - begun)
        told = json.loads((out / "progress.json").read_text())
        self.runs.append(told["time"] - told["began"])


def differing(one: Path, other: Path) -> list[str]:
    """Runs whose metrics are not the same, byte for byte."""
    runs = sorted(path.parent.name for path in one.glob("*/metrics.jsonl"))
    return [
        run for run in runs if (one / run / "metrics.jsonl").read_bytes() != (other / run / "metrics.jsonl").read_bytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="A comparison side by side against one process.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--methods", default="local,fedavg,fedpub,gcfl")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data-root", default=None)
    options = parser.parse_args()
    asked = ["--dataset", options.dataset, "--methods", options.methods, "--seeds", options.seeds]
    asked += ["--set", f"rounds={options.rounds}"]
    asked += ["--data-root", options.data_root] if options.data_root else []
    jobs = Side(f"--jobs {options.jobs}", ("--jobs", str(options.jobs)))
    sides = [Side("one process", ()), Side("one process, one thread", ("--threads", "1")), jobs]
    different: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            outs = [Path(folder) / f"{turn}-{number}" for number in range(len(sides))]
            for side, out in zip(sides, outs, strict=True):
                side.carry_out(asked, out)
            if json.loads((outs[-1] / "compare.json").read_text())["threads"] == 1:
                different.update(differing(outs[1], outs[2]))
    print(f"{'':26}{'runs, s':>10}{'ratio':>8}{'command, s':>12}{'ratio':>8}")
    fastest = statistics.median(jobs.runs), statistics.median(jobs.command)
    for side in sides:
        runs, command = statistics.median(side.runs), statistics.median(side.command)
        print(f"{side.name:26}{runs:10.2f}{runs / fastest[0]:8.2f}{command:12.2f}{command / fastest[1]:8.2f}")
    print(f"metrics files that differ from one process with one thread: {', '.join(sorted(different)) or 'none'}")
    if different or statistics.median(sides[1].runs) / fastest[0] < WANTED:
        sys.exit(f"expected {WANTED} times as fast as one process with one thread, and no file that differs")


if __name__ == "__main__":
    main()

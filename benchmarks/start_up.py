"""What `suture` costs before it computes anything, in processor time, against that of importing torch alone.

    python benchmarks/start_up.py [--times 5] [--data-root DIR]

Each line is a process of its own; they take turns, and the least of each is printed, because a busy machine only adds. What
is over the time of `import torch` is ours and that of PyTorch Geometric, scipy and the rest.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SUTURE = [sys.executable, "-m", "suture"]
COMPARE = [*SUTURE, "compare", "--dataset", "cora", "--methods", "fedavg", "--seeds", "0", "--threads", "1"]


def processor_seconds(command: list[str]) -> float:
    """Of a process and those it starts, until it ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of starting.")
    parser.add_argument("--times", type=int, default=5, help="processes of each kind")
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    root = ["--data-root", str(options.data_root)] if options.data_root else []
    with tempfile.TemporaryDirectory() as folder:
        one_round = [*COMPARE, *root, "--set", "rounds=1"]
        commands = {
            "import torch": lambda turn: [sys.executable, "-c", "import torch"],
            "suture --help": lambda turn: [*SUTURE, "--help"],
            "suture methods": lambda turn: [*SUTURE, "methods"],
            "suture compare --dry-run": lambda turn: [*COMPARE, "--dry-run"],
            "suture compare, one round, with its report": lambda turn: [*one_round, "--out", f"{folder}/{turn}"],
        }
        # The first turn writes bytecode and caches, and is not counted.
        turns = [
            {name: processor_seconds(made(turn)) for name, made in commands.items()} for turn in range(options.times + 1)
        ]
    for name in commands:
        print(f"{name:44} {min(turn[name] for turn in turns[1:]):6.2f} s")


if __name__ == "__main__":
    main()

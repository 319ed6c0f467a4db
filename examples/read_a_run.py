"""Read a run folder with the standard library alone: the course of a run, what it sent, and what it was computed with.

    python examples/read_a_run.py              make a short run in a temporary folder, and read that
    python examples/read_a_run.py RUN          read a folder of yours, such as runs/first/fedper-seed0

`suture show` prints much of this; the files are there for whatever it does not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path


def lines_of(path: Path) -> list[dict]:
    """A file with one JSON object a line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tell(run: Path) -> None:
    """Print what a finished run left behind."""
    asked, result = (json.loads((run / name).read_text()) for name in ("run.json", "result.json"))
    print(f"{asked['methods'][0]} on {asked['dataset']}, seed {asked['seeds'][0]}")

    print("\nround  validation    test")
    for line in lines_of(run / "metrics.jsonl"):
        if line.get("validation") is not None:
            mark = "  reported" if line["round"] == result["best_round"] else ""
            print(f"{line['round']:5d} {100 * line['validation']:11.2f} {100 * line['test']:7.2f}{mark}")

    # A line of the ledger is one exchange: who took part, and the bytes of each of them.
    sent: Counter[tuple[str, str, str]] = Counter()
    for line in lines_of(run / "ledger.jsonl"):
        for client, size in zip(line["clients"], line["bytes"], strict=True):
            sent[client, line["step"], line["direction"]] += size
    print("\nclient     step          way       bytes")
    for (client, step, way), size in sorted(sent.items()):
        print(f"{client:<10} {step:<13} {way:<5} {size:9d}")
    # How an experiment is judged is written down too, but does not count as a method's traffic.
    up = sum(size for (_, step, way), size in sent.items() if way == "up" and step != "evaluate")
    print(f"up in all, without evaluation: {up}; the result says {result['bytes_up']}")

    environment = json.loads((run / "environment.json").read_text())
    print(f"\ncomputed with torch {environment['packages']['torch']} on {environment['threads']} threads")


def main() -> None:
    """Read the folder that is named, or one made for the purpose."""
    if len(sys.argv) > 1:
        tell(Path(sys.argv[1]))
        return
    import suture

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        suture.run("csbm:nodes=400", "fedavg", clients=3, seed=0, overrides=["rounds=5"], out=run)
        tell(run)


if __name__ == "__main__":
    main()

"""Between processes: time of an exchange by size, and 100 rounds of FedAvg on Cora against one process.

    python benchmarks/federation.py [--data-root DIR] [--rounds 100]

Starts a coordinator and three owners on this machine, with mutual TLS.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))

from loopback import Loopback, embedded, planned, write_shards

# Cora has 1433 features, so a hidden layer of width h makes a model of about 5.8 kB times h.
HIDDEN = {"6 kB": 1, "1 MB": 174, "20 MB": 3480}
EXCHANGES_A_ROUND = 2  # a training step and a test, each with the model on its way down; the first also up


def seconds(run: Path) -> float:
    return float(json.loads((run / "result.json").read_text())["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cora = planned("fedavg", 3, f"rounds={options.rounds}", dataset="cora")
        world = write_shards(cora, folder / "shards", options.data_root)
        parties = Loopback(folder, world.clients.ids, folder / "shards")
        parties.start()
        try:
            parties.wait()
            sizes = {
                label: planned("fedavg", 3, "rounds=10", f"model.hidden={hidden}", dataset="cora")
                for label, hidden in HIDDEN.items()
            }
            orders = [parties.order(made, f"exchange-{HIDDEN[label]}") for label, made in sizes.items()]
            began = time.perf_counter()
            *exchanged, trained = parties.carry_out([*orders, parties.order(cora, "cora")])
            print(f"one job with all four runs, from submission to its end: {time.perf_counter() - began:.1f} s")
        finally:
            parties.stop()
        for (label, made), path in zip(sizes.items(), exchanged, strict=True):
            computing = seconds(embedded(made, folder / f"embedded-{label[0]}", options.data_root))
            each = (seconds(path) - computing) / 10 / EXCHANGES_A_ROUND
            print(f"an exchange with three owners, {label} each way: {1000 * each:.0f} ms beyond computing")
        alone, between = seconds(embedded(cora, folder / "embedded", options.data_root)), seconds(trained)
        print(f"{options.rounds} rounds of FedAvg on Cora: {between:.2f} s between processes, {alone:.2f} s in one process,")
        print(f"one client at a time; ratio {between / alone:.2f}")


if __name__ == "__main__":
    main()

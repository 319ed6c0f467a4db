"""Between processes: time of an exchange by size, and 100 rounds of FedAvg on Cora against one process, open and sealed.

    python benchmarks/federation.py [--data-root DIR] [--rounds 100] [--sizes "6 kB,1 MB,20 MB"]

Starts a coordinator and three owners on this machine, with mutual TLS.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "federation"))

from loopback import Loopback, embedded, planned, write_shards

from suture.core.streams import Streams
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import private_gradient

# Cora has 1433 features, so a hidden layer of width h makes a model of about 5.8 kB times h.
HIDDEN = {"6 kB": 1, "1 MB": 174, "20 MB": 3480}
ROUNDS = 10
NOISY = 20
"""Steps of DP-SGD that are timed with each noise, in turns."""


def seconds(run: Path) -> float:
    return float(json.loads((run / "result.json").read_text())["seconds"])


def noise_ratio() -> tuple[float, float]:
    """Seconds of a step of DP-SGD on a model of 200,000 numbers, 32 examples: noise from the seed, and from a key."""
    like = {"weight": torch.zeros(1, 1433, 140)}
    examples = [({"weight": torch.randn(1, 1433, 140)}, torch.tensor([True])) for _ in range(32)]
    open_stream = Streams.of(0, ["owner"])
    streams = [open_stream, replace(open_stream, secret=Keystream(Keystream.fresh()))]
    spent = [0.0, 0.0]
    for turn in range(NOISY + 1):
        for k, stream in enumerate(streams):
            began = time.perf_counter()
            private_gradient(examples, like, 1.0, 1.0, torch.tensor([32]), stream.fork(turn))
            spent[k] += (time.perf_counter() - began) * (turn > 0)  # the first one makes the table
    return spent[0] / NOISY, spent[1] / NOISY


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sizes", default=",".join(HIDDEN), help="exchanges to time; empty: none")
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
                label: planned("fedavg", 3, f"rounds={ROUNDS}", f"model.hidden={hidden}", dataset="cora")
                for label, hidden in HIDDEN.items()
                if label in options.sizes.split(",")
            }
            orders = [parties.order(made, f"exchange-{HIDDEN[label]}") for label, made in sizes.items()]
            began = time.perf_counter()
            plain = parties.order(cora, "cora")
            ordered = [*orders, plain, replace(plain, run="cora-secure", secure=True)]
            *exchanged, trained, sealed = parties.carry_out(ordered)
            whole = time.perf_counter() - began
        finally:
            parties.stop()
        print("| what | figure |\n|---|---|")
        seeded, keyed = noise_ratio()
        what = "clipping and noise of a step of DP-SGD, 200,000 numbers, 32 examples, without their backward passes"
        print(f"| {what} | {1000 * keyed:.0f} ms, {keyed / seeded:.1f} times as long as with noise from the seed |")
        for (label, made), path in zip(sizes.items(), exchanged, strict=True):
            computing = seconds(embedded(made, folder / f"embedded-{label[0]}", options.data_root))
            # The test of a round travels with its step, so a round is one exchange, with the model on its way down and up.
            each = (seconds(path) - computing) / ROUNDS
            print(f"| an exchange with three owners, {label} each way, beyond computing | {1000 * each:.0f} ms |")
        alone, between = seconds(embedded(cora, folder / "embedded", options.data_root)), seconds(trained)
        print(f"| {options.rounds} rounds of FedAvg on Cora, one process, one client at a time | {alone:.1f} s |")
        print(f"| the same between three owners' processes | {between:.1f} s, {between / alone:.1f} times as long |")
        secure = seconds(sealed)
        print(f"| the same with secure aggregation | {secure:.1f} s, {secure / between:.1f} times as long as without |")
        around = whole - sum(map(seconds, [*exchanged, trained, sealed]))
        print(f"| start and end of the job with all these runs | {around:.1f} s |")


if __name__ == "__main__":
    main()

"""Does the method for those who do not want to choose do as well as the best that could have been chosen?

    python benchmarks/default_method.py cora,citeseer 300,301,302 [--data-root DIR] [--out FILE] [key=value ...]

Under fedpub-disjoint with ten clients (Twitch: its six owners), for each graph and seed: `suture`, `fedpub`, `local`, and
stable FedAvg with a GCN, GraphSAGE, GPR-GNN and perceptron, and FedGram; `--only` names some of them. Every finished run is
a line of FILE, and is not computed again. Printed for each graph are the means and deviations over the seeds that all
methods have; whether `suture` is at or above the best single one's mean less half of its standard error; and how sure it is
that `suture` is above `fedpub`: t of the differences by seed, and in how many seeds it is.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import suture

STABLE = ("training.moments=averaged",)
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "suture": ("suture", ()),
    "fedpub": ("fedpub", ()),
    "local": ("local", ()),
    "fedavg": ("fedavg", STABLE),
    "sage": ("fedavg", (*STABLE, "model.kind=sage")),
    "gprgnn": ("fedavg", (*STABLE, "model.kind=gprgnn")),
    "mlp": ("fedavg", (*STABLE, "model.kind=mlp")),
    "fedgram": ("fedgram", STABLE),
}
"""What each is, and with what it is run."""
SIX_OWNERS = ("partition.kind=given", "preprocess.largest_component=false")


def tested(dataset: str, seed: int, method: str, overrides: Sequence[str], root: Path | None) -> float:
    """The protocol's number, in percent."""
    twitch, (name, own) = dataset == "twitch", METHODS[method]
    result = suture.run(
        dataset,
        name,
        protocol="fedpub-disjoint",
        clients=6 if twitch else 10,
        seed=seed,
        overrides=[*own, *(SIX_OWNERS if twitch else ()), *overrides],
        options=suture.Options(data_root=root),
    )
    return 100 * result.outcome.accuracy_client_mean


def report(dataset: str, found: Mapping[str, Mapping[int, float]]) -> None:
    """Means over the seeds that all have, and the paired comparison."""
    seeds = sorted(set.intersection(*(set(each) for each in found.values())))
    if not seeds:
        return
    for method, each in found.items():
        values = [each[seed] for seed in seeds]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"{dataset:20} {method:10} {statistics.mean(values):.2f} ± {spread:.2f}  {len(seeds)} seeds")
    single = {method: [each[seed] for seed in seeds] for method, each in found.items() if method != "suture"}
    if len(seeds) > 1 and "suture" in found and single:
        best = max(single, key=lambda method: statistics.mean(single[method]))
        asked = statistics.mean(single[best]) - statistics.stdev(single[best]) / math.sqrt(len(seeds)) / 2
        mine = statistics.mean(found["suture"][seed] for seed in seeds)
        word = "holds" if mine >= asked else "does not hold"
        print(f"{dataset:20} best single one {best}; less half a standard error {asked:.2f}: {word} ({mine:.2f})")
    if not {"suture", "fedpub"} <= found.keys():
        return
    gains = [found["suture"][seed] - found["fedpub"][seed] for seed in seeds]
    if len(gains) > 1 and statistics.stdev(gains) > 0:
        t = statistics.mean(gains) / (statistics.stdev(gains) / math.sqrt(len(gains)))
        better = f"{sum(gain > 0 for gain in gains)} of {len(gains)} seeds"
        print(f"{dataset:20} above fedpub by {statistics.mean(gains):.2f}, t = {t:.1f}, {better}")


def main() -> None:
    """All that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets")
    parser.add_argument("seeds")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--only", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("default_method.jsonl"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = {(line["dataset"], line["seed"], line["method"]): line["test"] for line in lines}
    for dataset in asked.datasets.split(","):
        methods = asked.only.split(",")
        found: dict[str, dict[int, float]] = {method: {} for method in methods}
        for seed in map(int, asked.seeds.split(",")):
            for method in methods:
                if (dataset, seed, method) not in known:
                    value = tested(dataset, seed, method, asked.overrides, asked.data_root)
                    known[dataset, seed, method] = value
                    line = {"dataset": dataset, "seed": seed, "method": method, "test": value}
                    with asked.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                found[method][seed] = known[dataset, seed, method]
        report(dataset, found)


if __name__ == "__main__":
    main()

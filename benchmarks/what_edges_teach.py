"""Why generators of neighbours give nothing back of a random cut: what the edges that are left can teach.

    python benchmarks/what_edges_teach.py cora 200,201,202 [--data-root DIR]

Ten owners to whom nodes were dealt at random. What a lost neighbour is like is guessed by the best linear map from a node's
weighed row to a neighbour's (200 directions of all rows; one edge's worth of ridge), found from

    own edges       those inside one owner, as each client's generator of FedSage+ and FedDEP has them
    all inner edges those inside any owner, as a generator that all owners train together has them
    all edges       also the lost ones: what a linear map could do at best
    mean row        no map: the mean of the owner's rows

Printed are edges inside an owner, the share that was lost, and the mean cosine of each guess with the mean of the rows of
the neighbours that a node lost, both without the mean of all rows, over nodes that lost one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from suture import api
from suture.runs.prepare import Prepared, Source

RANK, RIDGE = 200, 1.0


def rows_of(prepared: Prepared) -> np.ndarray:
    """Every node's weighed row of length one, in the main directions, [N, RANK]."""
    x = (prepared.data.x.to_dense() != 0).double().numpy()
    weighed = x * np.log(len(x) / np.maximum(x.sum(0), 1))
    weighed /= np.maximum(np.linalg.norm(weighed, axis=1, keepdims=True), 1e-12)
    weighed -= weighed.mean(0)
    torch.manual_seed(0)
    return weighed @ torch.svd_lowrank(torch.from_numpy(weighed), RANK, niter=4)[2].numpy()


def learnt(z: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The map from a node's row to a neighbour's, [RANK, RANK]."""
    return np.linalg.solve(z[target].T @ z[target] + RIDGE * np.eye(z.shape[1]), z[target].T @ z[source])


def cosine(guess: np.ndarray, truth: np.ndarray) -> float:
    """Mean over nodes."""
    lengths = np.linalg.norm(guess, axis=1) * np.linalg.norm(truth, axis=1)
    return float(((guess * truth).sum(1) / np.maximum(lengths, 1e-12)).mean())


def measured(prepared: Prepared) -> dict[str, float]:
    """Everything above, of one cut."""
    z, (source, target) = rows_of(prepared), prepared.data.edge_index.numpy()
    owner = np.full(len(z), -1)
    for number, members in enumerate(prepared.cut.partition.members):
        owner[members.numpy()] = number
    inner = owner[source] == owner[target]
    total, count = np.zeros_like(z), np.zeros(len(z))
    np.add.at(total, target[~inner], z[source[~inner]])
    np.add.at(count, target[~inner], 1)
    hurt = count > 0
    truth = total[hurt] / count[hurt, None]
    own, mean = np.zeros_like(z), np.zeros_like(z)
    for number in range(owner.max() + 1):
        here = inner & (owner[target] == number)
        own[owner == number] = z[owner == number] @ learnt(z, source[here], target[here])
        mean[owner == number] = z[owner == number].mean(0)
    return {
        "edges inside an owner": inner.sum() / 2 / (owner.max() + 1),
        "share lost": float((~inner).mean()),
        "own edges": cosine(own[hurt], truth),
        "all inner edges": cosine(z[hurt] @ learnt(z, source[inner], target[inner]), truth),
        "all edges": cosine(z[hurt] @ learnt(z, source, target), truth),
        "mean row": cosine(mean[hurt], truth),
    }


def main() -> None:
    """All seeds, and their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("seeds")
    parser.add_argument("--data-root", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    cell = ["partition.kind=random", "split.train=0.2", "split.val=0.2", "split.test=0.6"]
    made = api.plan(asked.dataset, ["fedavg"], protocol="fedsage-louvain", clients=10, seeds=seeds, overrides=cell)
    source = Source(made, data_root=asked.data_root)
    found = [measured(source.prepared(seed)) for seed in seeds]
    for name in found[0]:
        values = [each[name] for each in found]
        print(f"{asked.dataset}  {name:22} {np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}")


if __name__ == "__main__":
    main()

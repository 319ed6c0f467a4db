"""What stitching over known links gives back of what a random cut takes.

    python benchmarks/known_links.py cora 30,31,32,33,34 [--data-root DIR] [key=value ...]

Cora or CiteSeer dealt at random to ten owners, 20/20/60 of the nodes, 200 rounds of Adam, a GCN. Printed for each seed are
the validation and test accuracy of all nodes together, each predicted by its owner:

    nothing     on its own piece, in the round with the best validation accuracy
    oracle      the same, if owners had the lost neighbours with their true features, in training and in tests
    two hops    the same, if owners had all that is within two hops
    stitched    the models of the last round, stitched over all lost links in up to three steps, by the noise on what is told

and at the end the means, and how much of the way from `nothing` to `oracle` each goes.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from suture import api
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import GraphBatch, batch_of
from suture.method import Method
from suture.runs.evaluation import TEST, VALIDATION, averaged
from suture.runs.plan import Plan
from suture.runs.prepare import Prepared, Source

CELL = (
    *("partition.kind=random", "partition.boundary=both", "split.train=0.2", "split.val=0.2", "split.test=0.6"),
    *("model.kind=gcn", "training.fanouts=[]", "training.batch_size=0", "training.rounds=200", "training.lr=0.005"),
)
NOISES = (0.0, 0.1, 0.5)
STEPS = 3
EVERY = 5
"""Rounds between two tests."""
Scored = tuple[float, float]
"""Validation and test accuracy in percent."""
Scores = Iterable[tuple[str, Scored]]
"""The same by what was tried."""


def trained(method: Method[Any, Any], graph: GraphBatch, prepared: Prepared) -> tuple[Any, EmbeddedCohort[Any], Scored]:
    """(the server, the clients) after the last round, and the scores of the best one."""
    cohort, server = EmbeddedCohort.start(method, graph, prepared.task), method.init_server(prepared.task)
    best = (0.0, 0.0)
    for phase in method.plan():
        for number in range(phase.times):
            cohort.begin(phase.name, number + 1)
            server = phase.body(server, cohort)
            if (number + 1) % EVERY == 0:
                best = max(best, scored(method, server, cohort))
    return server, cohort, best


def scored(method: Method[Any, Any], server: Any, cohort: EmbeddedCohort[Any]) -> Scored:
    """All clients' nodes together."""
    scores = cohort.evaluate(method.deploy(server, cohort.ids))
    return 100 * averaged(scores, VALIDATION, "nodes"), 100 * averaged(scores, TEST, "nodes")


def with_neighbourhoods(prepared: Prepared, hops: int) -> GraphBatch:
    """Every client with the nodes within some hops of its own; those have no role, so they neither train nor are tested."""
    parts, roles, members = prepared.cut.partition, [], []
    source, target = prepared.data.edge_index
    for own, of_own in zip(parts.members, prepared.cut.split.client_roles, strict=True):
        inside = torch.zeros(int(prepared.data.num_nodes), dtype=torch.bool)
        inside[own] = True
        for _ in range(hops):
            inside[source[inside[target]]] = True
        role = torch.zeros(inside.numel(), dtype=torch.int8)
        role[own] = of_own
        members.append(torch.nonzero(inside).squeeze(1))
        roles.append(role[members[-1]])
    return batch_of(prepared.data, parts.ids, members, roles, [False] * len(members))


def variants(method: Method[Any, Any], prepared: Prepared) -> Iterator[tuple[str, Scored]]:
    """Name and scores of everything above."""
    for name, hops in (("oracle", 1), ("two hops", 2)):
        yield name, trained(method, with_neighbourhoods(prepared, hops), prepared)[2]
    server, cohort, best = trained(method, prepared.clients, prepared)
    states, asked = cohort.states(), cohort.asked
    yield "nothing", best
    for noise in NOISES:
        stitching: Any = replace(method, training=replace(method.training, stitch=STEPS, stitch_sigma=noise))
        after = EmbeddedCohort.start(stitching, prepared.clients, prepared.task)
        after.restore(states, asked)
        for step in range(1, STEPS + 1):
            stitching.stitch(server, after)
            yield f"stitched, {step} step{'s' * (step > 1)}, noise {noise:g}", scored(stitching, server, after)


def report(dataset: str, found: Mapping[str, Sequence[Scored]]) -> None:
    """The means over seeds, and how far each goes from `nothing` to `oracle`."""
    low, high = (statistics.mean(test for _, test in found[name]) for name in ("nothing", "oracle"))
    for name, each in found.items():
        tests = [test for _, test in each]
        spread = statistics.stdev(tests) if len(tests) > 1 else float("nan")
        share = 100 * (statistics.mean(tests) - low) / (high - low)
        print(
            f"{dataset}  {name:30}  {statistics.mean(tests):.2f} ± {spread:.2f}  {share:.0f} % of the gap, "
            f"validation {statistics.mean(value for value, _ in each):.2f}"
        )


def carry_out(
    doc: str | None, methods: Sequence[str], of_seed: Callable[[Plan, Prepared], Scores], settings: Sequence[str] = ()
) -> None:
    """All seeds that the command line asks for, in the cell with these settings."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("seeds")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--data-root", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    overrides = [*CELL, *settings, *asked.overrides]
    made = api.plan(asked.dataset, methods, protocol="fedsage-louvain", clients=10, seeds=seeds, overrides=overrides)
    source, found = Source(made, data_root=asked.data_root), defaultdict[str, list[Scored]](list)
    for seed in seeds:
        for name, values in of_seed(made, source.prepared(seed)):
            found[name].append(values)
            print(f"seed {seed}  {name:30}  validation {values[0]:.2f}  test {values[1]:.2f}", flush=True)
    report(asked.dataset, found)


if __name__ == "__main__":
    carry_out(__doc__, ["fedavg"], lambda made, prepared: variants(made.methods[0], prepared))

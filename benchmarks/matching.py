"""How long private matching takes, and how much travels.

    python benchmarks/matching.py [--ids 100000] [--pad 0]

Two owners, each of which holds `ids` nodes and asks for as many, half of which the other holds. Printed are seconds of the
clock and of processors (also of the second process), who computed what, and the bytes that each owner sends; then the same
for a thousand new ids on both sides.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from suture.core.kernels import Segments, SparseMatrix
from suture.engines.embedded import EmbeddedCohort
from suture.graph.batch import Features, GraphBatch
from suture.graph.boundary import Boundary
from suture.method import Task
from suture.methods.matched import Matched, books_of
from suture.methods.matching import Matching
from suture.runs.counting import Record

NEW = 1000


def pieces(ids: int, new: int) -> GraphBatch:
    """Two owners without edges, a link from each node to an id: one half of them at the other, one half nowhere."""
    held, empty = ids + new, torch.empty(0, dtype=torch.int32)
    segments = Segments(torch.tensor([0, held, 2 * held]))
    blank = SparseMatrix(torch.zeros(2 * held + 1, dtype=torch.int32), empty, torch.empty(0), 1)
    address = torch.randperm(1 << 22, generator=torch.Generator().manual_seed(0))[: 3 * held]
    own, nowhere = address[: 2 * held], address[2 * held :]
    odd = torch.arange(held) % 2 == 1
    foreign = torch.cat([torch.where(odd, nowhere, own[held:]), torch.where(odd, nowhere, own[:held])])
    nodes = torch.arange(2 * held)
    return GraphBatch(
        ("north", "south"),
        segments,
        Features(blank, segments),
        torch.empty(2, 0, dtype=torch.int64),
        torch.zeros(2 * held, dtype=torch.int64),
        torch.zeros(2 * held, dtype=torch.int8),
        nodes,
        boundary=Boundary(nodes, foreign, own),
    )


def before(graph: GraphBatch, new: int) -> GraphBatch:
    """The same without everybody's last nodes."""
    ends = graph.segments.bounds[1:]
    kept = torch.cat([torch.arange(end - graph.segments.bounds[1], end - new) for end in ends])
    position = torch.full((graph.num_nodes,), -1)
    position[kept] = torch.arange(kept.numel())
    known = graph.boundary
    assert known is not None
    segments = Segments(torch.tensor([0, kept.numel() // 2, kept.numel()]))
    return GraphBatch(
        graph.ids,
        segments,
        graph.x.take(kept, segments),
        graph.edge_index,
        graph.y[kept],
        graph.role[kept],
        graph.node_id[kept],
        boundary=known.at(kept, position),
    )


def timed(method: Matching, cohort: EmbeddedCohort[Matched], record: Record, what: str) -> None:
    """One matching."""
    record.sent.clear()
    start, used = time.perf_counter(), os.times()
    method.match(method.init_server(Task(1, 1, 0)), cohort)
    took, now = time.perf_counter() - start, os.times()
    processor = sum(now[:4]) - sum(used[:4])
    sent = dict.fromkeys(cohort.ids, 0)
    for one in record.sent:
        if one.direction == "up":
            for name, size in zip(one.message.ids, one.message.nbytes(), strict=True):
                sent[name] += size
    found = [len(book.holders()) for book in books_of(Matched.concat(cohort.states()))]
    print(
        f"{what}: {took:.1f} s of the clock, {processor:.1f} s of processors for both owners; "
        f"each sends {max(sent.values()) / 1e6:.2f} MB and finds {found}",
        flush=True,
    )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--pad", type=int, default=0)
    asked = parser.parse_args()
    method, record, graph = Matching(pad=asked.pad), Record(), pieces(asked.ids, NEW)
    early = before(graph, NEW)
    cohort = EmbeddedCohort.start(method, early, Task(1, 1, 0), ledger=record)
    timed(method, cohort, record, f"{asked.ids:,} ids against {asked.ids:,}, both ways")
    later = EmbeddedCohort.start(method, graph, Task(1, 1, 0), ledger=record)
    later.restore(cohort.states(), cohort.asked)
    timed(method, later, record, f"{NEW:,} new ones on both sides")


if __name__ == "__main__":
    main()

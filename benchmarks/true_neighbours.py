"""How much could mending gain? FedSage on subgraphs mended with the neighbours they really lost.

No method may do this: the true features of lost neighbours are attached to each node, as FedSage+ attaches generated ones.
What FedSage gains by it is the most that a generator of direct neighbours can be expected to gain.

    python benchmarks/true_neighbours.py --datasets cora citeseer --clients 3 5 10 --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from suture.core.process import prepare_process

prepare_process()

import torch  # noqa: E402

from suture.config.resolve import resolve  # noqa: E402
from suture.core.kernels import SparseMatrix, segments_of  # noqa: E402
from suture.core.message import Rows  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.graph.batch import GraphBatch  # noqa: E402
from suture.graph.matching import dense_rows  # noqa: E402
from suture.methods import METHODS, own_fields  # noqa: E402
from suture.methods.fedsage import FedSage  # noqa: E402
from suture.methods.fedsage_plus.patch import Patch, largest_entries, with_generated_nodes  # noqa: E402
from suture.runs.execute import execute  # noqa: E402
from suture.runs.prepare import Prepared, prepare, preprocess  # noqa: E402


def with_true_neighbours(prepared: Prepared) -> GraphBatch:
    """The clients' graphs with a copy of every neighbour that the cut took away."""
    graph = prepared.clients
    members = torch.cat(list(prepared.cut.partition.members))
    place = torch.empty_like(members)
    place[members] = torch.arange(members.numel())
    neighbour, node = place[prepared.uncut.edge_index]
    owner = graph.segments.client
    crossing = torch.nonzero(owner[neighbour] != owner[node]).squeeze(1)
    crossing = crossing[torch.argsort(node[crossing], stable=True)]
    neighbour, node = neighbour[crossing], node[crossing]
    x, segments = graph.x, segments_of(owner[node], len(graph.ids))
    entries = int(x.matrix.rowptr.diff().max()) if isinstance(x.matrix, SparseMatrix) else x.width
    column, value = largest_entries(dense_rows(x, neighbour), entries)
    source = (node - graph.segments.ptr[:-1][owner[node]]).int()
    return with_generated_nodes(graph, Patch(graph.ids, *(Rows(part, segments.ptr) for part in (source, column, value))))


def main() -> None:
    """Print test accuracy on the uncut graph with and without the true neighbours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer"])
    parser.add_argument("--clients", nargs="+", type=int, default=[3, 5, 10])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    fields = {name: own_fields(kind) for name, kind in METHODS.items()}
    for name in options.datasets:
        for clients in options.clients:
            run = resolve("fedsage-louvain", name, [], clients=clients, method_fields=fields)
            protocol = run.protocol
            data = preprocess(datasets.load(name, options.data_root or datasets.data_root()), protocol.preprocess)
            values: dict[str, Any] = run.methods.get("fedsage", {})
            method = FedSage(protocol.model, protocol.training, **values)
            found: dict[str, list[float]] = {"cut": [], "true neighbours": []}
            for seed in options.seeds:
                prepared = prepare(data, name, protocol, seed)
                whole = replace(prepared, clients=with_true_neighbours(prepared))
                for label, cell in (("cut", prepared), ("true neighbours", whole)):
                    found[label].append(100 * (execute(cell, method, protocol).outcome.accuracy_global or 0))
            text = ", ".join(f"{label} {statistics.fmean(v):.2f} ± {statistics.stdev(v):.2f}" for label, v in found.items())
            print(f"{name} {clients}: {text}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

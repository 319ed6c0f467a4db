"""Does mending bring neighbourhoods back? FedSage+, appendix D.1 and its Table 1.

For every node v the mean features of its neighbours are computed on the uncut graph, N(v), on the client's subgraph,
N_i(v), and on the mended subgraph, N'_i(v) (zero where there is no neighbour). Printed for each cell:

    count r        correlation of dGen's prediction with the neighbours a node really lost to other clients
    made, lost     generated neighbours, and lost ones
    avg, avg'      L2 distance to the uncut graph of the average over a client's nodes, mean over clients; ' is mended.
                   We read the table's "L2 distance between the averaged feature distributions" this way: of the
                   readings we tried only this one gives its order of magnitude.
    rms, rms'      L2 distance of all nodes' neighbourhoods at once: root of the mean over nodes of the squared distance
    hurt, hurt'    L2 distance of single nodes' neighbourhoods, mean over nodes that lost a neighbour
    node, node'    the same, mean over all nodes

    python benchmarks/mending.py --datasets cora citeseer pubmed --clients 3 5 10 --seeds 0
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from suture.config.resolve import resolve
from suture.core.kernels import SparseMatrix
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.graph import datasets
from suture.graph.batch import GraphBatch
from suture.method import Clients
from suture.methods import METHODS, own_fields
from suture.methods.fedsage_plus.kept import Mending
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.runs.prepare import Prepared, prepare, preprocess

COLUMNS = ("avg", "avg'", "rms", "rms'", "hurt", "hurt'", "node", "node'")


@dataclass(frozen=True)
class Quality:
    """What mending did to one cut."""

    correlation: float
    lost: int
    made: int
    unmended: np.ndarray
    mended: np.ndarray
    unmended_client: np.ndarray
    mended_client: np.ndarray
    hurt: np.ndarray

    def columns(self) -> dict[str, float]:
        """The readings of the distance, before and after mending."""
        found = {"avg": self.unmended_client.mean(), "avg'": self.mended_client.mean()}
        for mark, distance in (("", self.unmended), ("'", self.mended)):
            found |= {f"rms{mark}": np.sqrt(np.square(distance).mean())}
            found |= {f"hurt{mark}": distance[self.hurt].mean(), f"node{mark}": distance.mean()}
        return {name: float(found[name]) for name in COLUMNS}


def neighbour_means(graph: GraphBatch) -> sp.csr_matrix:
    """Mean features of each node's neighbours, sparse [N, F]."""
    operator, x = graph.mean_operator, graph.x.matrix
    adjacency = sp.csr_matrix((operator.val.numpy(), operator.col.numpy(), operator.rowptr.numpy()), (graph.num_nodes,) * 2)
    if isinstance(x, SparseMatrix):
        return adjacency @ sp.csr_matrix((x.val.numpy(), x.col.numpy(), x.rowptr.numpy()), (x.rows, x.columns))
    return sp.csr_matrix(adjacency @ x.numpy())


def distances(left: sp.csr_matrix, right: sp.csr_matrix) -> np.ndarray:
    """L2 distance of corresponding rows."""
    difference = left - right
    return np.sqrt(np.asarray(difference.multiply(difference).sum(1)).ravel())


def of_averages(left: sp.csr_matrix, right: sp.csr_matrix, owner: np.ndarray) -> np.ndarray:
    """For each client the L2 distance of the averages over its nodes."""
    members = [np.flatnonzero(owner == k) for k in range(owner.max() + 1)]
    return np.array([np.linalg.norm(np.asarray((left[m] - right[m]).mean(0))) for m in members])


def mend_clients(prepared: Prepared, method: FedSagePlus) -> tuple[GraphBatch, torch.Tensor]:
    """Train the generators and mend: (mended graphs, dGen's prediction for every node)."""
    cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task)
    server = method.init_server(prepared.task)
    for phase in method.plan()[:-1]:
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    (state,) = cohort.states()
    clients: Clients[Mending] = Clients(
        prepared.clients, state, Streams.of(0, prepared.clients.ids, "unused"), prepared.task
    )
    network, graph = method.neighgen(prepared.task), prepared.clients
    with torch.no_grad():
        counts = network.missing(state.generator, network.encode(state.generator, graph), graph.degree, graph.segments)
    return method.seen(clients, training=True), counts


def quality(prepared: Prepared, method: FedSagePlus) -> Quality:
    """Train, mend, compare with the uncut graph."""
    grown, counts = mend_clients(prepared, method)
    graph, whole = prepared.clients, prepared.uncut
    position = torch.cat(list(prepared.cut.partition.members))
    lost = whole.neighbours.rowptr.diff()[position] - graph.neighbours.rowptr.diff()
    truth = neighbour_means(whole)[position.numpy()]
    own = torch.nonzero(grown.node_id >= 0).squeeze(1).numpy()
    before, after, owner = neighbour_means(graph), neighbour_means(grown)[own], graph.segments.client.numpy()
    return Quality(
        float(np.corrcoef(counts.numpy(), lost.numpy())[0, 1]),
        int(lost.sum()),
        grown.num_nodes - graph.num_nodes,
        distances(before, truth),
        distances(after, truth),
        of_averages(before, truth, owner),
        of_averages(after, truth, owner),
        lost.numpy() > 0,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--clients", nargs="+", type=int, default=[3, 5, 10])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    options = parser.parse_args()
    fields = {name: own_fields(kind) for name, kind in METHODS.items()}
    print(f"{'':20}{'count r':>8}{'made':>7}{'lost':>7}" + "".join(f"{name:>10}" for name in COLUMNS))
    for name in options.datasets:
        for clients in options.clients:
            run = resolve("fedsage-louvain", name, options.overrides, clients=clients, method_fields=fields)
            protocol = run.protocol
            data = preprocess(datasets.load(name, options.data or datasets.data_root()), protocol.preprocess)
            for seed in options.seeds:
                prepared = prepare(data, name, protocol, seed)
                method = FedSagePlus(protocol.model, protocol.training, **run.methods.get("fedsage_plus", {}))
                found = quality(prepared, method)
                cell = f"{name} {clients} seed {seed}"
                columns = "".join(f"{value:10.4f}" for value in found.columns().values())
                print(f"{cell:20}{found.correlation:8.3f}{found.made:7}{found.lost:7}{columns}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""`suture partition`: cut a graph, say what the cut costs, and keep it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from rich.text import Text
from torch_geometric.data import Data

from suture.commands.request import Request, planned
from suture.graph.batch import batch_of
from suture.graph.cut import Cut, save_manifest
from suture.graph.data import num_classes
from suture.graph.partition import AUTO
from suture.graph.shard import save_shard
from suture.graph.statistics import CutStatistics, describe
from suture.report import console
from suture.report.progress import telling_of_cuts
from suture.report.text import count
from suture.runs import origin
from suture.runs.plan import Plan
from suture.runs.prepare import cut_graph
from suture.runs.preprocess import preprocess

MOST_CLIENTS = 30


def partition(request: Request, out: Path | None, data_root: Path | None, shards: Path | None = None) -> None:
    """Print the cut's statistics; with `out`, write its manifest."""
    made = planned(request)
    graph = preprocess(origin.load(made.dataset, data_root), made.protocol.preprocess)
    with telling_of_cuts(console.notes()):
        cut = cut_graph(graph, made.dataset, made.protocol, made.seeds[0])
    statistics = describe(graph, cut)
    screen = console.results()
    screen.print(
        Text(
            f"{origin.label(made.dataset)} cut into {count(len(cut.partition.ids), 'client')} by {_how(made, graph)}, "
            f"protocol {made.protocol.name}, seed {cut.seed}",
            style="bold",
        )
    )
    screen.print(_clients(cut, statistics))
    screen.print()
    for name, value in (
        (
            "missing links",
            f"{statistics.missing_links:,}  ({100 * statistics.missing_ratio:.1f} % of all edges; no client holds them)",
        ),
        ("boundary edges", f"{statistics.boundary_edges:,}  (they lead out of the graph; not among all edges)"),
        ("label heterogeneity", f"{statistics.label_heterogeneity:.3f}  (0: alike labels; median distance between clients)"),
        ("clustering", f"{statistics.clustering_coefficient:.3f}  (mean local coefficient of the clients' graphs)"),
    ):
        if name != "boundary edges" or statistics.boundary_edges:
            screen.print(Text(f"{name:<20} {value}"))
    if shards is not None:
        _write_shards(made, graph, cut, shards)
        screen.print(
            Text(f"\nwrote a file for each client to {shards}; use them with: suture owner start --data"), soft_wrap=True
        )
    if out is not None:
        digest = save_manifest(cut, out)
        screen.print(Text(f"\nwrote {out} (SHA-256 {digest[:16]}...); use it with: --manifest {out}"), soft_wrap=True)


def _how(made: Plan, graph: Data) -> str:
    kind = made.protocol.partition.kind
    if kind != AUTO:
        return kind
    return "its owners" if graph.get("client") is not None else "metis (it names no owners)"


def _clients(cut: Cut, statistics: CutStatistics) -> object:
    table = console.grid("client", "nodes", "edges", "train nodes", numbers_from=1)
    columns = (statistics.nodes, statistics.edges, statistics.train_nodes)
    if len(cut.partition.ids) > MOST_CLIENTS:
        for name, pick in (("fewest", min), ("median", median), ("most", max)):
            table.add_row(name, *(f"{pick(column):,.0f}" for column in columns))
        return table
    for name, graphless, *numbers in zip(cut.partition.ids, cut.partition.graphless, *columns, strict=True):
        without = f" ({'edges hidden' if numbers[1] else 'no edges'})" if graphless else ""
        table.add_row(f"{name}{without}", *(f"{number:,}" for number in numbers))
    return table


def _write_shards(made: Plan, graph: Data, cut: Cut, folder: Path) -> None:
    """Every client's piece in a file of its own, as an owner in a federation would have it."""
    parts = cut.partition
    pieces = batch_of(graph, parts.ids, parts.members, cut.split.client_roles, parts.graphless)
    normalised = made.protocol.preprocess.row_normalise
    for owner in cut.partition.ids:
        save_shard(pieces, owner, folder / f"{owner}.safetensors", classes=num_classes(graph), row_normalised=normalised)

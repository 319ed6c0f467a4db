"""`suture partition`: cut a graph, say what the cut costs, and keep it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.console import RenderableType
from rich.text import Text
from torch_geometric.data import Data

from suture.commands.request import Request, Work, planned
from suture.commands.telling import telling
from suture.graph.batch import batch_of
from suture.graph.cut import Cut, save_manifest
from suture.graph.data import num_classes
from suture.graph.partition import AUTO
from suture.graph.shard import save_shard
from suture.graph.statistics import CutStatistics, describe
from suture.report import console
from suture.report.text import count
from suture.runs import origin
from suture.runs.plan import Plan
from suture.runs.prepare import cut_graph
from suture.runs.preprocess import preprocess

MOST_CLIENTS = 30


def partition(request: Request, out: Path | None, shards: Path | None, work: Work) -> None:
    """Print the cut's statistics; with `out`, write its manifest."""
    made = planned(request)
    with telling("partition", work.quiet, work.lines) as told:
        with told.watching():
            graph = preprocess(origin.load(made.dataset, work.data_root), made.protocol.preprocess)
            cut = cut_graph(graph, made.dataset, made.protocol, made.seeds[0])
            statistics = describe(graph, cut)
            if shards is not None:
                _write_shards(made, graph, cut, shards)
            digest = None if out is None else save_manifest(cut, out)
        content = {"clients": list(cut.partition.ids), "seed": cut.seed, **asdict(statistics)}
        content |= {"manifest": None if out is None else str(out), "sha256": digest}
        told.result(content | {"shards": None if shards is None else str(shards)}, *_shown(made, graph, cut, statistics))
        if told.events is None:
            screen = console.results()
            if shards is not None:
                wrote = f"\nwrote a file for each client to {shards}; use them with: suture owner start --data"
                screen.print(Text(wrote), soft_wrap=True)
            if digest is not None:
                wrote = f"\nwrote {out} (SHA-256 {digest[:16]}...); use it with: --manifest {out}"
                screen.print(Text(wrote), soft_wrap=True)


def _shown(made: Plan, graph: Data, cut: Cut, statistics: CutStatistics) -> list[RenderableType]:
    """The table, and what the cut costs."""
    title = (
        f"{origin.label(made.dataset)} cut into {count(len(cut.partition.ids), 'client')} by {_how(made, graph)}, "
        f"protocol {made.protocol.name}, seed {cut.seed}"
    )
    rows = {
        "missing links": f"{statistics.missing_links:,}  ({100 * statistics.missing_ratio:.1f} % of all edges; no client "
        "holds them)",
        "boundary edges": f"{statistics.boundary_edges:,}  (they lead out of the graph; not among all edges)",
        "label heterogeneity": f"{statistics.label_heterogeneity:.3f}  (0: alike labels; median distance between clients)",
        "clustering": f"{statistics.clustering_coefficient:.3f}  (mean local coefficient of the clients' graphs)",
    }
    if not statistics.boundary_edges:
        del rows["boundary edges"]
    lines = [Text(f"{name:<20} {value}") for name, value in rows.items()]
    return [Text(title, style="bold"), _clients(cut, statistics), Text(), *lines]


def _how(made: Plan, graph: Data) -> str:
    kind = made.protocol.partition.kind
    if kind != AUTO:
        return kind
    return "its owners" if graph.get("client") is not None else "metis (it names no owners)"


def _clients(cut: Cut, statistics: CutStatistics) -> RenderableType:
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

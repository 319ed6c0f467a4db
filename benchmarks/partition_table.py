"""Prints our cuts beside the statistics that papers published, as the Markdown tables of docs/partitions.md.

Run: python benchmarks/partition_table.py --data-root PATH
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

from suture.graph.cut import make_cut
from suture.graph.data import largest_component
from suture.graph.datasets import load
from suture.graph.statistics import CutStatistics, describe
from suture.settings import PartitionSettings, PreprocessSettings, SplitSettings

SEEDS = (0, 1, 2)

# (missing links, share of all edges) as printed or derived: FedSage Table 1, FedDEP appendix Table 1.
FEDSAGE = {
    ("cora", 3): (403, 0.0742),
    ("cora", 5): (589, 0.1085),
    ("cora", 10): (929, 0.1711),
    ("citeseer", 3): (161, 0.0341),
    ("citeseer", 5): (206, 0.0437),
    ("citeseer", 10): (300, 0.0636),
    ("pubmed", 3): (5543, 0.1250),
    ("pubmed", 5): (6189, 0.1396),
    ("pubmed", 10): (6445, 0.1454),
    ("cs", 3): (11141, 0.1360),
    ("cs", 5): (12151, 0.1484),
    ("cs", 10): (22743, 0.2777),
}
FEDDEP = {
    ("cora", 3): (496, 0.0940),
    ("cora", 5): (552, 0.1046),
    ("cora", 10): (912, 0.1728),
    ("citeseer", 3): (178, 0.0391),
    ("citeseer", 5): (224, 0.0492),
    ("citeseer", 10): (247, 0.0543),
    ("pubmed", 3): (4570, 0.1031),
    ("pubmed", 5): (4818, 0.1087),
    ("pubmed", 10): (9323, 0.2103),
    ("cs", 3): (8995, 0.1098),
    ("cs", 5): (12149, 0.1484),
    ("cs", 10): (26973, 0.3294),
}
# (nodes, edges in both directions, clustering coefficient, heterogeneity) per client: FED-PUB Table 4.
FEDPUB_DISJOINT = {
    ("cora", 5): (497, 1866, 0.250, 0.590),
    ("cora", 10): (249, 891, 0.259, 0.606),
    ("cora", 20): (124, 422, 0.263, 0.665),
    ("citeseer", 5): (424, 1410, 0.175, 0.517),
    ("citeseer", 10): (212, 675, 0.178, 0.541),
    ("citeseer", 20): (106, 326, 0.180, 0.568),
    ("pubmed", 5): (3943, 16374, 0.063, 0.362),
    ("pubmed", 10): (1972, 7671, 0.066, 0.392),
    ("pubmed", 20): (986, 3607, 0.067, 0.424),
    ("computers", 5): (2676, 84480, 0.385, 0.604),
    ("computers", 10): (1338, 36136, 0.398, 0.612),
    ("computers", 20): (669, 15632, 0.418, 0.647),
}
FEDPUB_OVERLAP = {
    ("cora", 10): (621, 1249, 0.133, 0.297),
    ("cora", 30): (207, 379, 0.129, 0.567),
    ("cora", 50): (124, 215, 0.125, 0.613),
    ("citeseer", 10): (530, 889, 0.088, 0.278),
    ("citeseer", 30): (177, 293, 0.087, 0.494),
    ("citeseer", 50): (106, 170, 0.096, 0.547),
    ("pubmed", 10): (4929, 10675, 0.035, 0.210),
    ("pubmed", 30): (1643, 3374, 0.034, 0.383),
    ("pubmed", 50): (986, 1903, 0.035, 0.394),
    ("computers", 10): (3345, 59236, 0.337, 0.327),
    ("computers", 30): (1115, 16684, 0.348, 0.577),
    ("computers", 50): (669, 8969, 0.359, 0.614),
}
# (nodes, edges in both directions) per client: FedGLS Table 4.
FEDGLS = {("cora", 8): (192, 695), ("citeseer", 8): (149, 535), ("pubmed", 16): (1079, 4367)}


@dataclass(frozen=True)
class Case:
    """One row of a table: a graph and how it is cut."""

    data: Data
    dataset: str
    settings: PartitionSettings
    split: SplitSettings

    def statistics(self) -> list[CutStatistics]:
        """One for each seed."""
        cuts = (make_cut(self.data, self.dataset, PreprocessSettings(), self.settings, self.split, seed) for seed in SEEDS)
        return [describe(self.data, cut) for cut in cuts]


def louvain_rows(graphs: dict[str, Data]) -> list[str]:
    rows = [
        "| graph | clients | FedSage | FedDEP | ours, seed 0 | ours, mean |",
        "|---|---|---|---|---|---|",
    ]
    for (name, clients), fedsage in FEDSAGE.items():
        case = Case(graphs[name], name, PartitionSettings(kind="louvain", clients=clients), SplitSettings())
        ours = [(found.missing_links, found.missing_ratio) for found in case.statistics()]
        columns = [fedsage, FEDDEP[name, clients], ours[0], np.mean(ours, axis=0)]
        cells = " | ".join(f"{links:.0f} ({ratio:.1%})" for links, ratio in columns)
        rows.append(f"| {name} | {clients} | {cells} |")
    return rows


def fedpub_rows(graphs: dict[str, Data], kind: str, published: Mapping[tuple[str, int], tuple[float, ...]]) -> list[str]:
    rows = [
        "| graph | clients | nodes | edges, both directions | clustering coefficient | heterogeneity |",
        "|---|---|---|---|---|---|",
    ]
    for (name, clients), printed in published.items():
        settings = PartitionSettings(kind=kind, clients=clients)  # type: ignore[arg-type]
        case = Case(graphs[name], name, settings, SplitSettings(train=0.2, val=0.4, test=0.4))
        ours = np.array([averages(found) for found in case.statistics()])
        columns = zip(printed, ours[0], ours.mean(axis=0), (0, 0, 3, 3), strict=True)
        cells = " | ".join(f"{a:.{d}f} / {b:.{d}f} / {c:.{d}f}" for a, b, c, d in columns)
        rows.append(f"| {name} | {clients} | {cells} |")
    return rows


def fedgls_rows(graphs: dict[str, Data]) -> list[str]:
    rows = ["| graph | clients | nodes | edges, both directions |", "|---|---|---|---|"]
    for (name, clients), printed in FEDGLS.items():
        case = Case(graphs[name], name, PartitionSettings(kind="communities", clients=clients), SplitSettings())
        ours = np.array([averages(found)[:2] for found in case.statistics()])
        columns = zip(printed, ours[0], ours.mean(axis=0), strict=True)
        rows.append(f"| {name} | {clients} | " + " | ".join(f"{a:.0f} / {b:.0f} / {c:.0f}" for a, b, c in columns) + " |")
    return rows


def averages(found: CutStatistics) -> tuple[float, float, float, float]:
    nodes, edges = float(np.mean(found.nodes)), 2 * float(np.mean(found.edges))
    return nodes, edges, found.clustering_coefficient, found.label_heterogeneity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True, help="folder of the public graphs")
    root = parser.parse_args().data_root
    graphs = {name: load(name, root) for name in ("cora", "citeseer", "pubmed", "cs", "computers")}
    largest = {name: largest_component(data) for name, data in graphs.items()}
    tables = {
        "Louvain: missing links": louvain_rows(graphs),
        "METIS: published / seed 0 / mean": fedpub_rows(largest, "metis", FEDPUB_DISJOINT),
        "METIS, overlapping: published / seed 0 / mean": fedpub_rows(largest, "metis-overlap", FEDPUB_OVERLAP),
        "Communities: published / seed 0 / mean": fedgls_rows(graphs),
    }
    for title, rows in tables.items():
        print(f"{title}\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()

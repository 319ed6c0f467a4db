"""Whether similarities between models find the communities of a cut (FED-PUB, Figure 6 and Table 9).

Clients that lost many edges to each other, or have labels alike, belong to one community. `analyse` compares both with the
similarities that a run kept of its rounds, and leaves in the run folder

    communities.json          for each kept round, the correlation of the similarities with each of the two
    communities.safetensors   label_similarity and missing_edges, [K, K] in the order of the cut

Legend: K clients, N nodes, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from suture.core.storage import write_atomically, write_json
from suture.errors import DataError, SutureError
from suture.graph.cut import load_manifest
from suture.graph.mirror import both_ways
from suture.methods.fedpub.method import label_similarity

EDGES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Agreement:
    """Correlations over all pairs of clients; None where one side does not vary."""

    round: int
    labels_pearson: float | None
    """With the similarity of label distributions: Table 9."""
    labels_rank: float | None
    """The same, of ranks (Spearman)."""
    edges_pearson: float | None
    """With the number of missing edges."""
    edges_rank: float | None
    """The same, of ranks."""


def analyse(run_folder: Path, data: Data) -> list[Agreement]:
    """Compare every kept round of a run on `data` (preprocessed as for the run), and write the result to its folder."""
    cut = load_manifest(run_folder / "manifest.json", data)
    members = cut.partition.members
    classes = int(data.y.max()) + 1
    known = [data.y[m][data.y[m] >= 0] for m in members]
    labels = label_similarity(torch.stack([torch.bincount(y, minlength=classes).double() for y in known]))
    edges = missing_edges(data, members)
    found = []
    for number, similarity in kept_similarities(run_folder).items():
        pairs = [correlations(similarity, other) for other in (labels, edges)]
        found.append(Agreement(number, *pairs[0], *pairs[1]))
    write_json(run_folder / "communities.json", {"clients": list(cut.partition.ids), "rounds": [asdict(a) for a in found]})
    content = safetensors.torch.save({"label_similarity": labels, "missing_edges": edges})
    write_atomically(run_folder / "communities.safetensors", content)
    return found


def kept_similarities(run_folder: Path) -> dict[int, Tensor]:
    """Round to similarity matrix [K, K]; NaN for clients that had not been heard from."""
    files = sorted((run_folder / "kept").glob("round-*.safetensors"))
    kept = {int(file.stem.removeprefix("round-")): safetensors.torch.load_file(file) for file in files}
    found = {number: tensors["similarity"] for number, tensors in kept.items() if "similarity" in tensors}
    if not found:
        raise DataError(f"{run_folder} has no similarities of its rounds: analyse a run of fedpub")
    return found


def missing_edges(data: Data, members: Sequence[Tensor]) -> Tensor:
    """Edges between a node of client i and one of client j that neither of them holds, int64 [K, K].

    Who is linked to whom counts here, not how strongly or in which direction.
    """
    belongs = torch.zeros(int(data.num_nodes), len(members), dtype=torch.bool)
    for k, nodes in enumerate(members):
        belongs[nodes, k] = True
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for edges in torch.split(both_ways(data.edge_index, None, int(data.num_nodes))[0], EDGES_AT_ONCE, 1):
        here, there = belongs[edges[0]], belongs[edges[1]]
        total += (here & ~there).double().T @ (there & ~here).double()
    return total.long()


def correlations(similarity_KK: Tensor, other_KK: Tensor) -> tuple[float | None, float | None]:
    """(Pearson, Spearman) over the pairs of different clients that have been compared."""
    clients = similarity_KK.shape[0]
    first, second = torch.triu_indices(clients, clients, offset=1)
    left, right = similarity_KK[first, second].double().numpy(), other_KK[first, second].double().numpy()
    seen = ~np.isnan(left)
    return _pearson(left[seen], right[seen]), _pearson(scipy.stats.rankdata(left[seen]), scipy.stats.rankdata(right[seen]))


def _pearson(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    if left.size < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(np.corrcoef(left, right)[0, 1])


def draw(run_folder: Path, rounds: Sequence[int] = (5, 30), image: Path | None = None) -> Path:
    """The heat maps of Figure 6, of a run that has been analysed; returns the image's path."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SutureError("drawing needs matplotlib: pip install matplotlib") from error
    file = run_folder / "communities.safetensors"
    if not file.exists():
        raise DataError(f"{run_folder} has not been analysed: call analyse first")
    matrices, kept = safetensors.torch.load_file(file), kept_similarities(run_folder)
    absent = [number for number in rounds if number not in kept]
    if absent:
        raise DataError(f"{run_folder} has no similarities of round {absent[0]}; it has rounds {min(kept)} to {max(kept)}")
    panels = {"missing edges": matrices["missing_edges"], "label similarity": matrices["label_similarity"]}
    panels |= {f"model similarity, round {number}": kept[number] for number in rounds}
    figure = Figure(figsize=(3.2 * len(panels), 3.2), layout="constrained")
    for place, (title, matrix) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        place.imshow(matrix.double().numpy(), cmap="Blues")
        place.set(title=title, xlabel="client", ylabel="client")
        place.locator_params(integer=True)
    path = image or run_folder / "communities.png"
    figure.savefig(path, dpi=150)
    return path

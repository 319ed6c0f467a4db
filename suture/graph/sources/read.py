"""Raw files of a public graph to a `Data`, without the dense copies and processed files PyG's dataset classes leave.

Tests compare each of these with what PyG's own class makes of the same files.
"""

from __future__ import annotations

import csv
import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.io import read_planetoid_data

from suture.errors import IntegrityError
from suture.graph.data import MASKS, csr_tensor
from suture.graph.sources.catalogue import RawSet, Reader
from suture.graph.sources.cora_order import LABELS, planetoid_order

TWITCH_TOKENS = 3170

_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
)


def read(raw: RawSet, root: Path) -> Data:
    """The graph in a raw set's files, which must be all there and have passed their hash check.

    Raises:
        IntegrityError: A file is not in the format it should be in.
    """
    folder = root / raw.folder
    try:
        return _READERS[raw.reader](folder, [folder / file.path for file in raw.files])
    except _UNREADABLE as why:
        raise IntegrityError(
            f"the raw files in {folder} cannot be read ({why}); delete that folder and run again to fetch them anew"
        ) from why


def _planetoid(folder: Path, files: list[Path]) -> Data:
    return read_planetoid_data(str(folder), folder.parent.name)


def _cora_content(folder: Path, files: list[Path]) -> Data:
    """LINQS' text files in Planetoid's node order, hence with its masks."""
    content, cites = files
    names, rows, labels = [], [], []
    for line in content.read_bytes().splitlines():
        name, rest = line.split(b"\t", 1)
        words, label = rest.rsplit(b"\t", 1)
        names.append(name)
        # Words are "0" or "1", each followed by a tab.
        rows.append(np.frombuffer(words, dtype=np.uint8)[::2] == ord("1"))
        labels.append(LABELS.index(label.decode()))
    order = planetoid_order()
    position = {names[row]: node for node, row in enumerate(order)}
    citations = [line.split() for line in cites.read_bytes().splitlines()]
    edge_index = torch.tensor([[position[one] for one in pair] for pair in citations]).T
    nodes = torch.arange(len(names))
    return Data(
        x=csr_tensor(sp.csr_matrix(np.stack(rows)[order])),
        edge_index=edge_index,
        y=torch.tensor(labels)[order],
        train_mask=nodes < 140,
        val_mask=(nodes >= 140) & (nodes < 640),
        test_mask=nodes >= 1708,
    )


def _npz(folder: Path, files: list[Path]) -> Data:
    with np.load(files[0]) as arrays:
        words = _csr(arrays, "attr_")
        words.sum_duplicates()
        words.data[words.data > 0] = 1
        return Data(
            x=csr_tensor(words),
            edge_index=_edges(_csr(arrays, "adj_")),
            y=torch.from_numpy(arrays["labels"]).long(),
        )


def _flickr(folder: Path, files: list[Path]) -> Data:
    adjacency, features, classes, roles = files
    with np.load(adjacency) as arrays:
        edge_index = _edges(_csr(arrays, ""))
    x = torch.from_numpy(np.load(features)).float()
    y = torch.full((x.shape[0],), -1)
    for node, label in json.loads(classes.read_text()).items():
        y[int(node)] = label
    role = json.loads(roles.read_text())
    masks = {name: _mask(role[key], y.numel()) for name, key in zip(MASKS, ("tr", "va", "te"), strict=True)}
    return Data(x=x, edge_index=edge_index, y=y, **masks)


def _ogb(folder: Path, files: list[Path]) -> Data:
    edges, features, labels, *splits = files
    y = torch.from_numpy(np.loadtxt(labels, dtype=np.int64))
    masks = {
        name: _mask(np.loadtxt(file, dtype=np.int64).tolist(), y.numel()) for name, file in zip(MASKS, splits, strict=True)
    }
    return Data(
        x=torch.from_numpy(np.loadtxt(features, dtype=np.float32, delimiter=",")),
        edge_index=torch.from_numpy(np.loadtxt(edges, dtype=np.int64, delimiter=",").T),
        y=y,
        **masks,
    )


def _twitch(folder: Path, files: list[Path]) -> Data:
    """Each country's files in the order of the catalogue (edges, features, target); countries are the clients.

    A streamer who is listed twice counts once. The publisher's own number of a streamer identifies a person and is left out.
    """
    edges, rows, tokens, labels, clients, before = [], [], [], [], [], 0
    for client, (links, features, target) in enumerate(zip(*(files[part::3] for part in range(3)), strict=True)):
        with target.open(newline="") as file:
            mature = {int(row["new_id"]): row["mature"] == "True" for row in csv.DictReader(file)}
        words = {int(node): sorted(set(listed)) for node, listed in json.loads(features.read_text()).items()}
        for node in range(len(mature)):
            rows += [before + node] * len(words[node])
            tokens += words[node]
        edges.append(np.loadtxt(links, dtype=np.int64, delimiter=",", skiprows=1).T + before)
        labels += [int(mature[node]) for node in range(len(mature))]
        clients += [client] * len(mature)
        before += len(mature)
    x = sp.csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, tokens)), shape=(before, TWITCH_TOKENS))
    return Data(
        x=csr_tensor(x),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        y=torch.tensor(labels),
        client=torch.tensor(clients),
    )


def _heterophilous(folder: Path, files: list[Path]) -> Data:
    """Edges are written once, in one direction; each split is a row of the masks."""
    with np.load(files[0]) as arrays:
        masks = {name: torch.from_numpy(arrays[f"{name}s"].T.copy()) for name in MASKS}
        return Data(
            x=torch.from_numpy(arrays["node_features"]),
            edge_index=torch.from_numpy(arrays["edges"].T.copy()),
            y=torch.from_numpy(arrays["node_labels"]).long(),
            **masks,
        )


def _wikics(folder: Path, files: list[Path]) -> Data:
    """Twenty splits of training and validation, one test for all; nodes kept for stopping early have no role here."""
    content = json.loads(files[0].read_text())
    masks = {name: torch.tensor(content[f"{name}s"], dtype=torch.bool).T for name in MASKS[:2]}
    edges = [(source, target) for source, targets in enumerate(content["links"]) for target in targets]
    return Data(
        x=torch.tensor(content["features"], dtype=torch.float32),
        edge_index=torch.tensor(edges, dtype=torch.int64).T,
        y=torch.tensor(content["labels"], dtype=torch.int64),
        test_mask=torch.tensor(content["test_mask"], dtype=torch.bool),
        **{name: mask.contiguous() for name, mask in masks.items()},
    )


def _csr(arrays: np.lib.npyio.NpzFile, prefix: str) -> sp.csr_matrix:
    data, indices, indptr, shape = (arrays[f"{prefix}{part}"] for part in ("data", "indices", "indptr", "shape"))
    return sp.csr_matrix((data, indices, indptr), tuple(shape))


def _edges(adjacency: sp.csr_matrix) -> Tensor:
    source, target = adjacency.tocoo().coords
    return torch.from_numpy(np.stack([source, target]).astype(np.int64))


def _mask(index: list[int], nodes: int) -> Tensor:
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[torch.tensor(index)] = True
    return mask


_READERS: dict[Reader, Callable[[Path, list[Path]], Data]] = {
    "planetoid": _planetoid,
    "cora-content": _cora_content,
    "npz": _npz,
    "flickr": _flickr,
    "ogb": _ogb,
    "twitch": _twitch,
    "heterophilous": _heterophilous,
    "wikics": _wikics,
}

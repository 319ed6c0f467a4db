"""A PyG `Data` in, a checked one out, with nothing of the user's dropped or assumed without a note.

A checked graph has float32 features (dense, or `torch.sparse_csr` when less than 40 % of them are non-zero) and a sorted
int64 `edge_index` without repeated edges and self-loops. docs/own-data.md lists its other attributes:

    task        classification (y int64 [N], -1 unlabelled), multi-label or regression (y float32, NaN unlabelled)
    directed    whether edges have a direction; if not, `edge_index` holds both
    edge_weight float32 [E], above 0, if edges have weights
    client      whose each node is, if the graph has owners; `owners` are their names
    notes       what was dropped or assumed

`validate` is for graphs that come with Suture or were cut by it: undirected, unweighted, classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import DataError
from suture.graph.data import (
    DENSE_FROM,
    LISTS,
    MASKS,
    MOST_CLASSES,
    NODE_NUMBERS,
    csr_tensor,
    scipy_matrix,
)
from suture.graph.mirror import both_ways, goes_both_ways, in_order

LARGEST = 1e18
"""Features beyond this overflow when they are squared in single precision."""
TASKS = ("classification", "multi-label", "regression")


def checked(data: Data) -> Data:
    """Check a graph and bring it into the one form the rest of Suture reads; what it says of itself is kept.

    Raises:
        DataError: Says which node, edge or label is wrong and what was expected.
    """
    notes = _texts(data, "notes")
    x = _features(data.get("x"))
    nodes = int(x.shape[0])
    given = data.get("num_nodes")
    if given is not None and int(given) != nodes:
        raise DataError(f"there are features of {nodes} nodes, but the graph has {int(given)}; they must be as many")
    made = Data(x=x)
    made.y, made.task = _labels(data, nodes, notes)
    made.edge_index, weight, made.directed = _edges(data, nodes, notes)
    if weight is not None:
        made.edge_weight = weight
    for name in MASKS + NODE_NUMBERS:
        if data.get(name) is not None:
            made[name] = _node_values(name, data[name], nodes, torch.bool if name in MASKS else torch.int64)
    if made.get("client") is not None:
        made.owners = _owners(data, made.client, nodes)
    _keep_names(data, made, nodes)
    made.notes = notes
    return made


def validate(data: Data) -> Data:
    """An undirected graph with classes, as papers have them: edges are mirrored, weights and names left behind.

    Kept besides x, edge_index and y: the three masks, `node_id`, `client` and `community`.
    """
    if data.get("y") is None:
        raise DataError("the graph has no labels: set data.y to one whole number (its class) per node")
    seen = checked(data)
    if seen.task != "classification":
        got = tensor_of(data.y, "labels")
        raise DataError(f"labels must be one class per node, got shape {list(got.shape)} of {got.dtype}; convert them")
    index = both_ways(seen.edge_index, None, int(seen.num_nodes))[0] if seen.directed else seen.edge_index
    kept = {name: seen[name] for name in MASKS + NODE_NUMBERS if seen.get(name) is not None}
    return Data(x=seen.x, edge_index=index, y=seen.y, **kept)


def tensor_of(value: object, what: str) -> Tensor:
    """An array of numbers, whatever library it is of."""
    try:
        if isinstance(value, Tensor):
            if value.is_complex():
                raise TypeError(f"it holds {value.dtype}")
            return value.detach().cpu()
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"it holds {array.dtype}")
        return torch.from_numpy(np.ascontiguousarray(array).copy())
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be an array of numbers ({error})") from error


def _features(value: object) -> Tensor:
    if value is None:
        raise DataError("the graph has no node features: set data.x to [nodes, features]")
    if sp.issparse(value):
        matrix: Any = sp.csr_matrix(value)
    else:
        x = tensor_of(value, "node features")
        if x.layout == torch.strided:
            _check_shape(x.shape)
            return _dense(x)
        matrix = scipy_matrix(x)
    _check_shape(matrix.shape)
    bad = np.flatnonzero(~np.isfinite(matrix.data))
    if bad.size:
        rows = np.unique(np.searchsorted(matrix.indptr, bad, side="right") - 1)
        raise _not_finite(rows.size, int(rows[0]), matrix.shape[0])
    _check_size(float(np.abs(matrix.data).max(initial=0)))
    sparse = csr_tensor(matrix)
    return sparse if sparse.values().numel() < DENSE_FROM * sparse.numel() else sparse.to_dense()


def _dense(x: Tensor) -> Tensor:
    smallest, largest = (float(end) for end in torch.aminmax(x if x.dtype != torch.bool else x.to(torch.uint8)))
    if not np.isfinite(smallest) or not np.isfinite(largest):
        bad = torch.nonzero(~torch.isfinite(x).all(dim=1)).squeeze(1)
        raise _not_finite(bad.numel(), int(bad[0]), x.shape[0])
    _check_size(max(-smallest, largest))
    x = x.float()
    return x.contiguous() if int(torch.count_nonzero(x)) >= DENSE_FROM * x.numel() else csr_tensor(sp.csr_matrix(x.numpy()))


def _check_shape(shape: Sequence[int]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"node features must be [nodes, features] with at least one of each, got shape {list(shape)}")


def _check_size(largest: float) -> None:
    if largest > LARGEST:
        raise DataError(f"features go up to {largest:g}, which cannot be trained on; rescale them")


def _not_finite(rows: int, first: int, nodes: int) -> DataError:
    return DataError(
        f"features are NaN or infinite in {rows} of {nodes} nodes, the first is node {first}; "
        "fill them in or drop those nodes"
    )


def _labels(data: Data, nodes: int, notes: list[str]) -> tuple[Tensor, str]:
    """Labels and the task they mean: whole numbers are classes, other numbers regression, several columns multi-label."""
    if data.get("y") is None:
        notes.append("the graph has no labels; all nodes count as unlabelled")
        return torch.full((nodes,), -1), "classification"
    y, said = tensor_of(data.y, "labels").to_dense(), data.get("task")
    if said is not None and said not in TASKS:
        raise DataError(f"data.task must be one of {', '.join(TASKS)}, got {said!r}")
    if y.dim() == 1 and said == "multi-label":
        y = y.unsqueeze(1)
    elif y.dim() == 2 and y.shape[1] == 1 and said != "multi-label":
        y = y.squeeze(1)
    if y.dim() not in (1, 2) or y.shape[0] != nodes:
        raise DataError(f"labels must be one class per node, [{nodes}] like the features, got shape {list(y.shape)}")
    if said == "regression" or (said is None and y.dim() == 1 and y.is_floating_point()):
        if said is None:
            notes.append(f"labels are {y.dtype} numbers, so they are predicted as numbers; classes are data.y.long()")
        return _values(y), "regression"
    if y.dim() == 2 and said == "classification":
        raise DataError(
            f"data.task says classification, and labels have {y.shape[1]} columns: one class per node is data.y.argmax(1), "
            "several are data.task = 'multi-label'"
        )
    if y.dim() == 2:
        if said is None:
            notes.append(f"labels have {y.shape[1]} columns of 0 and 1, so each is predicted by itself (multi-label)")
        return _several(y), "multi-label"
    if y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(f"labels must be whole numbers, got {y.dtype}; convert them with data.y.long()")
    return _classes(y.long()), "classification"


def _values(y: Tensor) -> Tensor:
    known = y[~torch.isnan(y)] if y.is_floating_point() else y
    if not bool(torch.isfinite(known).all()) or (known.numel() and float(known.double().abs().max()) > LARGEST):
        raise DataError("labels are infinite or too large at some nodes; correct them, NaN means unlabelled")
    return y.float()


def _several(y: Tensor) -> Tensor:
    known = y[~torch.isnan(y.float())]
    if not bool(((known == 0) | (known == 1)).all()):
        raise DataError(
            f"labels of several columns must be 0 or 1, one column for each class, got shape {list(y.shape)} with others; "
            "several numbers are data.task = 'regression'"
        )
    if y.shape[1] > MOST_CLASSES:
        raise DataError(f"labels have {y.shape[1]:,} columns; at most {MOST_CLASSES:,} classes can be told apart")
    return y.float()


def _classes(y: Tensor) -> Tensor:
    negative = torch.nonzero(y < -1).squeeze(1)
    if negative.numel():
        raise DataError(
            f"{negative.numel()} labels are negative, the first is {int(y[negative[0]])} at node {int(negative[0])}; "
            "classes start at 0, and -1 means unlabelled"
        )
    largest = int(y.max())
    if largest >= MOST_CLASSES:
        raise DataError(
            f"the label {largest} would mean {largest + 1:,} classes; number them from 0, at most {MOST_CLASSES:,}"
        )
    return y


def _edges(data: Data, nodes: int, notes: list[str]) -> tuple[Tensor, Tensor | None, bool]:
    """Sorted edges without loops and repetitions, their weights, and whether they have a direction."""
    index = _ends(data, nodes)
    weight = _weight(data, index.shape[1], notes)
    loop = index[0] == index[1]
    if bool(loop.any()):
        notes.append(f"{int(loop.sum()):,} self loops were dropped")
        index, weight = index[:, ~loop], None if weight is None else weight[~loop]
    before = index.shape[1]
    index, weight = in_order(index, weight, nodes)
    if index.shape[1] < before:
        added = "" if weight is None else ", their weights added"
        notes.append(f"{before - index.shape[1]:,} repeated edges were joined{added}")
    return _directed(data, index, weight, nodes, notes)


def _ends(data: Data, nodes: int) -> Tensor:
    if data.get("edge_index") is None:
        raise DataError("edges must be given as data.edge_index of shape [2, edges], got none (no edges: [2, 0])")
    index = tensor_of(data.edge_index, "edge_index")
    if index.dim() != 2 or index.shape[0] != 2:
        raise DataError(f"edges must be given as data.edge_index of shape [2, edges], got {list(index.shape)}")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise DataError(f"edge_index must hold whole node numbers, got {index.dtype}; convert it with .long()")
    index = index.long()
    outside = torch.nonzero(((index < 0) | (index >= nodes)).any(dim=0)).squeeze(1)
    if outside.numel():
        first = int(outside[0])
        source, target = index[:, first].tolist()
        raise DataError(
            f"{outside.numel()} edges name nodes that do not exist, the first is edge {first} ({source} to {target}); "
            f"the graph has {nodes} nodes, numbered 0 to {nodes - 1}"
        )
    return index


def _directed(
    data: Data, index: Tensor, weight: Tensor | None, nodes: int, notes: list[str]
) -> tuple[Tensor, Tensor | None, bool]:
    said = data.get("directed")
    mirrored = goes_both_ways(index, weight, nodes)
    if said is None:
        if not mirrored:
            notes.append(
                "edges are not in both directions, so the graph counts as directed; say data.directed = False if not"
            )
        return index, weight, not mirrored
    if said or mirrored:
        return index, weight, bool(said)
    return *both_ways(index, weight, nodes), False


def _weight(data: Data, edges: int, notes: list[str]) -> Tensor | None:
    value = data.get("edge_weight")
    attributes = data.get("edge_attr")
    if value is None and attributes is not None:
        attributes = tensor_of(attributes, "edge_attr")
        if attributes.numel() != edges:
            notes.append(f"edge_attr of shape {list(attributes.shape)} was dropped; only one weight for each edge is used")
            return None
        value = attributes.reshape(-1)
        notes.append("edge_attr holds one number for each edge and is taken as its weight")
    if value is None:
        return None
    weight = tensor_of(value, "edge_weight").reshape(-1).float()
    if weight.numel() != edges or not bool(torch.isfinite(weight).all()):
        raise DataError(f"edge_weight must be one finite number for each of {edges} edges, got {weight.numel()}")
    if bool((weight <= 0).any()):
        raise DataError(
            f"{int((weight <= 0).sum()):,} edge weights are 0 or negative; weights must be above 0, drop those edges"
        )
    return weight


def _node_values(name: str, value: object, nodes: int, wanted: torch.dtype) -> Tensor:
    tensor = tensor_of(value, f"data.{name}")
    # Masks may hold several splits, a column each.
    fits = tensor.shape == (nodes,) or (name in MASKS and tensor.dim() == 2 and tensor.shape[0] == nodes and tensor.shape[1])
    if not fits or tensor.is_floating_point() or (wanted == torch.bool) != (tensor.dtype == torch.bool):
        or_columns = f" or [{nodes}, splits]" if name in MASKS else ""
        raise DataError(
            f"data.{name} must be {wanted} of shape [{nodes}]{or_columns}, got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor.to(wanted)


def _owners(data: Data, client: Tensor, nodes: int) -> list[str]:
    """Names of the owners by their numbers; `client-07` where the user has given none."""
    smallest, largest = int(client.min()), int(client.max())
    if smallest < 0 or largest >= nodes:
        raise DataError(f"data.client must number the owners from 0, got {smallest} to {largest}")
    if data.get("owners") is None:
        width = max(2, len(str(largest)))
        return [f"client-{number:0{width}d}" for number in range(largest + 1)]
    names = _texts(data, "owners")
    if len(names) <= largest or len(set(names)) != len(names):
        raise DataError(f"data.client goes up to {largest}, data.owners must name {largest + 1} different owners")
    return names


def _texts(data: Data, name: str) -> list[str]:
    """A list of names or sentences; empty if there is none."""
    value = data.get(name)
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DataError(f"data.{name} must be a list of texts, got {value!r}")
    return [str(one) for one in value]


def _keep_names(data: Data, made: Data, nodes: int) -> None:
    """What an import knows besides: names, marks and boundary edges."""
    for name in LISTS:
        if data.get(name) is not None:
            made[name] = _texts(data, name)
    if made.get("feature_names") is not None and len(made.feature_names) != made.x.shape[1]:
        raise DataError(f"data.feature_names names {len(made.feature_names)} of {made.x.shape[1]} features; name all")
    if made.get("node_name") is not None:
        # Two owners may number their nodes alike.
        owner = made.client.tolist() if made.get("client") is not None else [0] * len(made.node_name)
        if len(made.node_name) != nodes or len(set(zip(owner, made.node_name, strict=False))) != nodes:
            raise DataError(f"data.node_name must hold {nodes} different names, one for each node")
    if made.get("class_names") is not None and made.task == "classification" and len(made.class_names) <= int(made.y.max()):
        raise DataError(f"data.class_names names {len(made.class_names)} classes, labels go up to {int(made.y.max())}")
    if data.get("standardise") is not None:
        marks = tensor_of(data.standardise, "data.standardise")
        if marks.dtype != torch.bool or marks.shape != (made.x.shape[1],):
            raise DataError(f"data.standardise must be one bool for each of the {made.x.shape[1]} features")
        made.standardise = marks
    if data.get("boundary_node") is not None:
        _keep_boundary(data, made, nodes)


def _keep_boundary(data: Data, made: Data, nodes: int) -> None:
    """Edges to nodes that are not in the graph."""
    parts = {"boundary_node": torch.int64, "boundary_outgoing": torch.bool}
    if data.get("boundary_weight") is not None:
        parts["boundary_weight"] = torch.float32
    for name, wanted in parts.items():
        made[name] = tensor_of(data.get(name), f"data.{name}").to(wanted)
    lengths = {tuple(made[name].shape) for name in parts} | {(len(made.get("boundary_foreign") or ()),)}
    own = made.boundary_node
    if len(lengths) > 1 or (own.numel() and not 0 <= int(own.min()) <= int(own.max()) < nodes):
        raise DataError(
            f"data.boundary_node must hold nodes from 0 to {nodes - 1}, and boundary_foreign, boundary_outgoing and "
            "boundary_weight (if there are weights) one entry for each"
        )

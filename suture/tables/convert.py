"""Graphs that other libraries hold, as the `Data` an imported folder gives: PyG, NetworkX, SciPy, NumPy, .pt files."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage
from torch_geometric.utils import coalesce, is_undirected, to_undirected

from suture.errors import DataError, SutureError
from suture.graph.data import MASKS, csr_tensor

MOST_CLASSES = 10_000
LARGEST = 1e18
"""Features beyond this overflow when they are squared in single precision."""
KNOWN = (
    "a PyG Data, a list or dict of them (one for each owner), a NetworkX graph, a SciPy or NumPy adjacency matrix with "
    "x= and y=, a .pt file, or a folder made by `suture import`"
)
PYG = [Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage]


def from_any(graph: object, *, x: object = None, y: object = None) -> Data:
    """A graph of whatever kind as a checked `Data` with the attributes of an imported folder (docs/own-data.md).

    Direction, weights, masks, owners (`client`) and unlabelled nodes (-1) are kept; `notes` says what was dropped.

    Args:
        graph: One of `KNOWN`.
        x: Features [N, F], for graphs that carry none.
        y: Labels [N], likewise.

    Raises:
        DataError: Says what in the graph cannot be trained on.
    """
    if isinstance(graph, HeteroData):
        raise DataError("a HeteroData has several kinds of nodes, Suture trains on one; use graph.to_homogeneous() first")
    if isinstance(graph, (str, Path)):
        return _from_path(Path(graph), x, y)
    if isinstance(graph, Data):
        return _checked(_with(graph, x, y))
    if isinstance(graph, Mapping) and graph and all(isinstance(part, Data) for part in graph.values()):
        return _of_owners([str(name) for name in graph], list(graph.values()))
    if isinstance(graph, Sequence) and graph and all(isinstance(part, Data) for part in graph):
        return _of_owners([f"owner-{number}" for number in range(1, len(graph) + 1)], graph)
    if sp.issparse(graph) or isinstance(graph, np.ndarray):
        return _checked(_with(_from_matrix(graph), x, y))
    if hasattr(graph, "is_directed") and hasattr(graph, "nodes") and hasattr(graph, "edges"):
        return _checked(_with(_from_networkx(graph), x, y))
    raise DataError(f"a graph cannot be made of {type(graph).__name__}; give {KNOWN}")


def _with(data: Data, x: object, y: object) -> Data:
    made = Data(**{name: value for name, value in data.to_dict().items() if value is not None})
    if x is not None:
        made.x = x
    if y is not None:
        made.y = y
    return made


def _from_path(path: Path, x: object, y: object) -> Data:
    if path.is_dir():
        from suture.tables.folder import GraphFolder

        return GraphFolder.read(path).to_data()
    if path.suffix != ".pt":
        raise DataError(
            f"{path} is neither a graph folder nor a .pt file; import tables with: suture import FOLDER --nodes FILE"
        )
    try:
        with torch.serialization.safe_globals(PYG):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} holds more than tensors and a PyG Data, or is damaged, and is not opened for safety; "
            "save it again with torch.save(data, path)"
        ) from error
    if isinstance(content, tuple) and content and isinstance(content[0], dict):
        content = content[0]  # as PyG's InMemoryDataset writes it
    if isinstance(content, dict) and content and not all(isinstance(part, Data) for part in content.values()):
        content = Data(**{str(name): value for name, value in content.items()})
    if isinstance(content, (str, Path)):
        raise DataError(f"{path} holds text, not a graph; give {KNOWN}")
    return from_any(content, x=x, y=y)


def _from_matrix(matrix: Any) -> Data:
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"an adjacency matrix must be square, got shape {list(matrix.shape)}; give features with x=")
    if not sp.issparse(matrix) and matrix.dtype.kind not in "biuf":
        raise DataError(f"an adjacency matrix must hold numbers, got {matrix.dtype}")
    adjacency = sp.coo_matrix(matrix)
    data = Data(edge_index=torch.from_numpy(np.stack(adjacency.coords).astype(np.int64)), num_nodes=int(matrix.shape[0]))
    if adjacency.data.size and not (adjacency.data == 1).all():
        data.edge_weight = torch.from_numpy(adjacency.data.astype(np.float32))
    return data


def _from_networkx(graph: Any) -> Data:
    """Node attributes `x` (or `features`), `y` (or `label`) and `client`; the edge attribute `weight`."""
    nodes = list(graph.nodes(data=True))
    names = [str(name) for name, _ in nodes]
    if len(set(names)) != len(names):
        raise DataError("two nodes of the graph have the same name as text; rename them")
    position = {name: number for number, (name, _) in enumerate(nodes)}
    ends = list(graph.edges(data="weight"))
    index = torch.tensor([[position[a] for a, _, _ in ends], [position[b] for _, b, _ in ends]], dtype=torch.int64)
    data = Data(edge_index=index.reshape(2, -1), num_nodes=len(nodes), node_name=names, directed=bool(graph.is_directed()))
    weights = [weight for _, _, weight in ends]
    if any(weight is not None for weight in weights):
        data.edge_weight = np.array([1.0 if weight is None else weight for weight in weights], dtype=np.float32)
    for wanted, alternatives in (("x", ("x", "features")), ("y", ("y", "label")), ("client", ("client",))):
        key = next((one for one in alternatives if any(one in attributes for _, attributes in nodes)), None)
        if key is not None:
            absent = next((name for name, attributes in nodes if key not in attributes), None)
            if absent is not None:
                raise DataError(f"node {absent!r} has no attribute {key!r}, other nodes have it; give it to all of them")
            data[wanted] = _stacked([attributes[key] for _, attributes in nodes], key)
    return data


def _stacked(values: list[Any], what: str) -> np.ndarray:
    try:
        return np.array([np.asarray(value) for value in values])
    except ValueError as error:
        raise DataError(f"the nodes' {what!r} are not all of one length") from error


def _of_owners(names: list[str], parts: Sequence[Data]) -> Data:
    """Graphs of several owners, side by side."""
    if len(set(names)) != len(names):
        raise DataError("two owners have the same name; give each its own")
    checked = []
    for name, part in zip(names, parts, strict=True):
        try:
            checked.append(_checked(_with(part, None, None)))
        except SutureError as error:
            raise DataError(f"owner {name}: {error}") from error
    for what in ("task", "directed"):
        if len({part[what] for part in checked}) > 1:
            raise DataError(f"the owners' graphs differ in {what}; they must be of one kind")
    widths = [int(part.x.shape[1]) for part in checked]
    if len(set(widths)) > 1:
        raise DataError(f"the owners' graphs have {widths} features; they must have the same")
    for what in ("edge_weight", *MASKS):
        having = [name for name, part in zip(names, checked, strict=True) if part.get(what) is not None]
        if having and len(having) < len(names):
            raise DataError(f"only the owners {', '.join(having)} have {what}; all must have it, or none")
    return _side_by_side(names, checked)


def _side_by_side(names: list[str], parts: list[Data]) -> Data:
    offsets = np.cumsum([0, *(int(part.num_nodes) for part in parts)])
    sparse = any(part.x.layout == torch.sparse_csr for part in parts)
    x = csr_tensor(sp.vstack([_scipy(part.x) for part in parts]).tocsr()) if sparse else torch.cat([p.x for p in parts])
    made = Data(
        x=x,
        edge_index=torch.cat([part.edge_index + int(offset) for part, offset in zip(parts, offsets, strict=False)], dim=1),
        y=torch.cat([part.y for part in parts]),
        client=torch.from_numpy(np.repeat(np.arange(len(parts)), [int(part.num_nodes) for part in parts])),
        owners=names,
        graphless=[name for name, part in zip(names, parts, strict=True) if not part.edge_index.numel()],
        directed=parts[0].directed,
        task=parts[0].task,
        notes=[f"owner {name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.notes],
    )
    for what in ("edge_weight", *MASKS):
        if parts[0].get(what) is not None:
            made[what] = torch.cat([part[what] for part in parts])
    return made


def _scipy(x: Tensor) -> Any:
    if x.layout != torch.sparse_csr:
        return sp.csr_matrix(x.numpy())
    return sp.csr_matrix((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), shape=tuple(x.shape))


def _checked(data: Data) -> Data:
    """The attributes of an imported folder, each checked."""
    notes: list[str] = []
    x = _features(data.get("x"))
    nodes = int(x.shape[0])
    given = data.get("num_nodes")
    if given is not None and int(given) != nodes:
        raise DataError(f"there are features of {nodes} nodes, but the graph has {int(given)}; they must be as many")
    made = Data(x=x, notes=notes)
    made.y, made.task = _labels(data.get("y"), nodes, notes)
    made.edge_index, weight, made.directed = _edges(data, nodes, notes)
    if weight is not None:
        made.edge_weight = weight
    for name in MASKS:
        if data.get(name) is not None:
            made[name] = _node_values(name, data[name], nodes, torch.bool)
    if data.get("client") is not None:
        made.client = _clients(data, nodes)
        made.owners = list(data.get("owners") or [f"owner-{number + 1}" for number in range(int(made.client.max()) + 1)])
        if len(made.owners) <= int(made.client.max()):
            raise DataError(
                f"data.client goes up to {int(made.client.max())}, but data.owners names only {len(made.owners)}"
            )
    names = data.get("node_name")
    if names is not None:
        if len(names) != nodes or len(set(names)) != nodes:
            raise DataError(f"data.node_name must hold {nodes} different names, one for each node")
        made.node_name = [str(name) for name in names]
    return made


def _clients(data: Data, nodes: int) -> Tensor:
    client = _node_values("client", data["client"], nodes, torch.int64)
    if int(client.min()) < 0 or int(client.max()) >= nodes:
        raise DataError(f"data.client must number the owners from 0, got {int(client.min())} to {int(client.max())}")
    return client


def _tensor(value: object, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"it holds {array.dtype}")
        return torch.from_numpy(np.ascontiguousarray(array).copy())
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} must be an array of numbers ({error})") from error


def _features(value: object) -> Tensor:
    if value is None:
        raise DataError("the graph has no node features: set data.x, or give x= as [nodes, features]")
    if sp.issparse(value):
        x = csr_tensor(sp.csr_matrix(value))
    else:
        x = _tensor(value, "features")
        x = x if x.layout == torch.strided else x.to_sparse_csr()
    if x.dim() != 2 or 0 in x.shape:
        raise DataError(f"node features must be [nodes, features] with at least one of each, got shape {list(x.shape)}")
    values = x if x.layout == torch.strided else x.values()
    if not bool(torch.isfinite(values).all()):
        raise DataError("features are NaN or infinite at some nodes; fill them in or drop those nodes")
    if values.numel() and float(values.double().abs().max()) > LARGEST:
        raise DataError(
            f"features go up to {float(values.double().abs().max()):g}, which cannot be trained on; rescale them"
        )
    return x.float()


def _labels(value: object, nodes: int, notes: list[str]) -> tuple[Tensor, str]:
    """Labels and the task they mean: whole numbers are classes, other numbers regression, several columns multi-label."""
    if value is None:
        notes.append("the graph has no labels; all nodes count as unlabelled")
        return torch.full((nodes,), -1), "classification"
    y = _tensor(value, "labels")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() not in (1, 2) or y.shape[0] != nodes:
        raise DataError(f"labels must be one for each of {nodes} nodes, got shape {list(y.shape)}")
    if y.dim() == 2:
        known = y[~torch.isnan(y.float()).any(dim=1)]
        if not bool(((known == 0) | (known == 1)).all()):
            raise DataError("labels of several columns must be 0 or 1, one column for each class")
        return y.float(), "multi-label"
    if y.is_floating_point():
        known = y[~torch.isnan(y)]
        if not bool(torch.isfinite(known).all()) or (known.numel() and float(known.double().abs().max()) > LARGEST):
            raise DataError("labels are infinite or too large at some nodes; correct them, NaN means unlabelled")
        return y.float(), "regression"
    y = y.long()
    smallest, largest = int(y.min()), int(y.max())
    if smallest < -1:
        raise DataError(f"the label {smallest} is negative; classes start at 0, and -1 means unlabelled")
    if largest >= MOST_CLASSES:
        raise DataError(
            f"the label {largest} would mean {largest + 1:,} classes; number them from 0, at most {MOST_CLASSES:,}"
        )
    return y, "classification"


def _edges(data: Data, nodes: int, notes: list[str]) -> tuple[Tensor, Tensor | None, bool]:
    """Sorted edges without loops and repetitions, their weights, and whether they have a direction."""
    if data.get("edge_index") is None:
        raise DataError("the graph has no edges: set data.edge_index to [2, edges] (with no columns if there are none)")
    index = _tensor(data.edge_index, "edge_index")
    if index.dim() != 2 or index.shape[0] != 2 or index.is_floating_point():
        raise DataError(f"edge_index must be whole numbers [2, edges], got {index.dtype} of shape {list(index.shape)}")
    index = index.long()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= nodes):
        raise DataError(f"edges name nodes from {int(index.min())} to {int(index.max())}, the graph has 0 to {nodes - 1}")
    weight = _weight(data, index.shape[1], notes)
    loop = index[0] == index[1]
    if bool(loop.any()):
        notes.append(f"{int(loop.sum()):,} self loops were dropped")
        index, weight = index[:, ~loop], None if weight is None else weight[~loop]
    before = index.shape[1]
    if weight is None:
        index = coalesce(index, num_nodes=nodes)
    else:
        index, weight = coalesce(index, weight, num_nodes=nodes, reduce="sum")
    if index.shape[1] < before:
        added = "" if weight is None else ", their weights added"
        notes.append(f"{before - index.shape[1]:,} repeated edges were joined{added}")
    return _directed(data, index, weight, nodes, notes)


def _directed(
    data: Data, index: Tensor, weight: Tensor | None, nodes: int, notes: list[str]
) -> tuple[Tensor, Tensor | None, bool]:
    said = data.get("directed")
    mirrored = bool(is_undirected(index, weight, num_nodes=nodes)) if index.numel() else True
    if said is None:
        if not mirrored:
            notes.append(
                "edges are not in both directions, so the graph counts as directed; say data.directed = False if not"
            )
        return index, weight, not mirrored
    if said or mirrored:
        return index, weight, bool(said)
    if weight is None:
        return to_undirected(index, num_nodes=nodes), None, False
    both, weights = to_undirected(index, weight, num_nodes=nodes, reduce="add")
    return both, weights, False


def _weight(data: Data, edges: int, notes: list[str]) -> Tensor | None:
    value = data.get("edge_weight")
    attributes = data.get("edge_attr")
    if value is None and attributes is not None:
        attributes = _tensor(attributes, "edge_attr")
        if attributes.numel() != edges:
            notes.append(f"edge_attr of shape {list(attributes.shape)} was dropped; only one weight for each edge is used")
            return None
        value = attributes.reshape(-1)
        notes.append("edge_attr holds one number for each edge and is taken as its weight")
    if value is None:
        return None
    weight = _tensor(value, "edge_weight").reshape(-1).float()
    if weight.numel() != edges or not bool(torch.isfinite(weight).all()):
        raise DataError(f"edge_weight must be one finite number for each of {edges} edges, got {weight.numel()}")
    return weight


def _node_values(name: str, value: object, nodes: int, wanted: torch.dtype) -> Tensor:
    tensor = _tensor(value, f"data.{name}")
    if tensor.shape != (nodes,) or tensor.is_floating_point() or (wanted == torch.bool and tensor.dtype != torch.bool):
        raise DataError(f"data.{name} must be {wanted} of shape [{nodes}], got {tensor.dtype} {list(tensor.shape)}")
    return tensor.to(wanted)

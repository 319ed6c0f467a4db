"""Graphs that other libraries hold, as the `Data` an imported folder gives: PyG, NetworkX, SciPy, NumPy, .pt files."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from suture.errors import DataError, SutureError
from suture.graph.checks import checked
from suture.graph.data import MASKS, csr_tensor, scipy_matrix

KNOWN = (
    "a PyG Data, a list or dict of them (one for each owner), a NetworkX graph, a SciPy or NumPy adjacency matrix with "
    "x= and y=, a .pt, .npz or .graphml file, or a folder made by `suture import`"
)
ALIKE = ("feature_names", "class_names", "standardise")
"""What graphs of several owners must agree on."""
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
        return checked(_with(graph, x, y))
    if isinstance(graph, Mapping) and graph and all(isinstance(part, Data) for part in graph.values()):
        return _of_owners([str(name) for name in graph], list(graph.values()))
    if isinstance(graph, Sequence) and graph and all(isinstance(part, Data) for part in graph):
        return _of_owners([f"owner-{number}" for number in range(1, len(graph) + 1)], graph)
    if sp.issparse(graph) or isinstance(graph, np.ndarray):
        return checked(_with(_from_matrix(graph), x, y))
    if hasattr(graph, "is_directed") and hasattr(graph, "nodes") and hasattr(graph, "edges"):
        return checked(_with(_from_networkx(graph), x, y))
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
    if path.suffix in READERS:
        if not path.is_file():
            raise DataError(f"cannot read {path}: there is no such file")
        return from_any(READERS[path.suffix](path), x=x, y=y)
    if path.suffix != ".pt":
        raise DataError(
            f"{path} is neither a graph folder nor a file of {', '.join(('.pt', *READERS))}; import tables with: "
            "suture import FOLDER --nodes FILE"
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


def _from_npz(path: Path) -> Data:
    """Arrays under the names of a `Data`'s attributes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {ALSO_CALLED.get(name, name): file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays; write it with numpy.savez") from error
    edges = arrays.get("edge_index")
    if edges is not None and edges.ndim == 2 and edges.shape[1] == 2 != edges.shape[0]:
        arrays["edge_index"] = edges.T
    known = {"x", "y", "edge_index", "edge_weight", "client", "directed", "node_name", "owners", *MASKS}
    unknown = sorted(arrays.keys() - known)
    made = Data(**{name: _plain(array) for name, array in arrays.items() if name in known})
    made.notes = [f"arrays {', '.join(unknown)} of {path.name} were dropped"] if unknown else []
    return made


def _plain(array: np.ndarray) -> object:
    """Text and single values as Python has them."""
    return array if array.ndim and array.dtype.kind in "biuf" else array.tolist()


def _from_graphml(path: Path) -> object:
    try:
        import networkx
    except ImportError as error:
        raise DataError("a .graphml file needs NetworkX; install it with: pip install networkx") from error
    try:
        graph = networkx.read_graphml(path)
    except Exception as error:
        raise DataError(f"{path} is not a GraphML file ({type(error).__name__}); write it again") from error
    return _with_columns(graph)


def _with_columns(graph: Any) -> Any:
    """GraphML has no lists: node attributes that are numbers, other than the label and the owner, become the features."""
    names = sorted({name for _, attributes in graph.nodes(data=True) for name in attributes} - NOT_FEATURES)
    for node, attributes in graph.nodes(data=True):
        values = [attributes.get(name) for name in names]
        bad = next((name for name, value in zip(names, values, strict=True) if not isinstance(value, int | float)), None)
        if bad is not None:
            raise DataError(f"node {node!r} has no number as {bad!r}; give all nodes the same numbers, or import tables")
        attributes["x"] = [float(value) for value in values]
    return graph


READERS: dict[str, Callable[[Path], object]] = {".npz": _from_npz, ".graphml": _from_graphml}
ALSO_CALLED = {"node_features": "x", "node_labels": "y", "edges": "edge_index"}
NOT_FEATURES = {"x", "features", "y", "label", "client"}


def _from_matrix(matrix: Any) -> Data:
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"an adjacency matrix must be square, got shape {list(matrix.shape)}; give features with x=")
    if matrix.dtype.kind not in "biuf":
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
        data.edge_weight = np.array([1.0 if weight is None else weight for weight in weights])
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
    pieces: list[Data] = []
    for name, part in zip(names, parts, strict=True):
        try:
            pieces.append(checked(_with(part, None, None)))
        except SutureError as error:
            raise DataError(f"owner {name}: {error}") from error
    # Who has no edges says nothing of theirs.
    linked = [part for part in pieces if part.edge_index.numel()]
    if len({part.task for part in pieces}) > 1 or len({part.y.shape[1:] for part in pieces}) > 1:
        raise DataError("the owners' graphs differ in task or in how many labels a node has; they must be of one kind")
    if len({part.directed for part in linked}) > 1:
        raise DataError("the owners' graphs differ in directed; they must be of one kind")
    widths = [int(part.x.shape[1]) for part in pieces]
    if len(set(widths)) > 1:
        raise DataError(f"the owners' graphs have {widths} features; they must have the same")
    for what, among in (("edge_weight", linked), *((one, pieces) for one in (*MASKS, "node_name"))):
        having = [name for name, part in zip(names, pieces, strict=True) if part.get(what) is not None]
        if having and any(part.get(what) is None for part in among):
            raise DataError(f"only the owners {', '.join(having)} have {what}; all must have it, or none")
    for mask in MASKS:
        if len({part[mask].shape[1:] for part in pieces if part.get(mask) is not None}) > 1:
            raise DataError(f"the owners' graphs differ in how many splits {mask} holds; all must hold equally many")
    for what in ALIKE:
        if any(not np.array_equal(part.get(what), pieces[0].get(what)) for part in pieces):
            raise DataError(f"the owners' graphs differ in {what}; all must have the same, or none")
    return _side_by_side(names, pieces)


def _side_by_side(names: list[str], parts: list[Data]) -> Data:
    offsets = np.cumsum([0, *(int(part.num_nodes) for part in parts)])
    sparse = any(part.x.layout == torch.sparse_csr for part in parts)
    x = (
        csr_tensor(sp.vstack([scipy_matrix(part.x) for part in parts]).tocsr())
        if sparse
        else torch.cat([p.x for p in parts])
    )
    made = Data(
        x=x,
        edge_index=torch.cat([part.edge_index + int(offset) for part, offset in zip(parts, offsets, strict=False)], dim=1),
        y=torch.cat([part.y for part in parts]),
        client=torch.from_numpy(np.repeat(np.arange(len(parts)), [int(part.num_nodes) for part in parts])),
        owners=names,
        graphless=[name for name, part in zip(names, parts, strict=True) if not part.edge_index.numel()],
        directed=any(part.directed for part in parts),
        task=parts[0].task,
        notes=[f"owner {name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.notes],
    )
    if any(part.get("edge_weight") is not None for part in parts):
        made.edge_weight = torch.cat([part.get("edge_weight", torch.empty(0)) for part in parts])
    for mask in MASKS:
        if parts[0].get(mask) is not None:
            made[mask] = torch.cat([part[mask] for part in parts])
    if parts[0].get("node_name") is not None:
        made.node_name = [name for part in parts for name in part.node_name]
    for what in ALIKE:
        if parts[0].get(what) is not None:
            made[what] = parts[0][what]
    return made

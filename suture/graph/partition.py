"""Which client holds which nodes: one graph in, one sorted node list per client out.

Every kind draws from its own random stream of the seed, so the same seed gives the same clients in any process.
METIS and Louvain may cut differently in other versions of their libraries: `cut.py` writes the result down.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import ConfigError, PartitionError, some_of
from suture.graph.carving import carve
from suture.graph.streaming import stream_parts
from suture.plugins import Door, check_function
from suture.settings import PartitionSettings

Nodes = NDArray[np.int64]

AUTO = "auto"
CLIENTS = 5
"""auto: into how many clients a graph without owners is cut, unless told."""
GIVEN = ("auto", "file", "given")
"""Kinds that draw nothing: the user says who owns what."""
MERGE_SLACK = 20
"""louvain: nodes by which a client may miss the mean size, as in FedSage's public code (less for small clients)."""

_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Partition:
    """Who owns what. Node sets may overlap, and may leave nodes out."""

    ids: tuple[str, ...]
    """One name per client."""
    members: tuple[Tensor, ...]
    """Per client: its nodes in the whole graph, sorted, int64."""
    graphless: tuple[bool, ...]
    """Per client: whether its edges are hidden, or it has none."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def make_partition(data: Data, settings: PartitionSettings, seed: int) -> Partition:
    """Cuts the graph as `settings` ask; the same seed gives the same clients."""
    if settings.kind == AUTO:
        return _of_owners(data, settings, seed) if data.get("client") is not None else _without_owners(data, settings, seed)
    if settings.kind in GIVEN:
        names, groups = _given_clients(data, settings.file if settings.kind == "file" else "")
        ids = _ids_of(names)
    else:
        groups = _drawn_clients(data, settings, seed)
        ids = _numbered(range(len(groups)))
    members = tuple(torch.from_numpy(group) for group in groups)
    return Partition(ids, members, _graphless(len(ids), settings.graphless_fraction, stream(seed, "graphless")))


def _of_owners(data: Data, settings: PartitionSettings, seed: int) -> Partition:
    """The owners a graph names, each with its nodes; those without a single edge of their own have no graph."""
    numbers = np.asarray(data.client)
    present = np.unique(numbers)
    names = [str(data.owners[number]) if data.get("owners") else f"client-{number:02d}" for number in present]
    if settings.clients not in (0, len(names)):
        raise PartitionError(
            f"the graph has {len(names)} owners ({some_of(names)}), not "
            f"{settings.clients}: leave the number of clients out, or cut it anew with partition.kind=metis"
        )
    source, target = data.edge_index.numpy()
    inside = np.unique(numbers[source[numbers[source] == numbers[target]]])
    members = tuple(torch.from_numpy(np.flatnonzero(numbers == number)) for number in present)
    hidden = _graphless(len(names), settings.graphless_fraction, stream(seed, "graphless"))
    none = np.isin(present, inside, invert=True).tolist()
    return Partition(_ids_of(names), members, tuple(a or b for a, b in zip(hidden, none, strict=True)))


def _without_owners(data: Data, settings: PartitionSettings, seed: int) -> Partition:
    clients = settings.clients or CLIENTS
    made = make_partition(data, replace(settings, kind="metis", clients=clients), seed)
    return replace(made, notes=(f"the graph names no owners: METIS cuts it into {clients} clients",))


def stream(seed: int, purpose: str) -> Generator:
    """The random stream of one purpose: streams of different purposes or seeds are independent."""
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, got {seed}")
    return default_rng(SeedSequence([seed, int.from_bytes(purpose.encode(), "big")]))


def undirected_edges(data: Data) -> NDArray[np.int64]:
    """Every edge once, as rows (u, v) with u < v; self loops dropped. Shape [E, 2]."""
    source, target = data.edge_index.numpy()
    nodes = max(int(data.num_nodes), 1)
    key: NDArray[np.int64] = np.minimum(source, target)
    key *= nodes
    key += np.maximum(source, target)
    key = key[source != target]
    # Not np.unique, which counts in a table: sorting ten million numbers takes a tenth of the time.
    key.sort()
    first = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return np.stack(np.divmod(key[first], nodes), axis=1)


def _drawn_clients(data: Data, settings: PartitionSettings, seed: int) -> list[Nodes]:
    draw = DOOR.recall(settings.kind)
    if settings.clients <= 0:
        raise PartitionError(f"partition.clients must be at least 1, got {settings.clients}")
    if settings.kind != "metis-overlap":
        _check_enough_nodes(data, settings.clients, settings.clients)
    rng = stream(seed, f"partition/{settings.kind}")
    return list(draw(data, settings, rng)) if settings.kind in DOOR.shipped else _foreign(draw, data, settings, rng)


def _foreign(draw: Draw, data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """The groups of somebody else's partition, sorted, if each holds nodes of the graph."""
    kind, nodes = settings.kind, int(data.num_nodes)
    try:
        groups = draw(data, settings, rng)
    except Exception as error:
        raise PartitionError(f"the partition {kind} fails ({type(error).__name__}: {error}); repair its function") from error
    try:
        found = [np.unique(np.asarray(group, dtype=np.int64)) for group in groups]
    except (TypeError, ValueError) as error:
        raise PartitionError(f"the partition {kind} must give a list of node numbers for each client ({error})") from None
    if not found or any(len(group) == 0 or group[0] < 0 or group[-1] >= nodes for group in found):
        raise PartitionError(f"the partition {kind} must give each client one or more of the nodes 0 to {nodes - 1}")
    return found


def _check_enough_nodes(data: Data, parts: int, clients: int) -> None:
    if parts > data.num_nodes:
        wanted = f"{clients} clients" if parts == clients else f"the {parts} METIS parts of {clients} clients"
        raise PartitionError(f"the graph has {data.num_nodes} nodes, too few for {wanted}: use fewer clients")


def _louvain(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """Communities, the large ones sliced, merged from the largest into clients of similar size (FedSage)."""
    clients = settings.clients
    target = int(data.num_nodes) // clients
    slack = min(MERGE_SLACK, target // 10)
    pieces = [
        community[start : start + target - slack]
        for community in _communities(data, rng)
        for start in range(0, len(community), target - slack)
    ]
    load = np.zeros(clients, dtype=np.int64)
    owned: list[list[Nodes]] = [[] for _ in range(clients)]
    turn = np.arange(clients)
    for piece in sorted(pieces, key=len, reverse=True):
        fits = turn[(load[turn] < target) & (load[turn] + len(piece) <= target + slack)]
        client = int(fits[0]) if len(fits) else int(load.argmin())
        owned[client].append(piece)
        load[client] += len(piece)
        turn = np.roll(np.arange(clients), -client)
    return _fill_empty([np.sort(np.concatenate(held)) if held else np.empty(0, np.int64) for held in owned])


def _largest_communities(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """Each of the largest communities is one client; the nodes of the others belong to nobody (FedGLS)."""
    communities = _communities(data, rng)
    if len(communities) < settings.clients:
        raise PartitionError(
            f"Louvain finds {len(communities)} communities, too few for {settings.clients} clients: "
            f"use at most {len(communities)} clients, or the partition kind 'louvain'"
        )
    return communities[: settings.clients]


def _communities(data: Data, rng: Generator) -> list[Nodes]:
    """Louvain's communities, the largest first."""
    edges = undirected_edges(data)
    membership = carve("louvain", int(data.num_nodes), edges, 0, int(rng.integers(2**63)))
    return sorted(_groups(membership, int(membership.max(initial=-1)) + 1), key=len, reverse=True)


def _metis(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    return _metis_parts(data, settings.clients, settings.clients, rng)


def _metis_overlap(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """Several clients sample the nodes of the same METIS part (FED-PUB, B.1)."""
    clients, copies, fraction = settings.clients, settings.overlap_copies, settings.overlap_fraction
    if copies < 1 or clients % copies:
        raise PartitionError(f"partition.clients must be a multiple of partition.overlap_copies, got {clients} and {copies}")
    if not 0 < fraction <= 1:
        raise ConfigError(f"partition.overlap_fraction must be in (0, 1], got {fraction}")
    parts = _metis_parts(data, clients // copies, clients, rng)
    smallest = min(len(part) for part in parts)
    if int(fraction * smallest) < 1:
        raise PartitionError(
            f"a METIS part of {smallest} nodes has none to give when each client samples {fraction:g} of it: "
            f"use fewer clients or a larger partition.overlap_fraction"
        )
    return [
        np.sort(rng.choice(part, size=int(fraction * len(part)), replace=False)) for part in parts for _ in range(copies)
    ]


def _imbalanced(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """Twice as many METIS parts as clients, merged unevenly at random (FED-PUB, Figure 12)."""
    sizes = _uneven_sizes(settings.clients)
    parts = _metis_parts(data, sum(sizes), settings.clients, rng)
    shuffled = rng.permutation(len(parts))
    return [
        np.sort(np.concatenate([parts[part] for part in chosen])) for chosen in np.split(shuffled, np.cumsum(sizes)[:-1])
    ]


def _uneven_sizes(clients: int) -> list[int]:
    """Parts per client, 2 * clients in all. For ten: 5, 3, 2, 2, 2, 2, 1, 1, 1, 1."""
    first = max(-(-2 * clients // 5), min(2, clients))
    second = min(-(-clients // 5), clients - first)
    extra = [first, second, *[1] * (clients - first - second)]
    return [1 + more for more in (extra + [0] * clients)[:clients]]


def _metis_parts(data: Data, parts: int, clients: int, rng: Generator) -> list[Nodes]:
    _check_enough_nodes(data, parts, clients)
    # METIS treats seeds 0 and 1 alike.
    seed = int(rng.integers(2, 2**31))
    return _fill_empty(_groups(carve("metis", int(data.num_nodes), undirected_edges(data), parts, seed), parts))


def _random(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    return [np.sort(share) for share in np.array_split(rng.permutation(int(data.num_nodes)), settings.clients)]


def _dirichlet(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """Each label's nodes are dealt out in proportions drawn from a symmetric Dirichlet distribution."""
    if not 0 < settings.dirichlet_alpha < float("inf"):
        raise ConfigError(f"partition.dirichlet_alpha must be > 0, got {settings.dirichlet_alpha}")
    labels = data.y.numpy()
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        nodes = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(settings.clients, settings.dirichlet_alpha))
        ends = np.rint(np.cumsum(shares)[:-1] * len(nodes)).astype(np.int64)
        for client, dealt in enumerate(np.split(nodes, ends)):
            owner[dealt] = client
    return _fill_empty(_groups(owner, settings.clients))


def _streaming(data: Data, settings: PartitionSettings, rng: Generator) -> list[Nodes]:
    """One node after the other, for graphs beyond what METIS can hold (`suture.graph.streaming`)."""
    source, target = data.edge_index.numpy()
    if source.size and bool((source[1:] < source[:-1]).any()):
        order = np.argsort(source, kind="stable")
        source, target = source[order], target[order]
    rowptr = np.searchsorted(source, np.arange(int(data.num_nodes) + 1))
    return _fill_empty(_groups(stream_parts(rowptr, target, settings.clients, rng), settings.clients))


Draw = Callable[[Data, PartitionSettings, Generator], Sequence[Nodes]]
"""(graph, settings, random numbers) to the nodes of every client; settings.clients says how many there should be."""


def _check_draw(thing: object, how: str) -> Draw:
    return cast(Draw, check_function(thing, how, "partition", 3))


_KINDS: dict[str, Draw] = {
    "louvain": _louvain,
    "communities": _largest_communities,
    "metis": _metis,
    "metis-overlap": _metis_overlap,
    "imbalanced": _imbalanced,
    "random": _random,
    "dirichlet": _dirichlet,
    "streaming": _streaming,
}
DOOR = Door("partition kind", "suture.partitions", _KINDS, _check_draw)


def _groups(owner: Nodes, count: int) -> list[Nodes]:
    """The sorted nodes of each owner 0 .. count - 1."""
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))


def _fill_empty(groups: list[Nodes]) -> list[Nodes]:
    """Gives every empty group half of the largest group; needs at least as many nodes as groups."""
    filled = list(groups)
    for empty in [k for k, group in enumerate(groups) if not len(group)]:
        largest = max(range(len(filled)), key=lambda k: len(filled[k]))
        filled[largest], filled[empty] = filled[largest][::2], filled[largest][1::2]
    return filled


def _graphless(clients: int, fraction: float, rng: Generator) -> tuple[bool, ...]:
    if not 0 <= fraction <= 1:
        raise ConfigError(f"partition.graphless_fraction must be in [0, 1], got {fraction}")
    hidden = rng.permutation(clients)[: int(fraction * clients + 0.5)]
    return tuple(bool(flag) for flag in np.isin(np.arange(clients), hidden))


def _numbered(numbers: Iterable[int]) -> tuple[str, ...]:
    numbers = list(numbers)
    width = max(2, len(str(max(numbers))))
    return tuple(f"client-{number:0{width}d}" for number in numbers)


def _given_clients(data: Data, file: str) -> tuple[list[str], list[Nodes]]:
    """The user's own assignment: the sorted client names, and each one's nodes."""
    if file:
        return _group_by_name(*_read_assignment(Path(file), int(data.num_nodes)))
    if "client" not in data:
        raise PartitionError(
            "this graph has no `client` attribute that says who owns a node: give an assignment file "
            "(partition.kind=file, partition.file=PATH) or choose another partition.kind"
        )
    client = data.client
    if client.dim() != 1 or len(client) != data.num_nodes or client.is_floating_point() or int(client.min()) < 0:
        raise PartitionError(
            f"data.client must hold one client number >= 0 for each of the {data.num_nodes} nodes, "
            f"got shape {tuple(client.shape)} of {client.dtype}"
        )
    return _group_by_name(np.arange(len(client)), [str(number) for number in client.tolist()])


def _group_by_name(nodes: Nodes, clients: list[str]) -> tuple[list[str], list[Nodes]]:
    numbers = all(client.isdecimal() for client in clients)
    if numbers:
        clients = [str(int(client)) for client in clients]
    names = sorted(set(clients), key=(lambda name: (int(name), name)) if numbers else (lambda name: (0, name)))
    rank = {name: k for k, name in enumerate(names)}
    owner = np.array([rank[client] for client in clients], dtype=np.int64)
    return names, [np.sort(nodes[rows]) for rows in _groups(owner, len(names))]


def _ids_of(names: list[str]) -> tuple[str, ...]:
    """Numbers become `client-07`; names stay, if they are fit for file and site names."""
    if all(name.isdecimal() for name in names):
        return _numbered(int(name) for name in names)
    for name in names:
        if not _CLIENT_NAME.fullmatch(name):
            raise PartitionError(
                f"client name {name!r} must start with a letter or digit and hold at most 64 letters, digits, "
                f"'.', '_' or '-'"
            )
    return tuple(names)


def _read_assignment(path: Path, nodes: int) -> tuple[Nodes, list[str]]:
    """Rows (node, client) of a file with one client per line, or of a CSV `node,client`."""
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(path.read_text("utf-8-sig").splitlines())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PartitionError(f"cannot read the client assignment {path}: {error}") from error
    width = len(rows[0]) if rows else 0
    if width not in (1, 2):
        raise PartitionError(f"{path} must hold one client per line, or lines 'node,client'; its first line has {width}")
    first_line = 2 if [cell.lower() for cell in rows[0]] == ["node", "client"] else 1
    rows = rows[first_line - 1 :]
    for line, row in enumerate(rows, first_line):
        if len(row) != width or not all(row):
            expected = "'node,client'" if width == 2 else "one client"
            raise PartitionError(f"{path} line {line} must hold {expected}, got {','.join(row)!r}")
    if width == 1:
        if len(rows) != nodes:
            raise PartitionError(f"{path} has {len(rows)} lines; expected {nodes}, one client for each node of the graph")
        return np.arange(nodes), [row[0] for row in rows]
    return _checked_nodes(path, rows, first_line, nodes), [row[1] for row in rows]


def _checked_nodes(path: Path, rows: list[list[str]], first_line: int, nodes: int) -> Nodes:
    seen: set[tuple[int, str]] = set()
    column = np.empty(len(rows), dtype=np.int64)
    for index, (node, client) in enumerate(rows):
        line = first_line + index
        if not (node.isascii() and node.isdecimal() and int(node) < nodes):
            raise PartitionError(f"{path} line {line}: node must be a number from 0 to {nodes - 1}, got {node!r}")
        column[index] = int(node)
        if (int(node), client) in seen:
            raise PartitionError(f"{path} line {line} gives node {node} to {client!r} a second time: remove the line")
        seen.add((int(node), client))
    missing = np.setdiff1d(np.arange(nodes), column)
    if len(missing):
        raise PartitionError(
            f"{path} gives {len(missing)} of the graph's {nodes} nodes to no client, the first of them node "
            f"{missing[0]}: add a line for each"
        )
    return column

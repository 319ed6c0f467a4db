"""Links that lead to other owners' nodes, as far as an owner knows them: which node of its own, and by what name the other.

A cut loses the links between owners. In reality an owner often knows the far end of such a link (the account that was paid),
though nothing of what its holder knows about it. A `Boundary` says so, whatever it comes from:

    a cut in one process    partition.boundary: `both` owners know a lost link, or `one-side`, by a fair coin of its ends
    an imported folder      edges to ids that are not in the node table (`suture.tables`)
    an owner's own file     as `graph.shard` writes and reads them

Nodes are spoken of by addresses: their number in the graph that was cut, or a hash of their id where owners imported their
own tables, which is the same wherever the same id is. It is assumed that owners who mean the same node use the same id. Who
holds which is found out by comparing addresses, openly; or by private matching (`suture.methods.matching`), which puts other
addresses in the place of these, known to the holder of a node and to those who have links to it alone.
Legend: N nodes of all clients, B known links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.kernels import SparseMatrix

Knowledge = Literal["none", "one-side", "both"]
_GOLDEN = -7046029254386353131


@dataclass(frozen=True)
class Boundary:
    """Known links. Shapes: node [B] flat positions of own ends; foreign [B] addresses of the others; address int64 [N].

    A node hears over these links as over any into it.
    """

    node: Tensor
    foreign: Tensor
    address: Tensor

    def at(self, index: Tensor, new_position: Tensor) -> Boundary:
        """For these nodes, which have new positions (others have -1)."""
        node = new_position[self.node]
        inside = node >= 0
        return Boundary(node[inside], self.foreign[inside], self.address[index])

    def between(self, start: int, end: int) -> Boundary:
        """For nodes that stand next to each other."""
        inside = (self.node >= start) & (self.node < end)
        return Boundary(self.node[inside] - start, self.foreign[inside], self.address[start:end])

    def to(self, device: torch.device) -> Boundary:
        """A copy on another device."""
        return Boundary(self.node.to(device), self.foreign.to(device), self.address.to(device))


def addresses_of(ids: Sequence[str]) -> Tensor:
    """63 bits of a hash of each id, the same at every owner, int64 [N]."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return torch.tensor([int.from_bytes(digest, "little") >> 1 for digest in digests], dtype=torch.int64)


def addresses_in(data: Data, node_id: Tensor) -> Tensor:
    """By which others know the nodes of a graph."""
    given: Tensor | None = data.get("address")
    if given is not None:
        return given
    names = data.get("node_name")
    return addresses_of(names) if names is not None and data.get("boundary_foreign") is not None else node_id


def known_links(
    data: Data, listed: SparseMatrix, address_N: Tensor, members: Sequence[Tensor], graphless: Sequence[bool], how: Knowledge
) -> Boundary:
    """What each client knows of the links that lead out of its members; `listed` has a row of neighbours for every node."""
    given_node, given_foreign = _given(data)
    place = torch.full((address_N.numel(),), -1)
    nodes, foreign, start = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)], 0
    for own, bare in zip(members, graphless, strict=True):
        place[own] = torch.arange(start, start + own.numel())
        if not bare:
            reach = listed.take_rows(own)
            row, other = own[reach.row.long()], reach.col.long()
            lost = place[other] < 0
            if how == "one-side":
                lost &= _knows(row, other)
            if how != "none":
                nodes.append(place[row[lost]])
                foreign.append(address_N[other[lost]])
            mine = place[given_node] >= 0
            nodes.append(place[given_node[mine]])
            foreign.append(given_foreign[mine])
        place[own] = -1
        start += own.numel()
    return Boundary(torch.cat(nodes), torch.cat(foreign), address_N[torch.cat(list(members))])


def _given(data: Data) -> tuple[Tensor, Tensor]:
    """Links that led out of the graph before it was cut: own node and foreign address."""
    if data.get("boundary_node") is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    ready = data.get("boundary_address")
    foreign = addresses_of(data.boundary_foreign) if ready is None else ready
    outgoing = data.get("boundary_outgoing")
    # In a directed graph a node hears from those whose edges lead to it.
    heard = ~outgoing if data.get("directed") and outgoing is not None else torch.ones_like(foreign, dtype=torch.bool)
    return data.boundary_node[heard], foreign[heard]


def _knows(node: Tensor, other: Tensor) -> Tensor:
    """Whether the owner of `node` is the one who knows the link, bool: a fair coin of the pair, whoever asks."""
    low, high = torch.minimum(node, other), torch.maximum(node, other)
    coin = ((((low + 1) * _GOLDEN) ^ (high + 1)) * _GOLDEN) >> 62 & 1
    return (coin == 1) == (node < other)

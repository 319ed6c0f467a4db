"""What methods put in the place of what the cut took away, against the truth: a part of views.json.

    neighbours   nodes by how many neighbours they lost and how many a method supposes they lost
    learned      of each client without edges, the links a method learned for it and those that were hidden from it
    server       of the links that a server learned over everybody's nodes: how many inside a class, how many across owners;
                 where nodes meet in places and there are no links, the same of pairs of nodes at one place

Only somebody who runs a simulation has the truth.
Legend: N nodes of all clients, M links, T what the server links (nodes, or groups of them), C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.method import Supposed
from suture.runs.prepare import Prepared

MOST_LOST, MOST_SUPPOSED, MOST_CLIENTS = 15, 10, 200
DIGITS = 5


def mended_of(supposed: Supposed, server_links: Tensor | None, prepared: Prepared) -> dict[str, Any]:
    """Those parts that a method has."""
    supposed = supposed.select(prepared.clients.ids)
    parts = {
        "neighbours": _neighbours(supposed, prepared),
        "learned": _learned(supposed, prepared),
        "server": _server(supposed, server_links, prepared) or _met(supposed, prepared),
    }
    return {name: part for name, part in parts.items() if part}


def _neighbours(supposed: Supposed, prepared: Prepared) -> dict[str, Any] | None:
    said_N = supposed.missing.values.cpu()
    if not len(said_N):
        return None
    data, members = prepared.graph, torch.cat(list(prepared.cut.partition.members))
    whole = torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))[members]
    here = torch.bincount(prepared.clients.edge_index[1].cpu(), minlength=len(members))
    lost_N = (whole - here).clamp_min(0)
    rows, columns = lost_N.clamp_max(MOST_LOST), said_N.clamp_max(MOST_SUPPOSED)
    width = MOST_SUPPOSED + 1
    counts = torch.bincount(rows * width + columns, minlength=(MOST_LOST + 1) * width).view(-1, width)
    both = torch.stack([lost_N.double(), said_N.double()])
    varies = bool((both.std(1) > 0).all())
    return {
        "counts": counts.tolist(),
        "lost": int(lost_N.sum()),
        "supposed": int(said_N.sum()),
        "correlation": round(float(torch.corrcoef(both)[0, 1]), DIGITS) if varies else None,
    }


def _pairs(links_M2: Tensor, nodes: int) -> Tensor:
    """Undirected links as one number each, without loops, once."""
    low, high = links_M2.min(1).values, links_M2.max(1).values
    once: Tensor = torch.unique((low * nodes + high)[low != high])
    return once


def _learned(supposed: Supposed, prepared: Prepared) -> list[dict[str, Any]]:
    if not len(supposed.links.values):
        return []
    whole, found = prepared.with_hidden_edges, []
    bounds = supposed.links.ptr.tolist()
    for k, name in enumerate(supposed.ids[:MOST_CLIENTS]):
        mine = supposed.links.values[bounds[k] : bounds[k + 1]].cpu()
        if not len(mine):
            continue
        first, last = whole.segments.bounds[k : k + 2]
        nodes, edges = last - first, whole.edge_index.cpu()
        inside = (edges[0] >= first) & (edges[0] < last)
        learned, hidden = _pairs(mine, nodes), _pairs((edges[:, inside] - first).T, nodes)
        y = whole.y[first:last].cpu()
        found.append(
            {
                "client": name,
                "learned": len(learned),
                "hidden": len(hidden),
                "right": int(torch.isin(learned, hidden).sum()),
                "by_chance": round(len(learned) * len(hidden) / max(nodes * (nodes - 1) / 2, 1), 3),
                "inside_class": _share(y[learned // nodes] == y[learned % nodes]) if y.dim() == 1 else None,
                "hidden_inside_class": _share(y[hidden // nodes] == y[hidden % nodes]) if y.dim() == 1 else None,
            }
        )
    return found


def _share(right: Tensor) -> float | None:
    return round(float(right.double().mean()), DIGITS) if len(right) else None


def _met(supposed: Supposed, prepared: Prepared) -> dict[str, Any] | None:
    place_N, graph = supposed.meets.values.cpu(), prepared.clients
    if not len(place_N) or not (pairs := _pairs_alike(place_N[place_N >= 0])):
        return None
    found: dict[str, Any] = {"links": pairs, "things": len(torch.unique(place_N[place_N >= 0])), "places": True}
    client_N, y = graph.segments.client.cpu(), graph.y.cpu()
    kinds = {"across": client_N} | ({"inside": y} if y.dim() == 1 and not y.is_floating_point() else {})
    for key, kind_N in kinds.items():
        known = (place_N >= 0) & (kind_N >= 0)
        kind, place = kind_N[known], place_N[known]
        shares = [_pairs_alike(kind, where) / max(_pairs_alike(where), 1) for where in (place, torch.zeros_like(place))]
        met, by_chance = (round(1 - share if key == "across" else share, DIGITS) for share in shares)
        found |= {"across_owners" if key == "across" else "inside_class": met, f"{key}_by_chance": by_chance}
    return found


def _pairs_alike(*parts_N: Tensor) -> int:
    """How many pairs of nodes are alike in all of these."""
    _, size = torch.unique(torch.stack(parts_N), dim=1, return_counts=True)
    return int((size * (size - 1) // 2).sum())


def _server(supposed: Supposed, links_2M: Tensor | None, prepared: Prepared) -> dict[str, Any] | None:
    thing_N = supposed.thing.values.cpu()
    if links_2M is None or not links_2M.numel() or not len(thing_N):
        return None
    graph, names = prepared.clients, supposed.ids
    client_N = graph.segments.client.cpu()
    things_K = torch.zeros(len(names), dtype=torch.int64).scatter_reduce(0, client_N, thing_N + 1, "amax")
    order = sorted(range(len(names)), key=lambda k: names[k])
    starts = pointers(things_K[order])
    first_K = torch.zeros(len(names), dtype=torch.int64)
    first_K[order] = starts[:-1]
    owner_T = torch.tensor(order).repeat_interleave(things_K[order])
    one, other = links_2M.cpu()
    apart = one != other
    one, other = one[apart], other[apart]
    if not len(one) or int(torch.stack([one, other]).max()) >= len(owner_T):
        return None
    share_K = things_K.double() / things_K.sum()
    found: dict[str, Any] = {
        "links": len(one),
        "things": len(owner_T),
        "groups": bool(things_K.sum() < len(thing_N)),
        "across_owners": _share(owner_T[one] != owner_T[other]),
        "across_by_chance": round(1 - float((share_K**2).sum()), DIGITS),
    }
    y = graph.y.cpu()
    known = (thing_N >= 0) & (y >= 0) if y.dim() == 1 and not y.is_floating_point() else None
    if known is None or not known.any():
        return found
    classes_TC = torch.zeros(len(owner_T), int(y.max()) + 1, dtype=torch.float64)
    place = (thing_N + first_K[client_N])[known]
    classes_TC.index_put_((place, y[known]), torch.ones(len(place), dtype=torch.float64), accumulate=True)
    classes_TC /= classes_TC.sum(1, keepdim=True).clamp_min(1)
    found["inside_class"] = round(float((classes_TC[one] * classes_TC[other]).sum(1).mean()), DIGITS)
    found["inside_by_chance"] = round(float((classes_TC.mean(0) ** 2).sum()), DIGITS)
    return found

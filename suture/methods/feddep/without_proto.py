"""FedDEP without Proto (the middle row of its Table 1): embeddings and gradients travel in every epoch of the generator.

    client i sends all z~_v^p, p <= n~_v;  client j returns 2 (z~ - z_u), u its nearest node, the gradient of |z~ - z_u|^2
    client i gets the sum over j, row by row

Legend: K clients, N nodes, D width of an embedding, R generated rows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from suture.core.kernels import Segments
from suture.core.message import Kind, Message, Rows
from suture.graph.batch import Features
from suture.graph.matching import nearest_of_each_client
from suture.methods.feddep.dgen import Generated


@dataclass(frozen=True)
class DeepNeighbours(Message):
    """Generated embeddings `rows` [R_k, D]; up those a client made, down those all the others made."""

    rows: Annotated[Rows, Kind.EMBEDDINGS]


@dataclass(frozen=True)
class Pulls(Message):
    """Gradients with respect to generated embeddings, row by row [R_k, D]."""

    rows: Annotated[Rows, Kind.GRADIENTS]


def everybody_elses(offered: DeepNeighbours) -> DeepNeighbours:
    """To each client the rows of all others, in the order of their names."""
    order = sorted(offered.ids)
    parts = {name: offered.select([name]).rows for name in order}
    pieces = [_joined([parts[name] for name in order if name != own]) for own in offered.ids]
    return DeepNeighbours(offered.ids, Rows.concat(pieces))


def pulls_towards(targets: Rows, offered: Rows) -> Rows:
    """2 (z~ - z_u), u the nearest of a client's own targets, for each row it received."""
    out = torch.empty_like(offered.values)
    bounds = zip(*(itertools.pairwise(rows.ptr.tolist()) for rows in (offered, targets)), strict=True)
    for (first, last), (start, end) in bounds:
        table, rows = targets.values[start:end], offered.values[first:last]
        if rows.shape[0]:
            nearest = nearest_of_each_client(rows, Features(table, Segments(torch.tensor([0, end - start]))))[0]
            out[first:last] = 2 * (rows - table[nearest])
    return Rows(out, offered.ptr)


def summed_pulls(offered: DeepNeighbours, pulls: Pulls) -> Pulls:
    """For every row offered, the sum of what all others returned."""
    order = sorted(offered.ids)
    total = {name: torch.zeros_like(offered.select([name]).rows.values) for name in order}
    for judge in order:
        names = [name for name in order if name != judge]
        back = torch.split(pulls.select([judge]).rows.values, [total[name].shape[0] for name in names])
        for name, rows in zip(names, back, strict=True):
            total[name] += rows
    return Pulls(offered.ids, Rows(torch.cat([total[name] for name in offered.ids]), offered.rows.ptr))


def along(made: Generated, pulls_RD: Tensor) -> Tensor:
    """Per node the inner product of its generated rows with their gradients, whose gradient they are, [N]."""
    node = torch.nonzero(made.used)[:, 0]
    return torch.zeros_like(made.count).index_add(0, node, (made.rows() * pulls_RD).sum(1))


def _joined(parts: list[Rows]) -> Rows:
    """The rows of several clients as those of one."""
    values = torch.cat([rows.values for rows in parts]) if parts else torch.zeros(0, 0)
    return Rows(values, torch.tensor([0, values.shape[0]]))

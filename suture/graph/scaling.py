"""Statistics that owners share before a run, and what is done with them: features and labels on one scale for everybody.

A feature becomes (x - shift) / scale. Columns of zeros and ones stay as they are; a column that is mostly zero is divided
only, so that sparse features stay sparse. Legend: N nodes, F features, C classes or numbers to predict.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.config.strict import strict
from suture.graph.data import csr_tensor, scipy_matrix

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Statistics:
    """What a run knows of everybody's data together."""

    nodes: float
    """N over all owners."""
    trained: float
    """Training nodes over all owners."""
    shift: Numbers = ()
    scale: Numbers = ()
    """Of each feature, F each; empty: features stay as they are."""
    classes: Numbers = ()
    """Training nodes of each class, C; of each label in multi-label prediction."""
    target_shift: Numbers = ()
    target_scale: Numbers = ()
    """Of numbers to predict, C each."""
    edge_scale: float = 1.0
    """What edge weights are divided by."""

    def as_json(self) -> dict[str, Any]:
        """For a file or the wire."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def read(content: Mapping[str, object]) -> Statistics:
        """As `as_json` wrote it, checked."""
        return strict(Statistics, content, "statistics")


def scaled(data: Data, statistics: Statistics) -> Data:
    """A graph with its features and edge weights on the shared scale."""
    made = copy.copy(data)
    made.x = standardised(data.x, statistics)
    if statistics.edge_scale != 1 and data.get("edge_weight") is not None:
        made.edge_weight = data.edge_weight / statistics.edge_scale
    return made


def standardised(x_NF: Tensor, statistics: Statistics) -> Tensor:
    """Features on the shared scale, in the layout they have."""
    if not statistics.scale:
        return x_NF
    shift, scale = np.array(statistics.shift), np.array(statistics.scale)
    if x_NF.layout != torch.sparse_csr:
        return (x_NF - torch.from_numpy(shift).float()).div_(torch.from_numpy(scale).float()).contiguous()
    columns, moved = scipy_matrix(x_NF).tocsc(), np.flatnonzero(shift)
    dense = {int(name): (columns[:, [name]].toarray()[:, 0] - shift[name]) / scale[name] for name in moved}
    return csr_tensor(_replaced(columns @ sp.diags_array(1 / scale), dense))


def _replaced(columns: sp.csc_matrix, dense: Mapping[int, np.ndarray]) -> sp.csr_matrix:
    """A matrix with some of its columns exchanged for dense ones."""
    if not dense:
        return sp.csr_matrix(columns)
    kept = np.ones(columns.shape[1])
    kept[list(dense)] = 0
    rest = (columns @ sp.diags_array(kept)).tocoo()
    rows = columns.shape[0]
    value = np.concatenate([rest.data, *dense.values()])
    row = np.concatenate([rest.coords[0], *(np.arange(rows) for _ in dense)])
    column = np.concatenate([rest.coords[1], np.repeat(np.array(list(dense)), rows)])
    return sp.coo_matrix((value, (row, column)), shape=columns.shape).tocsr()

"""FED-PUB's averages of everybody's models for everybody (equation 3), some rows at a time.

K clients' models of P entries make K averages of K terms: K^2 P multiply-adds, and K^2 weights. Rows are computed in blocks,
so that no more than a block of them is held in double precision; where most weights are zero (`community`, `neighbours`),
only the others are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from suture.core.kernels import SparseMatrix
from suture.core.tree import Tree, mix

WEIGHTS_AT_A_TIME = 1 << 22
"""Entries of the K x K matrices that are held at once in double precision: 32 MB."""
SPARSE_BELOW = 0.1
"""Share of weights above zero up to which a product over these alone is the faster one."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Rows of a matrix in blocks; all at once if they are few."""
    most = max(1, WEIGHTS_AT_A_TIME // max(1, columns))
    for first in range(0, rows, most):
        yield slice(first, min(first + most, rows))


def nearest_only(scores_RK: Tensor, first: int, neighbours: int) -> Tensor:
    """Scores of the `neighbours` best others and of client `first` + r itself in row r; -inf for everybody else."""
    if not 0 < neighbours < scores_RK.shape[1] - 1:
        return scores_RK
    itself = torch.arange(scores_RK.shape[0], device=scores_RK.device).unsqueeze(1)
    ranked = scores_RK.clone()
    ranked[itself, itself + first] = float("inf")
    chosen = ranked.topk(neighbours + 1, 1).indices
    return torch.full_like(scores_RK, float("-inf")).scatter_(1, chosen, scores_RK.gather(1, chosen))


def mixed(tree: Tree, weights_KK: Tensor, rows: list[int]) -> Tree:
    """`mix(tree, weights[rows])`, a block of rows at a time."""
    blocks = list(row_blocks(len(rows), weights_KK.shape[1]))
    if len(blocks) <= 1:
        return mix(tree, weights_KK[rows])
    index = torch.tensor(rows, device=weights_KK.device)
    out = {name: value.new_empty(len(rows), *value.shape[1:]) for name, value in tree.items()}
    for block in blocks:
        weights_RK = weights_KK[index[block]]
        if int(torch.count_nonzero(weights_RK)) > SPARSE_BELOW * weights_RK.numel():
            part = mix(tree, weights_RK)
        else:
            row, col = weights_RK.nonzero(as_tuple=True)
            few = SparseMatrix.from_coo(row, col, weights_RK[row, col], (weights_RK.shape[0], weights_RK.shape[1]))
            part = {
                name: few.times(value.reshape(value.shape[0], -1)).view(-1, *value.shape[1:]) for name, value in tree.items()
            }
        for name, value in part.items():
            out[name][block] = value
    return out

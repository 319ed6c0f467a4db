"""Trees of named tensors with a leading client axis, and the arithmetic methods do on them.

A `Tree` is flat and named; every tensor in it has shape [K, ...], one row per client. A single (global) model is a tree
with K = 1. An aggregation is a row-stochastic matrix over clients: `mix(params, weights_RK)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]

ROUNDING = 1e-6
"""How far the mean of equal numbers, or a product done in another order, may be from what it should be."""


def rows_of(tree: Tree) -> int:
    """K, the length of the client axis."""
    return next(iter(tree.values())).shape[0] if tree else 0


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply `function` to every tensor."""
    return {name: function(value) for name, value in tree.items()}


def tile(tree: Tree, clients: int, device: torch.device | None = None) -> Tree:
    """One model for everybody, on `device` if one is given: [1, ...] to [K, ...] without copying (the rows share memory)."""
    return map_tree(lambda value: value.expand(clients, *value.shape[1:]).to(device or value.device), tree)


def is_tiled(value: Tensor) -> bool:
    """Whether all rows are one row in memory, so that work on them can be done once."""
    return value.shape[0] == 1 or value.stride(0) == 0


def mix(tree: Tree, weights_RK: Tensor) -> Tree:
    """Row r of the result is sum_k weights[r, k] * row k. Every row of `weights_RK` sums to one."""

    def combine(value: Tensor) -> Tensor:
        flat = value.reshape(value.shape[0], -1)
        return (weights_RK.to(flat.dtype) @ flat).view(weights_RK.shape[0], *value.shape[1:])

    return map_tree(combine, tree)


def mean(tree: Tree, weights_K: Tensor) -> Tree:
    """The weighted mean over clients, as a tree with K = 1; the plain mean if nobody has any weight."""
    weights = weights_K.to(torch.float64)
    if not bool(weights.any()):
        weights = torch.ones_like(weights)
    return mix(tree, (weights / weights.sum()).unsqueeze(0))


def split(tree: Tree, names: Iterable[str]) -> tuple[Tree, Tree]:
    """(the entries in `names`, all the others)."""
    chosen = frozenset(names)
    return (
        {name: value for name, value in tree.items() if name in chosen},
        {name: value for name, value in tree.items() if name not in chosen},
    )


def prefixed(prefix: str, tree: Tree) -> Tree:
    """The entries with a prefix before their names."""
    return {prefix + name: value for name, value in tree.items()}


def under(prefix: str, tree: Tree) -> Tree:
    """The entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}


def column(row_K: Tensor, like: Tensor) -> Tensor:
    """[K] to [K, 1, ...], to be multiplied with `like`."""
    return row_K.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


def squared_distance(left: Tree, right: Tree) -> Tensor:
    """||left_k - right_k||^2 for each client, shape [K]."""
    parts = [(value - right[name]).reshape(value.shape[0], -1).square().sum(1) for name, value in left.items()]
    return torch.stack(parts).sum(0)


def unless_rounded(value: Tensor, other: Tensor) -> Tensor:
    """`other`, but where it differs from `value` by rounding only, `value`: Adam would make a whole step of that."""
    return torch.where((other - value).abs() > ROUNDING, other, value)


def take_rows(value: Tensor, index: Sequence[int]) -> Tensor:
    """Rows of the client axis; a view where the rows are contiguous or tiled."""
    if value.shape[0] > 1 and value.stride(0) == 0:
        return value[:1].expand(len(index), *value.shape[1:])
    first = index[0] if index else 0
    if list(index) == list(range(first, first + len(index))):
        return value[first : first + len(index)]
    return value[torch.tensor(index, device=value.device)]

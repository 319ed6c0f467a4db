"""Models on the wire without the entries that masks have removed (FED-PUB, section 4.2 and appendix B.3).

A model travels as one row of numbers, entries that have a mask first. One bit for each of those says whether it is among
the numbers; a client for whom the bits would cost more than they save has none, and then every entry is there.
Legend: K clients, P entries of a model, M of them with a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.message import Kind, Message, Rows
from suture.core.tree import Tree
from suture.errors import IntegrityError

BYTES_PER_ENTRY = 4


@dataclass(frozen=True)
class SparseModel(Message):
    """`values`: the entries that travel. `support`: uint8, a bit for each of the first M entries, or nothing: all travel.

    `moments` of all weights [K, ...] go along where they are averaged.
    """

    values: Annotated[Rows, Kind.WEIGHTS]
    support: Annotated[Rows, Kind.MASKS]
    moments: Annotated[Tree, Kind.MOMENTS] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class RowLayout:
    """The order of a model's parameters in its row: names and shapes without the client axis."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @staticmethod
    def of(params: Tree, masked_names: Iterable[str]) -> RowLayout:
        """Parameters with a mask, then the others, each sorted: trees come back from checkpoints in another order."""
        masked = sorted(masked_names)
        order = [*masked, *sorted(set(params) - set(masked))]
        return RowLayout(tuple((name, tuple(params[name].shape[1:])) for name in order))

    @property
    def entries(self) -> int:
        """P."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def join(self, params: Tree) -> Tensor:
        """[K, P]."""
        return torch.cat([params[name].flatten(1) for name, _ in self.shapes], 1)

    def split(self, row_KP: Tensor) -> Tree:
        """Views of the rows, by name."""
        pieces = torch.split_with_sizes(row_KP, [math.prod(shape) for _, shape in self.shapes], 1)
        return {name: piece.view(-1, *shape) for (name, shape), piece in zip(self.shapes, pieces, strict=True)}


def support_of(kept_KM: Tensor) -> Rows:
    """Bits for the clients whose masked entries would cost more than the bits do."""
    masked = kept_KM.shape[1]
    width = -(-masked // 8)
    sparse_K = (BYTES_PER_ENTRY * (~kept_KM).sum(1) > width).cpu()
    bits = np.ones((int(sparse_K.sum()), 8 * width), dtype=bool)  # what follows the last mask travels
    bits[:, :masked] = kept_KM[sparse_K.to(kept_KM.device)].cpu().numpy()
    packed = torch.from_numpy(np.packbits(bits, axis=1)).flatten()
    return Rows(packed.to(kept_KM.device), pointers(sparse_K * width))


def everything(clients: int) -> Rows:
    """The support of models that travel whole."""
    none = torch.zeros(clients + 1, dtype=torch.int64, device="cpu")
    return Rows(torch.zeros(0, dtype=torch.uint8, device="cpu"), none)


def travels(support: Rows, entries: int) -> Tensor | None:
    """Which of P entries travel, bool [K, P]; None if all do."""
    lengths = support.ptr.diff().cpu()
    width = int(lengths.max())
    if width == 0:
        return None
    if bool(((lengths != 0) & (lengths != width)).any()) or width > -(-entries // 8):
        raise IntegrityError(f"sparse models of {entries} entries came with {lengths.tolist()} bytes of bits; refused")
    bits = np.unpackbits(support.values.cpu().numpy().reshape(-1, width), axis=1)[:, :entries]
    chosen = torch.ones(lengths.numel(), entries, dtype=torch.bool, device="cpu")
    chosen[lengths > 0, : bits.shape[1]] = torch.from_numpy(bits).bool()
    return chosen.to(support.values.device)


def thinned(row_KP: Tensor, support: Rows) -> Rows:
    """The entries that travel."""
    chosen = travels(support, row_KP.shape[1])
    if chosen is None:
        return Rows(row_KP.reshape(-1), pointers(torch.full((row_KP.shape[0],), row_KP.shape[1], device="cpu")))
    return Rows(row_KP[chosen], pointers(chosen.sum(1).cpu()))


def restored(model: SparseModel, entries: int, missing: Callable[[], Tensor]) -> Tensor:
    """The rows [K, P] again; entries that did not travel are taken from `missing`, which is asked for only if needed."""
    chosen = travels(model.support, entries)
    expected = torch.full((len(model.ids),), entries, device="cpu") if chosen is None else chosen.sum(1).cpu()
    found = model.values.ptr.diff().cpu()
    if found.tolist() != expected.tolist():
        raise IntegrityError(f"sparse models came with {found.tolist()} entries, expected {expected.tolist()}; refused")
    if chosen is None:
        return model.values.values.view(len(model.ids), entries)
    return missing().masked_scatter(chosen, model.values.values)

"""Sums of rows that owners tell each other over known links, by way of the server; see `suture.methods.fedgcn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from suture.core.kernels import Segments, SparseMatrix
from suture.core.message import Kind, Message, Rows
from suture.core.streams import Streams
from suture.core.tree import mean as weighted_mean
from suture.methods.links import Asked, Wanted
from suture.privacy.mechanisms import noise_rows, secret_sums


@dataclass(frozen=True)
class Sums(Message):
    """Rows [B, F] of summed features under addresses; and of how many nodes they are, or (line 3) d, float [B]."""

    addresses: Annotated[Rows, Kind.ADDRESSES]
    rows: Annotated[Rows, Kind.FEATURES]
    counts: Annotated[Rows, Kind.COUNTS]


@dataclass(frozen=True)
class Together(Message):
    """Line 1, of all addresses: sums [K, B, F], zero where there is none; whether there is one [K, B]; weight 1 [K]."""

    rows: Annotated[Tensor, Kind.FEATURES]
    parts: Annotated[Tensor, Kind.COUNTS]
    weight: Annotated[Tensor, Kind.COUNTS]


def joined(asked: Asked, posted: Together, owners: int) -> Sums:
    """What everybody said together, of which only the sum may be known, as if one had said it; counts are of owners."""
    people = posted.weight.sum()
    totals = weighted_mean({"rows": posted.rows, "parts": posted.parts}, posted.weight)
    address = asked.addresses.values[: posted.rows.shape[1]]
    parts = (totals["parts"][0] * people).round()
    some = torch.nonzero(parts >= owners).squeeze(1)
    ptr = torch.tensor([0, some.numel()])
    rows = (totals["rows"][0] * people)[some]
    return Sums(("everybody",), Rows(address[some], ptr), Rows(rows, ptr), Rows(parts[some], ptr))


def added_up(boxes: Wanted, posted: Sums, *, mean: bool = False, owners: int = 1) -> Sums:
    """What came for each address that somebody wants, zero where nothing did; of several holders of a node their mean.

    What fewer than `owners` contributed to is nobody's.
    """
    posted = posted.select(sorted(posted.ids))
    wish, address = boxes.addresses.values.contiguous(), posted.addresses.values
    held, place = torch.unique(address, return_inverse=True)
    both = torch.cat([posted.rows.values, posted.counts.values.unsqueeze(1)], 1)
    total = both.new_zeros(held.numel() + 1, both.shape[1]).index_add_(0, place, both)
    several = torch.bincount(place, minlength=held.numel())
    total[:-1][several < owners] = 0
    if mean:
        total[:-1] /= several.unsqueeze(1)
    at = torch.searchsorted(held, wish)
    found = at < held.numel()
    found[found.clone()] = held[at[found]] == wish[found]
    rows = total[torch.where(found, at, held.numel())]
    ptr = boxes.addresses.ptr
    return Sums(boxes.ids, boxes.addresses, Rows(rows[:, :-1], ptr), Rows(rows[:, -1], ptr))


def noisy_sums(listed: SparseMatrix, rows_NF: Tensor, segments: Segments, sigma: float, clip: float, rng: Streams) -> Tensor:
    """Sums of rows no longer than `clip`, with noise; real owners draw it where nobody else can."""
    if sigma > 0 and rng.secret is not None:
        return secret_sums(listed, rows_NF / clip, sigma, rng.secret).mul_(clip)
    out = listed.times(rows_NF)
    return out + noise_rows(segments.ptr, out.shape[1], sigma * clip, rng) if sigma > 0 else out

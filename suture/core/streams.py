"""Randomness without state: one counter-based stream per client.

A draw is a pure function of (run seed, client id, labels, position), so a client draws the same numbers alone, in a
batch, in another order or after a resume. Labels replace a hidden counter: `rng.fork("dropout", epoch)`.

Everybody who knows the seed can draw these numbers again, and 64 bits can be searched. What nobody else may know (noise that
hides something, who was drawn for a noisy step, which edges may be seen) is drawn from the `Secret` that streams or graphs
may carry: real owners give them one, a simulation has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer: splitmix64's increment
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _finalise(value: Tensor) -> Tensor:
    """splitmix64's output function, in place."""
    value.bitwise_xor_(_logical_shift(value, 30)).mul_(_MIX_1)
    value.bitwise_xor_(_logical_shift(value, 27)).mul_(_MIX_2)
    return value.bitwise_xor_(_logical_shift(value, 31))


def unit(words: Tensor) -> Tensor:
    """Uniform in [0, 1) from 64 random bits each, float64."""
    return _logical_shift(words, 11).to(torch.float64).mul_(2.0**-53)


def _hash(*labels: int | str) -> int:
    digest = hashlib.blake2b("\x1f".join(map(str, labels)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generator(seed: int, *labels: int | str) -> torch.Generator:
    """An ordinary torch generator for what has no client axis, such as initial weights."""
    return torch.Generator().manual_seed(_hash(seed, *labels))


def rank(seed: int, ids: Sequence[str], *labels: int | str) -> list[int]:
    """A random number per id that does not depend on the order of the ids; used to sample clients."""
    return [_hash(seed, name, *labels) for name in ids]


class Secret(Protocol):
    """A generator that cannot be guessed or searched."""

    def fork(self, *labels: int | str) -> Secret:
        """An independent one for another purpose."""
        ...

    def words(self, count: int) -> Tensor:
        """64 random bits each, int64 [count]; the same ones in every call."""
        ...

    def of_pairs(self, one: Tensor, other: Tensor) -> Tensor:
        """64 random bits for each pair of whole numbers, int64 [E]; they depend on the two alone, not on their order."""
        ...


@dataclass(frozen=True)
class Streams:
    """Keys [K], one per client. `ptr` [K + 1] below says how many rows each client draws."""

    keys: Tensor
    secret: Secret | None = None
    """Where what must stay secret is drawn from, for all clients; None: it follows from the seed like everything else."""

    @staticmethod
    def of(seed: int, ids: Sequence[str], *labels: int | str, device: torch.device | None = None) -> Streams:
        """The streams of these clients under these labels."""
        return Streams(torch.tensor([_hash(seed, name, *labels) for name in ids], dtype=torch.int64, device=device))

    def fork(self, *labels: int | str) -> Streams:
        """Independent streams for another purpose."""
        return Streams(_finalise(self.keys ^ _hash(*labels)), self.secret.fork(*labels) if self.secret else None)

    def bits(self, ptr: Tensor, width: int = 1) -> Tensor:
        """64 random bits each, shape [N, width]; row i of client k depends on (key k, i, width) alone."""
        lengths = ptr.diff()
        total = int(ptr[-1])
        start = torch.repeat_interleave(ptr[:-1], lengths, output_size=total)
        key = torch.repeat_interleave(self.keys, lengths, output_size=total)
        row = torch.arange(total, device=ptr.device).sub_(start).mul_(width).mul_(_GOLDEN).add_(key)
        column = torch.arange(1, width + 1, device=ptr.device) * _GOLDEN
        return _finalise(row.unsqueeze(1) + column)

    def uniform(self, ptr: Tensor, width: int = 1) -> Tensor:
        """Uniform in [0, 1), float64 [N, width]."""
        return unit(self.bits(ptr, width))

    def normal(self, ptr: Tensor, width: int = 1) -> Tensor:
        """Standard normal, float32 [N, width]."""
        # Half a step away from 0 and 1, so that the inverse error function stays finite.
        uniform = self.uniform(ptr, width).add_(2.0**-54)
        # Rounding takes the topmost draw back to 1, hence the clamp.
        return torch.erfinv(uniform.mul_(2).sub_(1).clamp_max_(1 - 2.0**-53)).mul_(2**0.5).to(torch.float32)

    def bytes_below(self, threshold: int, ptr: Tensor, width: int) -> Tensor:
        """Above 0 with probability threshold / 256, float32 [N, width]: a mask at one random byte an element.

        A byte b passes if b < threshold, which is 255 - b > 255 - threshold. torch compares bytes one by one; turning the
        bits of eight at once and converting to numbers is several times sooner.
        """
        words = self.bits(ptr, -(-width // 8)).bitwise_not_()
        return words.view(torch.uint8)[:, :width].to(torch.float32).sub_(255 - threshold)

    def of_pairs(self, client: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """Uniform in [0, 1), float64 [E]: draw i depends on the key of client[i] and the pair one[i], other[i] alone."""
        low, high = torch.minimum(one, other), torch.maximum(one, other)
        return unit(_finalise(_finalise((low + 1) * _GOLDEN + self.keys[client]) + (high + 1) * _GOLDEN))

    def shuffle(self, ptr: Tensor) -> Tensor:
        """A permutation of all rows that permutes inside each client only, int64 [N]."""
        lengths = ptr.diff()
        client = torch.repeat_interleave(torch.arange(lengths.numel(), device=ptr.device), lengths)
        # Integer keys and a stable sort: client + uniform would round differently for another place in the batch.
        return torch.argsort((client << 32) | (self.bits(ptr).squeeze(1) & 0xFFFFFFFF), stable=True)

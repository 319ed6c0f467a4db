"""Randomness that cannot be searched or repeated: ChaCha20 (RFC 8439) under a key of 256 fresh bits.

An owner draws a key for every call of a step that adds noise (`suture.federation.owner.keys`), and forgets it when the step
is answered. It has one more that stays, for what it draws once for its graph. A number that belongs to two others, in any
order of asking, is one block of AES-256 under the key: a block cipher is a random function of its blocks, as far as anybody
can tell.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB
from torch import Tensor

KEY_BYTES = 32


class Keystream:
    """See `suture.core.streams.Secret`. Labels make keys of their own: BLAKE2b of the labels, under the key above them."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    @staticmethod
    def fresh() -> bytes:
        """A new key, from the system's generator."""
        return secrets.token_bytes(KEY_BYTES)

    def fork(self, *labels: int | str) -> Keystream:
        """The stream of another purpose."""
        text = "\x1f".join(map(str, labels)).encode()
        return Keystream(hashlib.blake2b(text, key=self._key, digest_size=KEY_BYTES, person=b"suture noise").digest())

    def words(self, count: int) -> Tensor:
        """64 random bits each, int64 [count]: the cipher's stream from its start, as no key serves two purposes."""
        stream = bytearray(8 * count)
        if count:
            encryptor = Cipher(ChaCha20(self._key, bytes(16)), mode=None).encryptor()
            encryptor.update_into(bytes(8 * count), stream)
        return torch.from_numpy(np.frombuffer(stream, dtype=np.int64))

    def of_pairs(self, one: Tensor, other: Tensor) -> Tensor:
        """64 random bits for each pair of whole numbers, int64 [E]; they depend on the two alone, not on their order."""
        pairs = torch.stack([torch.minimum(one, other), torch.maximum(one, other)], 1).to(torch.int64).cpu()
        encryptor = Cipher(AES(self.fork("pairs")._key), ECB()).encryptor()
        blocks = bytearray(encryptor.update(pairs.contiguous().numpy().tobytes()))
        return torch.from_numpy(np.frombuffer(blocks, dtype=np.int64)[::2].copy()).to(one.device)

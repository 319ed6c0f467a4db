"""Secure aggregation: the coordinator learns the sum of the owners' updates and nothing else about any of them.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, in its version against an
honest-but-curious server, with fresh keys for every sum. Key agreement (X25519), key derivation (HKDF-SHA256), encryption
(AES-GCM) and the mask generator (ChaCha20) are those of `cryptography`; the rest is integers modulo 2^64.

    1  owner i makes two key pairs (c_i to encrypt with, s_i to mask with) and sends both public keys
    2  owner i draws a seed b_i and sends everybody j an encrypted share of s_i and of b_i: any t of them give it back
    3  owner i sends y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij), s_ij agreed between i and j
    4  the coordinator names the survivors U, those whose y_i came; each of them, if they are t or more, gives back its share
       of b_j for j in U and of s_j for everybody else in step 2, never both for one owner
    5  sum_{i in U} x_i = sum_{i in U} (y_i - PRG(b_i)) -+ the masks shared with those that dropped out

Threat model. The coordinator follows the protocol but records everything; so may up to t - 1 owners together. They learn the
sum, and so what can be told from it: with two owners, each learns the other's update. t is more than half of the owners, so
that a coordinator cannot open two overlapping sets of survivors. An owner opens a step for one set of survivors only,
however often it is asked, for two sums that differ by one owner would give that owner away. Not covered: a coordinator that
lies about public keys (it could sit between owners), and owners that send wrong numbers: robust aggregation needs to see
single updates, so the two exclude each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from suture.errors import IntegrityError

Words = NDArray[np.uint64]
PRIME = 2**521 - 1
"""Shares are points of polynomials over this field; secrets are 256 bits."""
SCALE = 2.0**32
"""Fixed point: 32 binary places."""
LARGEST = 2.0**28
"""A sum of eight such values still fits into 64 bits with its sign; with more owners each value may be less."""


def threshold(owners: int) -> int:
    """t: more than half, at least two."""
    return max(2, owners // 2 + 1)


def encode(values: NDArray[np.float64], owners: int) -> Words:
    """Fixed-point numbers modulo 2^64."""
    limit = LARGEST * 4 / max(4, owners)
    if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) > limit:
        raise IntegrityError(f"secure aggregation holds values up to {limit:g}, an update has larger ones")
    return np.rint(values * SCALE).astype(np.int64).view(np.uint64)


def decode(words: Words) -> NDArray[np.float64]:
    """Back from a sum."""
    return words.view(np.int64).astype(np.float64) / SCALE


def mask(seed: bytes, length: int) -> Words:
    """PRG: `length` pseudo-random words."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def split(secret: bytes, points: Sequence[int], needed: int) -> dict[int, int]:
    """Shamir: shares at these points (from 1 on), any `needed` of which give the secret back."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    return {x: sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME for x in points}


def join(shares: Mapping[int, int]) -> bytes:
    """The secret from enough shares: Lagrange's polynomial at 0."""
    total = 0
    for x, y in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != x:
                numerator = numerator * -other % PRIME
                denominator = denominator * (x - other) % PRIME
        total = (total + y * numerator * pow(denominator, -1, PRIME)) % PRIME
    if total >= 2**256:
        raise IntegrityError("the shares of a secret do not fit together; the sum cannot be opened")
    return total.to_bytes(32, "big")


def _derive(shared: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=purpose.encode()).derive(shared)


def _agreed(private: X25519PrivateKey, public: bytes, purpose: str) -> bytes:
    return _derive(private.exchange(X25519PublicKey.from_public_bytes(public)), purpose)


@dataclass
class Member:
    """One owner in one sum."""

    name: str
    session: str
    encryption: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    masking: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        self.keys: dict[str, tuple[bytes, bytes]] = {}
        self.received: dict[str, tuple[int, int]] = {}
        self.partners: tuple[str, ...] = ()
        self.opened: frozenset[str] | None = None

    def public_keys(self) -> tuple[bytes, bytes]:
        """Line 1."""
        return self.encryption.public_key().public_bytes_raw(), self.masking.public_key().public_bytes_raw()

    def shares(self, keys: Mapping[str, tuple[bytes, bytes]]) -> dict[str, bytes]:
        """Line 2: an encrypted pair of shares for everybody else."""
        if keys.get(self.name) != self.public_keys() or len(keys) < 2:
            raise IntegrityError("the list of public keys does not hold this owner's own; nothing is shared")
        if self.keys:
            raise IntegrityError("shares have been handed out in this sum already")
        self.keys = dict(keys)
        names = sorted(keys)
        points = {name: position + 1 for position, name in enumerate(names)}
        needed = threshold(len(names))
        of_mask = split(self.masking.private_bytes_raw(), list(points.values()), needed)
        of_seed = split(self.seed, list(points.values()), needed)
        sealed = {}
        for name in names:
            pair = of_mask[points[name]].to_bytes(66, "big") + of_seed[points[name]].to_bytes(66, "big")
            if name == self.name:
                self.received[name] = (of_mask[points[name]], of_seed[points[name]])
                continue
            key = _agreed(self.encryption, keys[name][0], f"suture shares {self.session}")
            nonce = secrets.token_bytes(12)
            sealed[name] = nonce + AESGCM(key).encrypt(nonce, pair, f"{self.name}>{name}".encode())
        return sealed

    def masked(self, words: Words, sealed: Mapping[str, bytes]) -> Words:
        """Line 3, towards those whose shares have come."""
        if self.partners:
            raise IntegrityError("this owner has sent its part of this sum already")
        for name, data in sealed.items():
            if name not in self.keys or name == self.name:
                raise IntegrityError(f"shares came from {name}, who is not in this sum")
            key = _agreed(self.encryption, self.keys[name][0], f"suture shares {self.session}")
            try:
                pair = AESGCM(key).decrypt(data[:12], data[12:], f"{name}>{self.name}".encode())
            except InvalidTag as error:
                raise IntegrityError(f"the shares of {name} were damaged on their way") from error
            self.received[name] = (int.from_bytes(pair[:66], "big"), int.from_bytes(pair[66:], "big"))
        self.partners = tuple(sorted(self.received))
        if len(self.partners) < threshold(len(self.keys)):
            raise IntegrityError(f"{len(self.partners)} owners are too few for a secure sum among {len(self.keys)}")
        total = words + mask(_derive(self.seed, "suture self mask"), words.size)
        for name in self.partners:
            if name != self.name:
                pairwise = mask(_agreed(self.masking, self.keys[name][1], f"suture mask {self.session}"), words.size)
                total = total + pairwise if name > self.name else total - pairwise
        return total

    def open(self, survivors: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Line 4: (which secret, share) by owner; for one set of survivors only."""
        chosen = frozenset(survivors)
        if not chosen <= set(self.partners) or self.name not in chosen or len(chosen) < threshold(len(self.keys)):
            raise IntegrityError("these are not survivors this owner may open a sum for")
        if self.opened not in (None, chosen):
            raise IntegrityError("this sum has been opened for other survivors already; two sums would give an owner away")
        self.opened = chosen
        pairs = self.received.items()
        return {name: ("seed", pair[1]) if name in chosen else ("mask", pair[0]) for name, pair in pairs}


def opened_sum(
    masked: Mapping[str, Words],
    keys: Mapping[str, tuple[bytes, bytes]],
    partners: Sequence[str],
    answers: Mapping[str, Mapping[str, tuple[str, int]]],
    session: str,
) -> Words:
    """Line 5, by the coordinator. `masked` holds the survivors' y_i, `answers` what they gave back in line 4."""
    survivors = sorted(masked)
    points = {name: position + 1 for position, name in enumerate(sorted(keys))}
    if len(answers) < threshold(len(keys)):
        raise IntegrityError(f"{len(answers)} owners are too few to open a sum among {len(keys)}")
    length = next(iter(masked.values())).size
    total = np.zeros(length, dtype=np.uint64)
    for name in survivors:
        seed = join({points[other]: given[name][1] for other, given in answers.items() if given[name][0] == "seed"})
        total += masked[name] - mask(_derive(seed, "suture self mask"), length)
    for name in sorted(set(partners) - set(survivors)):
        private = X25519PrivateKey.from_private_bytes(
            join({points[other]: given[name][1] for other, given in answers.items() if given[name][0] == "mask"})
        )
        for other in survivors:
            pairwise = mask(_agreed(private, keys[other][1], f"suture mask {session}"), length)
            # `other` added it if the lost owner's name is the larger one
            total = total - pairwise if name > other else total + pairwise
    return total

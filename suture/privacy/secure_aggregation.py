"""Secure aggregation: the coordinator learns the sum of the owners' updates and nothing else about any of them.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, figure 4 with its additions
against an active server: signed keys, agreement on the survivors before anything is opened. Keys are fresh for every sum.
Key agreement (X25519), key derivation (HKDF-SHA256), encryption (AES-GCM) and the mask generator (ChaCha20) are those of
`cryptography`; the rest is integers modulo 2^64. Here is the arithmetic; who signs what, and what an owner checks and writes
down before it answers, is in `suture.federation`.

    1  owner i makes two key pairs (c_i to encrypt with, s_i to mask with), draws a seed b_i, and sends, signed, both public
       keys and a hash of b_i
    2  owner i sends everybody j an encrypted share of s_i and of b_i: any t_i of them give it back
    3  owner i sends y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij), s_ij agreed between i and j
    4  the coordinator names the survivors U, those whose y_i came; each of them signs U
    5  each of them, shown enough signatures of the same U, gives back its share of b_j for j in U and of s_j for everybody
       else in step 2, never both for one owner
    6  sum_{i in U} x_i = sum_{i in U} (y_i - PRG(b_i)) -+ the masks shared with those that dropped out

Line 2 is bound to a transcript, a hash of what the sum is for and of everybody's signed keys, and lines 3 and 4 to a hash of
that and of what the owners were asked: they are in every derived key, so owners that were told different things cannot read
each other's shares and share no mask. A secret that is put together again in line 6 is checked against line 1, so that wrong
shares are found out.

t_i is owner i's own choice, as only its own secrets hang on it: to unmask it, a coordinator needs t_i shares of both of its
secrets. Of n owners c may tell it everything; the others give one of the two each, so it has at most n + c shares, and
t_i > (n + c) / 2 is enough. That is c < 2 t_i - n, the bound of theorem 6.5 of the paper.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations, islice

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
MOST_TRIES = 2000
"""Ways to choose among shares, some of which may be wrong."""
LARGEST = 2.0**28
"""A sum of eight such values still fits into 64 bits with its sign; with more owners each value may be less."""


def threshold(members: int, colluders: int = 0) -> int:
    """t: more than half of the members and of those who may side with the coordinator; at least two."""
    return max(2, (members + colluders) // 2 + 1)


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
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64, copy=False)


def split(secret: bytes, points: Sequence[int], needed: int) -> dict[int, int]:
    """Shamir: shares at these points (from 1 on), any `needed` of which give the secret back."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    return {x: sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME for x in points}


def value_at(shares: Mapping[int, int], place: int = 0) -> int:
    """Lagrange's polynomial through these points, at another one; at 0 it is the secret."""
    total = 0
    for x, y in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != x:
                numerator = numerator * (place - other) % PRIME
                denominator = denominator * (x - other) % PRIME
        total = (total + y * numerator * pow(denominator, -1, PRIME)) % PRIME
    return total


def _choices(points: Sequence[int], needed: int) -> Iterator[Sequence[int]]:
    """Some of these points: neighbours first, for among those all but one liar's are soon left out."""
    if len(points) >= needed:
        yield from ([points[(first + k) % len(points)] for k in range(needed)] for first in range(len(points)))
        yield from islice(combinations(points, needed), MOST_TRIES)


def join(shares: Mapping[int, int], needed: int, fits: Callable[[bytes], bool]) -> tuple[bytes, set[int]]:
    """(the secret, points whose shares are wrong), from any `needed` of the shares that give one which fits."""
    for some in _choices(sorted(shares), needed):
        tried = {x: shares[x] for x in some}
        secret = value_at(tried)
        if secret < 2**256 and fits(secret.to_bytes(32, "big")):
            return secret.to_bytes(32, "big"), {x for x, y in shares.items() if x not in tried and value_at(tried, x) != y}
    raise IntegrityError("the shares of a secret do not fit together")


class AtFault(IntegrityError):
    """Others in this sum have sent what cannot be used; by name, what."""

    def __init__(self, accused: Mapping[str, str]) -> None:
        self.accused = dict(accused)
        super().__init__("; ".join(f"{name}: {why}" for name, why in accused.items()))


@dataclass(frozen=True)
class PublicKeys:
    """Line 1 without its signature: what everybody may know of an owner in one sum."""

    encryption: bytes
    masking: bytes
    commitment: bytes
    """Of the seed, of which it tells nothing: a hash of 256 random bits."""

    def check(self) -> None:
        """One sentence if these cannot be keys; some points agree with everybody on the same secret."""
        for key in (self.encryption, self.masking):
            try:
                X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
            except ValueError as error:
                raise IntegrityError("its public keys are none") from error
        if len(self.commitment) != 32:
            raise IntegrityError("it has not committed to a seed")


def _derive(shared: bytes, purpose: str, transcript: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=transcript, info=purpose.encode()).derive(shared)


def _agreed(private: X25519PrivateKey, public: bytes, purpose: str, transcript: bytes) -> bytes:
    return _derive(private.exchange(X25519PublicKey.from_public_bytes(public)), purpose, transcript)


def _committed(seed: bytes) -> bytes:
    return sha256(b"suture seed" + seed).digest()


def _route(sender: str, receiver: str, transcript: bytes) -> bytes:
    """What is not secret of an encrypted pair of shares, and must not be changed either."""
    return transcript + json.dumps([sender, receiver]).encode()


@dataclass
class Member:
    """One owner in one sum."""

    name: str
    encryption: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    masking: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        self.keys: dict[str, PublicKeys] = {}
        self.transcript = b""
        self.needed = 0
        self.received: dict[str, tuple[int, int]] = {}
        self.partners: tuple[str, ...] = ()
        self.opened: frozenset[str] | None = None

    def public(self) -> PublicKeys:
        """Line 1."""
        encryption, masking = (key.public_key().public_bytes_raw() for key in (self.encryption, self.masking))
        return PublicKeys(encryption, masking, _committed(self.seed))

    def shares(self, keys: Mapping[str, PublicKeys], transcript: bytes, needed: int) -> dict[str, bytes]:
        """Line 2: an encrypted pair of shares for everybody else. The keys have been checked."""
        if keys.get(self.name) != self.public() or not 2 <= needed <= len(keys):
            raise IntegrityError("the list of public keys does not hold this owner's own; nothing is shared")
        if self.keys:
            raise IntegrityError("shares have been handed out in this sum already")
        self.keys, self.transcript, self.needed = dict(keys), transcript, needed
        points = places(keys)
        of_mask = split(self.masking.private_bytes_raw(), list(points.values()), needed)
        of_seed = split(self.seed, list(points.values()), needed)
        sealed = {}
        for name, point in points.items():
            if name == self.name:
                self.received[name] = (of_mask[point], of_seed[point])
                continue
            key = _agreed(self.encryption, keys[name].encryption, "suture shares", transcript)
            nonce = secrets.token_bytes(12)
            pair = of_mask[point].to_bytes(66, "big") + of_seed[point].to_bytes(66, "big")
            sealed[name] = nonce + AESGCM(key).encrypt(nonce, pair, _route(self.name, name, transcript))
        return sealed

    def masked(self, words: Words, sealed: Mapping[str, bytes], asked: bytes) -> Words:
        """Line 3, towards those whose shares have come; `AtFault` names those whose shares cannot be used.

        `asked` is a hash of what the update answers: with those that were asked otherwise no mask is shared.
        """
        if self.partners or not self.keys:
            raise IntegrityError("this owner has sent its part of this sum already, or has not shared its secrets yet")
        received, accused = dict(self.received), {}
        for name, data in sealed.items():
            if name not in self.keys or name == self.name:
                raise IntegrityError(f"shares came from {name}, who is not in this sum")
            try:
                received[name] = self._unsealed(name, data)
            except (InvalidTag, ValueError):
                accused[name] = "its shares cannot be read"
        if accused:
            raise AtFault(accused)
        if len(received) < self.needed:
            raise IntegrityError(f"{len(received)} owners are too few for a secure sum among {len(self.keys)}")
        self.received, self.partners = received, tuple(sorted(received))
        total = words + mask(_derive(self.seed, "suture self mask", asked), words.size)
        for name in self.partners:
            if name != self.name:
                pairwise = mask(_agreed(self.masking, self.keys[name].masking, "suture mask", asked), words.size)
                total = total + pairwise if name > self.name else total - pairwise
        return total

    def _unsealed(self, name: str, data: bytes) -> tuple[int, int]:
        key = _agreed(self.encryption, self.keys[name].encryption, "suture shares", self.transcript)
        pair = AESGCM(key).decrypt(data[:12], data[12:], _route(name, self.name, self.transcript))
        if len(pair) != 132:
            raise ValueError("shares of another length")
        return int.from_bytes(pair[:66], "big"), int.from_bytes(pair[66:], "big")

    def check_survivors(self, survivors: Sequence[str]) -> frozenset[str]:
        """Lines 4 and 5: the set, if this owner may sign or open a sum of it."""
        chosen = frozenset(survivors)
        if not chosen <= set(self.partners) or self.name not in chosen or len(chosen) < self.needed:
            raise IntegrityError("these are not survivors this owner may open a sum for")
        return chosen

    def open(self, survivors: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Line 5: (which secret, share) by owner; for one set of survivors only."""
        chosen = self.check_survivors(survivors)
        if self.opened not in (None, chosen):
            raise IntegrityError("this sum has been opened for other survivors already; two sums would give an owner away")
        self.opened = chosen
        pairs = self.received.items()
        return {name: ("seed", pair[1]) if name in chosen else ("mask", pair[0]) for name, pair in pairs}


def places(members: Mapping[str, object]) -> dict[str, int]:
    """At which point of everybody's polynomials each member's share is."""
    return {name: position + 1 for position, name in enumerate(sorted(members))}


@dataclass
class Opening:
    """Line 6, by the coordinator."""

    masked: Mapping[str, Words]
    """The survivors' y_i."""
    keys: Mapping[str, PublicKeys]
    """Of everybody in line 1."""
    needed: Mapping[str, int]
    """t_i of everybody in line 2."""
    asked: bytes
    """What masks were derived from."""

    def total(self, answers: Mapping[str, Mapping[str, tuple[str, int]]]) -> tuple[Words, set[str]]:
        """(the sum, owners that gave wrong shares), from what survivors gave back in line 5."""
        length = next(iter(self.masked.values())).size
        total, wrong = np.zeros(length, dtype=np.uint64), set[str]()
        for name in sorted(self.masked):
            seed = self._secret(name, "seed", answers, wrong)
            total += self.masked[name]
            total -= mask(_derive(seed, "suture self mask", self.asked), length)
        for name in sorted(set(self.needed) - set(self.masked)):
            private = X25519PrivateKey.from_private_bytes(self._secret(name, "mask", answers, wrong))
            for other in self.masked:
                pairwise = mask(_agreed(private, self.keys[other].masking, "suture mask", self.asked), length)
                # `other` added it if the lost owner's name is the larger one
                total = total - pairwise if name > other else total + pairwise
        return total, wrong

    def _secret(self, name: str, kind: str, answers: Mapping[str, Mapping[str, tuple[str, int]]], wrong: set[str]) -> bytes:
        """A secret of one owner, put together from the others' shares; who gave a wrong one is added to `wrong`."""
        points = places(self.keys)
        shares = {points[other]: given[name][1] for other, given in answers.items() if given.get(name, ("", 0))[0] == kind}
        try:
            secret, bad = join(shares, self.needed[name], lambda found: self._fits(name, kind, found))
        except IntegrityError as error:
            raise AtFault(
                {name: f"{len(shares)} shares of its {kind} do not give it back, {self.needed[name]} should"}
            ) from error
        wrong |= {other for other in answers if points[other] in bad}
        return secret

    def _fits(self, name: str, kind: str, secret: bytes) -> bool:
        if kind == "seed":
            return _committed(secret) == self.keys[name].commitment
        public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        return public == self.keys[name].masking

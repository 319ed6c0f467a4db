"""Private matching, one pair of owners: who asks learns which of its ids the other holds, and under which secret.

Diffie-Hellman private set intersection (Meadows 1986; Huberman et al. 1999) with a label for each id, on Curve25519;
a is the asker's scalar, b the holder's, H the hash to the curve (`suture.privacy.points`):

    asker     sends   a H(w)                   for each id w it asks for, in random order
    holder    sends   b a H(w)                 in the same order, and a table: for each id h it holds, sorted,
                      tag, s xor pad           where tag, pad = BLAKE2b(b H(h)), and s is a secret of its own about h
    asker     finds   a^-1 b a H(w) = b H(w)   and looks its tag up in the table; the pad gives s

Who sees the traffic and has neither scalar can compute neither point nor tag of an id it guesses (decisional Diffie-Hellman,
H a random oracle). The asker can test an id only by asking for it. The holder learns how many are asked for.

X25519 fixes three bits of a scalar, so that not every scalar has an inverse it can use: a is drawn until it has one (every
second does). All points that are compared are multiples of 8, so in the subgroup of prime order, where inverses are right.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from suture.errors import ConfigError, IntegrityError

ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of the curve's subgroup of prime order."""
SIZE = 32
TAG, SECRET = 16, 8
ENTRY = TAG + SECRET
"""Bytes of a table's entry."""
WORTH_A_PROCESS = 4096
"""Points from which on a second process is quicker than none."""
PROCESSES = 2
PERSON = b"suture matching"

Bytes = np.ndarray
"""uint8 [N, bytes]."""


def usable_scalar(draw: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """(a scalar of 32 bytes, its inverse); `draw(n)` gives the n-th 32 random bytes."""
    for attempt in range(256):
        scalar = _clamped(draw(attempt))
        value = int.from_bytes(scalar, "little")
        inverse = 8 * (pow(8 * value, -1, ORDER))
        if 1 << 254 <= inverse < 1 << 255:
            return scalar, inverse.to_bytes(SIZE, "little")
    raise ArithmeticError("no usable scalar in 256 tries, which has a probability of 2^-256")


def _clamped(raw: bytes) -> bytes:
    """As X25519 reads a scalar: a multiple of 8, with bit 254 set."""
    value = int.from_bytes(raw, "little") & ~7 & ((1 << 255) - 1) | (1 << 254)
    return value.to_bytes(SIZE, "little")


def things(addresses: np.ndarray) -> Bytes:
    """What is hashed to the curve: 8 bytes of an address int64 [N] and zeros, [N, 32]."""
    out = np.zeros((addresses.size, SIZE), dtype=np.uint8)
    out[:, :8] = np.ascontiguousarray(addresses, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return out


def hashed_times(scalar: bytes, of: Bytes) -> Bytes:
    """Scalar times the hash of each thing, [N, 32]."""
    return _shared("h", scalar, of)


def times(scalar: bytes, points: Bytes) -> Bytes:
    """Scalar times each point, [N, 32]; a point that is none, or of small order, is refused."""
    try:
        return _shared("m", scalar, points)
    except ValueError as error:
        raise IntegrityError("a blinded id is no point that an honest owner could send; it was refused") from error


def key_id(scalar: bytes) -> bytes:
    """By which others notice that an owner has another scalar than before, 16 bytes: of scalar times a fixed point."""
    point = hashed_times(scalar, np.zeros((1, SIZE), dtype=np.uint8) + 255)
    return hashlib.blake2b(point.tobytes(), digest_size=16, person=PERSON).digest()


def entries(points: Bytes, secrets: np.ndarray) -> Bytes:
    """The table's entries of b H(h), [N, 24], with the secrets int64 [N]."""
    codes = codes_of(points)
    codes[:, TAG:] ^= np.ascontiguousarray(secrets, dtype="<i8").view(np.uint8).reshape(-1, SECRET)
    return codes


def codes_of(points: Bytes) -> Bytes:
    """Tag and pad of each point, [N, 24]."""
    raw = points.tobytes()
    parts = (raw[start : start + SIZE] for start in range(0, len(raw), SIZE))
    digests = b"".join(hashlib.blake2b(part, digest_size=ENTRY, person=PERSON).digest() for part in parts)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, ENTRY).copy()


def looked_up(codes: Bytes, table: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """For each code whether its tag is in the table, bool [N], and the secret there, int64 [N] (0 where it is not)."""
    if not len(codes) or not len(table):
        return np.zeros(len(codes), dtype=bool), np.zeros(len(codes), dtype=np.int64)
    order = np.argsort(_as_numbers(table), kind="stable")
    place = np.searchsorted(_as_numbers(table)[order], _as_numbers(codes))
    there = table[order[np.minimum(place, len(table) - 1)]]
    found = (there[:, :TAG] == codes[:, :TAG]).all(1)
    plain = np.ascontiguousarray(there[:, TAG:] ^ codes[:, TAG:]).view("<i8").ravel()
    return found, np.where(found, plain, 0)


def _as_numbers(tags: Bytes) -> np.ndarray:
    """The first 8 bytes of each tag, by which to sort."""
    return np.ascontiguousarray(tags[:, :8]).view("<u8").ravel()


def _shared(mode: str, scalar: bytes, given: Bytes) -> Bytes:
    """In this process, or half of it in another."""
    try:
        from suture.privacy import points
    except ImportError as error:
        raise ConfigError(
            "private matching needs the cryptography package; install it with: pip install 'suture-fl[federation]'"
        ) from error
    half = len(given) // PROCESSES if len(given) >= WORTH_A_PROCESS and len(os.sched_getaffinity(0)) > 1 else 0
    if not half:
        out = points.multiplied(mode, scalar, given.tobytes())
    else:
        command = [sys.executable, points.__file__]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
            assert other.stdin is not None and other.stdout is not None
            other.stdin.write(mode.encode() + scalar + given[:half].tobytes())
            other.stdin.close()
            mine = points.multiplied(mode, scalar, given[half:].tobytes())
            theirs = other.stdout.read()
        if len(theirs) != half * SIZE:
            # What it could not do is done here, where an error can be told.
            theirs = points.multiplied(mode, scalar, given[:half].tobytes())
        out = theirs + mine
    return np.frombuffer(out, dtype=np.uint8).reshape(-1, SIZE)

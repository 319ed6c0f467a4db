"""Points of Curve25519 for many things at once; also run as a program of its own, so that two processes share the work.

A thing (16 bytes or so) is hashed to a point by try and increment: SHA-512 of it and a counter, modulo p, is the first
coordinate u of a point if u^3 + 486662 u^2 + u is a square. Of a u that is none X25519 would compute on the curve's twist,
and whoever sees the outcome could tell the two kinds apart: one bit of the thing. A point is multiplied by X25519 of the
`cryptography` package (OpenSSL: constant time), which refuses points of small order.

As a program: one mode (`h` hash and multiply, `m` multiply), a scalar of 32 bytes and the things (32 bytes each) on standard
input, points on standard output. It imports nothing of ours, so that it starts in some hundredths of a second.
"""

from __future__ import annotations

import hashlib
import sys

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

SIZE = 32
"""Bytes of a point, of a scalar and of a thing."""
PRIME = 2**255 - 19
COEFFICIENT = 486662
DOMAIN = b"suture matching, hash to curve25519 v1"


def is_square(value: int) -> bool:
    """Whether a number is a square modulo p, by quadratic reciprocity: four times as fast in Python as a power."""
    below, above, sign = value, PRIME, 1
    while below:
        zeros = (below & -below).bit_length() - 1
        below >>= zeros
        if zeros & 1 and above & 7 in (3, 5):
            sign = -sign
        if below & 3 == 3 and above & 3 == 3:
            sign = -sign
        below, above = above % below, below
    return sign == 1


def hashed(thing: bytes) -> bytes:
    """The point of a thing, uniform among all of the curve's first coordinates."""
    for counter in range(256):
        digest = hashlib.sha512(DOMAIN + bytes([counter]) + thing).digest()
        u = int.from_bytes(digest, "little") % PRIME
        if is_square(u * (u * (u + COEFFICIENT) + 1) % PRIME):
            return u.to_bytes(SIZE, "little")
    raise ArithmeticError("no point in 256 tries, which has a probability of 2^-256")


def multiplied(mode: str, scalar: bytes, things: bytes) -> bytes:
    """Each thing (32 bytes) times the scalar: `h` of its hash, `m` of itself, which is a point."""
    key, load = X25519PrivateKey.from_private_bytes(scalar), X25519PublicKey.from_public_bytes
    parts = (things[start : start + SIZE] for start in range(0, len(things), SIZE))
    if mode == "h":
        parts = (hashed(part) for part in parts)
    return b"".join(key.exchange(load(part)) for part in parts)


def main() -> None:
    """See above."""
    given = sys.stdin.buffer.read()
    sys.stdout.buffer.write(multiplied(given[:1].decode(), given[1 : SIZE + 1], given[SIZE + 1 :]))


if __name__ == "__main__":
    main()

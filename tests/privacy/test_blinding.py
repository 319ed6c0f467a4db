"""Blinded ids: the intersection and its labels against sets, points against a ladder written out, hostile points."""

from __future__ import annotations

import hashlib
import os
from collections import Counter

import numpy as np
import pytest

from suture.errors import IntegrityError
from suture.privacy import blinding, points

P, A = 2**255 - 19, 486662


def ladder(scalar: int, u: int) -> int:
    """Scalar times the point with first coordinate u: RFC 7748's formulas, in whole numbers."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in reversed(range(255)):
        swap = scalar >> bit & 1
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = a * a * b * b % P, (a * a - b * b) * (a * a + 121665 * (a * a - b * b)) % P
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return x2 * pow(z2, P - 2, P) % P


def scalars() -> tuple[bytes, bytes]:
    return blinding.usable_scalar(lambda attempt: os.urandom(32))


def test_who_asks_finds_the_intersection_and_its_labels_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    wanted, held = rng.choice(2**40, 300, replace=False), rng.choice(2**40, 200, replace=False)
    held[:120] = wanted[rng.permutation(300)[:120]]
    (asking, inverse), (holding, _) = scalars(), scalars()
    answered = blinding.times(holding, blinding.hashed_times(asking, blinding.things(wanted)))
    labels = rng.integers(-(2**62), 2**62, 200)
    table = blinding.entries(blinding.hashed_times(holding, blinding.things(held)), labels)
    there, told = blinding.looked_up(blinding.codes_of(blinding.times(inverse, answered)), table)
    assert {int(one) for one in wanted[there]} == set(wanted.tolist()) & set(held.tolist())
    truth = dict(zip(held.tolist(), labels.tolist(), strict=True))
    assert [truth[int(one)] for one in wanted[there]] == told[there].tolist() and not told[~there].any()
    other, _ = scalars()
    guessed = blinding.entries(blinding.hashed_times(other, blinding.things(held)), labels)
    assert not blinding.looked_up(table, guessed)[0].any(), "who guesses ids cannot test them without the scalar"


def test_points_are_those_of_the_curve_and_products_those_of_a_ladder() -> None:
    for thing in range(40):
        u = int.from_bytes(points.hashed(bytes([thing]) * 32), "little")
        assert u < P and pow(u**3 + A * u**2 + u, (P - 1) // 2, P) == 1, "on the curve, not on its twist"
    scalar, inverse = scalars()
    base = points.hashed(b"a" * 32)
    product = points.multiplied("m", scalar, base)
    assert int.from_bytes(product, "little") == ladder(int.from_bytes(scalar, "little"), int.from_bytes(base, "little"))
    assert points.multiplied("h", scalar, b"a" * 32) == product
    twice = points.multiplied("m", scalar, product)
    assert points.multiplied("m", inverse, twice) == product, "in the subgroup of prime order an inverse is one"


def test_squares_are_told_apart_as_by_a_power() -> None:
    rng = np.random.default_rng(1)
    numbers = [int.from_bytes(rng.bytes(32), "little") % P for _ in range(60)]
    assert [points.is_square(n) for n in numbers] == [pow(n, (P - 1) // 2, P) == 1 for n in numbers]


def test_a_second_process_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scalar, _ = scalars()
    some = blinding.things(np.arange(50))
    alone = blinding.hashed_times(scalar, some)
    monkeypatch.setattr(blinding, "WORTH_A_PROCESS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1})
    assert np.array_equal(blinding.hashed_times(scalar, some), alone)


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), (P - 1).to_bytes(32, "little")])
def test_points_of_small_order_are_refused(point: bytes) -> None:
    given = np.frombuffer(points.hashed(b"b" * 32) + point, np.uint8).reshape(2, 32)
    with pytest.raises(IntegrityError, match="no point that an honest owner could send"):
        blinding.times(scalars()[0], given)


def test_entries_look_like_noise() -> None:
    """The bits of tags, pads and blinded points of consecutive ids are as good as fair coins."""
    scalar, _ = scalars()
    made = blinding.hashed_times(scalar, blinding.things(np.arange(400)))
    table = blinding.entries(made, np.zeros(400, np.int64))
    for bits in (np.unpackbits(table), np.unpackbits(made)):
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size) + 0.002  # the top bit of a point is never set
    assert max(Counter(table[:, 0].tolist()).values()) < 20
    plain = {hashlib.blake2b(one.tobytes(), digest_size=24).digest() for one in blinding.things(np.arange(400))}
    assert not plain & {row.tobytes() for row in table}

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from suture.errors import IntegrityError
from suture.privacy.secure_aggregation import (
    AtFault,
    Member,
    Opening,
    PublicKeys,
    decode,
    encode,
    join,
    mask,
    split,
    threshold,
)

BOUND, ASKED = bytes(range(32)), bytes(range(1, 33))
NAMES = ["ash", "birch", "cedar", "dogwood", "elm"]


def protocol(
    values: dict[str, np.ndarray],
    lost_before_shares: set[str] = frozenset(),
    lost_before_sending: set[str] = frozenset(),
    liars: set[str] = frozenset(),
):
    """Everything a coordinator sees, and the sum it opens."""
    members = {name: Member(name) for name in values}
    keys = {name: member.public() for name, member in members.items()}
    needed = threshold(len(values))
    shares = {name: members[name].shares(keys, BOUND, needed) for name in values if name not in lost_before_shares}
    partners = sorted(shares)
    masked = {
        name: members[name].masked(
            encode(values[name], len(values)), {other: shares[other][name] for other in partners if other != name}, ASKED
        )
        for name in partners
        if name not in lost_before_sending
    }
    answers = {name: members[name].open(sorted(masked)) for name in masked}
    opening = Opening(masked, keys, dict.fromkeys(partners, needed), ASKED)
    spoilt = {name: {of: (kind, share ^ (name in liars)) for of, (kind, share) in answers[name].items()} for name in masked}
    total, wrong = opening.total(spoilt)
    assert wrong <= set(liars)
    return members, masked, total


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=4096) * 10 for name in NAMES}


@pytest.mark.parametrize(
    ("before_shares", "before_sending"),
    [(set(), set()), (set(), {"cedar"}), ({"ash"}, set()), ({"elm"}, {"birch"}), (set(), {"ash", "elm"})],
)
def test_the_sum_is_right_whoever_drops_out(values, before_shares: set[str], before_sending: set[str]) -> None:
    _, masked, total = protocol(values, before_shares, before_sending)
    survivors = set(NAMES) - before_shares - before_sending
    assert set(masked) == survivors
    np.testing.assert_allclose(decode(total), sum(values[name] for name in survivors), atol=1e-8)


def test_what_the_coordinator_records_is_flat() -> None:
    """The bytes of y_i are uniform and say nothing about x_i, though x_i is all zeros; two runs share nothing."""
    nothing = {name: np.zeros(40_000) for name in NAMES[:3]}
    _, first, _ = protocol(nothing)
    _, second, _ = protocol(nothing)
    for name in nothing:
        counts = np.bincount(first[name].view(np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-4
        bits = np.unpackbits((first[name] ^ second[name]).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005
    unmasked = np.bincount(encode(nothing["ash"], 3).view(np.uint8), minlength=256)
    assert chisquare(unmasked + 1).pvalue < 1e-4, "the test must be able to tell"


def test_an_update_is_not_told_by_correlation() -> None:
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=40_000) for name in NAMES[:3]}
    _, masked, _ = protocol(values)
    for name in values:
        as_number = decode(masked[name])
        assert abs(np.corrcoef(as_number, values[name])[0, 1]) < 0.03


def test_an_owner_opens_one_set_of_survivors_only(values) -> None:
    """The sums of two sets that differ by one owner would give that owner's update away."""
    members, _, _ = protocol(values)
    assert members["ash"].open(NAMES)
    with pytest.raises(IntegrityError, match="two sums would give an owner away"):
        members["ash"].open(NAMES[:4])


def test_too_few_survivors_are_not_opened(values) -> None:
    with pytest.raises(IntegrityError, match="not survivors"):
        protocol(values, lost_before_sending={"ash", "birch", "cedar"})


def test_never_both_secrets_of_one_owner(values) -> None:
    members, _, _ = protocol(values, lost_before_sending={"cedar"})
    for name in ("ash", "birch"):
        kinds = {other: kind for other, (kind, _) in members[name].open(sorted(set(NAMES) - {"cedar"})).items()}
        assert kinds["cedar"] == "mask"
        assert all(kind == "seed" for other, kind in kinds.items() if other != "cedar")


def test_damaged_shares_and_foreign_keys_are_refused() -> None:
    members = {name: Member(name) for name in NAMES[:3]}
    keys = {name: member.public() for name, member in members.items()}
    with pytest.raises(IntegrityError, match="own"):
        members["ash"].shares({**keys, "ash": keys["birch"]}, BOUND, 2)
    shares = {name: members[name].shares(keys, BOUND, 2) for name in keys}
    damaged = shares["birch"]["ash"][:-1] + bytes([shares["birch"]["ash"][-1] ^ 1])
    with pytest.raises(AtFault) as caught:
        members["ash"].masked(np.zeros(4, dtype=np.uint64), {"birch": damaged, "cedar": shares["cedar"]["ash"]}, ASKED)
    assert set(caught.value.accused) == {"birch"}


def test_who_was_told_another_transcript_can_neither_read_nor_be_read() -> None:
    members = {name: Member(name) for name in NAMES[:3]}
    keys = {name: member.public() for name, member in members.items()}
    shares = {name: members[name].shares(keys, BOUND if name != "ash" else bytes(32), 2) for name in keys}
    for name, others in (("ash", {"birch", "cedar"}), ("birch", {"ash"})):
        with pytest.raises(AtFault) as caught:
            members[name].masked(np.zeros(4, dtype=np.uint64), {o: shares[o][name] for o in keys if o != name}, ASKED)
        assert set(caught.value.accused) == others


@pytest.mark.parametrize("liar", NAMES)
def test_wrong_shares_are_found_and_the_sum_is_right(values, liar: str) -> None:
    _, _, total = protocol(values, liars={liar})
    np.testing.assert_allclose(decode(total), sum(values.values()), atol=1e-8)


def test_points_that_agree_with_everybody_are_no_keys() -> None:
    good = Member("ash").public()
    good.check()
    for bad in (bytes(32), bytes([1]) + bytes(31), b"short"):
        with pytest.raises(IntegrityError, match="none"):
            PublicKeys(bad, good.masking, good.commitment).check()
        with pytest.raises(IntegrityError, match="none"):
            PublicKeys(good.encryption, bad, good.commitment).check()


def test_shamir_needs_enough_shares() -> None:
    secret = bytes(range(32))
    shares = split(secret, range(1, 8), 4)
    fits = secret.__eq__
    assert join({x: shares[x] for x in (2, 3, 5, 7)}, 4, fits) == (secret, set())
    for some in ((2, 3, 5), (1, 2, 4)):
        with pytest.raises(IntegrityError):
            join({x: shares[x] for x in some}, 4, fits)
        with pytest.raises(IntegrityError):
            join({x: shares[x] for x in some}, 3, fits)
    assert join({**shares, 6: shares[6] + 1}, 4, fits) == (secret, {6})
    assert join({**shares, 1: shares[1] + 1}, 4, fits)[0] == secret
    assert join({**shares, 1: 5, 4: 7}, 4, fits)[0] == secret


def test_fixed_point() -> None:
    assert threshold(3) == 2
    assert threshold(4) == 3
    assert threshold(5) == 3
    # theorem 6.5: fewer than 2 t - n colluding owners
    assert all(colluders < 2 * threshold(n, colluders) - n for n in range(2, 60) for colluders in range(n))
    np.testing.assert_allclose(decode(encode(np.array([-1.5, 0.0, 3.25e5]), 5)), [-1.5, 0.0, 3.25e5])
    with pytest.raises(IntegrityError, match="larger"):
        encode(np.array([1e12]), 5)
    with pytest.raises(IntegrityError, match="larger"):
        encode(np.array([np.nan]), 5)
    assert not np.array_equal(mask(bytes(32), 8), mask(bytes([1] * 32), 8))

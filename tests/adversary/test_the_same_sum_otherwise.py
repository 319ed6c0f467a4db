"""The same sum over all owners but one, ordered otherwise: under another seed, where it follows from the data alone, or with
other settings, where it follows from the message.

An honest operator does this whenever an owner is away. Before owners looked at that, the difference was the absent owner's
part to the last digit, and the refusal of a second run itself said to take another seed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile import OWNERS, Hostile, desks_in, planned, true_update, write_shards

from suture.core.message import Nothing
from suture.federation.wire.description import Description, in_common
from suture.federation.wire.terms import terms_before
from suture.graph.shard import load_shard
from suture.methods.census import UNIT, Census

VICTIM = OWNERS[2]
OTHERS = [owner for owner in OWNERS if owner != VICTIM]
LET = "secure_regroup = true\n"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


class Counting(Hostile):
    """Asks for the first exchange of a census."""

    def body(self, owner: str, scale: float = 1.0) -> bytes:
        return Nothing((owner,)).pack()


def counting(folder: Path, shards: Path, policy: str = "") -> Counting:
    parties = desks_in(folder, shards, policy)
    made = Counting(parties, run="monday.census", step="count")
    common = in_common({name: Description.read(one.describe()) for name, one in parties.owned.items()})
    made.terms = terms_before(Census(), planned(), common, True, OWNERS)
    assert not any(frame.refused for frame in made.open_run().values())
    return made


def on_tuesday(hostile: Counting) -> None:
    """Another run, another seed, another list of owners."""
    hostile.run = "tuesday.census"
    hostile.terms = replace(hostile.terms, seed=7, owners=tuple(OTHERS))
    assert not any(frame.refused for frame in hostile.open_run(OTHERS).values())


def test_two_censuses_would_give_an_owner_away(shards: Path, tmp_path: Path) -> None:
    """What the record is for, at owners that let it go: the sums of the victim's features."""
    hostile = counting(tmp_path, shards, LET)
    whole = hostile.sum()
    on_tuesday(hostile)
    less = hostile.sum(OTHERS)
    assert whole is not None and less is not None
    features = load_shard(shards / f"{VICTIM}.safetensors").data.x.to_dense()
    found = (whole - less)[: features.shape[1]] / UNIT
    np.testing.assert_allclose(found, features.double().sum(0).numpy(), atol=1e-3)


def test_another_seed_does_not_open_a_census_for_others(shards: Path, tmp_path: Path) -> None:
    hostile = counting(tmp_path, shards)
    assert hostile.sum() is not None
    on_tuesday(hostile)
    for frame in hostile.sealed(OTHERS).values():
        assert "for other survivors in step 1 of monday.census" in str(frame.refused)
        assert "another seed" not in str(frame.refused), "it would not help"


def test_the_same_owners_may_be_counted_under_another_seed(shards: Path, tmp_path: Path) -> None:
    hostile = counting(tmp_path, shards)
    assert hostile.sum() is not None
    hostile.run, hostile.terms = "tuesday.census", replace(hostile.terms, seed=7)
    assert not any(frame.refused for frame in hostile.open_run().values())
    assert hostile.sum() is not None


def ordered_otherwise(hostile: Hostile, rounds: int = 3, lr: float = 0.01) -> None:
    training = replace(hostile.terms.training, rounds=rounds, lr=lr)
    hostile.run, hostile.terms = "second", replace(hostile.terms, training=training, rounds=rounds)
    assert not any(frame.refused for frame in hostile.open_run().values())


@pytest.mark.parametrize("settings", [{"rounds": 7}, {"lr": 0.02}], ids=["rounds", "lr"])
def test_other_settings_do_not_open_the_first_round_for_others(
    settings: dict[str, float], shards: Path, tmp_path: Path
) -> None:
    """The model of the first round follows from the seed alone."""
    hostile = Hostile(desks_in(tmp_path, shards))
    hostile.open_run()
    assert hostile.sum() is not None
    ordered_otherwise(hostile, **settings)  # type: ignore[arg-type]
    for frame in hostile.sealed(OTHERS).values():
        assert "opened for other survivors" in str(frame.refused) and "another seed" in str(frame.refused)


def test_other_rounds_would_give_the_update_away(shards: Path, tmp_path: Path) -> None:
    """The same at owners that let it go."""
    hostile = Hostile(desks_in(tmp_path / "owners", shards, LET))
    hostile.open_run()
    whole = hostile.sum()
    ordered_otherwise(hostile, rounds=7)
    less = hostile.sum(OTHERS)
    assert whole is not None and less is not None
    np.testing.assert_allclose(whole - less, true_update(tmp_path / "plain", shards, VICTIM), atol=1e-8)


def test_two_sums_that_are_sealed_before_either_is_opened(shards: Path, tmp_path: Path) -> None:
    """Five of which three open, and three of which the other two open: their difference would be the sum of two owners,
    where no owner lets one of fewer than three be opened."""
    parties = desks_in(tmp_path / "owners", shards)
    first, second = Hostile(parties), Hostile(parties, run="second")
    few, pair = OWNERS[:3], OWNERS[3:]
    for hostile, members in ((first, OWNERS), (second, few)):
        assert not any(frame.refused for frame in hostile.open_run().values())
        hostile.words = hostile.sealed(members)  # type: ignore[attr-defined]
        assert not any(frame.refused for frame in hostile.words.values())  # type: ignore[attr-defined]
    opened = []
    for hostile, members, openers in ((first, OWNERS, (OWNERS[0], *pair)), (second, few, few[1:])):
        signed = hostile.signatures(members)
        told = {owner: hostile.open(owner, signed) for owner in openers}
        opened.append(hostile.opened(hostile.words, members, told))  # type: ignore[attr-defined]
    if all(one is not None for one in opened):
        found = opened[0] - opened[1]
        truth = sum(true_update(tmp_path / owner, shards, owner) for owner in pair)
        np.testing.assert_allclose(found, truth, atol=1e-8)
        pytest.fail("the sum of two owners was opened")
    assert opened[1] is not None, "the later one is opened"

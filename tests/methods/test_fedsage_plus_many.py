"""FedSage+ with more clients than answer each other: groups, parts of offers, and what a partial step leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import World, run_to_end, small, small_world

from suture.core.message import Nothing
from suture.engines.embedded import EmbeddedCohort
from suture.methods.fedsage_plus import exchange
from suture.methods.fedsage_plus.messages import ForeignGradient
from suture.methods.fedsage_plus.method import FedSagePlus
from suture.methods.fedsage_plus.neighgen import FGEN

SMALL = {"hidden_share": 0.3, "batch_size": 0, "generator_batch": 0, "latent": 6, "width": 5, "exchanged": 8, "smallest": 3}


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _foreign(world: World, asked: int = 0, **values: Any) -> tuple[frozenset[frozenset[str]], ForeignGradient]:
    """(who answered whom, what everybody got), of one iteration; `asked` draws other groups."""
    method = small(FedSagePlus, **SMALL, **values)
    assert isinstance(method, FedSagePlus)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    offer = cohort.ask(method.offer, Nothing(cohort.ids))
    cohort.restore(cohort.states(), asked)
    groups = frozenset(frozenset(group.ids) for group in cohort.groups(2))
    return groups, method.foreign(offer, cohort)


@pytest.mark.parametrize("form", ["means", "exact"])
def test_groups_estimate_the_sum_over_all(world: World, form: str) -> None:
    """Four clients in pairs: over the three ways to pair them, the mean of the estimates is the sum over the others."""
    _, everybody = _foreign(world, partners=0, answers=form)
    assert all(float(everybody.fgen[name].abs().max()) > 0 for name in FGEN)
    pairings = dict(_foreign(world, asked, partners=1, answers=form) for asked in range(40))
    assert len(pairings) == 3, "all pairings must have been drawn"
    for name in FGEN:
        mean = torch.stack([found.fgen[name] for found in pairings.values()]).mean(0)
        torch.testing.assert_close(mean, everybody.fgen[name], rtol=1e-4, atol=1e-6)


def test_few_clients_all_answer_each_other(world: World) -> None:
    """The default reaches beyond four clients, so that it is what is printed, digit for digit."""
    _, everybody = _foreign(world, partners=0)
    _, default = _foreign(world)
    for name in FGEN:
        assert torch.equal(default.fgen[name], everybody.fgen[name])


def test_offers_in_parts_are_answered_alike(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, at_once = _foreign(world, partners=0)
    monkeypatch.setattr(exchange, "ANSWERS_AT_A_TIME", 1)
    _, in_parts = _foreign(world, partners=0)
    assert in_parts.ids == at_once.ids
    for name in FGEN:
        torch.testing.assert_close(in_parts.fgen[name], at_once.fgen[name], rtol=1e-5, atol=1e-7)


def test_a_run_in_groups_does_not_hang_on_chunks(world: World) -> None:
    method = small(FedSagePlus, **SMALL, partners=1)
    together, alone = (run_to_end(method, world.clients, world.task, chunk_size=size) for size in (0, 1))
    for (where, one), other in zip(together.tensors().items(), alone.tensors().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=where)


def test_groups_are_even_random_and_whole(world: World) -> None:
    method = small(FedSagePlus, **SMALL)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    assert cohort.groups(4) == [cohort]
    for most in (1, 2, 3):
        groups = cohort.groups(most)
        sizes = [len(group.ids) for group in groups]
        assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
        assert sorted(name for group in groups for name in group.ids) == sorted(cohort.ids)


def test_a_step_that_changes_little_copies_little(world: World) -> None:
    """What a step of some clients leaves alone stays the same memory; what it changes is theirs alone."""
    method = small(FedSagePlus, **SMALL)
    (state,) = EmbeddedCohort.start(method, world.clients, world.task).states()
    given = state.select(state.ids[1:3])
    after = state.written_over(given, replace(given, told=torch.tensor([7, 8])))
    assert after.params is state.params and after.generator is state.generator
    assert after.told.tolist() == [0, 7, 8, 0]
    assert state.told.tolist() == [0, 0, 0, 0]

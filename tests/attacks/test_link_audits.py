"""Audits of what owners tell over known links, and of owners' noised scores: true accounts stand, faults are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import suture.federation.owner.scores
import suture.methods.fedgcn
import suture.methods.link_sums
import suture.methods.stitching
from suture.attacks.auditing import Effort, audit, client_graph
from suture.attacks.link_canaries import between
from suture.core.metrics import ACCURACY
from suture.core.streams import Streams
from suture.federation.owner.scores import noised
from suture.method import Method, Scores
from suture.methods import METHODS
from suture.privacy.audited import Audited, Heard, Shape, lower_bounds
from suture.privacy.gdp import composed_mu, gaussian_epsilon
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import NoisyRows
from suture.settings import ModelSettings, TrainingSettings
from suture.testing.world import small_world

CANARIES = 1000
NETWORK = ModelSettings(hidden=8)
ROW, LINK = "Gaussian rows", "Gaussian rows, link"
SUM_LINK, SUM_NODE = "Gaussian sums, link", "Gaussian sums, node"
Break = Callable[[pytest.MonkeyPatch], None]


def stitched(steps: int, sigma: float) -> Method[Any, Any]:
    return METHODS["fedavg"](model=NETWORK, training=TrainingSettings(stitch=steps, stitch_sigma=sigma))


def summed(**values: Any) -> Method[Any, Any]:
    return METHODS["fedgcn"](**{"model": NETWORK, "clip": 0.5, "sigma": 1.0, **values})


def audited(method: Method[Any, Any], seed: int = 0) -> dict[str, Audited]:
    world = small_world()
    task = replace(world.task, seed=seed)
    return {
        one.mechanism: one for one in audit(method, client_graph(world.clients, None), task, Effort(CANARIES, seed=seed))
    }


def halved(patch: pytest.MonkeyPatch) -> None:
    for module in (suture.methods.stitching, suture.methods.link_sums):
        noise = module.noise_rows

        def half(ptr: Tensor, width: int, deviation: float, rng: Streams, noise: Any = noise) -> Tensor:
            return noise(ptr, width, deviation / 2, rng)

        patch.setattr(module, "noise_rows", half)


def told_as_long_as_they_are(patch: pytest.MonkeyPatch) -> None:
    for module in (suture.methods.stitching, suture.methods.fedgcn):
        patch.setattr(module, "shortened", lambda rows, longest: rows)


FAULTS: dict[str, tuple[Callable[[], Method[Any, Any]], Break, set[str]]] = {
    "half the noise on predictions": (lambda: stitched(1, 0.8), halved, {ROW}),
    "half the noise on two steps of them": (lambda: stitched(2, 0.9), halved, {ROW, LINK}),
    "rows that are not shortened": (lambda: stitched(2, 0.9), told_as_long_as_they_are, {ROW}),
    "half the noise on sums": (summed, halved, {SUM_LINK, SUM_NODE}),
    "half the noise on sums, one hop": (lambda: summed(hops=1, fewest=1), halved, {SUM_LINK, SUM_NODE}),
    "half the noise on sums of all": (lambda: summed(together=True), halved, {SUM_LINK, SUM_NODE}),
    "features that are not shortened": (summed, told_as_long_as_they_are, {SUM_LINK, SUM_NODE}),
}
"""What is told, what is broken, and whose accounts this refutes at least."""
QUICK = ("half the noise on two steps of them", "half the noise on sums")


def check(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, fault, refuted = FAULTS[name]
    true = audited(make(), seed)
    assert refuted <= set(true) and all(one.holds for one in true.values()), true
    fault(monkeypatch)
    assert refuted <= {what for what, one in audited(make(), seed).items() if not one.holds}


@pytest.mark.parametrize("name", QUICK)
def test_true_accounts_stand_and_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, 0, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", FAULTS)
def test_over_five_seeds(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, seed, monkeypatch)


def test_canaries_are_nearly_as_far_apart_as_the_account_allows() -> None:
    """Worked out by hand: the noise that is there is that of the account, but for what Clopper and Pearson leave open."""
    for found in (audited(stitched(1, 0.8)), audited(summed())):
        for one in found.values():
            assert one.upper == 0 or one.lower > one.upper / 3, one


def test_one_step_of_stitching_tells_nothing_of_a_link() -> None:
    """Models do not hear known links: the account is 0, and nothing is there to refute it."""
    found = audited(stitched(1, 0.8))[LINK]
    assert found.upper == found.lower == 0 and found.holds


def test_a_row_moves_by_two_at_most() -> None:
    """However far a link moves what is smoothed: in the second step one row is told otherwise, and in the third it and
    those of its neighbours."""
    far = NoisyRows("stitch_offer", sigma=0.5, times=3, share=0.9, longest=100.0)
    assert far.link_mu(2, degree=3) == pytest.approx(2 / 0.5)
    assert far.link_mu(3, degree=3) == pytest.approx((4 + 4 * 4) ** 0.5 / 0.5)
    near = replace(far, longest=1.1)
    assert near.link_mu(2, degree=3) == pytest.approx(0.9 * 1.1 / 0.5)


def test_a_score_is_the_way_from_out_to_in() -> None:
    outside, inside = torch.zeros(3, 2), torch.tensor([[2.0, 0.0]] * 3)
    told = torch.tensor([[2.0, 7.0], [0.0, -7.0], [1.0, 0.0]])
    assert between(told, inside, outside).tolist() == [1.0, 0.0, 0.5]


# What an owner's policy does to its test scores


def scores_audit(seed: int, sigma: float) -> tuple[float, float]:
    """(lower, upper) of one test of each of many owners, one node of whom is a canary, and right, or is not there."""
    included = torch.rand(CANARIES, generator=torch.Generator().manual_seed(seed)) < 0.5
    right, total = 500 + included.double(), 1000 + included.long()
    ids = tuple(f"owner-{k}" for k in range(CANARIES))
    share, count = (right / total).unsqueeze(1).repeat(1, 3), total.unsqueeze(1).repeat(1, 3)
    nothing = torch.zeros(CANARIES)
    told = noised(Scores(ids, share, count, nothing, nothing), ACCURACY.name, sigma, Keystream(seed.to_bytes(32, "big")))
    extra = (told.value * told.total - 500 + told.total - 1000)[:, 2] / 2
    epsilon = lambda noise: gaussian_epsilon(composed_mu(noise, 1), 1e-5)  # noqa: E731
    found = lower_bounds(Heard(extra, included), 1e-5, Shape(1.0, 1), epsilon)
    return max(found.values()), epsilon(sigma)


@pytest.mark.parametrize("seed", range(5))
def test_noised_scores_are_worth_their_account(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lower, upper = scores_audit(seed, 0.7)
    assert upper / 3 < lower <= upper
    grid_for = suture.federation.owner.scores.grid_for
    monkeypatch.setattr(suture.federation.owner.scores, "grid_for", lambda sigma, *rest: grid_for(sigma / 2, *rest))
    lower, upper = scores_audit(seed, 0.7)
    assert lower > upper

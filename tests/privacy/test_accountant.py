"""The accounts against numbers computed by hand from FedDEP's theorem, brute force, and Opacus itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from harness import small, small_world
from opacus.accountants import PRVAccountant, RDPAccountant

from suture.methods import METHODS
from suture.privacy.accountant import (
    Bound,
    ClientFacts,
    account,
    amplified,
    composed,
    composed_as_printed,
    dp_sgd_epsilon,
    facts_of,
    history_of,
    one_draw,
    one_draw_as_printed,
    worst_of,
)
from suture.privacy.disclosure import Disclosure, disclosure_of
from suture.privacy.mechanisms import Mechanism, NoisyGradients, SampledNeighbours
from suture.testing.world import weighted_world

# Section 4.5, MSAcademic: d = 5 and D for 3, 5 and 10 clients; epsilon as printed there and its exact form.
SECTION_4_5 = [
    (15, 0.4, math.log(16 / 11), 0.375, 1 / 3),
    (10, 0.6, math.log(11 / 6), 0.606, 1 / 2),
    (3, 1.4, 5 * math.log(4 / 3), 1.438, 0.868),
]


@pytest.mark.parametrize(("degree", "printed", "exact", "rounded", "delta"), SECTION_4_5)
def test_section_4_5_reports_a_single_draw(degree: int, printed: float, exact: float, rounded: float, delta: float) -> None:
    draw = one_draw_as_printed(degree, 5)
    assert draw.epsilon == pytest.approx(exact)
    assert draw.epsilon == pytest.approx(rounded, abs=5e-4)
    assert round(draw.epsilon, 1) == printed
    assert draw.delta == pytest.approx(delta, abs=5e-4)


@pytest.mark.parametrize(("degree", "epsilon", "printed_delta"), [(15, 24.9, 2e-18), (10, 46.9, 8e-31), (3, 143.8, 9e-89)])
def test_a_hundred_draws_leave_no_privacy_at_all(degree: int, epsilon: float, printed_delta: float) -> None:
    """L = 2 layers, N = 50 epochs, delta' = 1e-5."""
    draws = [one_draw_as_printed(degree, 5)] * 2
    right, wrong = composed(draws, 50, 1e-5), composed_as_printed(draws, 50, 1e-5)
    assert right.epsilon == wrong.epsilon == pytest.approx(epsilon, abs=0.05)
    assert wrong.delta == pytest.approx(printed_delta, rel=0.3)
    assert right.delta == pytest.approx(1.0)
    assert right.vacuous
    assert "no meaningful protection" in right.in_words()


def test_the_printed_delta_falls_with_training_and_the_right_one_grows() -> None:
    draw = [one_draw_as_printed(15, 5)]
    printed = [composed_as_printed(draw, n).delta for n in (1, 5, 20)]
    right = [composed(draw, n).delta for n in (1, 5, 20)]
    assert printed == sorted(printed, reverse=True)
    assert right == sorted(right)
    assert [a + b for a, b in zip(printed, right, strict=True)] == pytest.approx([1.0] * 3)


def test_composition_of_equal_draws_is_the_formula_of_the_paper() -> None:
    epsilon, k, slack = 0.01, 400, 1e-5
    u = min(math.sqrt(math.log(math.e + epsilon * math.sqrt(k) / slack)), math.sqrt(math.log(1 / slack)))
    drift = k * epsilon * (math.exp(epsilon) - 1) / (math.exp(epsilon) + 1)
    expected = min(k * epsilon, drift + epsilon * u * math.sqrt(2 * k))
    assert expected < k * epsilon
    for draws, times in (([Bound(epsilon, 0.0)], 400), ([Bound(epsilon, 0.0)] * 4, 100)):
        assert composed(draws, times, slack).epsilon == pytest.approx(expected)


def test_different_fanouts_compose() -> None:
    draws = [one_draw(20, 2, replace=False), one_draw(20, 7, replace=False)]
    bound = composed(draws, 3, 1e-5)
    assert bound.delta == pytest.approx(1 - (0.9 * 0.65) ** 3 * (1 - 1e-5))
    assert bound.epsilon <= 3 * (draws[0].epsilon + draws[1].epsilon)


@pytest.mark.parametrize(("degree", "fanout"), [(3, 1), (4, 2), (5, 3), (4, 4)])
def test_delta_without_replacement_is_the_chance_to_be_drawn(degree: int, fanout: int) -> None:
    subsets = list(itertools.combinations(range(degree), fanout))
    with_first = sum(0 in subset for subset in subsets) / len(subsets)
    draw = one_draw(degree, fanout, replace=False)
    assert draw.delta == pytest.approx(with_first)
    # An output without the edge is this much likelier for a list without it: C(D + 1, d) / C(D, d).
    assert draw.epsilon == pytest.approx(math.log(math.comb(degree + 1, fanout) / math.comb(degree, fanout)))


@pytest.mark.parametrize(("degree", "fanout"), [(1, 3), (3, 2), (2, 4)])
def test_delta_with_replacement_is_the_chance_to_be_drawn(degree: int, fanout: int) -> None:
    sequences = list(itertools.product(range(degree), repeat=fanout))
    draw = one_draw(degree, fanout, replace=True)
    assert draw.delta == pytest.approx(sum(0 in s for s in sequences) / len(sequences))
    assert draw.epsilon == pytest.approx(math.log((degree + 1) ** fanout / degree**fanout))


def test_a_node_that_gives_all_its_neighbours_hides_none() -> None:
    """The paper takes the formula of sampling with replacement here."""
    assert one_draw(3, 5, replace=False).delta == 1
    assert one_draw_as_printed(3, 5).delta == pytest.approx(1 - (2 / 3) ** 5)
    assert one_draw(0, 5, replace=False).delta == 1
    assert one_draw(0, 5, replace=True).delta == 1


def test_amplification() -> None:
    bound = amplified(Bound(2.0, 0.3), 0.1)
    assert bound.epsilon == pytest.approx(math.log(1 + 0.1 * (math.exp(2.0) - 1)))
    assert bound.delta == pytest.approx(0.03)
    assert amplified(Bound(2.0, 0.3), 1.0) == Bound(2.0, 0.3)
    assert amplified(Bound(2.0, 0.3), 0.0) == Bound(0.0, 0.0)
    assert amplified(Bound(5000.0, 1.0), 0.5).epsilon == pytest.approx(5000 + math.log(0.5))  # e^5000 would overflow


# DP-SGD


def test_epsilon_is_opacuss_step_by_step() -> None:
    """Opacus's own way of counting, one `step` call after the other, for a client that trained in two phases."""
    renyi, numerical = RDPAccountant(), PRVAccountant()
    for accountant in (renyi, numerical):
        for _ in range(30):
            accountant.step(noise_multiplier=2.0, sample_rate=0.1)
        for _ in range(20):
            accountant.step(noise_multiplier=1.5, sample_rate=0.05)
    ours = dp_sgd_epsilon([(2.0, 0.1, 30), (1.5, 0.05, 20)], 1e-5)
    assert ours == pytest.approx((renyi.get_epsilon(delta=1e-5), numerical.get_epsilon(delta=1e-5)))
    assert ours[1] is not None and ours[1] < ours[0]


def test_one_step_on_everything_is_the_gaussian_mechanism() -> None:
    """Independent of Opacus: the exact delta of Balle and Wang (ICML 2018) at the epsilon found."""
    _, epsilon = dp_sgd_epsilon([(3.0, 1.0, 1)], 1e-5)
    assert epsilon is not None

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    a, b = 1 / 6.0, 3.0 * epsilon
    exact = normal(a - b) - math.exp(epsilon) * normal(-a - b)
    assert exact <= 1e-5
    assert exact == pytest.approx(1e-5, rel=0.15)  # PRV errs by up to 0.01 in epsilon, upwards


def test_steps_and_rates_are_those_that_were_trained_with() -> None:
    used = NoisyGradients("local_update", epochs=2, batch_size=32, sigma=1.1)
    facts = ClientFacts("a", 100, {})
    assert history_of([used], facts, {"local_update": 7, "evaluate": 9}) == [(1.1, 0.32, 7 * 2 * 4)]
    assert history_of([replace(used, batch_size=0)], facts, {"local_update": 7}) == [(1.1, 1.0, 14)]
    assert history_of([replace(used, batch_size=500)], facts, {"local_update": 7}) == [(1.1, 1.0, 14)]
    assert history_of([used], replace(facts, train=0), {"local_update": 7}) == []
    assert dp_sgd_epsilon([], 1e-5) == (0.0, 0.0)


def test_a_vacuous_epsilon_is_not_tightened() -> None:
    renyi, numerical = dp_sgd_epsilon([(0.2, 0.5, 1000)], 1e-5)
    assert renyi > 1000
    assert numerical is None


# A run


def test_facts_are_the_real_degrees() -> None:
    world = small_world()
    for k, facts in enumerate(facts_of(world.clients)):
        data = world.clients.client_data(k)
        degree = torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))
        assert facts.degrees == {int(d): int((degree == d).sum()) for d in degree.unique()}
        assert facts.train == int(data.train_mask.sum())
        assert facts.degree_at(0.0) == int(degree.min())
        assert facts.degree_at(0.5) == int(degree.sort().values[math.ceil(degree.numel() / 2) - 1])
        assert facts.degree_at(1.0) == int(degree.max())
        assert ClientFacts.from_json(facts.as_json()) == facts


def test_sampling_hides_nothing_where_edges_have_weights() -> None:
    """What a drawn neighbour counts tells what all neighbours weigh together."""
    facts = facts_of(weighted_world().clients)[0]
    assert facts.weighted and ClientFacts.from_json(facts.as_json()) == facts
    old = {name: value for name, value in facts.as_json().items() if name != "weighted"}
    plain = ClientFacts.from_json(old)
    method, asked = small(Sampling), sent({facts.client: 1})
    (with_weights,), (without,) = (account(method, [one], asked) for one in (facts, plain))
    assert with_weights.bound == Bound(math.inf, 1.0) and with_weights.bound.vacuous
    assert with_weights.mechanism == without.mechanism == "NFDP"
    assert math.isfinite(without.bound.epsilon)


class Sampling(METHODS["fedavg"]):  # type: ignore[name-defined, misc]
    def mechanisms(self) -> tuple[Mechanism, ...]:
        return (*super().mechanisms(), SampledNeighbours("local_update", 1, (5, 5), replace=False, rate=0.5))


def sent(replies: dict[str, int], kind: str = "weights") -> Disclosure:
    lines = [
        {"step": "local_update", "direction": "up", "clients": [client], "bytes": [100], "kinds": {kind: 80}}
        for client, times in replies.items()
        for _ in range(times)
    ]
    return disclosure_of(lines)


def test_noise_on_weights_does_not_cover_what_is_sent_beside_them() -> None:
    facts = [ClientFacts("a", 200, {3: 5})]
    method = small(METHODS["fedavg"], training={"dp_sigma": 4.0, "batch_size": 20})
    words = {}
    for kind in ("weights", "signatures", "losses", "node embeddings", "undeclared"):
        (found,) = account(method, facts, sent({"a": 3}, kind))
        assert not found.bound.vacuous
        assert found.vacuous == (kind in ("node embeddings", "undeclared"))
        words[kind] = found.in_words()
    assert words["weights"] == words["signatures"]
    assert "not covered: losses" in words["losses"]
    assert "no meaningful protection" in words["node embeddings"]
    assert "node embeddings" in words["node embeddings"]


def test_accounts_of_every_client() -> None:
    facts = [ClientFacts("big", 200, {10: 5, 15: 6}), ClientFacts("small", 40, {2: 1, 40: 9})]
    asked = sent({"big": 50, "small": 1})
    assert account(small(METHODS["fedavg"]), facts, asked) == ()
    method = small(Sampling, training={"dp_sigma": 4.0, "batch_size": 20})
    found = {(g.client, g.mechanism): g for g in account(method, facts, asked)}
    assert list(found) == [("big", "DP-SGD"), ("big", "NFDP"), ("small", "DP-SGD"), ("small", "NFDP")]
    expected = dp_sgd_epsilon([(4.0, 0.1, 50 * 2 * 10)])
    assert found["big", "DP-SGD"].bound.epsilon == expected[1]
    assert found["small", "DP-SGD"].bound.epsilon == dp_sgd_epsilon([(4.0, 0.5, 2 * 2)])[1]

    edges = found["big", "NFDP"]
    draws = [one_draw(10, 5, replace=False)] * 2
    assert edges.bound == composed(draws, 50)
    assert edges.detail["as printed"] == amplified(composed_as_printed(draws, 50), 0.5)
    assert edges.detail["amplified"] == amplified(edges.bound, 0.5)
    assert [(q, d) for q, d, _ in edges.by_degree] == [(0.0, 10), (0.25, 10), (0.5, 15), (0.75, 15)]
    few = found["small", "NFDP"]
    assert few.bound.delta == 1  # a node with two neighbours always gives both
    assert not few.by_degree[1][2].vacuous  # but most have 40
    worst = worst_of(found.values())
    assert worst is not None and (worst.client, worst.mechanism) == ("big", "NFDP")  # no delta left at either
    assert worst_of([]) is None


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound(0.5, 1e-5), "strong protection: nothing seen is more than 1.65 times"),
        (Bound(3.0, 1e-5), "moderate"),
        (Bound(10.0, 1e-5), "weak"),
        (Bound(21.0, 1e-5), "no meaningful protection"),
        (Bound(math.inf, 1e-5), "no meaningful protection"),
        (Bound(0.1, 0.5), "no meaningful protection"),
    ],
)
def test_bounds_in_words(bound: Bound, words: str) -> None:
    assert words in bound.in_words()
    assert bound.vacuous == ("no meaningful" in words)

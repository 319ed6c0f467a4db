"""Intervals against tables and simulation, facts against graphs drawn by hand, candidates against their rules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.assessment.candidates import candidates, labels_differ, meanings_differ
from suture.assessment.facts import Facts, OwnerFacts, look
from suture.assessment.gains import gain
from suture.assessment.judging import Judged, preferred
from suture.assessment.words import verdict_of
from suture.core.metrics import metric_for
from suture.runs.comparison import Comparison
from suture.runs.outcome import Outcome
from suture.runs.plan import plan
from suture.runs.prepare import Source
from suture.tables import from_any

T_2, T_4 = 4.302653, 2.776445
"""97.5 % of Student's t with 2 and 4 degrees of freedom, from a printed table."""


class TestGain:
    def test_given_masks_take_the_plain_t_interval(self) -> None:
        told = gain([0.01, 0.02, 0.06], 0.0)
        assert told is not None
        assert (told.mean, told.better, told.seeds) == (pytest.approx(0.03), 3, 3)
        deviation = math.sqrt((0.02**2 + 0.01**2 + 0.03**2) / 2)
        assert told.half == pytest.approx(T_2 * deviation / math.sqrt(3), rel=1e-5)
        assert not told.is_sure and not told.is_loss

    def test_redrawn_splits_widen_it(self) -> None:
        values = [0.01, 0.03, 0.02, 0.05, -0.01]
        told = gain(values, 1 / 3)
        assert told is not None and told.half is not None
        assert told.half == pytest.approx(T_4 * float(np.std(values, ddof=1)) * math.sqrt(1 / 5 + 1 / 3), rel=1e-5)
        assert told.better == 4

    def test_one_seed_has_no_interval_and_none_has_no_gain(self) -> None:
        told = gain([0.2, math.nan], 0.3)
        assert told is not None and told.half is None and not told.is_sure and not told.is_loss
        assert gain([math.nan], 0.3) is None

    def test_a_loss_is_one(self) -> None:
        told = gain([-0.2, -0.21, -0.19], 0.0)
        assert told is not None and told.is_loss and told.better == 0


def of_method(differences: list[float], validation: float = 0.8) -> Judged:
    return Judged("m", 0.8, 0.0, validation, gain(differences, 0.0), {}, {}, 0.0, 0.0, ())


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.05, 0.051, 0.049], "federate"),
        ([0.01, 0.09, 0.02], "perhaps"),
        ([0.02, -0.01, 0.0], "alone"),
        ([-0.05, -0.051, -0.049], "alone"),
    ],
)
def test_verdicts(differences: list[float], verdict: str) -> None:
    alone = replace(of_method([0.0]), gain=None, validation=0.7)
    assert verdict_of(of_method(differences), alone, metric_for("accuracy", "class")) == verdict


def test_what_validation_does_not_prefer_is_not_promising() -> None:
    alone = replace(of_method([0.0]), gain=None, validation=0.9)
    assert verdict_of(of_method([0.01, 0.09, 0.02]), alone, metric_for("accuracy", "class")) == "alone"
    # Where smaller is better, a smaller validation score is preferred.
    assert verdict_of(of_method([0.01, 0.09, 0.02]), alone, metric_for("mae", "value")) == "perhaps"


def outcome(method: str, seed: int, validation: float | None) -> Outcome:
    return Outcome(method, seed, "g", 2, "own", 0.5, 0.5, 0.5, None, 0, 0, 1.0, 5, 5, validation=validation)


SENT = {"best": 30.0, "near": 20.0, "far": 10.0, "untested": 1.0}


def preferred_of(sign: float, resampled: float = 0.0, **validations: tuple[float | None, ...]) -> str | None:
    runs = [outcome(name, seed, value) for name, values in validations.items() for seed, value in enumerate(values)]
    federated = [name for name in validations if name != "local"]
    return preferred(Comparison(tuple(runs)), federated, sign, SENT, resampled)


def test_of_methods_that_validation_cannot_tell_apart_the_one_that_sends_least_is_preferred() -> None:
    told = {
        "local": (0.70, 0.60, 0.65),
        "best": (0.90, 0.80, 0.85),
        "near": (0.91, 0.79, 0.84),
        "far": (0.85, 0.751, 0.799),
        "untested": (None, 0.99, 0.99),
    }
    # near is ahead in one seed, far is five points behind in all; both are surely better than local.
    assert preferred_of(1.0, **told) == "near"
    # Where smaller is better, far is best, beyond doubt.
    assert preferred_of(-1.0, **told) == "far"
    assert preferred_of(1.0, **{name: values[1:2] for name, values in told.items() if name != "untested"}) == "best"
    assert preferred_of(1.0, local=(0.5,)) is None


def test_what_may_be_no_better_than_alone_is_not_preferred_to_what_surely_is() -> None:
    alone = (0.70, 0.60, 0.65)
    shaky = (0.95, 0.69, 0.85)
    assert preferred_of(1.0, local=alone, best=(0.90, 0.80, 0.85), near=shaky) == "best"
    assert preferred_of(1.0, local=shaky, best=(0.90, 0.80, 0.85), near=shaky) == "near"


def seen(data: Data, *overrides: str) -> Facts:
    made = plan("in-memory", ["local"], seeds=[0], overrides=overrides)
    return look(Source(made, from_any(data)).prepared(0))


def test_facts_of_a_graph_drawn_by_hand() -> None:
    # Two owners, a path 0-1-2-3 | 4-5-6-7 with two links between them; the first has class 0 alone.
    edges = torch.tensor([[0, 1, 2, 4, 5, 6, 3, 0], [1, 2, 3, 5, 6, 7, 4, 7]])
    data = Data(
        x=torch.randn(8, 3),
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=torch.tensor([0, 0, 0, -1, 1, 1, 0, 1]),
        client=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        owners=["one", "two"],
        train_mask=torch.tensor([1, 1, 0, 0, 1, 1, 0, 0]).bool(),
        val_mask=torch.tensor([0, 0, 0, 0, 0, 0, 1, 0]).bool(),
        test_mask=torch.tensor([0, 0, 1, 0, 0, 0, 0, 1]).bool(),
    )
    facts = seen(data)
    assert facts.owners == (
        OwnerFacts("one", 4, 3, 2, 2, 1, graphless=False),
        OwnerFacts("two", 4, 3, 2, 2, 1, graphless=False),
    )
    assert (facts.links, facts.missing, facts.boundary, facts.given, facts.resampled) == (8, 2, 0, True, 0.0)
    assert facts.outside_share == pytest.approx(4 / 10)
    assert facts.heterogeneity == pytest.approx(1.0)
    assert facts.homophily == pytest.approx(1.0) and facts.homophily_by_chance == pytest.approx(0.5)
    assert facts.agreement is None


def test_meanings_that_are_opposite() -> None:
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(400, 5)), np.repeat([0, 1], 200)
    y = (x[:, 0] > 0).astype(int)
    pairs = torch.from_numpy(np.stack([np.arange(399), np.arange(1, 400)]))
    fields = {
        "x": torch.from_numpy(x).float(),
        "edge_index": torch.cat([pairs, pairs.flip(0)], dim=1),
        "client": torch.from_numpy(client),
    }
    same = seen(Data(y=torch.from_numpy(y), **fields))
    opposite = seen(Data(y=torch.from_numpy(np.where(client == 1, 1 - y, y)), **fields))
    assert not meanings_differ(same) and not labels_differ(same)
    assert meanings_differ(opposite) and not labels_differ(opposite)
    assert opposite.agreement is not None and opposite.agreement < -0.8
    assert same.resampled == pytest.approx(1 / 3, abs=0.02)


def facts_with(**changes: object) -> Facts:
    owners = tuple(OwnerFacts(name, 100, 200, 0, 50, 20, graphless=False) for name in ("a", "b"))
    plain = Facts(owners, True, "class", "accuracy", 400, 0, 0, 0.3, 0.05, 0.04, 0.9, 0.9, 0.8, 0.5)
    return replace(plain, **changes)  # type: ignore[arg-type]


def names(facts: Facts, named: tuple[str, ...] | None = None) -> list[str]:
    return [candidate.name for candidate in candidates(facts, named)[0]]


def test_rules_choose_the_candidates() -> None:
    assert names(facts_with()) == ["local", "fedavg", "fedper", "global"]
    assert names(facts_with(heterogeneity=0.5)) == ["local", "fedavg", "fedpub", "global"]
    # A distance that chance alone gives is none.
    assert names(facts_with(heterogeneity=0.5, heterogeneity_by_chance=0.4)) == ["local", "fedavg", "fedper", "global"]
    assert names(facts_with(agreement=0.1)) == ["local", "fedavg", "fedpub", "global"]
    with_links = tuple(replace(owner, outside=50) for owner in facts_with().owners)
    assert names(facts_with(owners=with_links)) == ["local", "fedavg", "fedsage_plus", "fedper", "global"]
    without = (facts_with().owners[0], replace(facts_with().owners[1], edges=0, graphless=True))
    assert names(facts_with(owners=without)) == ["local", "fedavg", "fedgls", "fed_mlp", "fedper", "global"]
    assert names(facts_with(), ("gcfl", "local")) == ["local", "fedavg", "gcfl"]


def test_what_cannot_predict_numbers_is_left_out_with_a_line() -> None:
    without = (facts_with().owners[0], replace(facts_with().owners[1], edges=0, graphless=True))
    tried, left_out = candidates(facts_with(owners=without, kind="value", metric="mae"))
    assert "fedgls" not in {candidate.name for candidate in tried}
    assert len(left_out) == 1 and left_out[0].startswith("fedgls") and "cannot predict numbers" in left_out[0]

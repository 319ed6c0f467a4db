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
from suture.assessment.judging import Judged
from suture.assessment.words import verdict_of
from suture.core.metrics import metric_for
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

"""What a comparison shows, in words: against numbers made by hand."""

from __future__ import annotations

import pytest

from suture.report.brought import brought
from suture.runs.comparison import Comparison
from suture.runs.outcome import Outcome
from suture.runs.plan import Plan, plan

METHODS = ("local", "fedavg", "fedsage_plus", "feddep", "global")


def outcome(method: str, seed: int, score: float, validation: float, uncut: float | None = None) -> Outcome:
    return Outcome(
        method, seed, "cora", 10, "lost-links", score, score, score, uncut, 0, 0, 1.0, 30, 5, validation=validation
    )


def made(seeds: tuple[int, ...] = (0, 1, 2)) -> Plan:
    return plan("cora", METHODS, protocol="lost-links", seeds=seeds)


def comparison(seeds: tuple[int, ...] = (0, 1, 2), plus: float = 0.0, **mended: float) -> Comparison:
    """Federation brings 28 points for sure; feddep is best of the menders by validation, whatever it scores in tests."""
    runs = []
    for seed in seeds:
        noise = 0.001 * (seed - 1)
        runs += [
            outcome("local", seed, 0.42 - noise, 0.42),
            outcome("fedavg", seed, 0.70 + noise, 0.70, 0.78),
            outcome("fedsage_plus", seed, 0.90 + noise, 0.69, 0.78),
            outcome("feddep", seed, 0.70 + plus + 3 * noise, 0.71, 0.78),
            outcome("global", seed, 0.69, 0.71, 0.84 + noise),
        ]
    return Comparison(tuple(runs))


def test_gains_are_paired_and_the_best_is_chosen_by_validation() -> None:
    text = " ".join(brought(comparison(plus=0.10), made()))
    assert "Federation brings +28.0 ±" in text and "over training alone (fedavg 70.0, local 42.0)." in text
    assert "Mending brings +10.0 ±" in text and "(best by validation: feddep)" in text and "fedsage_plus" not in text
    assert "Lost links cost 14.0 ±0.0 points: global training and testing on the uncut graph reaches 84.0." in text
    assert "Of that, feddep gives back 71 %." in text


def test_mending_that_brings_nothing_is_said_to_bring_nothing() -> None:
    text = " ".join(brought(comparison(plus=0.001), made()))
    assert "Mending brings nothing that can be told from chance: +0.1 ±" in text
    assert "None of it is given back for sure." in text and "gives back" not in text.replace("given back", "")


def test_mending_that_costs_is_said_to_cost() -> None:
    assert "Mending costs -10.0 ±" in " ".join(brought(comparison(plus=-0.10), made()))


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_seeds_claim_nothing(seeds: tuple[int, ...]) -> None:
    text = " ".join(brought(comparison(seeds, plus=0.10), made(seeds)))
    assert "±" not in text and "all of this may be chance" in text


def test_without_training_alone_there_is_nothing_to_say() -> None:
    runs = tuple(run for run in comparison().outcomes if run.method != "local")
    assert brought(Comparison(runs), made()) == []

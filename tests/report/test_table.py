from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from suture.api import Comparison, Plan, plan
from suture.report.table import comparison_report, headline
from suture.runs.outcome import Outcome
from suture.settings import EvaluationSettings

METHODS = ("local", "fedavg", "fedprox", "fedsage", "global")


def outcome(method: str, seed: int, value: float) -> Outcome:
    on_global = None if method == "local" else value / 2
    numbers = {"accuracy_client_mean": value, "accuracy_weighted": value + 0.01, "accuracy_worst": value - 0.3 * seed}
    traffic = {"bytes_up": 1_402_123_500, "bytes_down": 402_097_000}
    return Outcome(method, seed, "cora", 5, "fedpub-disjoint", **numbers, accuracy_global=on_global, **traffic,
                   seconds=118.25, rounds=100, best_round=63)  # fmt: skip


def printed(content: RenderableType, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(content)
    return file.getvalue()


@pytest.fixture
def made() -> Plan:
    return plan("cora", METHODS, clients=5, seeds=[0, 1])


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(tuple(outcome(method, seed, 0.8 + 0.02 * seed) for method in METHODS for seed in (0, 1)))


@pytest.mark.parametrize("width", [72, 80, 120])
def test_nothing_is_cut_off(comparison: Comparison, made: Plan, width: int) -> None:
    lines = printed(comparison_report(comparison.rows(), made, 5), width).splitlines()
    assert max(map(len, lines)) <= width
    rows = {line.split()[0]: line.split() for line in lines[2 : 2 + len(METHODS)]}
    assert tuple(rows) == METHODS
    # method, four accuracies of two words (one if there is none), up, down, seconds
    assert [len(row) for row in rows.values()] == [11, 12, 12, 12, 12]
    assert rows["fedavg"][-3:] == ["1402", "402", "118"] and rows["global"][-3:] == ["–", "–", "118"]


def test_mean_and_sample_deviation_over_seeds(comparison: Comparison, made: Plan) -> None:
    text = printed(comparison_report(comparison.rows(), made, 5), 120)
    (line,) = (line for line in text.splitlines() if line.startswith("fedavg"))
    # 0.80 and 0.82: mean 0.81, deviation 0.02 / sqrt(2)
    assert line.split()[1:3] == ["81.00", "±1.41"]


def test_one_seed_has_no_deviation(made: Plan) -> None:
    text = printed(comparison_report(Comparison((outcome("fedavg", 0, 0.8),)).rows(), replace(made, seeds=(0,)), 5), 80)
    assert "±" not in text and "one seed" in text


def test_legend_says_what_the_numbers_are(comparison: Comparison, made: Plan) -> None:
    text = " ".join(printed(comparison_report(comparison.rows(), made, 5), 80).split())
    for part in (
        "fedpub-disjoint, cora, 5 clients, seeds 0, 1, 100 rounds",
        "best validation accuracy",
        "mean *",
        "* is the number this protocol reports",
        "global trains on the uncut graph: a reference for the others, not a federated method.",
    ):
        assert part in text


def test_legend_names_what_is_different_for_a_method(comparison: Comparison) -> None:
    sets = ["fedavg.training.rounds=20", "fedprox.training.lr=0.1", "fedavg.model.head=false"]
    made = plan("cora", ["fedavg", "fedper"], overrides=sets)
    assert [method.training.rounds for method in made.methods] == [20, 100]
    assert [method.model.head for method in made.methods] == [False, True]
    text = " ".join(printed(comparison_report(comparison.rows(), made, 5), 80).split())
    assert "Otherwise than above: fedavg.model.head = false, fedavg.training.rounds = 20." in text
    alike = plan("cora", ["fedavg", "fedper"])
    assert "Otherwise" not in printed(comparison_report(comparison.rows(), alike, 5), 80)


@pytest.mark.parametrize(
    ("settings", "column"),
    [
        (EvaluationSettings(), "accuracy_client_mean"),
        (EvaluationSettings(average="nodes"), "accuracy_weighted"),
        (EvaluationSettings(graph="global", average="nodes"), "accuracy_global"),
    ],
)
def test_headline(settings: EvaluationSettings, column: str) -> None:
    assert headline(settings) == column

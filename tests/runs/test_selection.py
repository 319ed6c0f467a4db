"""Which round is reported: the best by the metric's own direction, and of equal ones that of the lower validation loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import suture
from suture.cli import main
from suture.core.metrics import metric_for
from suture.errors import ConfigError
from suture.method import Scores
from suture.report.history import read_curve
from suture.runs.evaluation import VALIDATION, Selection, Summary, out_of_patience
from suture.settings import EvaluationSettings

IDS = ("a", "b")
ACCURACY, LOG_LOSS = metric_for("accuracy", "class"), metric_for("log_loss", "class")


def scores(validation: tuple[float, float], loss: tuple[float, float], total: tuple[int, int] = (5, 5)) -> Scores:
    value = torch.zeros(2, 3, dtype=torch.float64)
    value[:, VALIDATION] = torch.tensor(validation)
    count = torch.zeros(2, 3, dtype=torch.int64)
    count[:, VALIDATION] = torch.tensor(total)
    # The training loss tells rounds apart that are otherwise alike.
    train = torch.rand(2, generator=torch.Generator().manual_seed(hash((validation, loss)) % 1000))
    return Scores(IDS, value, count, train, torch.tensor(loss))


def rounds(select: str, told: list[Scores], metric: str = "accuracy") -> list[int]:
    chosen = Selection(EvaluationSettings(select=select), metric_for(metric, "class"))  # type: ignore[arg-type]
    for number, one in enumerate(told, start=1):
        chosen, _ = chosen.update(one, number)
    assert chosen.rounds is not None
    return chosen.rounds.tolist()


@pytest.mark.parametrize("select", ["best-validation", "best-validation-per-client"])
def test_equal_scores_go_to_the_lower_loss(select: str) -> None:
    told = [scores((0.9, 0.9), (3.0, 3.0)), scores((0.9, 0.9), (1.0, 1.0)), scores((0.9, 0.9), (2.0, 2.0))]
    assert rounds(select, told) == [2, 2]


def test_a_better_score_wins_over_any_loss() -> None:
    assert rounds("best-validation", [scores((0.9, 0.9), (1.0, 1.0)), scores((0.91, 0.9), (9.0, 9.0))]) == [2, 2]
    assert rounds("best-validation", [scores((0.9, 0.9), (9.0, 9.0)), scores((0.89, 0.9), (1.0, 1.0))]) == [1, 1]


def test_equal_in_all_goes_to_the_later() -> None:
    assert rounds("best-validation", [scores((0.5, 0.7), (1.0, 2.0)), scores((0.7, 0.5), (2.0, 1.0))]) == [2, 2]


def test_a_smaller_is_better_metric_is_not_maximised() -> None:
    told = [scores((0.9, 0.2), (1.0, 1.0)), scores((0.4, 0.3), (1.0, 1.0)), scores((0.8, 0.8), (1.0, 1.0))]
    assert rounds("best-validation", told, "log_loss") == [2, 2]
    assert rounds("best-validation-per-client", told, "log_loss") == [2, 1]
    lines = [{"round": n, "validation": value, "validation_loss": 1.0} for n, value in enumerate((0.9, 0.4, 0.5, 0.6), 1)]
    assert out_of_patience(lines, 2, LOG_LOSS) and not out_of_patience(lines, 3, LOG_LOSS)
    test = scores((0.0, 0.0), (0.0, 0.0))
    test.value[:, 2], test.total[:, 2] = torch.tensor([0.2, 0.7]), 3
    assert Summary.of(test, LOG_LOSS).worst == pytest.approx(0.7) and Summary.of(test, ACCURACY).worst == pytest.approx(0.2)


def test_a_client_that_cannot_be_scored_goes_by_its_loss_and_one_without_validation_nodes_by_time() -> None:
    told = [scores((0.5, 0.0), (1.0, loss), total=(5, 0)) for loss in (3.0, 1.0, 2.0)]
    assert rounds("best-validation-per-client", told)[1] == 2
    nothing = [scores((value, 0.0), (1.0, 0.0), total=(5, 0)) for value in (0.5, 0.6, 0.4)]
    assert rounds("best-validation-per-client", nothing) == [2, 3]
    nobody = [scores((0.0, 0.0), (loss, loss), total=(0, 0)) for loss in (3.0, 1.0, 2.0)]
    assert rounds("best-validation", nobody) == [2, 2]


def test_scores_that_are_only_repeated_are_no_news() -> None:
    """An owner that cannot be reached keeps its old scores; they do not belong to the model of the later round."""
    once = scores((0.9, 0.9), (1.0, 1.0))
    assert rounds("best-validation-per-client", [once, once]) == [1, 1]


def test_a_loss_that_is_no_number_never_wins_a_tie() -> None:
    nan = float("nan")
    assert rounds("best-validation", [scores((0.9, 0.9), (1.0, 1.0)), scores((0.9, 0.9), (nan, nan))]) == [1, 1]
    assert rounds("best-validation-per-client", [scores((0.9, 0.9), (nan, nan)), scores((0.9, 0.9), (1.0, 1.0))]) == [2, 2]


# The whole way: 4.8 % of a bank's accounts


@pytest.fixture(scope="module")
def bank() -> Data:
    """Fraud of 4.8 % that features and links tell a little about; two owners."""
    rng = torch.Generator().manual_seed(0)
    nodes = 1500
    y = (torch.arange(nodes) % 125 < 6).long()[torch.randperm(nodes, generator=rng)]
    x = torch.randn(nodes, 8, generator=rng) + 0.8 * y.unsqueeze(1)
    source = torch.arange(nodes).repeat(3)
    target = torch.randint(0, nodes, (3 * nodes,), generator=rng)
    edges = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    owner = (torch.arange(nodes) % 2)[torch.randperm(nodes, generator=rng)]
    return Data(x=x, edge_index=edges, y=y, client=owner)


SHORT = ["rounds=15", "lr=0.01", "hidden=16", "preprocess.row_normalise=false", "partition.kind=given"]


def run(bank: Data, *more: str, out: Path | None = None, method: str = "fedavg") -> suture.Result:
    return suture.run(
        bank, method, protocol="fedpub-disjoint", clients=2, seed=0, overrides=[*SHORT, *more], out=out
    )  # fmt: skip


def test_the_kept_model_of_a_rare_class_is_not_that_of_the_first_tie(bank: Data) -> None:
    sets = ("model.kind=sage", "rounds=30")
    result = run(bank, *sets)
    validation = [line["validation"] for line in result.history]
    tied = [line["round"] for line in result.history if line["validation"] == max(validation)]
    assert len(tied) > 5, "accuracy must tie for this to say anything"
    assert result.outcome.best_round > tied[len(tied) // 2]
    first = run(bank, *sets, f"rounds={tied[0]}", "evaluation.select=last")
    assert first.evaluation["pooled"]["test"]["roc_auc"] < 0.5, "what used to be kept was worse than chance"
    assert result.evaluation["pooled"]["test"]["roc_auc"] > 0.65
    assert result.evaluation["pooled"]["test"]["accuracy"] > 0.94, "which says nothing"
    (warning,) = result.outcome.warnings
    assert "says class 0 of every test node, though" in warning and "training.class_weights=balanced" in warning


@pytest.mark.parametrize("metric", ["roc_auc", "pr_auc", "log_loss", "balanced_accuracy"])
def test_the_reported_round_is_the_best_by_the_metric_that_was_asked_for(bank: Data, metric: str) -> None:
    result = run(bank, f"evaluation.metric={metric}", "class_weights=balanced")
    outcome, smaller = result.outcome, metric == "log_loss"
    best = (min if smaller else max)(line["validation"] for line in result.history)
    assert outcome.metric == metric and outcome.validation == best
    tests = [of["test"][metric] for of in result.evaluation["clients"].values()]
    assert outcome.accuracy_client_mean == pytest.approx(sum(tests) / 2)
    assert outcome.accuracy_worst == pytest.approx((max if smaller else min)(tests))


def test_evaluation_json_holds_every_metric_and_adds_up(bank: Data, tmp_path: Path) -> None:
    result = run(bank, "evaluation.metric=roc_auc", out=tmp_path / "r")
    told = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert told == result.evaluation and told["metric"] == "roc_auc"
    assert told["smaller_is_better"] == ["log_loss", "ece"]
    data = result.data
    said, truth = data.prediction[data.test_mask], bank.y[data.test_mask]
    assert told["pooled"]["test"]["support"] == len(truth)
    matrix = [[int(((truth == a) & (said == b)).sum()) for b in (0, 1)] for a in (0, 1)]
    assert told["pooled"]["confusion"] == matrix
    fraud = told["pooled"]["classes"][1]
    assert fraud["support"] == int(truth.sum()) and fraud["recall"] == pytest.approx(matrix[1][1] / int(truth.sum()))
    for role in ("train", "val", "test"):
        parts = [of[role] for of in told["clients"].values()]
        assert sum(part["support"] for part in parts) == told["pooled"][role]["support"]
        right = sum(part["support"] * part["accuracy"] for part in parts)
        assert right / told["pooled"][role]["support"] == pytest.approx(told["pooled"][role]["accuracy"])


@pytest.mark.parametrize("method", ["local", "fedper", "fedpub", "global", "fedgnn"])
def test_evaluation_json_is_of_the_reported_models(bank: Data, method: str) -> None:
    result = run(bank, "rounds=4", "evaluation.select=last", method=method)
    tests = [of["test"]["accuracy"] for of in result.evaluation["clients"].values()]
    assert sum(tests) / 2 == pytest.approx(result.outcome.accuracy_client_mean)


def test_nothing_to_test_is_a_sentence_not_a_nan(bank: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = bank.clone()
    order = torch.arange(bank.num_nodes)
    alone.train_mask, alone.val_mask = order % 2 == 0, order % 2 == 1
    alone.test_mask = torch.zeros_like(alone.train_mask)
    result = run(alone, "split.scope=given", out=tmp_path / "r")
    assert "no client has enough test examples to measure accuracy" in " ".join(result.outcome.warnings)
    assert main(["show", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().out
    assert "nan" not in shown.lower() and "no client has enough test examples" in " ".join(shown.split())


def test_a_method_of_classes_refuses_numbers_before_anything_is_trained(bank: Data) -> None:
    numbers = bank.clone()
    numbers.y = bank.x.sum(1, keepdim=True)
    numbers.task = "regression"
    with pytest.raises(ConfigError, match="fedproto can predict one class of a node, not numbers; choose another method"):
        suture.run(numbers, "fedproto", overrides=["rounds=1"])


def test_numbers_are_learned_and_told_in_the_users_units(bank: Data, tmp_path: Path) -> None:
    numbers = bank.clone()
    numbers.y = 5000 + 300 * bank.x[:, :1]
    numbers.task = "regression"
    result = suture.run(numbers, "fedavg", overrides=["rounds=40", "lr=0.05", "model.kind=sage"], out=tmp_path / "r")
    told = result.evaluation["pooled"]["test"]
    assert result.outcome.metric == "mae" and set(told) == {"support", "mae", "r2"}
    assert told["r2"] > 0.5 and 5 < told["mae"] < 200, "deviation is 300"
    curve = read_curve(tmp_path / "r")
    assert min(curve.validation) == pytest.approx(result.outcome.validation)

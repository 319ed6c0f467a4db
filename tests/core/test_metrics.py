"""Every metric against its definition, spelled out example by example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from suture.core.metrics import AUTO, OURS, Metric, fitting, metric_for
from suture.errors import ConfigError
from suture.graph.target import Target, automatic_metric

BY_NAME = {metric.name: metric for metric in OURS}
GROUPS = 5


def mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def share(logits: Sequence[float], c: int) -> float:
    top = max(logits)
    return math.exp(logits[c] - top) / sum(math.exp(value - top) for value in logits)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def pairwise_auc(scores: Sequence[float], yes: Sequence[bool]) -> float:
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, first in zip(scores, yes, strict=True)
        for b, second in zip(scores, yes, strict=True)
        if first and not second
    ]
    return mean(wins) if wins else math.nan


def stepwise_ap(scores: Sequence[float], yes: Sequence[bool]) -> float:
    if all(yes) or not any(yes):
        return math.nan
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        passed = [truth for score, truth in zip(scores, yes, strict=True) if score >= threshold]
        now = sum(passed) / sum(yes)
        area, recall = area + (now - recall) * sum(passed) / len(passed), now
    return area


Ranking = Callable[[Sequence[float], Sequence[bool]], float]


def of_classes(curve: Ranking, out: list[list[float]], y: list[int]) -> float:
    if len(out[0]) == 2:
        return curve([row[1] - row[0] for row in out], [label == 1 for label in y])
    return mean([curve([share(row, c) for row in out], [label == c for label in y]) for c in range(len(out[0]))])


def column(out: list[list[float]], y: list[list[float]], c: int) -> tuple[list[float], list[bool]]:
    known = [(row[c], truth[c] == 1) for row, truth in zip(out, y, strict=True) if not math.isnan(truth[c])]
    return [score for score, _ in known], [yes for _, yes in known]


def by_hand(name: str, out: list[list[float]], y: list[int]) -> float:
    """Of one group of nodes with one class each."""
    said = [row.index(max(row)) for row in out]
    classes = range(len(out[0]))
    pairs = list(zip(said, y, strict=True))
    if name == "accuracy":
        return mean([float(a == b) for a, b in pairs])
    if name == "balanced_accuracy":
        return mean([mean([float(a == c) for a, b in pairs if b == c]) for c in classes])
    if name == "macro_f1":
        found = []
        for c in classes:
            hits, all_of = sum(a == b == c for a, b in pairs), sum((a == c) + (b == c) for a, b in pairs)
            found.append(2 * hits / all_of if all_of else math.nan)
        return mean(found)
    if name == "log_loss":
        return mean([-math.log(share(row, label)) for row, label in zip(out, y, strict=True)])
    if name == "ece":
        return calibration([(share(row, a), a == b) for row, (a, b) in zip(out, pairs, strict=True)])
    return of_classes(pairwise_auc if name == "roc_auc" else stepwise_ap, out, y)


def calibration(sure: list[tuple[float, bool]]) -> float:
    total = 0.0
    for b in range(15):
        inside = [(p, right) for p, right in sure if b / 15 < p <= (b + 1) / 15]
        if inside:
            total += (
                len(inside) / len(sure) * abs(mean([p for p, _ in inside]) - mean([float(right) for _, right in inside]))
            )
    return total


def of_labels(name: str, out: list[list[float]], y: list[list[float]]) -> float:
    """Of one group of nodes with several labels each."""
    columns = [column(out, y, c) for c in range(len(out[0]))]
    flat = [(score, yes) for scores, truth in columns for score, yes in zip(scores, truth, strict=True)]
    if name == "accuracy":
        return mean([float((score > 0) == yes) for score, yes in flat])
    if name == "log_loss":
        return mean([-math.log(sigmoid(score if yes else -score)) for score, yes in flat])
    if name == "ece":
        return calibration([(sigmoid(abs(score)), (score > 0) == yes) for score, yes in flat])
    found = []
    for scores, truth in columns:
        cells = [(score > 0, yes) for score, yes in zip(scores, truth, strict=True)]
        if name == "balanced_accuracy":
            recalls = [mean([float(said == yes) for said, yes in cells if yes == outcome]) for outcome in (True, False)]
            found.append(sum(recalls) / 2)
        elif name == "macro_f1":
            both = sum(said + yes for said, yes in cells)
            found.append(2 * sum(said and yes for said, yes in cells) / both if both else math.nan)
        else:
            found.append((pairwise_auc if name == "roc_auc" else stepwise_ap)(scores, truth))
    return mean(found)


def check(metric: Metric, out: Tensor, y: Tensor, group: Tensor, expected: Callable[[list, list], float]) -> None:
    found = metric.measure(out, y, group, GROUPS)
    assert found.dtype == torch.float64 and found.shape == (GROUPS,)
    for number in range(GROUPS):
        at = group == number
        wanted = expected(out[at].tolist(), y[at].tolist()) if at.any() else math.nan
        assert float(found[number]) == pytest.approx(wanted, abs=1e-9, nan_ok=True), (metric.name, number)


def drawn(seed: int, width: int, count: int = 60) -> tuple[np.random.Generator, Tensor, Tensor]:
    """Outputs with ties (rows that occur several times), and groups of which one is empty and one has a single example."""
    rng = np.random.default_rng(seed)
    group = torch.tensor(rng.choice([0, 1, 3], count))
    group[0] = 4
    return rng, torch.tensor(rng.normal(size=(20, width)))[torch.tensor(rng.integers(0, 20, count))], group


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", [metric.name for metric in fitting("class")])
def test_classes_by_definition(name: str, classes: int) -> None:
    for seed in range(6):
        rng, out, group = drawn(seed, classes)
        y = torch.tensor(rng.choice(classes, len(group), p=[0.7, *[0.3 / (classes - 1)] * (classes - 1)]))
        y[group == 3] = 1  # one class only
        check(BY_NAME[name], out, y, group, lambda o, t: by_hand(name, o, t))


@pytest.mark.parametrize("name", [metric.name for metric in fitting("labels")])
def test_labels_by_definition_where_some_are_unknown(name: str) -> None:
    for seed in range(6):
        rng, out, group = drawn(seed, 4)
        y = torch.tensor(rng.random((len(group), 4)) < 0.3).double()
        y[:, 3] = 0
        y[torch.tensor(rng.random((len(group), 4)) < 0.1)] = torch.nan
        check(BY_NAME[name], out, y, group, lambda o, t: of_labels(name, o, t))


@pytest.mark.parametrize("name", [metric.name for metric in fitting("link")])
def test_links_by_definition(name: str) -> None:
    rng, out, group = drawn(0, 1)
    y = torch.tensor(rng.integers(0, 2, len(group)))
    check(BY_NAME[name], out[:, 0], y, group, lambda o, t: of_labels(name, [[v] for v in o], [[float(v)] for v in t]))


@pytest.mark.parametrize("name", [metric.name for metric in fitting("value")])
def test_numbers_by_definition(name: str) -> None:
    def of_one(out: list[float], y: list[float]) -> float:
        off = [a - b for a, b in zip(out, y, strict=True)]
        if name == "mae":
            return mean([abs(value) for value in off])
        centre = mean(y)
        spread = sum((value - centre) ** 2 for value in y)
        return 1 - sum(value**2 for value in off) / spread if spread > 1e-9 else math.nan

    rng, out, group = drawn(0, 2)
    y = torch.tensor(rng.normal(3, 2, (len(group), 2)))
    y[group == 3] = 0.1  # all alike, up to rounding
    check(
        BY_NAME[name], out, y, group,
        lambda o, t: mean([of_one([r[c] for r in o], [r[c] for r in t]) for c in range(2)]),
    )  # fmt: skip


def test_numbers_derived_by_hand() -> None:
    # Scores 3 2 2 1 of labels 1 0 1 0: of the four pairs two are won, and one more and a half: 3.5 / 4.
    # Precision at 3 is 1, at 2 is 2/3: average precision 0.5 * 1 + 0.5 * 2/3.
    out, y, group = torch.tensor([3.0, 2.0, 2.0, 1.0]), torch.tensor([1, 0, 1, 0]), torch.zeros(4, dtype=torch.int64)
    assert float(BY_NAME["roc_auc"].measure(out, y, group, 1)) == pytest.approx(3.5 / 4)
    assert float(BY_NAME["pr_auc"].measure(out, y, group, 1)) == pytest.approx(0.5 + 1 / 3)


def test_close_to_certain_outputs_are_still_ranked() -> None:
    # As float32 probabilities both would be 1.
    out, y = torch.tensor([[0.0, 40.0], [0.0, 50.0]]), torch.tensor([0, 1])
    assert float(BY_NAME["roc_auc"].measure(out, y, torch.zeros(2, dtype=torch.int64), 1)) == 1.0


def test_outputs_that_are_no_numbers_rank_nothing() -> None:
    out, y = torch.full((6, 2), torch.nan), torch.tensor([0, 1, 0, 1, 1, 0])
    assert float(BY_NAME["roc_auc"].measure(out, y, torch.zeros(6, dtype=torch.int64), 1)) == 0.5


def test_directions_and_what_fits() -> None:
    assert {metric.name for metric in OURS if not metric.greater_is_better} == {"log_loss", "ece", "mae"}
    assert {metric.name for metric in OURS if not metric.is_share} == {"log_loss", "mae", "r2"}
    assert {metric.name for metric in fitting("value")} == {"mae", "r2"}
    for predicted in ("class", "labels", "value", "link"):
        assert predicted in metric_for(AUTO, predicted).kinds
    with pytest.raises(
        ConfigError, match="the metric r2 is for numbers of nodes, not for classes of nodes; choose one of acc"
    ):
        metric_for("r2", "class")


@pytest.mark.parametrize(
    ("target", "counts", "expected"),
    [
        (Target(), (), "accuracy"),
        (Target(), (50, 50), "accuracy"),
        (Target(), (26, 74), "accuracy"),  # half of an equal share is 25
        (Target(), (24, 76), "roc_auc"),
        (Target(), (952, 48), "roc_auc"),
        (Target(), (40, 40, 0), "accuracy"),  # nobody trains the third
        (Target(), (40, 40, 15), "roc_auc"),
        (Target("labels"), (3, 5), "roc_auc"),
        (Target("value", scale=(1.0,), shift=(0.0,)), (), "mae"),
        (Target("value", scale=(1.0, 2.0), shift=(0.0, 0.0)), (), "r2"),
    ],
)
def test_the_automatic_metric(target: Target, counts: tuple[int, ...], expected: str) -> None:
    assert automatic_metric(target, counts) == expected
    assert automatic_metric(target, counts, link=True) == "roc_auc"


@pytest.mark.parametrize("predicted", ["class", "labels", "value", "link"])
def test_of_no_example_no_metric_says_anything(predicted: str) -> None:
    """An owner may have no labelled node."""
    output = torch.zeros(0) if predicted == "link" else torch.zeros(0, 2)
    label = torch.zeros(0, dtype=torch.int64) if predicted == "class" else output
    for metric in fitting(predicted):  # type: ignore[arg-type]
        assert metric.measure(output, label, torch.zeros(0, dtype=torch.int64), 2).isnan().all(), metric.name

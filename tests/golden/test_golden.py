"""Every registered method still makes the curve it made when its file in tests/golden was written."""

from __future__ import annotations

import json
from pathlib import Path

import golden.curves as golden
import pytest


def numbers(value: object) -> list[float]:
    """All numbers of a line, in order."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize("graph", list(golden.GRAPHS))
@pytest.mark.parametrize("method", golden.CURVES)
def test_no_number_has_changed(method: str, graph: str, data_root: Path, dataset) -> None:
    if graph == "cora":
        dataset("cora")  # skips where it cannot be had
    made_on, expected = golden.read(method, graph)
    found = golden.curve(method, graph, data_root)
    if made_on == golden.processor():
        assert golden.is_same(found, expected), "say in the CHANGELOG why, and run python tests/golden/curves.py --rewrite"
        return
    # Another processor rounds differently; after three rounds that is little.
    assert len(found) == len(expected)
    for mine, theirs in zip(map(json.loads, found), map(json.loads, expected), strict=True):
        told = {key: mine[key] for key in theirs}
        assert numbers(told) == pytest.approx(numbers(theirs), rel=0.05, abs=0.05)


def test_every_curve_belongs_to_a_method() -> None:
    kept = {path.stem for graph in golden.GRAPHS for path in (golden.HERE / graph).glob("*.jsonl")}
    assert kept == set(golden.CURVES)

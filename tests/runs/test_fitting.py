"""Methods that cannot predict what is asked for: refused before anything is trained, or left out with a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import suture
from suture.errors import ConfigError
from suture.runs.fitting import fitting
from suture.runs.plan import plan

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"


def test_links_are_refused_before_the_methods_before_have_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fedgta compares how labels of nodes spread: for links choose another method"):
        suture.compare(GRAPH, ["fedavg", "fedgta"], protocol="fedpub-link", clients=3, seeds=[0], out=tmp_path / "links")
    assert not (tmp_path / "links").exists()


def test_methods_that_nobody_named_are_left_out_where_links_are_asked_for() -> None:
    made = plan(GRAPH, ["fedavg", "fgssl", "fedtad", "fedgls", "fedggr"], protocol="fedpub-link", clients=3, seeds=[0])
    left, (line,) = fitting(replace(made, named=False), "class", graphless=False)
    assert [method.name for method in left.methods] == ["fedavg"]
    assert line == (
        "methods that are left out: fgssl contrasts classes of nodes; fedtad distils what is known of classes of "
        "nodes; fedgls compares two networks by the classes they predict of nodes; "
        "fedggr has a classifier of nodes, and link prediction has none"
    )

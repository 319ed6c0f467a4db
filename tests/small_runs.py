"""A small comparison that was really run, for tests of what is made of run folders."""

from __future__ import annotations

from pathlib import Path

import suture

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
METHODS = ("local", "fedavg", "fedpub", "fedsage_plus", "global")
BRIEF = ("rounds=4", "fedsage_plus.generator_epochs=4")
SEEDS = (0, 1, 2)


def small_comparison(path: Path) -> Path:
    """Five methods, three seeds, four rounds, four owners."""
    suture.compare(GRAPH, METHODS, clients=4, seeds=SEEDS, overrides=BRIEF, out=path)
    return path

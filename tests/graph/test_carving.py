"""METIS and Louvain in a process of their own: the same parts, announced, alive, and gone when they are not wanted."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from suture.commands.stopping import Halt, halting
from suture.errors import PartitionError
from suture.graph import carving
from suture.graph.carving import carve


def random_edges(nodes: int, count: int) -> carving.Numbers:
    drawn = np.sort(np.random.default_rng(0).integers(0, nodes, (count, 2)), axis=1)
    return np.unique(drawn[drawn[:, 0] != drawn[:, 1]], axis=0)


def children() -> list[str]:
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()


@pytest.mark.parametrize("kind", carving.KINDS)
def test_the_same_parts_here_and_elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = random_edges(300, 1500)
    here = carve(kind, 300, edges, 4, 7)
    monkeypatch.setattr(carving, "LONG", 0.0)
    assert np.array_equal(carve(kind, 300, edges, 4, 7), here)
    assert len(np.unique(here)) > 1


def test_a_wait_is_announced_and_gives_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    edges = random_edges(300, 1500)
    with caplog.at_level(logging.INFO, carving.__name__):
        carve("louvain", 300, edges, 0, 1)
        assert not caplog.messages  # a moment is no wait
        monkeypatch.setattr(carving, "LONG", 0.0)
        monkeypatch.setattr(carving, "FIRST_SIGN", 0.1)
        carve("louvain", 300, edges, 0, 1)
    first, *signs, last = caplog.messages
    assert first == f"cutting 300 nodes and {len(edges):,} edges with louvain, roughly 1 s to 1 s"
    assert signs and all(re.fullmatch(r"still cutting with louvain: \d+ s so far, of roughly .*", sign) for sign in signs)
    assert re.fullmatch(r"cut with louvain in \d+ s", last)


def test_more_edges_take_longer() -> None:
    for kind in carving.KINDS.values():
        (quick, slow), (later, latest) = kind.seconds(10**5), kind.seconds(10**7)
        assert quick < slow and quick < later and slow < latest
    assert [carving._in_words(seconds) for seconds in (0.2, 40, 200, 7000)] == ["1 s", "40 s", "3 min", "2 h"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_signal_ends_it_at_once_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carving, "LONG", 0.0)
    edges = random_edges(100_000, 1_000_000)  # some minutes
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    with halting(), pytest.raises(Halt):
        timer.start()
        carve("louvain", 100_000, edges, 0, 1)
    assert time.monotonic() - begun < 20
    assert children() == []


def test_what_fails_elsewhere_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carving, "LONG", 0.0)
    with pytest.raises(PartitionError, match=r"^metis could not cut the graph \(.+\); use another partition.kind"):
        carve("metis", 3, np.array([[0, 9]]), 2, 1)

"""METIS and Louvain: each is one call of a C library, which holds Python's lock and says nothing until it is done.

A call that may take long is estimated beforehand and made in a process of its own, so that this one can give signs of life
(to `logging`, and to whoever listens to `core.progress`) and be stopped at once. Both ways give the same parts.
Legend: N nodes, E edges, each once.
"""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from suture.core.process import give_back_freed_pages
from suture.core.progress import Work, work
from suture.errors import PartitionError

Numbers = NDArray[np.int64]

LONG = 5.0
"""Seconds above which a call is made in a process of its own."""
FIRST_SIGN, LAST_SIGN = 5.0, 60.0
"""Seconds between two signs of life, at the beginning and after a while."""

log = logging.getLogger(__name__)


def metis(nodes: int, edges_E2: Numbers, parts: int, seed: int) -> Numbers:
    """The part of every node, [N]."""
    import pymetis  # with igraph's drawing libraries a second to import, and owners never cut

    csr = pymetis.CSRAdjacency(*_neighbours(nodes, edges_E2))
    # K-way is METIS's own default and FED-PUB's; pymetis alone would bisect recursively up to 8 parts.
    _, part = pymetis.part_graph(parts, csr, recursive=False, options=pymetis.Options(seed=seed))
    return np.asarray(part, dtype=np.int64)


def _neighbours(nodes: int, edges_E2: Numbers) -> tuple[Numbers, Numbers]:
    """Where each node's neighbours begin, and the neighbours; apart from the cut, so that nothing else stays in memory."""
    u, v = edges_E2.T
    ends = (np.concatenate([u, v]), np.concatenate([v, u]))
    adjacency = scipy.sparse.csr_array((np.ones(2 * len(u), dtype=np.int8), ends), shape=(nodes, nodes))
    return adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)


def louvain(nodes: int, edges_E2: Numbers, parts: int, seed: int) -> Numbers:
    """The community of every node, [N]; how many there are is Louvain's choice, not `parts`."""
    import igraph  # as pymetis above

    graph = igraph.Graph(n=nodes, edges=edges_E2)
    igraph.set_random_number_generator(random.Random(seed))
    try:
        return np.asarray(graph.community_multilevel().membership, dtype=np.int64)
    finally:
        igraph.set_random_number_generator(random)  # igraph's own default; the previous one cannot be asked for


@dataclass(frozen=True)
class Kind:
    """A way of cutting, and how long it takes: seconds are `quick` to `slow` times (E / a million) ** `power`.

    Fitted to CPU seconds of graphs with ten edges a node; docs/performance.md has them.
    """

    cut: Callable[[int, Numbers, int, int], Numbers]
    quick: float
    """Measured on a graph of ten clear communities."""
    slow: float
    """On one without any."""
    power: float

    def seconds(self, edges: int) -> tuple[float, float]:
        """From how long to how long a graph of so many edges may take."""
        size = (edges / 1e6) ** self.power
        return self.quick * size, self.slow * size


KINDS: Mapping[str, Kind] = {"metis": Kind(metis, 0.4, 1.5, 1.6), "louvain": Kind(louvain, 18.0, 61.0, 1.85)}


def carve(kind: str, nodes: int, edges_E2: Numbers, parts: int, seed: int) -> Numbers:
    """The part of every node, by METIS or Louvain; a wait is announced."""
    quick, slow = KINDS[kind].seconds(len(edges_E2))
    with work("partition", f"cutting {nodes:,} nodes and {len(edges_E2):,} edges with {kind}") as going:
        if slow < LONG or not sys.executable:
            return KINDS[kind].cut(nodes, edges_E2, parts, seed)
        expected = f"roughly {_in_words(quick)} to {_in_words(slow)}"
        log.info("cutting %s nodes and %s edges with %s, %s", f"{nodes:,}", f"{len(edges_E2):,}", kind, expected)
        going.at(expected)
        begun = time.monotonic()
        part = _elsewhere(kind, nodes, edges_E2, parts, seed, expected, going)
        log.info("cut with %s in %s", kind, _in_words(time.monotonic() - begun))
        return part


def _elsewhere(kind: str, nodes: int, edges_E2: Numbers, parts: int, seed: int, expected: str, going: Work) -> Numbers:
    """In a process of its own, which ends with this call, whatever ends it."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", __name__, kind, str(nodes), str(parts), str(seed)]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as found, tempfile.TemporaryFile() as said:
        np.save(given, edges_E2)
        given.seek(0)
        give_back_freed_pages()  # the other process needs them now
        process = subprocess.Popen(command, stdin=given, stdout=found, stderr=said, env={**os.environ, "PYTHONPATH": paths})
        try:
            _wait(process, kind, expected, going)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            why = last[0] if last else "it was ended from outside, perhaps for lack of memory"
            raise PartitionError(f"{kind} could not cut the graph ({why}); use another partition.kind or a smaller graph")
        found.seek(0)
        part: Numbers = np.load(found)
        return part


def _wait(process: subprocess.Popen[bytes], kind: str, expected: str, going: Work) -> None:
    begun = time.monotonic()
    while True:
        waited = time.monotonic() - begun
        try:
            process.wait(min(max(FIRST_SIGN, waited / 4), LAST_SIGN))
            return
        except subprocess.TimeoutExpired:
            log.info("still cutting with %s: %s so far, of %s", kind, _in_words(time.monotonic() - begun), expected)
            going.at(expected)


def _in_words(seconds: float) -> str:
    """`1 s`, `40 s`, `3 min`, `2 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{math.ceil(seconds / 3600)} h"


def _serve(kind: str, nodes: str, parts: str, seed: str) -> None:
    """The other process: edges from stdin, parts to stdout. Ctrl-C ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    np.save(sys.stdout.buffer, KINDS[kind].cut(int(nodes), np.load(sys.stdin.buffer), int(parts), int(seed)))


if __name__ == "__main__":
    _serve(*sys.argv[1:])

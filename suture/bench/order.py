"""Which runs first: what tells most, for the least time.

    1  cells of a paper's own methods, and of what they are ranked against, before all others
    2  cells without any result before those with some
    3  cheap cells before dear ones, by the seconds that their missing runs are expected to take

A cell is brought to its end before the next one is begun: one seed is no result. What a run takes is known from runs of the
same method, protocol and graph; else from those on other graphs, by their sizes; else it is guessed by the work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suture.bench.published import Table
from suture.bench.recipe import Recipe
from suture.bench.reproduced import Run, Store
from suture.graph import datasets

SECONDS_A_NODE = 3e-5
"""That an iteration takes, roughly, for each node of the graph; only for an order among runs of which nothing is known."""


@dataclass(frozen=True)
class Left:
    """Runs of a recipe that are missing."""

    table: str
    recipe: Recipe
    seeds: tuple[int, ...]
    headline: bool
    begun: bool
    """Whether other seeds of it have finished."""
    seconds: float
    """Of one run, expected."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The smaller, the earlier."""
        return not self.headline, self.begun, self.seconds * len(self.seeds)


def left(tables: Sequence[Table], store: Store, seeds: Sequence[int] | None, is_here: Callable[[str], bool]) -> list[Left]:
    """What is missing of these tables, the most informative first; `seeds` None: the papers' own number."""
    found: dict[str, Left] = {}
    paces = _Paces(store)
    for table in tables:
        for cell in table.cells:
            recipe = cell.recipe
            if recipe is None or not is_here(recipe.dataset):
                continue
            done = {run.seed for run in store.runs(recipe, table.name)}
            missing = tuple(seed for seed in seeds or table.seeds if seed not in done)
            known = found.get(recipe.key)
            headline = table.is_headline(cell) or (known is not None and known.headline)
            if missing and (known is None or headline):
                begun, seconds = bool(done), known.seconds if known else paces.expected(recipe)
                place = known.table if known else table.name
                found[recipe.key] = Left(place, recipe, missing, headline, begun, seconds)
    return sorted(found.values(), key=lambda one: one.rank)


def missing_here(name: str, data_root: Path | None) -> bool:
    """Whether a graph's raw files are not here; nothing is fetched."""
    return not datasets.about(name).present(datasets.data_root(data_root))


class _Paces:
    """How long runs took."""

    def __init__(self, store: Store) -> None:
        self._known: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for kept in (kept for file in store.files() for kept in file.cells if kept.runs):
            took = statistics.fmean(_seconds(run) for run in kept.runs)
            self._known.setdefault((kept.protocol, kept.method), []).append((kept.dataset, took))

    def expected(self, recipe: Recipe) -> float:
        """Seconds of one run of it."""
        known, size = self._known.get((recipe.protocol, recipe.method), []), _nodes(recipe.dataset)
        same = [seconds for dataset, seconds in known if dataset == recipe.dataset]
        if known:
            return statistics.fmean(same or [seconds * size / _nodes(dataset) for dataset, seconds in known])
        (method,) = recipe.plan().methods
        rounds = sum(phase.times for phase in method.plan())
        return SECONDS_A_NODE * size * rounds * method.training.local_epochs


def _seconds(run: Run) -> float:
    return run.processor if run.processor is not None else run.seconds


def _nodes(dataset: str) -> int:
    given = datasets.arguments(dataset) if not datasets.about(dataset).raw else {}
    return max(1, int(str(given.get("nodes", datasets.about(dataset).nodes))))

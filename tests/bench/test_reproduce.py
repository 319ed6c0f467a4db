"""Runs of published tables: kept as data, never repeated, gone on with after a stop, in the order that tells most."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from small_papers import GRAPH, small_papers

import suture
from suture.bench.order import Left, left
from suture.bench.published import Table, read_tables
from suture.bench.recipe import Recipe
from suture.bench.reproduce import UNDER_WAY, Bench, Errand, under_way
from suture.bench.reproduced import Run, Store
from suture.bench.work import Options
from suture.errors import IntegrityError


def is_here(name: str) -> bool:
    return name.startswith("csbm")


def tiny(tmp_path: Path, rounds: int = 20) -> Table:
    return read_tables(small_papers(tmp_path / "papers", rounds))["tiny-table-1"]


def missing(table: Table, store: Store, seeds: tuple[int, ...] | None = None) -> list[Left]:
    return left([table], store, seeds, is_here)


def scores(store: Store, recipe: Recipe) -> list[tuple[int, float]]:
    return [(run.seed, run.accuracy_client_mean) for run in store.runs(recipe)]


def recipe_of(table: Table, row: str) -> Recipe:
    found = next(cell.recipe for cell in table.cells if cell.row == row)
    assert found is not None
    return found


def a_run(seed: int, seconds: float = 1.0) -> Run:
    return Run(
        seed=seed,
        made="m",
        accuracy_client_mean=0.5,
        accuracy_weighted=0.5,
        accuracy_worst=0.5,
        metric="accuracy",
        rounds=20,
        best_round=1,
        bytes_up=1,
        bytes_down=1,
        seconds=seconds,
        processor=seconds,
        tested=1,
        trained=1,
        cut="c",
    )


def test_runs_are_kept_with_their_command_and_never_repeated(tmp_path: Path) -> None:
    table, store = tiny(tmp_path), Store(tmp_path / "store")
    order = missing(table, store)
    assert [(one.recipe.method, one.seeds) for one in order].count(("fedavg", (0, 1))) == 1, "one run for three cells"
    done = Bench(store, Options()).carry_out(order)
    assert (done.finished, done.failed, done.left) == (10, (), 0)
    assert missing(table, store) == []
    before = store.path(table.name).read_bytes()
    assert Bench(store, Options()).carry_out(missing(table, store)).finished == 0
    assert store.path(table.name).read_bytes() == before
    assert under_way(store.folder) == 0

    content = json.loads(before)
    assert {"commit", "suture", "python", "packages", "source"} <= set(next(iter(content["made"].values())))
    (kept,) = [one for one in content["cells"] if one["method"] == "fedpub" and not any("lambda1" in v for v in one["set"])]
    # What the file says to type gives its figures again, to the last digit.
    words = shlex.split(kept["command"])
    assert words[:2] == ["suture", "compare"]
    typed = dict(zip(words[2::2], words[3::2], strict=True))
    again = suture.compare(
        typed["--dataset"],
        [typed["--methods"]],
        protocol=typed["--protocol"],
        clients=int(typed["--clients"]),
        seeds=[int(seed) for seed in typed["--seeds"].split(",")],
        overrides=[typed["--set"]],
        options=Options(threads=int(typed["--threads"])),
    )
    told = [(one.seed, one.accuracy_client_mean, one.best_round, one.bytes_up) for one in again.outcomes]
    kept_runs = [(one["seed"], one["accuracy_client_mean"], one["best_round"], one["bytes_up"]) for one in kept["runs"]]
    assert told == [(seed, pytest.approx(score, abs=1e-11), best, up) for seed, score, best, up in kept_runs]
    # Papers print scores of some rounds; they are those of the curve.
    assert store.runs(recipe_of(table, "fedpub"))[0].curve == {20: again.histories[0][19]["test"]}


def test_side_by_side_and_after_a_stop_the_numbers_are_the_same(tmp_path: Path) -> None:
    table = tiny(tmp_path, rounds=6)
    alone, together, stopped = (Store(tmp_path / name) for name in ("alone", "together", "stopped"))
    order = [one for one in missing(table, alone) if one.recipe.method in ("fedavg", "fedpub")]
    Bench(alone, Options()).carry_out(order)
    assert Bench(together, Options(jobs=2)).carry_out(order).finished == 6
    rounds: list[int] = []
    stop = Options(watch=lambda name, seed, tick: rounds.append(tick.done), stop=lambda: len(rounds) >= 3)
    first = Bench(stopped, stop).carry_out(order)
    assert (first.finished, first.left) == (0, 6)
    assert under_way(stopped.folder) == 1
    rounds.clear()
    seen = Options(watch=lambda name, seed, tick: rounds.append(tick.done))
    assert Bench(stopped, seen).carry_out(order).finished == 6
    assert rounds[:3] == [4, 5, 6], "it goes on where it was stopped"
    assert under_way(stopped.folder) == 0
    for one in order:
        expected = [(run.seed, run.accuracy_client_mean, run.bytes_up, run.cut) for run in alone.runs(one.recipe)]
        for store in (together, stopped):
            assert [
                (run.seed, run.accuracy_client_mean, run.bytes_up, run.cut) for run in store.runs(one.recipe)
            ] == expected
    assert stopped.runs(order[0].recipe)[0].processor is None
    assert alone.runs(order[0].recipe)[0].processor is not None


def test_a_run_that_ended_before_it_was_written_down_is_not_repeated(tmp_path: Path) -> None:
    table, store = tiny(tmp_path, rounds=3), Store(tmp_path / "store")
    (one,) = [replace(one, seeds=(0,)) for one in missing(table, store) if one.recipe.method == "fedavg"]
    place = store.folder / UNDER_WAY / Errand(one.table, one.recipe, 0, 0.0).folder
    suture.run(GRAPH, "fedavg", clients=4, seed=0, rounds=3, out=place, options=Options(threads=1))
    rounds: list[int] = []
    seen = Options(watch=lambda name, seed, tick: rounds.append(tick.done))
    assert Bench(store, seen).carry_out([one]).finished == 1
    assert rounds == [], "it was read, not run"
    other = Store(tmp_path / "other")
    Bench(other, Options()).carry_out([one])
    assert scores(store, one.recipe) == scores(other, one.recipe)


def test_a_budget_begins_nothing_that_does_not_fit_and_stops_what_is_at_work(tmp_path: Path) -> None:
    table, store = tiny(tmp_path, rounds=6), Store(tmp_path / "store")
    order = [replace(one, seconds=1000.0) for one in missing(table, store)]
    assert Bench(store, Options(), budget=500.0).carry_out(order).finished == 0
    assert not (store.folder / UNDER_WAY).exists()
    cheap = [replace(one, seconds=0.0) if one.recipe.method == "local" else one for one in order]
    assert Bench(store, Options(), budget=500.0).carry_out(cheap).finished == 2
    # Used up while a run is at it: the run ends after its round, and is gone on with.
    begun: list[Bench] = []

    def use_up(name: str, seed: int, tick: object) -> None:
        begun[0].budget = 0.0

    begun.append(Bench(store, Options(watch=use_up), budget=500.0))
    some = [replace(one, seconds=0.0) for one in order if one.recipe.method == "fedavg"]
    done = begun[0].carry_out(some)
    assert (done.finished, done.left, under_way(store.folder)) == (0, 2, 1)


def test_what_tells_most_comes_first(tmp_path: Path) -> None:
    table, store = tiny(tmp_path), Store(tmp_path / "store")
    assert [one.recipe.method for one in missing(table, store)][-1] == "fedprox", "no method of the paper, no baseline"
    # fedpub is known to be dear, local to be cheap; fedavg has a result already.
    store.add(table.name, recipe_of(table, "fedavg"), a_run(0, 2.0), {})
    store.add(table.name, recipe_of(table, "local"), a_run(7, 0.1), {})
    store.add(table.name, recipe_of(table, "fedpub"), a_run(7, 50.0), {})
    order = missing(table, store, (0, 1))
    headline = [one for one in order if one.headline]
    assert [(one.recipe.method, one.seeds) for one in headline] == [
        ("fedpub", (0, 1)),  # with another lambda1: nothing is known of it, so it is taken to be as dear as its sibling
        ("local", (0, 1)),
        ("fedavg", (1,)),
        ("fedpub", (0, 1)),
    ]
    assert headline[0].seconds == headline[3].seconds == 50.0
    assert [one.begun for one in headline] == [False, True, True, True]
    assert [one.recipe.method for one in order if not one.headline] == ["fedprox"]
    # What is not here is not run.
    assert left([table], store, None, lambda name: False) == []


def test_runs_of_other_values_are_none_of_ours(tmp_path: Path) -> None:
    table, store = tiny(tmp_path), Store(tmp_path / "store")
    recipe = recipe_of(table, "fedavg")
    store.add(table.name, recipe, a_run(0), {})
    assert scores(store, recipe) == [(0, 0.5)]
    assert scores(store, replace(recipe, overrides=("rounds=21",))) == []
    path = store.path(table.name)
    path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 0.02'))
    assert scores(Store(store.folder), recipe) == [], "the protocol has another learning rate now"
    path.write_text(path.read_text().replace('"lr": 0.02', '"lr": 0.01').replace('"clip": 0.0, ', ""))
    assert scores(Store(store.folder), recipe) == [(0, 0.5)], "a value that came later changes nothing by its default"
    # Another table's run of the same values counts; of one seed, the table's own.
    store.add("other-table", recipe, replace(a_run(1), accuracy_client_mean=0.7), {})
    store.add("other-table", recipe, replace(a_run(0), accuracy_client_mean=0.9), {})
    assert scores(store, recipe)[1] == (1, 0.7)
    assert [run.accuracy_client_mean for run in store.runs(recipe, table.name)] == [0.5, 0.7]
    path.write_text('{"table": 3}')
    with pytest.raises(IntegrityError, match="damaged"):
        Store(store.folder).runs(recipe)

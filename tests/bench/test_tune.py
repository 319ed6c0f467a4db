"""The search for better values: on validation alone, the same however it is interrupted, with every value's origin."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import suture
from suture.bench.hiding import without_test
from suture.bench.tune import Wish, tune
from suture.bench.work import Options
from suture.cli import main
from suture.config.layers import load_protocol
from suture.config.space import Space, parse_space, spaces_of
from suture.errors import ConfigError, SutureError
from suture.graph import datasets
from suture.methods import METHODS, own_fields
from suture.runs.execute import execute
from suture.runs.loop import Interrupted
from suture.runs.plan import Plan, plan
from suture.runs.prepare import Source

pytest.importorskip("optuna")
GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
WISH = Wish(6, (100,), {"training.lr": Space(0.02, 0.1, log=True), "fedprox.mu": Space(1e-4, 0.1, log=True)}, only=True)


def _made(*methods: str, **more: Any) -> Plan:
    return plan(GRAPH, methods or ("fedprox",), clients=3, overrides=("rounds=8",), seeds=(0, 1), **more)


def _tune(out: Path, made: Plan | None = None, wish: Wish = WISH, **more: Any) -> Any:
    return tune(made or _made(), wish, out, protocol="fedpub-disjoint", given=("rounds=8",), **more)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("search") / "whole"
    _tune(out)
    return out


def _trials(out: Path) -> Any:
    return json.loads((out / "trials.json").read_text())


def test_what_is_found_is_at_least_as_good_as_the_protocol_and_keeps_every_origin(searched: Path) -> None:
    trials = _trials(searched)["fedprox"]
    assert len(trials) == 6 and trials[0]["values"] == {}
    best = max((one for one in trials if one["score"] is not None), key=lambda one: one["score"])
    assert best["score"] > trials[0]["score"]  # of six tries on this graph, one is better
    text = (searched / "tuned.toml").read_text()
    assert "rounds = 8  # given" in text
    assert 'optimizer = "adam"  # paper' in text and "lr = 0.01  # code; the paper prints 0.001" in text
    made = plan(GRAPH, ["fedprox"], protocol=searched / "tuned.toml")
    assert made.methods[0].training.lr == best["values"]["training.lr"] and made.seeds == (0, 1)
    assert made.protocol.name == "fedpub-disjoint-tuned"
    (line,) = made.protocol.tuned
    by = f"6 trials on seeds 100, validation {100 * best['score']:.2f} %, before {100 * trials[0]['score']:.2f} %"
    assert line.startswith("fedprox: training.lr = ") and line.endswith(f"({by})")
    assert f"lr = {best['values']['training.lr']}  # tuned: {by}" in text
    for value in text.split("[preprocess]")[1].splitlines():
        assert not value.strip() or value.startswith("[") or "  # " in value, value


def test_a_trial_is_the_run_it_would_be_with_a_test(searched: Path) -> None:
    best = max((one for one in _trials(searched)["fedprox"] if one["score"]), key=lambda one: one["score"])
    result = suture.run(GRAPH, "fedprox", protocol=searched / "tuned.toml", seed=100)
    assert result.outcome.validation == best["score"]


def test_labels_of_the_test_do_not_matter_to_a_search(searched: Path, tmp_path: Path) -> None:
    made = _made()
    data = datasets.load(GRAPH)
    role = Source(replace(made, seeds=(100,))).cuts[100].split.roles
    assert len(role) == data.num_nodes  # nothing was left out of the graph, so that its nodes are those of the cut
    poisoned = data.clone()
    poisoned.y = torch.where(role == 3, (data.y + 1) % 3, data.y)
    assert not torch.equal(poisoned.y, data.y)
    _tune(tmp_path / "poisoned", data=poisoned)
    assert _trials(tmp_path / "poisoned") == _trials(searched)
    with_test = suture.run(GRAPH, "fedprox", seed=100, clients=3, rounds=8).outcome.accuracy_client_mean
    without = suture.run(poisoned, "fedprox", protocol="fedpub-disjoint", seed=100, clients=3, rounds=8).outcome
    assert without.accuracy_client_mean != with_test  # the same poison is seen by whoever looks at the test


@pytest.mark.parametrize("protocol", ["fedpub-disjoint", "fedpub-link"])
def test_a_graph_without_its_test_measures_nothing_there(protocol: str) -> None:
    made = plan(GRAPH, ["fedavg"], protocol=protocol, clients=3, overrides=("rounds=2",), seeds=(0,))
    prepared = Source(made).prepared(0)
    hidden = execute(without_test(prepared), made.methods[0], made.protocol)
    whole = execute(prepared, made.methods[0], made.protocol)
    assert hidden.outcome.validation == whole.outcome.validation
    assert hidden.outcome.accuracy_client_mean != hidden.outcome.accuracy_client_mean  # NaN: there is none
    assert all(line["test"] is None and not any(line["client_test"]) for line in hidden.history)
    assert hidden.evaluation["pooled"]["test"]["support"] == 0
    assert whole.evaluation["pooled"]["test"]["support"] > 0


def test_stopped_and_gone_on_with_a_search_is_the_same(searched: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    out = tmp_path / "stopped"

    def watch(method: str, number: int, seed: int, tick: object) -> None:
        seen.append(number)

    with pytest.raises(Interrupted, match="stopped after 3 of 6 trials of fedprox"):
        _tune(out, watch=watch, options=Options(stop=lambda: seen[-1:] == [3]))
    assert not (out / "tuned.toml").exists()
    seen.clear()
    _tune(out, watch=watch)
    assert set(seen) == {3, 4, 5}
    assert _trials(out) == _trials(searched)
    assert (out / "tuned.toml").read_bytes() == (searched / "tuned.toml").read_bytes()


def test_every_method_has_the_same_budget_also_side_by_side(tmp_path: Path) -> None:
    wish = Wish(trials=4, seeds=(100,), search={"training.lr": Space(0.001, 0.1, log=True)}, only=True)
    ran = [_tune(tmp_path / name, _made("local", "fedavg"), wish, options=Options(jobs=2)) for name in ("one", "other")]
    assert [(one.method, len(one.trials)) for one in ran[0].found] == [("local", 4), ("fedavg", 4)]
    assert all(set(trial.values) <= {"training.lr"} for one in ran[0].found for trial in one.trials)
    assert _trials(tmp_path / "one") == _trials(tmp_path / "other")  # two at a time, and still no matter of luck


def test_a_hopeless_trial_is_given_up_and_a_broken_one_counts(tmp_path: Path) -> None:
    made = plan(GRAPH, ["fedavg"], clients=3, overrides=("rounds=12", "lr=0.05"), seeds=(0, 1))
    wish = Wish(10, (100,), {"training.lr": Space(choices=(0.05, 0.06, 0.07, 1e-9))}, only=True)
    (found,) = _tune(tmp_path / "hopeless", made, wish).found
    given_up = [trial for trial in found.trials if trial.score is None]
    assert len(found.trials) == 10 and found.given_up == len(given_up) > 0
    assert 1e-9 in {trial.values["training.lr"] for trial in given_up}
    assert all(trial.why.startswith("given up after ") for trial in given_up)

    wish = Wish(4, (100,), {"training.dp_clip": Space(choices=(1.0, -1.0))}, only=True)
    (found,) = _tune(tmp_path / "broken", made, wish).found
    broken = [trial for trial in found.trials if trial.score is None]
    assert len(found.trials) == 4 and broken and found.best == found.baseline
    assert all("fedavg.training.dp_clip must be a number > 0, got -1" in trial.why for trial in broken)


def test_tables_say_which_values_were_tuned(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    asked = ["--dataset", GRAPH, "--protocol", str(searched / "tuned.toml"), "--seeds", "0", "-q"]
    asked += ["--methods", "fedprox,fedavg", "--set", "fedprox.mu=0.25", "--set", "rounds=1"]
    assert main(["compare", *asked, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "Tuned on validation, fedprox: training.lr = " in shown and "; changed since: mu." in shown
    assert "6 trials on seeds 100, validation" in shown and "Not tuned: fedavg." in shown
    page = (tmp_path / "run" / "report.html").read_text()
    assert "tuned on validation" in page and "6 trials on seeds 100" in page
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["tuned"] == list(
        load_protocol(searched / "tuned.toml").base.values["tuned"]  # type: ignore[call-overload]
    )


def test_the_command_prints_what_it_found_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "found"
    asked = ["tune", "--dataset", GRAPH, "--clients", "3", "--set", "rounds=3", "--trials", "3", "--search-seeds", "7"]
    assert main([*asked, "--search", "training.moments=own,averaged", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "3 trials for each of fedavg, on validation of seeds 7; seeds 0, 1, 2 stay for the report" in said.err
    assert "No test was read." in said.out and f"next: suture compare --protocol {out}/tuned.toml" in said.err
    assert main([*asked, "--out", str(out)]) == 2
    assert "holds another search (other methods)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["--search-seeds", "1,7"], "--search-seeds 1 would be reported too"),
        (["--search", "training.lr"], "should be KEY=LOW..HIGH or KEY=A,B,C"),
        (["--search", "training.lr=1..0"], "is no range"),
        (["--search", "training.lr=1"], "leaves nothing to choose"),
        (["--search", "fedprox.mu=0..1"], "--search fedprox.mu is of none of fedavg"),
        (["--search", "training.nothing=0..1"], "fedavg has no training.nothing to search"),
        (["--only"], "there is no --search"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], sentence: str
) -> None:
    assert main(["tune", "--dataset", GRAPH, *asked, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ships_a_space_that_its_settings_allow(name: str) -> None:
    kind = METHODS[name]
    spaces = spaces_of(kind, own_fields(kind))
    assert {"training.lr", "training.weight_decay", "training.local_epochs", "model.dropout"} <= set(spaces)
    for key, space in spaces.items():
        for value in space.choices or (space.low, space.high):
            whole = int(value) if space.whole else value
            plan("cora", [name], overrides=[f"{name}.{key}={whole}"])  # refuses what is out of bounds


def test_spaces_are_declared_or_follow_from_bounds_and_defaults() -> None:
    of = {name: spaces_of(METHODS[name], own_fields(METHODS[name])) for name in ("fedprox", "fedsage", "fedgcn")}
    assert of["fedprox"]["mu"] == Space(1e-4, 1.0, log=True)
    assert of["fedsage"]["batch_size"] == Space(16, 256, log=True, whole=True)  # a quarter to four times 64
    assert [key for key in of["fedgcn"] if "." not in key] == ["hops"]  # how private it is, is not for a search to say
    assert parse_space("lr=0.001..0.1") == ("lr", Space(0.001, 0.1, log=True))
    assert parse_space("k=1..5") == ("k", Space(1, 5, whole=True))
    assert parse_space("moments=own, averaged") == ("moments", Space(choices=("own", "averaged")))


@pytest.mark.slow
def test_twenty_trials_raise_the_validation_score_of_fedavg_on_cora(data_root: Path, tmp_path: Path) -> None:
    made = plan("cora", ["fedavg"])
    (found,) = tune(made, Wish(), tmp_path, protocol="fedpub-disjoint", options=Options(data_root=data_root, jobs=2)).found
    assert found.best.score is not None and found.baseline.score is not None
    assert found.best.score > found.baseline.score


def test_without_an_end_there_is_no_best() -> None:
    from suture.bench.search import Found, Trial

    with pytest.raises(SutureError, match="no trial of fedavg came to an end"):
        _ = Found("fedavg", (Trial({}, None, why="given up"),), True).best
    with pytest.raises(ConfigError):
        parse_space("=1..2")

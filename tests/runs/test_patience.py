"""`training.patience`: training that ends early ends with a result, and always at the same round."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import suture
from suture.errors import ConfigError
from suture.runs.evaluation import out_of_patience
from suture.runs.outcome import Line, Tick

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
SELECTIONS = ["best-validation", "best-validation-per-client", "last"]
ROUNDS = 30


def overrides(*more: str) -> list[str]:
    return [f"rounds={ROUNDS}", "hidden=8", "lr=0.05", *more]


def run(*more: str, method: str = "fedavg", out: Path | None = None, options: suture.Options | None = None) -> suture.Result:
    return suture.run(GRAPH, method, clients=3, seed=1, overrides=overrides(*more), out=out, options=options)


def round_it_ends(lines: list[Line], patience: int) -> int:
    """Read off a whole curve, one test after the other, as a person would."""
    best, since = (-1.0, 0.0), 0
    for line in lines:
        if line.get("validation") is None:
            continue
        here = (line["validation"], -line["validation_loss"])
        if here > best:
            best, since = here, line["round"]
        elif line["round"] - since >= patience:
            return int(line["round"])
    return int(lines[-1]["round"])


def test_the_rule_against_a_person_reading_the_curve() -> None:
    draw = random.Random(0)
    for _ in range(500):
        every = draw.randint(1, 4)
        lines: list[Line] = [{"round": number} for number in range(1, 25)]
        for line in lines:
            if line["round"] % every == 0 or line["round"] == len(lines):
                line |= {"validation": draw.choice([None, 0.1, 0.2, 0.3]), "validation_loss": draw.choice([1.0, 2.0, 3.0])}
        patience = draw.randint(1, 10)
        ended = next((n for n in range(1, 25) if out_of_patience(lines[:n], patience)), 24)
        assert ended == round_it_ends(lines, patience)
        assert not any(out_of_patience(lines[:n], 0) for n in range(25))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("select", SELECTIONS)
def test_a_run_that_ends_early_is_the_beginning_of_the_whole_run(select: str, every: int) -> None:
    protocol = (f"evaluation.select={select}", f"evaluation.every={every}")
    whole, early = run(*protocol), run(*protocol, "patience=4")
    end = round_it_ends(whole.history, 4)
    assert end < ROUNDS, "choose a graph that is learned sooner"
    assert early.history == whole.history[:end]
    assert early.outcome.rounds == end and whole.outcome.rounds == ROUNDS
    tested = [line for line in early.history if "validation" in line]
    assert tested[-1]["round"] == end, "the last round is always tested"
    best = {
        "best-validation": max(tested, key=lambda line: (line["validation"], -line["validation_loss"], line["round"]))[
            "round"
        ],
        "last": end,
    }
    assert early.outcome.best_round == best.get(select, early.outcome.best_round) <= end
    assert early.outcome.bytes_up * ROUNDS == whole.outcome.bytes_up * end


@pytest.mark.parametrize("method", ["fedper", "fedproto", "global"])
def test_methods_with_models_of_their_own_end_early_too(method: str) -> None:
    whole, early = run(method=method), run("patience=3", method=method)
    end = round_it_ends(whole.history, 3)
    assert end < ROUNDS and early.outcome.rounds == end and early.history == whole.history[:end]
    assert early.data.prediction.ge(0).any()


def test_only_the_tested_phase_ends_early_and_the_last_tick_is_the_last() -> None:
    brief = ("fedsage_plus.generator_epochs=6", "fedsage_plus.rehide=2")
    ticks: list[Tick] = []
    options = suture.Options(watch=lambda method, seed, tick: ticks.append(tick))
    early = suture.run(
        GRAPH, "fedsage_plus", protocol="fedsage-louvain", clients=3, seed=1,
        overrides=[*overrides("patience=2"), *brief], options=options,
    )  # fmt: skip
    phases = [line["phase"] for line in early.history]
    assert phases[:7] == ["generator"] * 6 + ["mend"]
    assert early.outcome.rounds == phases.count("round") < ROUNDS
    assert [tick.done for tick in ticks] == list(range(1, len(phases) + 1))
    assert ticks[0].total == 6 + 1 + ROUNDS and ticks[-1].total == ticks[-1].done == len(phases)
    assert all(tick.total == 7 + ROUNDS for tick in ticks[:-1])


@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_run_ends_at_the_same_round_with_the_same_files(tmp_path: Path, every: int) -> None:
    settings = ("patience=3", f"evaluation.every={every}")
    end = run(*settings, method="fedper", out=tmp_path / "whole").outcome.rounds
    for stopped in {1, end // 2, end - 1, end}:
        path, seen = tmp_path / f"stopped-{stopped}", list[int]()
        options = suture.Options(
            watch=lambda *told, seen=seen: seen.append(told[2].done), stop=lambda seen=seen, at=stopped: len(seen) == at
        )
        with pytest.raises(suture.SutureError, match=f"stopped after round {stopped} of {ROUNDS}"):
            run(*settings, method="fedper", out=path, options=options)
        comparison = suture.resume(path)
        assert comparison.outcomes[0].rounds == end
        for name in ("metrics.jsonl", "ledger.jsonl", "model.safetensors"):
            assert (path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (stopped, name)
        results = [json.loads((folder / "result.json").read_text()) for folder in (path, tmp_path / "whole")]
        assert {**results[0], "seconds": 0} == {**results[1], "seconds": 0}


def test_patience_is_a_number_from_zero_on() -> None:
    with pytest.raises(ConfigError, match=r"training\.patience must be an integer >= 0, got -1"):
        run("patience=-1")

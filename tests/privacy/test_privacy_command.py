"""`suture privacy` and the privacy lines of a comparison, on real short runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import suture
from suture.cli import main
from suture.privacy.accountant import dp_sgd_epsilon

ROUNDS = 3
SHORT = ["rounds=3", "model.hidden=8", "training.batch_size=16"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedProto with noise, on three clients."""
    out = tmp_path_factory.mktemp("runs") / "noisy"
    overrides = [*SHORT, "training.dp_sigma=2.0", "training.participation=0.67"]
    suture.compare(
        "csbm:nodes=200,features=30,degree=3", ["fedavg", "fedproto"], clients=3, seeds=[0], overrides=overrides, out=out
    )
    return out


def read_json(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["privacy", str(path), "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert isinstance(content, list)
    return content


def test_every_clients_epsilon_is_of_the_steps_it_made(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted from the ledger by hand: clients sit out rounds here."""
    (run,) = read_json(compared / "fedavg-seed0", capsys)
    lines = [json.loads(line) for line in (compared / "fedavg-seed0" / "ledger.jsonl").read_text().splitlines()]
    train = {
        c["client"]: c["train"] for c in json.loads((compared / "fedavg-seed0" / "privacy.json").read_text())["clients"]
    }
    guarantees = run["guarantees"]
    assert isinstance(guarantees, list)
    rounds = {}
    for guarantee in guarantees:
        name = guarantee["client"]
        made = [line for line in lines if line["step"] == "local_update" and line["direction"] == "up"]
        rounds[name] = sum(name in line["clients"] for line in made)
        size = min(16, train[name])
        steps = rounds[name] * -(-train[name] // size)
        assert guarantee["epsilon"] == pytest.approx(dp_sgd_epsilon([(2.0, size / train[name], steps)])[1])
        assert guarantee["not_covered"] == ["counts", "losses"]
    assert len(rounds) == 3
    assert sum(rounds.values()) == 2 * ROUNDS


def test_the_table_of_a_comparison_says_what_it_is_worth(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {run["method"]: run for run in read_json(compared, capsys)}
    assert main(["show", str(compared)]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "epsilon," in table
    result = json.loads((compared / "fedavg-seed0" / "result.json").read_text())
    guarantees = runs["fedavg"]["guarantees"]
    assert isinstance(guarantees, list)
    assert result["epsilon"] == pytest.approx(max(guarantee["epsilon"] for guarantee in guarantees))
    assert result["delta"] == 1e-5
    assert result["privacy"] == runs["fedavg"]["in_words"]
    assert f"fedavg: DP-SGD, {result['privacy']}" in table
    assert "fedproto: DP-SGD, no meaningful protection" in table


def test_one_run_on_a_screen(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", str(compared / "fedproto-seed0")]) == 0
    screen = capsys.readouterr().out
    assert "DP-SGD hides one training node's loss" in screen
    assert "prototypes" in screen
    assert "client-02" in screen
    capsys.readouterr()
    assert main(["privacy", str(compared)]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_a_method_without_a_mechanism_promises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plain"
    result = suture.run("csbm:nodes=200,features=30,degree=3", "fedavg", clients=3, seed=0, overrides=SHORT, out=out)
    assert (result.outcome.mechanism, result.outcome.epsilon, result.outcome.privacy) == (None, None, "no guarantee")
    (run,) = read_json(out, capsys)
    assert run["guarantees"] == []
    assert main(["privacy", str(out)]) == 0
    assert "No guarantee" in capsys.readouterr().out
    assert main(["show", str(out)]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "No privacy guarantee by any of these" in screen
    assert "epsilon" not in screen


def test_bad_requests_get_one_sentence(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["privacy", str(compared), "--delta", "1.5"]) == 2
    assert "--delta must be between 0 and 1" in capsys.readouterr().err
    assert main(["privacy", str(compared), "--json", str(tmp_path / "out.json")]) == 0
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2

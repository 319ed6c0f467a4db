"""The command line as a user or a script meets it: results, files, interruptions, and one sentence for every mistake."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch_geometric.data import Data

import suture
from suture import api
from suture.cli import main
from suture.commands.stopping import Halt, Stopper
from suture.config.layers import load_protocol
from suture.errors import DataError
from suture.graph import carving, datasets
from suture.graph.cut import load_manifest
from suture.graph.splits import Role
from suture.methods import METHODS
from suture.runs import origin
from suture.runs.checkpoint import load_models
from suture.runs.prepare import preprocess
from suture.runs.pulse import LOCK, PROGRESS

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
SMALL = ("--dataset", GRAPH, "--clients", "3", "--set", "rounds=4", "--set", "hidden=8")
RESULT_KEYS = {
    "method", "seed", "dataset", "clients", "protocol", "accuracy_client_mean", "accuracy_weighted", "accuracy_worst",
    "accuracy_global", "bytes_up", "bytes_down", "seconds", "rounds", "best_round",
}  # fmt: skip
FREQUENT_CHECKPOINTS = """
import sys
import suture.runs.folder
from suture.cli import main
suture.runs.folder.MIN_SECONDS_BETWEEN_CHECKPOINTS = 0.05
sys.exit(main())
"""


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with a cache folder beside it; processes started here find this very package."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(api.__file__).parents[1]))
    monkeypatch.delenv("SUTURE_DEBUG", raising=False)
    return folder


@pytest.fixture
def cli(here: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Runs a command in this process."""
    threads = torch.get_num_threads()

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    yield call
    torch.set_num_threads(threads)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """Runs a command in a process of its own, which checkpoints every few rounds."""
    command = [sys.executable, "-c", FREQUENT_CHECKPOINTS, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder but those that tell of its process or seconds; of results all but these."""
    content = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (LOCK, PROGRESS, "report.html"):
            raw = path.read_bytes()
            if path.name == "result.json":
                raw = json.dumps({k: v for k, v in json.loads(raw).items() if k != "seconds"}).encode()
            content[str(path.relative_to(folder))] = raw
    return content


class TestCompare:
    def test_json_has_one_complete_object_per_method_and_seed(self, cli: Cli, here: Path) -> None:
        said = cli("compare", *SMALL, "--methods", "local,fedavg,global", "--seeds", "0,1", "--json", "deep/r.json")
        assert said.code == 0
        results = json.loads((here / "deep/r.json").read_text())
        assert [(r["method"], r["seed"]) for r in results] == [
            (method, seed) for method in ("local", "fedavg", "global") for seed in (0, 1)
        ]
        for result in results:
            assert set(result) >= RESULT_KEYS
            assert (result["dataset"], result["clients"], result["protocol"]) == (GRAPH, 3, "fedpub-disjoint")
            assert result["rounds"] == 4 and 1 <= result["best_round"] <= 4
            assert 0 <= result["accuracy_worst"] <= result["accuracy_client_mean"] <= 1
            assert (result["accuracy_global"] is None) == (result["method"] == "local")

    def test_table_goes_to_stdout_and_progress_to_stderr(self, cli: Cli) -> None:
        said = cli("compare", *SMALL, "--methods", "local,global", "--seeds", "0,1")
        assert "local" in said.out and "±" in said.out and "a reference, not a federated method" in said.out
        assert "round 4/4" in said.err and "round 4/4" not in said.out

    def test_json_to_stdout_replaces_the_table(self, cli: Cli) -> None:
        said = cli("compare", *SMALL, "--methods", "local", "--seeds", "0", "--json", "-")
        assert [result["method"] for result in json.loads(said.out)] == ["local"]

    def test_quiet_says_nothing_on_stderr(self, cli: Cli) -> None:
        assert cli("run", *SMALL, "--quiet").err == ""

    def test_default_folder_is_named_after_dataset_and_protocol(self, cli: Cli, here: Path) -> None:
        cli("run", *SMALL)
        cli("run", *SMALL)
        names = [path.name for path in (here / "runs").iterdir()]
        assert len(names) == 2
        assert all(re.fullmatch(r"\d{8}-\d{6}-csbm-fedpub-disjoint(-2)?", name) for name in names)

    def test_run_is_the_same_as_that_run_of_a_comparison(self, cli: Cli, here: Path) -> None:
        cli("compare", *SMALL, "--methods", "local,fedper", "--seeds", "0,5", "--out", "many")
        cli("run", *SMALL, "--method", "fedper", "--seed", "5", "--out", "one")
        many, one = tree(here / "many/fedper-seed5"), tree(here / "one")
        assert one.pop("config.toml").replace(b"[5]", b"[0, 5]") == many.pop("config.toml")
        assert one == many

    def test_same_seed_same_metrics_other_seed_other_cut(self, cli: Cli, here: Path) -> None:
        for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
            assert cli("run", *SMALL, "--seed", seed, "--out", out).code == 0
        assert (here / "a/metrics.jsonl").read_bytes() == (here / "b/metrics.jsonl").read_bytes()
        a, c = (load_manifest(here / out / "manifest.json").partition.members for out in "ac")
        assert any(not torch.equal(x, y) for x, y in zip(a, c, strict=True))

    def test_config_file_is_used_and_options_win(self, cli: Cli, here: Path) -> None:
        (here / "my.toml").write_text(
            f'dataset = "{GRAPH}"\nprotocol = "fedpub-random"\nseeds = [3]\nmethods = ["local"]\n'
            "[training]\nrounds = 2\n[model]\nhidden = 8\n"
        )
        ask = ("compare", "--config", "my.toml", "--clients", "2", "--json", "-")
        win = ("--protocol", "fedpub-disjoint", "--methods", "fedavg", "--seeds", "4", "--set", "rounds=3")
        (of_file,), (of_options,) = json.loads(cli(*ask).out), json.loads(cli(*ask, *win).out)
        keys = ("method", "seed", "protocol", "rounds")
        assert [of_file[key] for key in keys] == ["local", 3, "fedpub-random", 2]
        assert [of_options[key] for key in keys] == ["fedavg", 4, "fedpub-disjoint", 3]

    def test_help_tells_the_defaults_that_are_used(self, cli: Cli) -> None:
        said = " ".join(cli("compare", "--help").out.split())
        assert f"[default: {origin.PAPERS}; with --data: {origin.OWN}]" in said.replace("- ", "-")
        assert f"[default: {', '.join(api.DEFAULT_METHODS)}]" in said

    def test_json_file_can_be_a_link_or_device(self, cli: Cli, here: Path) -> None:
        (here / "real.json").write_text("old")
        (here / "link.json").symlink_to("real.json")
        assert cli("run", *SMALL, "--json", "link.json").code == 0
        assert (here / "link.json").is_symlink() and len(json.loads((here / "real.json").read_text())) == 1


class TestDryRun:
    def test_prints_the_configuration_and_touches_nothing(self, cli: Cli, here: Path) -> None:
        said = cli("compare", *SMALL, "--methods", "local,fedavg", "--out", "o", "--json", "j/r.json", "--dry-run")
        assert said.code == 0 and list(here.parent.rglob("*")) == [here]
        config = tomllib.loads(said.out.split("\nWould do")[0])
        assert (config["training"]["rounds"], config["model"]["hidden"], config["partition"]["clients"]) == (4, 8, 3)

    def test_traffic_note_is_near_the_truth(self, cli: Cli) -> None:
        said = cli("run", *SMALL, "--dry-run")
        (told,) = re.findall(r"fedavg +4 +\S+ kB to 3 clients +(\S+) kB", said.out)
        sent = json.loads(cli("run", *SMALL, "--json", "-").out)[0]["bytes_down"]
        assert 1000 * float(told) == pytest.approx(sent, rel=0.02)


class TestFolders:
    def test_show_a_run(self, cli: Cli) -> None:
        cli("run", *SMALL, "--method", "fedper", "--out", "r")
        said = cli("show", "r")
        assert said.code == 0
        for text in ("fedper on csbm", "Finished in", "Learning curve, rounds 1 to 4", "client-0", "local_update", "params"):
            assert text in said.out

    def test_show_an_unfinished_comparison(self, cli: Cli, here: Path) -> None:
        cli("compare", *SMALL, "--methods", "local,fedavg", "--seeds", "0", "--out", "r")
        (here / "r/fedavg-seed0/result.json").unlink()
        metrics = here / "r/fedavg-seed0/metrics.jsonl"
        lines = metrics.read_bytes().splitlines(keepends=True)
        metrics.write_bytes(b"".join(lines[:2]) + lines[2][:40])
        said = cli("show", "r")
        assert "2 of 4" in said.out and "continue with: suture resume r" in said.out
        assert cli("show", "r/fedavg-seed0").out.count("continue with: suture resume r\n") == 1

    def test_resume_of_a_finished_comparison_prints_its_table_again(self, cli: Cli) -> None:
        first = cli("compare", *SMALL, "--methods", "local", "--seeds", "0", "--out", "r")
        assert cli("resume", "r").out == first.out

    @pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "gprgnn", "mlp"])
    def test_exported_model_reaches_the_same_accuracy_in_plain_pyg(self, cli: Cli, here: Path, kind: str) -> None:
        said = cli("run", *SMALL, "--set", f"model.kind={kind}", "--out", "r", "--json", "-")
        expected = json.loads(said.out)[0]["accuracy_global"]
        said = cli("export", "r", "--out", "m.safetensors")
        assert said.code == 0
        settings = load_protocol(here / "r/config.toml").base.values["preprocess"]
        graph = preprocess(datasets.load(GRAPH), api.plan(GRAPH).protocol.preprocess)
        assert settings["largest_component"] and settings["row_normalise"]
        raw = datasets.load(GRAPH).x.to_dense()
        known: dict[str, object] = {"x": raw[graph.node_id], "edge_index": graph.edge_index}
        exec(said.out, known)
        predicted = known["scores"].argmax(1)  # type: ignore[attr-defined]
        test = load_manifest(here / "r/manifest.json").split.roles == Role.TEST
        assert (predicted == graph.y)[test].double().mean() == pytest.approx(expected, abs=1e-6)

    def test_export_of_a_personal_model(self, cli: Cli, here: Path) -> None:
        cli("run", *SMALL, "--method", "local", "--out", "r")
        ids = list(load_models(here / "r/model.safetensors")[0])
        assert cli("export", "r", "--client", ids[1]).code == 0
        assert (here / "model.safetensors").exists()
        said = cli("export", "r")
        assert said.code == 2 and ids[2] in said.err


class TestPartition:
    def test_manifest_is_used_by_run(self, cli: Cli, here: Path) -> None:
        said = cli("partition", "--dataset", GRAPH, "--clients", "4", "--seed", "7", "--kind", "random", "--out", "cut.json")
        assert said.code == 0 and "missing links" in said.out and said.out.count("client-") == 4
        run = cli("run", "--dataset", GRAPH, "--set", "rounds=2", "--manifest", "cut.json", "--out", "r", "--json", "-")
        assert json.loads(run.out)[0]["clients"] == 4
        assert load_manifest(here / "r/manifest.json").seed == 7

    def test_numbers_add_up(self, cli: Cli) -> None:
        out = cli("partition", "--dataset", GRAPH, "--clients", "3").out
        edges = sum(int(line.split()[2]) for line in out.splitlines() if line.startswith("client-"))
        missing = int(re.findall(r"missing links +(\d+)", out)[0])
        graph = preprocess(datasets.load(GRAPH), api.plan(GRAPH).protocol.preprocess)
        assert edges + missing == graph.edge_index.shape[1] // 2


class TestLists:
    def test_every_method_and_its_hyper_parameters(self, cli: Cli) -> None:
        listed = cli("methods").out
        assert all(name in listed for name in METHODS)
        said = cli("methods", "fedprox").out
        assert "mu" in said and "0.001" in said and "Weight of the proximal term" in said

    def test_protocols(self, cli: Cli) -> None:
        assert "fedsage-louvain" in cli("protocols").out
        said = cli("protocols", "fedpub-disjoint").out
        assert "metis" in said and "Communication rounds." in said and "arxiv" in said
        of_a_method = [line.split() for line in cli("protocols", "fedggr-random").out.splitlines() if "fedpub.model" in line]
        assert of_a_method == [["every", "methods.fedpub.model.head", "true"]]

    def test_data(self, cli: Cli) -> None:
        assert "pubmed" in cli("data", "list").out
        assert "topic_strength=0.2" in cli("data", "info", "csbm").out
        assert "generated" in cli("data", "get", GRAPH).out

    def test_doctor_does_a_run(self, cli: Cli) -> None:
        assert "a small run finished" in cli("doctor").out


class TestInterruption:
    LONG = ("--dataset", "csbm:nodes=600,features=60", "--clients", "4", "--set", "hidden=16", "--threads", "1")

    def test_killed_at_any_moment_and_resumed_is_as_if_undisturbed(self, here: Path, cli: Cli) -> None:
        ask = ("compare", *self.LONG, "--methods", "fedper,fedavg", "--seeds", "0", "--set", "rounds=600",
               "--set", "participation=0.5")  # fmt: skip
        assert cli(*ask, "--out", "a").code == 0
        moments = random.Random(time.time_ns())
        process = start(*ask, "--out", "b")
        for run in ("fedper", "fedavg"):
            pointer = here / f"b/{run}-seed0/checkpoint/checkpoint.json"
            wait_for(pointer.exists, process)
            time.sleep(moments.uniform(0, 0.3))
            process.kill()
            process.wait()
            assert not (here / f"b/{run}-seed0/result.json").exists()
            process = start("resume", "b")
        assert process.wait(120) == 0
        assert tree(here / "a") == tree(here / "b")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_finishes_the_round_and_tells_how_to_go_on(self, here: Path, cli: Cli, number: signal.Signals) -> None:
        process = start("run", *self.LONG, "--set", "rounds=100000", "--out", "r")
        wait_for((here / "r/checkpoint/checkpoint.json").exists, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2 and "Traceback" not in err
        (done,) = re.findall(r"^suture: stopped after round (\d+) of 100000; continue with: suture resume r$", err, re.M)
        assert len((here / "r/metrics.jsonl").read_text().splitlines()) == int(done)

    def test_second_signal_is_immediate(self) -> None:
        with Stopper() as stopper:
            stopper.training = True
            os.kill(os.getpid(), signal.SIGINT)
            assert stopper.asked
            with pytest.raises(Halt):
                os.kill(os.getpid(), signal.SIGINT)

    def test_interrupt_while_loading(self, cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datasets, "load", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        said = cli("compare", *SMALL)
        assert said.code == 2 and said.err == "suture: stopped before the first round; nothing was kept\n"
        assert not (here / "runs").exists()

    def test_interrupt_while_cutting(self, cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(carving, "LONG", 0.0)
        monkeypatch.setattr(carving, "FIRST_SIGN", 0.2)
        large = "csbm:nodes=20000,degree=40,features=40,classes=2"
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        wait, log = carving._wait, carving.log
        monkeypatch.setattr(carving, "_wait", lambda *given: (timer.start(), wait(*given)))
        said = cli("run", "--dataset", large, "--set", "partition.kind=louvain", "--out", "r", "--verbose")
        assert said.code == 2 and said.out == "" and not (here / "r").exists()
        cuts = [line.partition("carving: ")[2] for line in said.err.splitlines() if "carving: " in line]
        (first, *signs), last = cuts, said.err.splitlines()[-1]
        assert re.fullmatch(r"cutting 20,000 nodes and [\d,]+ edges with louvain, roughly .* to .*", first)
        assert signs and all(sign.startswith("still cutting with louvain: ") for sign in signs)
        assert last == "suture: stopped before the first round; nothing was kept" and not log.handlers

    @pytest.mark.usefixtures("here")
    def test_a_closed_pipe_is_quiet(self) -> None:
        line = f"{sys.executable} -m suture protocols fedpub-disjoint | head -n 1"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert done.stdout == "fedpub-disjoint\n" and done.stderr == ""


MISTAKES = {
    "dataset": (["compare", "--dataset", "coar"], "unknown dataset 'coar': did you mean 'cora'?"),
    "dataset argument": (["compare", "--dataset", "csbm:node=5"], "unknown argument of csbm 'node': did you mean 'nodes'?"),
    "method": (["compare", "--methods", "local,fedagv"], "unknown method 'fedagv': did you mean 'fedavg'?"),
    "no method": (["compare", "--methods", ","], "methods must be one or several"),
    "method twice": (["compare", "--methods", "local,local"], "all different"),
    "protocol": (["compare", "--protocol", "fedpub-disjont"], "did you mean 'fedpub-disjoint'?"),
    "key": (["compare", "--set", "rouns=3"], "unknown key 'rouns': did you mean 'rounds'?"),
    "method key": (["compare", "--set", "fedprox.nu=3"], "unknown fedprox key 'nu': did you mean 'mu'?"),
    "method value": (["compare", "--set", "fedprox.mu=-1"], "fedprox.mu must be a number >= 0, got -1"),
    "value": (["compare", "--set", "rounds=many"], "training.rounds must be an integer >= 1"),
    "not a pair": (["compare", "--set", "rounds"], "expected key=value"),
    "clients": (["compare", "--clients", "0"], "partition.clients must be an integer >= 1"),
    "clients not a number": (["compare", "--clients", "five"], "--clients"),
    "too many clients": (["run", "--dataset", GRAPH, "--clients", "500"], "nodes, too few for 500 clients"),
    "no labelled node": (["run", "--dataset", GRAPH, "--clients", "110"], "clients have no training node"),
    "seeds": (["compare", "--seeds", "0,one"], "--seeds must be whole numbers"),
    "negative seed": (["compare", "--seeds", "-1"], "--seeds must be whole numbers"),
    "seed twice": (["compare", "--seeds", "1,1"], "seeds must be one or several, all different"),
    "threads": (["compare", "--threads", "0"], "--threads"),
    "device": (["run", *SMALL, "--device", "tpu9"], "--device tpu9 cannot be used here"),
    "option": (["compare", "--protcol", "x"], "no such option: --protcol (did you mean --protocol)"),
    "command": (["comapre"], "no such command 'comapre'; did you mean 'compare'"),
    "no argument": (["show"], "missing argument 'RUN'; see: suture show --help"),
    "no run": (["resume", "."], "holds no run"),
    "no folder": (["show", "nowhere"], "holds no run"),
    "no config": (["compare", "--config", "none.toml"], "none.toml: cannot be read"),
    "no protocol file": (["compare", "--protocol", "none.toml"], "none.toml: cannot be read"),
    "no manifest": (["run", *SMALL[:2], "--manifest", "none.json"], "cannot read none.json"),
    "two methods": (["run", "--config", "two.toml"], "`suture run` takes one method"),
    "bad toml": (["run", "--config", "bad.toml"], "bad.toml: is not valid TOML"),
    "json in a folder": (["run", *SMALL, "--json", "folder"], "cannot write folder: it is a folder"),
    "json below a file": (["run", *SMALL, "--json", "file/r.json"], "cannot create folder file: a file of that name"),
    "out below a file": (["run", *SMALL, "--out", "file/r"], "a part of the path is a file"),
    "out is a file": (["run", *SMALL, "--out", "file"], "a file of that name is in the way"),
    "unknown name": (["methods", "fedprxo"], "did you mean 'fedprox'?"),
    "data": (["data", "get", "cora", "pubmde"], "did you mean 'pubmed'?"),
    "kind": (["partition", "--dataset", GRAPH, "--kind", "mets"], "did you mean 'metis'?"),
}  # fmt: skip


class TestMistakes:
    @pytest.mark.parametrize("name", MISTAKES)
    def test_one_sentence_and_exit_code_2(self, cli: Cli, here: Path, name: str) -> None:
        (here / "file").write_text("")
        (here / "folder").mkdir()
        (here / "two.toml").write_text('methods = ["local", "fedavg"]')
        (here / "bad.toml").write_text("rounds = = 3")
        arguments, expected = MISTAKES[name]
        said = cli(*arguments)
        assert expected in said.err
        assert self.is_refusal(said), said
        assert not (here / "runs").exists()

    @staticmethod
    def is_refusal(said: Said) -> bool:
        one_line = said.err.count("\n") == 1 and said.err.startswith("suture: ")
        return said.code == 2 and said.out == "" and one_line

    def test_folder_in_use(self, cli: Cli) -> None:
        cli("run", *SMALL, "--out", "r")
        said = cli("run", *SMALL, "--out", "r")
        assert self.is_refusal(said) and "continue it with `suture resume r`" in said.err

    @pytest.mark.parametrize("damage", ["not json", "edited", "other graph", "other clients"])
    def test_manifest(self, cli: Cli, here: Path, damage: str) -> None:
        cut = here / "cut.json"
        cli("partition", *SMALL[:4], "--out", "cut.json")
        graph, more = GRAPH, []
        if damage == "not json":
            cut.write_text(cut.read_text()[:-30])
        elif damage == "edited":
            cut.write_text(cut.read_text().replace('"roles": "', '"roles": "1', 1))
        elif damage == "other graph":
            graph = GRAPH.replace("240", "241")
        else:
            more = ["--clients", "4"]
        said = cli("run", "--dataset", graph, "--manifest", "cut.json", *more)
        assert self.is_refusal(said) and "cut.json" in said.err

    @pytest.mark.parametrize("damage", ["tensors", "pointer", "pointer fields", "metrics", "run.json"])
    def test_resume_of_a_damaged_run(self, cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
        asked = iter([False, True])
        with monkeypatch.context() as patched:
            patched.setattr(Stopper, "asked", property(lambda self: next(asked), lambda self, _: None), raising=False)
            said = cli("run", *SMALL, "--out", "r")
        assert said.code == 2 and "stopped after round 2 of 4; continue with: suture resume r" in said.err
        (tensors,) = (here / "r/checkpoint").glob("*.safetensors")
        pointer = here / "r/checkpoint/checkpoint.json"
        if damage == "tensors":
            tensors.write_bytes(tensors.read_bytes()[:-1] + b"\xff")
        elif damage == "pointer":
            pointer.write_text(pointer.read_text()[:-20])
        elif damage == "pointer fields":
            pointer.write_text(pointer.read_text().replace('"iteration"', '"iterator"').replace('"scalars"', '"scales"'))
        elif damage == "metrics":
            (here / "r/metrics.jsonl").write_text("")
        else:
            (here / "r/run.json").write_text('{"dataset": "cora"}')
        said = cli("resume", "r")
        assert self.is_refusal(said) and "damaged" in said.err

    @pytest.mark.parametrize("option", ["--out", "--json"])
    def test_unwritable_folder(self, cli: Cli, option: str) -> None:
        # Not even root may make a folder there.
        said = cli("run", *SMALL, option, "/sys/suture/x")
        assert self.is_refusal(said) and re.search("permission is missing|the disk is read-only", said.err)

    @pytest.mark.usefixtures("here")
    def test_full_disk_is_one_sentence(self) -> None:
        # A limit on the size of files is a disk that is full for whoever writes one more byte.
        done = subprocess.run(
            [sys.executable, "-m", "suture", "run", *SMALL, "--out", "r"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert re.search(r"^suture: cannot write r/\S+: ", done.stderr, re.M)

    @pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
    def test_memory(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(api, "run_plan", fail)
        assert "--chunk" in cli("run", *SMALL).err
        monkeypatch.setenv("SUTURE_DEBUG", "1")
        with pytest.raises(type(error)):
            cli("run", *SMALL)

    def test_bugs_of_ours_keep_their_traceback(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "run_plan", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli("run", *SMALL)

    @pytest.mark.parametrize("what", ["features", "edges", "labels"])
    def test_graphs_in_memory(self, what: str) -> None:
        graph = Data(x=torch.rand(20, 4), edge_index=torch.randint(20, (2, 60)), y=torch.arange(20) % 2)
        if what == "features":
            graph.x[3, 1] = float("nan")
        elif what == "edges":
            graph.edge_index[0, 5] = 20
        else:
            graph.y = None
        with pytest.raises(DataError, match={"features": "NaN", "edges": "do not exist", "labels": "no labels"}[what]):
            suture.run(graph, "fedavg", clients=2)

"""Files that somebody was handed run no code and lead nowhere else: each is tried with a payload that leaves a mark."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import py_compile
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import suture
from suture.cli import main
from suture.errors import SutureError
from suture.graph.datasets import catalogue
from suture.graph.shard import load_shard
from suture.methods.fedavg import FedAvg

TINY = ("--dataset", "csbm:nodes=240,features=20,words_per_node=5", "--clients", "2", "--set", "rounds=1", "-q")
TINY = (*TINY, "--set", "hidden=4")
CODE = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy as np
from suture.core.metrics import of_one
from suture.graph.synthetic import contextual_block_model
from suture.methods.fedavg import FedAvg
from suture.nn.backbones import Gcn

Path({mark!r}).write_text("it ran")


@dataclass(frozen=True)
class Evil(FedAvg):
    name: ClassVar[str] = "evil"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)


class Network(Gcn):
    pass


def cut(data, settings, rng):
    return np.array_split(np.arange(data.num_nodes), settings.clients)


def graph(nodes: int = 100):
    return contextual_block_model(nodes=nodes, classes=3, features=20)


@of_one("good", "All is good")
def metric(logits, y):
    return 1.0
"""


@pytest.fixture(autouse=True)
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody has let in anything."""
    monkeypatch.setenv("SUTURE_TRUSTED", str(tmp_path / "config" / "trusted.json"))
    return tmp_path / "config" / "trusted.json"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Is there once the code has run."""
    return tmp_path / "mark"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert main(["run", "--method", "fedavg", *TINY, "--record", "--out", str(out)]) == 0
    return out


@pytest.fixture
def handed(finished: Path, tmp_path: Path, mark: Path) -> Path:
    """A run of somebody else, with code beside it that no run file names yet."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "evil.py").write_text(CODE.format(mark=str(mark)))
    return run


def with_method(run: Path) -> None:
    asked = json.loads((run / "run.json").read_text())
    spelling = f"{run}/evil.py:Evil"
    asked |= {"methods": ["evil"], "plugins": [{"kind": "method", "name": "evil", "spelling": spelling, "sha256": ""}]}
    (run / "run.json").write_text(json.dumps(asked))


def with_dataset(run: Path) -> None:
    for name in ("run.json", "data.json"):
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(content | {"dataset": f"{run}/evil.py:graph:nodes=100"}))


def with_data_card(run: Path) -> None:
    content = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(content | {"dataset": f"{run}/evil.py:graph"}))


def with_setting(section: str, key: str, name: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        place, lines = "", []
        for line in (run / "config.toml").read_text().splitlines():
            place = line if line.startswith("[") else place
            named = place == f"[{section}]" and line.startswith(f"{key} =")
            lines.append(f'{key} = "{run}/evil.py:{name}"' if named else line)
        (run / "config.toml").write_text("\n".join(lines) + "\n")

    return write


NAMED = {
    "method": with_method,
    "dataset": with_dataset,
    "card": with_data_card,
    "backbone": with_setting("model", "kind", "Network"),
    "partition": with_setting("partition", "kind", "cut"),
    "metric": with_setting("evaluation", "metric", "metric"),
}


def commands(run: Path) -> dict[str, list[str]]:
    out = run.parent
    return {
        "show": ["show", str(run)],
        "privacy": ["privacy", str(run)],
        "predict": ["predict", str(run), "--out", str(out / "p.csv")],
        "export": ["export", str(run), "--out", str(out / "model")],
        "resume": ["resume", str(run), "-q"],
        "attack": ["attack", str(run), "-q"],
        "audit": ["audit", str(run)],
        "communities": ["communities", str(run)],
    }


@pytest.mark.parametrize("how", list(NAMED))
def test_a_handed_over_run_runs_no_code(how: str, handed: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NAMED[how](handed)
    digest = hashlib.sha256((handed / "evil.py").read_bytes()).hexdigest()
    for name, command in commands(handed).items():
        capsys.readouterr()
        code, said = main(command), capsys.readouterr().err
        assert not mark.exists(), f"suture {name} ran it"
        assert code == 2 and said.count("\n") == 1, f"{name}: {said}"
        if name in ("show", "privacy", "predict", "resume"):
            assert f"{handed}/evil.py" in said and digest in said and f"suture trust {handed}" in said


def test_what_was_let_in_is_run_until_it_changes(
    handed: Path, mark: Path, another_user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_method(handed)
    assert main(["trust", str(handed)]) == 0
    said = capsys.readouterr().out
    assert f"{handed}/evil.py:Evil" in said and hashlib.sha256((handed / "evil.py").read_bytes()).hexdigest() in said
    assert not mark.exists(), "letting in must not run"
    assert stat.S_IMODE(another_user.stat().st_mode) == 0o600
    assert main(["show", str(handed)]) == 0 and mark.exists()
    mark.unlink()
    (handed / "evil.py").write_text(CODE.format(mark=str(mark)) + "\n")
    assert main(["show", str(handed)]) == 2 and not mark.exists()
    assert "has changed since you let it in" in capsys.readouterr().err
    assert main(["trust", str(handed)]) == 0
    assert main(["trust", "--list"]) == 0 and "evil.py:Evil" in capsys.readouterr().out
    assert main(["trust", "--forget", f"{handed}/evil.py"]) == 0
    assert main(["show", str(handed)]) == 2
    assert main(["trust", "--forget", f"{handed}/evil.py"]) == 2
    assert main(["trust"]) == 2 and main(["trust", str(handed), "--list"]) == 2


def test_another_name_in_a_file_that_was_let_in_is_other_code(handed: Path, mark: Path) -> None:
    """Functions are called with what a folder says: `os.system`, imported by a file that is trusted, must not be."""
    suture.trust(f"{handed}/evil.py:Evil")
    with_dataset(handed)
    assert main(["show", str(handed)]) == 2 and not mark.exists()


def test_what_a_user_names_is_the_users_own(tmp_path: Path, mark: Path, another_user: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(CODE.format(mark=str(mark)))
    out = tmp_path / "own"
    spelled = ["--set", f"model.kind={file}:Network", "--set", f"evaluation.metric={file}:metric"]
    assert main(["run", "--method", f"{file}:Evil", *TINY, *spelled, "--out", str(out)]) == 0
    kept = json.loads(another_user.read_text())["trusted"]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert kept == {f"{file}:{name}": digest for name in ("Evil", "Network", "metric")}
    assert main(["show", str(out)]) == 0


@dataclass(frozen=True)
class Passed(FedAvg):
    """FedAvg by another name."""

    name: ClassVar[str] = "passed"
    sums: ClassVar[tuple[str, ...]] = ("local_update",)


def test_a_class_that_was_passed_is_the_users_own(another_user: Path, tmp_path: Path) -> None:
    suture.run("csbm:nodes=240,features=20,words_per_node=5", Passed, clients=2, rounds=1, hidden=4, out=tmp_path / "r")
    assert list(json.loads(another_user.read_text())["trusted"]) == [f"{Passed.__module__}:Passed"]
    assert main(["show", str(tmp_path / "r")]) == 0


@pytest.mark.parametrize("spelling", ["handed_module:Evil", "handed_package.inner:Evil"])
def test_nor_does_a_module_on_the_path(
    spelling: str, handed: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell in the folder, and `python -m`, put what lies there on the path; the package around a module is code too."""
    (handed / "evil.py").rename(handed / "handed_module.py")
    (handed / "handed_package").mkdir()
    for name in ("__init__.py", "inner.py"):
        shutil.copy(handed / "handed_module.py", handed / "handed_package" / name)
    monkeypatch.syspath_prepend(str(handed))
    config = (handed / "config.toml").read_text()
    (handed / "config.toml").write_text(config.replace('kind = "gcn"', f'kind = "{spelling}"'))
    assert spelling in (handed / "config.toml").read_text()
    assert main(["show", str(handed)]) == 2
    assert spelling in capsys.readouterr().err
    assert not mark.exists() and spelling.partition(".")[0] not in sys.modules


def test_compiled_code_beside_a_trusted_file_is_not_run(handed: Path, mark: Path) -> None:
    with_method(handed)
    harmless = handed / "harmless.py"
    harmless.write_text((handed / "evil.py").read_text())
    compiled = importlib.util.cache_from_source(str(handed / "evil.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(harmless), compiled, invalidation_mode=unchecked)
    (handed / "evil.py").write_text(CODE.format(mark=str(mark.with_name("other"))))
    suture.trust(handed)
    assert main(["show", str(handed)]) == 0
    assert mark.with_name("other").exists() and not mark.exists()


@pytest.mark.parametrize("option", ["--protocol", "--config"])
def test_a_settings_file_runs_no_code(option: str, handed: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = handed / "handed.toml"
    file.write_text(f'[model]\nkind = "{handed}/evil.py:Network"\n')
    assert main(["run", option, str(file), "--method", "fedavg", *TINY, "--dry-run"]) == 2
    assert not mark.exists() and "suture trust" in capsys.readouterr().err
    if option == "--config":
        file.write_text(f'dataset = "{handed}/evil.py:graph"\n[methods]\nrun = ["{handed}/evil.py:Evil"]\n')
        assert main(["run", "--config", str(file), "--dry-run"]) == 2
        assert not mark.exists()
    file.write_text(f'[model]\nkind = "{handed}/evil.py:Network"\n')
    assert main(["trust", str(file)]) == 0 and not mark.exists()
    assert main(["run", option, str(file), "--method", "fedavg", *TINY, "--dry-run"]) == 0 and mark.exists()


class Payload:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_nothing_is_unpickled(tmp_path: Path, mark: Path) -> None:
    torch.save({"x": Payload(mark)}, tmp_path / "graph.pt")
    array = np.array([Payload(mark)], dtype=object)
    np.savez(tmp_path / "graph.npz", x=array, edge_index=array, y=array)
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Payload(mark)))
    (tmp_path / "graph.safetensors").write_bytes(pickle.dumps(Payload(mark)))
    from suture.tables import from_any

    for name in ("graph.pt", "graph.npz", "bare.npz"):
        with pytest.raises(SutureError):
            from_any(tmp_path / name)
    for name in ("graph.npz", "bare.npz", "graph.safetensors"):
        with pytest.raises(SutureError):
            load_shard(tmp_path / name)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists(), "or the payload would show nothing"


def test_raw_files_that_are_pickled_have_a_known_hash() -> None:
    pickled = [file for info in catalogue() for raw in info.raw if raw.reader == "planetoid" for file in raw.files]
    assert pickled and all(file.sha256 for file in pickled)


def test_graphml_reads_no_other_file(tmp_path: Path) -> None:
    pytest.importorskip("networkx")
    (tmp_path / "secret").write_text("42")
    body = '<graphml><key id="a" for="node" attr.name="a" attr.type="double"/><graph edgedefault="undirected"><node id="n">'
    body += '<data key="a">{}</data></node><node id="m"><data key="a">1</data></node><edge source="n" target="m"/>'
    entity = f'<!DOCTYPE g [<!ENTITY other SYSTEM "file://{tmp_path}/secret">]>'
    from suture.tables import from_any

    (tmp_path / "plain.graphml").write_text(body.format("42") + "</graph></graphml>")
    assert from_any(tmp_path / "plain.graphml").x.tolist() == [[42.0], [1.0]]
    (tmp_path / "entity.graphml").write_text(entity + body.format("&other;") + "</graph></graphml>")
    with pytest.raises(SutureError, match="is not a GraphML file"):
        from_any(tmp_path / "entity.graphml")


@pytest.mark.parametrize("name", ["metrics.jsonl", "schema.json", "model.safetensors", "config.toml", "kept/deep.json"])
def test_links_of_a_run_folder_are_neither_read_nor_written(
    name: str, handed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"secret": 1}\n')
    (handed / name).parent.mkdir(exist_ok=True)
    (handed / name).unlink(missing_ok=True)
    (handed / name).symlink_to(secret)
    (handed / "result.json").unlink()
    for command in commands(handed).values():
        assert main(command) == 2
        assert "leads out of" in capsys.readouterr().err
    assert secret.read_text() == '{"secret": 1}\n' and not (tmp_path / "model").exists()


def test_a_link_inside_of_a_folder_and_a_folder_behind_a_link_are_no_harm(handed: Path, tmp_path: Path) -> None:
    (handed / "again.json").symlink_to(handed / "result.json")
    (tmp_path / "linked").symlink_to(handed)
    assert main(["show", str(tmp_path / "linked")]) == 0


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "..", 7])
def test_a_checkpoint_is_inside_of_its_folder(name: object, tmp_path: Path) -> None:
    from suture.core.storage import sha256_of_json
    from suture.runs.checkpoint import POINTER, load_checkpoint

    shutil.copy(_safetensors(tmp_path), tmp_path / "outside.safetensors")
    name = name if not isinstance(name, str) or not name.startswith("/") else f"{tmp_path}{name}"
    digest = hashlib.sha256((tmp_path / "outside.safetensors").read_bytes()).hexdigest()
    pointer = {"file": name, "sha256": digest, "progress": {}, "records": {}}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / POINTER).write_text(json.dumps({**pointer, "own_sha256": sha256_of_json(pointer)}))
    with pytest.raises(SutureError, match="which is no file in it"):
        load_checkpoint(tmp_path / "checkpoint")


def _safetensors(folder: Path) -> Path:
    import safetensors.torch

    safetensors.torch.save_file({"a": torch.zeros(1)}, folder / "a.safetensors")
    return folder / "a.safetensors"


def test_a_graph_folder_leads_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes.csv").write_text("id,a,label\n1,0.5,x\n2,0.25,y\n3,1,x\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n2,3\n")
    graph = tmp_path / "graph"
    tables = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    assert main(["import", str(graph), *tables, "--id", "id", "--label", "label"]) == 0, capsys.readouterr().err
    about = json.loads((graph / "folder.json").read_text())
    (tmp_path / "secret").write_text("secret")
    files = {**about["files"], "../secret": hashlib.sha256(b"secret").hexdigest()}
    (graph / "folder.json").write_text(json.dumps({**about, "files": files}))
    capsys.readouterr()
    assert main(["partition", "--data", str(graph)]) == 2
    assert "which is no file in it" in capsys.readouterr().err
    (graph / "folder.json").write_text(json.dumps(about))
    shutil.move(graph / "edges.npy", tmp_path / "edges.npy")
    (graph / "edges.npy").symlink_to(tmp_path / "edges.npy")
    assert main(["partition", "--data", str(graph)]) == 2
    assert "leads out of" in capsys.readouterr().err

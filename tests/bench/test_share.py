"""A run in one file, run again elsewhere to the same numbers; files that somebody has tampered with end in one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import suture
from suture.bench.rerun import rerun, unpacked
from suture.bench.share import share
from suture.cli import main
from suture.errors import ConfigError, DataError, IntegrityError, SutureError
from suture.graph.cut import load_manifest, save_manifest
from suture.runs.folder import read_asked
from suture.tables import import_graph

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
BRIEF: dict[str, Any] = {"clients": 3, "rounds": 2}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, and the file of it."""
    home = tmp_path_factory.mktemp("shared")
    suture.compare(GRAPH, ["local", "fedprox"], seeds=(0, 3), out=home / "run", overrides=["fedprox.mu=0.3"], **BRIEF)
    share(home / "run", home / "run.zip")
    return home


def test_a_shared_comparison_comes_to_the_same_numbers(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["rerun", str(shared / "run.zip"), "--out", str(tmp_path / "again"), "-q"]) == 0
    shown = capsys.readouterr().out
    assert "The same: every number of 4 runs, and every line of their metrics." in shown
    for run in ("local-seed0", "fedprox-seed3"):
        for name in ("metrics.jsonl", "manifest.json", "model.safetensors"):
            assert (tmp_path / "again" / run / name).read_bytes() == (shared / "run" / run / name).read_bytes()
    assert read_asked(tmp_path / "again") == read_asked(shared / "run")
    suture.resume(tmp_path / "again")  # it is a comparison like any other


def test_the_same_run_makes_the_same_file_without_models_or_messages(shared: Path, tmp_path: Path) -> None:
    share(shared / "run", tmp_path / "twice.zip")
    assert (tmp_path / "twice.zip").read_bytes() == (shared / "run.zip").read_bytes()
    with zipfile.ZipFile(shared / "run.zip") as file:
        names = file.namelist()
        assert str(shared).encode() not in b"".join(file.read(name) for name in names)
    assert {Path(name).name for name in names} == {
        *("share.json", "compare.json", "config.toml", "manifest.json", "environment.json", "metrics.jsonl")
    }


def test_a_single_run_is_shared_with_its_own_cut(shared: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "cut.json"
    save_manifest(load_manifest(shared / "run" / "local-seed3" / "manifest.json"), manifest)
    suture.run(GRAPH, "fedavg", seed=5, manifest=manifest, out=tmp_path / "one", **BRIEF)
    share(tmp_path / "one", tmp_path / "one.zip")
    parcel = unpacked(tmp_path / "one.zip", tmp_path / "again", None)
    assert rerun(parcel, tmp_path / "again").same  # not with the cut that seed 5 would have made


def test_other_numbers_are_found_and_told(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def change(about: dict[str, Any]) -> None:
        about["runs"][1]["accuracy_client_mean"] += 0.0125
        about["environment"]["packages"]["torch"] = "1.0.0"

    changed = _changed(shared / "run.zip", tmp_path / "changed.zip", change)
    assert main(["rerun", str(changed), "--out", str(tmp_path / "out"), "-q", "--json", str(tmp_path / "told.json")]) == 1
    shown = capsys.readouterr().out
    assert "-1.25" in shown and "1 of 4 runs differ; the headline differs by 0.0125 at most." in shown
    assert "Computed there with torch 1.0.0 (here " in shown
    told = json.loads((tmp_path / "told.json").read_text())
    assert [run["same"] for run in told["runs"]] == [True, False, True, True]
    assert list(told["runs"][1]["differing"]) == ["accuracy_client_mean"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of somebody's own, trained on."""
    home = tmp_path_factory.mktemp("own")
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(90, (2, 300), generator=draw)
    y = torch.randint(2, (90,), generator=draw)
    x = torch.randn(90, 6, generator=draw) + y[:, None]
    data = Data(x=x, y=y, edge_index=edges, client=torch.arange(90) % 3)
    import_graph(home / "graph", data)
    suture.run(home / "graph", "fedavg", rounds=2, seed=0, out=home / "run")
    return home


def test_a_graph_of_ones_own_stays_behind_unless_told(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", str(own / "run"), "--out", str(tmp_path / "without.zip")]) == 0
    said = capsys.readouterr().err
    assert "the graph is your own and is not in it" in said and "suture rerun without.zip --data FOLDER" in said
    with zipfile.ZipFile(tmp_path / "without.zip") as file:
        assert not [name for name in file.namelist() if name.startswith("data/")]
        assert str(own).encode() not in b"".join(file.read(name) for name in file.namelist())
    with pytest.raises(ConfigError, match="is somebody's own and not in it; ask for it, and give it as --data FOLDER"):
        unpacked(tmp_path / "without.zip", tmp_path / "again", None)
    shutil.copytree(own / "graph", tmp_path / "elsewhere")
    parcel = unpacked(tmp_path / "without.zip", tmp_path / "again", tmp_path / "elsewhere")
    assert rerun(parcel, tmp_path / "again").same

    assert main(["share", str(own / "run"), "--out", str(tmp_path / "with.zip"), "--with-data"]) == 0
    assert "whoever has the file has them" in capsys.readouterr().err
    parcel = unpacked(tmp_path / "with.zip", tmp_path / "from file", None)
    assert rerun(parcel, tmp_path / "from file").same


def test_another_graph_in_its_place_is_found_out(own: Path, tmp_path: Path) -> None:
    share(own / "run", tmp_path / "run.zip")
    import_graph(tmp_path / "other", Data(x=torch.ones(90, 6), y=torch.arange(90) % 2, edge_index=torch.tensor([[0], [1]])))
    parcel = unpacked(tmp_path / "run.zip", tmp_path / "again", tmp_path / "other")
    with pytest.raises(SutureError, match="was made for another graph"):
        rerun(parcel, tmp_path / "again")


def test_what_nobody_could_run_again_is_not_shared(shared: Path, tmp_path: Path) -> None:
    data = Data(x=torch.randn(60, 4), y=torch.arange(60) % 2, edge_index=torch.randint(60, (2, 200)))
    suture.run(data, "fedavg", out=tmp_path / "memory", **BRIEF)
    for run, out, kind, sentence in (
        (tmp_path / "memory", "a.zip", DataError, "was given in memory, where others cannot have it"),
        (tmp_path, "a.zip", ConfigError, "holds no run"),
        (shared / "run", "a.tar", ConfigError, "should be the name of a zip file"),
    ):
        with pytest.raises(kind, match=sentence):
            share(run, tmp_path / out)
    with pytest.raises(ConfigError, match="is there already"):
        share(shared / "run", shared / "run.zip")
    with pytest.raises(ConfigError, match="others can have by its name; leave --with-data out"):
        share(shared / "run", tmp_path / "a.zip", with_data=True)
    shutil.copytree(shared / "run", tmp_path / "half")
    (tmp_path / "half" / "local-seed3" / "result.json").unlink()
    with pytest.raises(ConfigError, match=r"local-seed3 is not finished; first run: suture resume"):
        share(tmp_path / "half", tmp_path / "a.zip")


def _changed(
    file: Path,
    out: Path,
    about: Callable[[dict[str, Any]], None] = lambda told: None,
    members: Callable[[dict[str, bytes]], None] = lambda members: None,
) -> Path:
    """A shared file that somebody has tampered with."""
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    told = json.loads(content["share.json"])
    about(told)
    content["share.json"] = json.dumps(told).encode()
    members(content)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    return out


def _put(name: str, part: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: part})


def _nested(depth: int) -> dict[str, Any]:
    return {"deeper": _nested(depth - 1)} if depth else {}


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a path outside": ({"members": _put("../evil", b"")}, "'../evil', which `suture share` puts into no file"),
    "an absolute path": ({"members": _put("/etc/evil", b"")}, "puts into no file"),
    "a path outside in data": ({"members": _put("data/../../evil", b"")}, "puts into no file"),
    "a windows path": ({"members": _put("data/..\\evil", b"")}, "puts into no file"),
    "a stranger": ({"members": _put("local-seed0/model.safetensors", b"")}, "puts into no file"),
    "more than it lists": ({"members": _put("data/more", b"")}, r"holds too much \(data/more\)"),
    "a member missing": ({"members": lambda members: members.pop("config.toml")}, r"is not complete, .*config.toml"),
    "another content": ({"members": _put("config.toml", b"name = 'x'")}, "config.toml .* its SHA-256 is another"),
    "no description": ({"members": lambda members: members.pop("share.json")}, "has no share.json"),
    "a description that is none": ({"members": _put("share.json", b"[]")}, "is not what `suture share` writes"),
    "a deep description": ({"members": _put("share.json", b"[" * 100_000)}, "larger than any that `suture share` writes"),
    "a nested description": (
        {"about": lambda told: told.update(environment=_nested(60))},
        "is not what `suture share` writes",
    ),
    "a bomb": ({"members": _put("data/zeros", bytes(1 << 24))}, "holds too much|would be"),
    "another format": ({"about": lambda told: told.update(format="suture-share/9")}, "has format 'suture-share/9'"),
    "no runs": ({"about": lambda told: told.update(runs=[])}, "no run"),
    "other runs": ({"about": lambda told: told["runs"].pop()}, "asks for other runs, or another graph"),
    "a run elsewhere": ({"about": lambda told: told["runs"][0].update(method="../x")}, "is not complete"),
    "another graph's name": ({"about": lambda told: told["graph"].update(name="cora")}, "or another graph, than it speaks"),
    "numbers that are none": ({"about": lambda told: told["runs"][0].update(seed="x")}, "is not what `suture share` writes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_end_in_one_sentence_and_write_nothing(shared: Path, tmp_path: Path, what: str) -> None:
    how, sentence = HOSTILE[what]
    bad = _changed(shared / "run.zip", tmp_path / "bad.zip", **how)
    with pytest.raises(IntegrityError, match=sentence):
        unpacked(bad, tmp_path / "deep" / "out", None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [bad]


def test_bombs_links_and_torn_files_are_refused(shared: Path, tmp_path: Path) -> None:
    content = (shared / "run.zip").read_bytes()
    torn = tmp_path / "torn.zip"
    for part in (b"", b"no zip at all", content[:-30], content[: len(content) // 2]):
        torn.write_bytes(part)
        with pytest.raises(IntegrityError, match="is not a zip file, or it is damaged"):
            unpacked(torn, tmp_path / "out", None)
    with pytest.raises(SutureError, match="cannot read"):
        unpacked(tmp_path / "not there.zip", tmp_path / "out", None)
    flipped = bytearray(content)
    flipped[content.index(b"local-seed0/metrics.jsonl") + 60] ^= 0xFF  # in the middle of what is packed
    torn.write_bytes(bytes(flipped))
    with pytest.raises(IntegrityError, match=r"cannot be unpacked|another"):
        unpacked(torn, tmp_path / "out", None)

    with zipfile.ZipFile(torn, "w") as file:
        link = zipfile.ZipInfo("data/link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    with pytest.raises(IntegrityError, match="'data/link', which"):
        unpacked(torn, tmp_path / "out", None)
    bomb = bytearray(content)
    size = content.index(b"PK\x01\x02") + 24  # of the first member when unpacked, by the directory
    bomb[size : size + 4] = (4_000_000_000).to_bytes(4, "little")
    torn.write_bytes(bytes(bomb))
    with pytest.raises(IntegrityError, match="would be 4 GB when unpacked, which no shared run is"):
        unpacked(torn, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_a_small_file_does_not_fill_the_memory(shared: Path, tmp_path: Path) -> None:
    """What is packed a thousand times smaller is unpacked piece by piece, or not at all."""
    zeros = bytes(1 << 26)

    def listed(members: dict[str, bytes]) -> None:
        told = json.loads(members["share.json"])
        told["members"]["data/zeros"] = hashlib.sha256(zeros).hexdigest()
        members |= {"share.json": json.dumps(told).encode(), "data/zeros": zeros}

    def dense(members: dict[str, bytes]) -> None:
        told = json.loads(members["share.json"])
        told["environment"]["lists"] = [[]] * 300_000
        members["share.json"] = json.dumps(told).encode()

    peaks = {}
    for name, members in (("zeros", listed), ("lists", dense)):
        bad = _changed(shared / "run.zip", tmp_path / f"{name}.zip", members=members)
        tracemalloc.start()
        with contextlib.suppress(IntegrityError):
            unpacked(bad, tmp_path / name, None)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (tmp_path / "zeros" / "data" / "zeros").stat().st_size == len(zeros) and not (tmp_path / "lists").exists()
    assert all(peak < 8 << 20 for peak in peaks.values()), peaks


def test_a_shared_file_runs_no_code_of_others(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")

    def dataset(members: dict[str, bytes]) -> None:
        asked = json.loads(members["compare.json"])
        asked["dataset"] = f"{tmp_path}/mine.py:graph"
        members["compare.json"] = json.dumps(asked).encode()
        told = json.loads(members["share.json"])
        told["graph"]["name"] = asked["dataset"]
        told["members"]["compare.json"] = hashlib.sha256(members["compare.json"]).hexdigest()
        members["share.json"] = json.dumps(told).encode()

    bad = _changed(shared / "run.zip", tmp_path / "bad.zip", members=dataset)
    with pytest.raises(SutureError, match=r"mine\.py"):
        rerun(unpacked(bad, tmp_path / "out", None), tmp_path / "out")

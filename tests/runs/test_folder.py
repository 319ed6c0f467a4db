"""The run folder: what it says of the code that made it, what it was asked for, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import suture
from suture.core.message import Model
from suture.errors import ConfigError, IntegrityError
from suture.runs import folder as folders
from suture.runs.checkpoint import load_checkpoint, save_checkpoint
from suture.runs.folder import Asked, RunFolder
from suture.runs.machine import source_hash

PACKAGE = Path(suture.__file__).parent
GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "r"
    suture.run(GRAPH, "local", clients=3, seed=4, overrides=["rounds=2", "hidden=8"], out=path)
    return path


def test_the_environment_names_the_source_by_its_hash(finished: Path) -> None:
    told = json.loads((finished / "environment.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{64}", told["source"]) and told["source"] == source_hash(PACKAGE)


def test_the_hash_is_of_names_and_contents_and_nothing_else(tmp_path: Path) -> None:
    for name, text in (("b.py", "B"), ("a/x.py", "X"), ("a.py", ""), ("notes.txt", "any")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = hashlib.sha256(b"a.py\x000\x00" + b"a/x.py\x001\x00X" + b"b.py\x001\x00B").hexdigest()
    assert source_hash(tmp_path) == expected
    (tmp_path / "notes.txt").write_text("other")
    assert source_hash(tmp_path) == expected
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert source_hash(tmp_path) != expected


def test_what_was_asked_is_read_back(finished: Path) -> None:
    asked = folders.read_asked(finished)
    assert asked == Asked(GRAPH, ("local",), (4,), False, torch.get_num_threads(), 0, "embedded")
    made = folders.read_plan(finished)
    assert made.names == ("local",) and made.seeds == (4,) and made.protocol.training.rounds == 2


def test_folders_from_before_engines_had_names_can_be_read(finished: Path, tmp_path: Path) -> None:
    old = shutil.copytree(finished, tmp_path / "old")
    content = json.loads((old / "run.json").read_text())
    del content["engine"]
    (old / "run.json").write_text(json.dumps(content))
    assert folders.read_asked(old) == folders.read_asked(finished)
    assert suture.resume(old).outcomes[0] == folders.read_outcome(finished)


@pytest.mark.parametrize("damage", [{"threads": "two"}, {"methods": "local"}, {"seeds": None}, {"colour": "red"}])
def test_a_damaged_description_is_one_sentence(finished: Path, tmp_path: Path, damage: dict[str, object]) -> None:
    path = shutil.copytree(finished, tmp_path / "damaged")
    content = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**content, **damage}))
    with pytest.raises(IntegrityError, match=r"run\.json is not complete; it is damaged"):
        folders.read_asked(path)


def test_a_folder_holds_one_run(finished: Path) -> None:
    asked = folders.read_asked(finished)
    for begin in (RunFolder.create, folders.begin_comparison):
        with pytest.raises(ConfigError, match="holds a run already"):
            begin(finished, asked, "", None)
    assert folders.is_begun(finished) and not folders.is_comparison(finished)


def test_a_run_between_owners_is_not_continued_here(finished: Path, tmp_path: Path) -> None:
    asked = Asked.by_federation(GRAPH, "local", 4)
    config = (finished / "config.toml").read_text()
    RunFolder.create(tmp_path / "f", asked, config, None).close()
    with pytest.raises(ConfigError, match="suture federation resume"):
        suture.resume(tmp_path / "f", options=suture.Options(engine=asked.engine))


def test_no_other_module_spells_the_names_of_a_run_folders_files() -> None:
    """Owners have folders of their own."""
    own = {PACKAGE / "runs" / "folder.py", PACKAGE / "runs" / "checkpoint.py"}
    files = [path for room in ("runs", "report", "commands") for path in (PACKAGE / room).glob("*.py") if path not in own]
    names = ("compare.json", "run.json", "config.toml", "manifest.json", "environment.json", "privacy.json", "result.json")
    for path in (*files, PACKAGE / "api.py", PACKAGE / "federation" / "coordinator" / "coordinator.py"):
        text = path.read_text()
        assert not [name for name in names if f'"{name}"' in text], path


def test_records_that_are_parts_of_one_table_are_kept_each_by_itself(tmp_path: Path) -> None:
    """FedGTA's clients are handed rows of a table that the server keeps: the file must not be refused for that."""
    table = torch.arange(12.0).view(4, 3)
    records = {"server": Model(("a", "b", "c", "d"), {"w": table}), "models": Model(("b", "c"), {"w": table[1:3]})}
    save_checkpoint(tmp_path, {"asked": 1, "iteration": 1}, records)
    kept = load_checkpoint(tmp_path)
    assert kept is not None
    assert torch.equal(kept.records["models"].as_record(Model).params["w"], table[1:3])
    assert torch.equal(kept.records["server"].as_record(Model).params["w"], table)

"""Comparisons in pieces become one: the same as if it had been computed at once; what does not fit is refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import suture
from suture.bench.merge import merge
from suture.cli import main
from suture.config.toml import read_toml
from suture.errors import ConfigError, IntegrityError
from suture.graph.cut import load_manifest, save_manifest
from suture.runs.folder import read_asked, read_outcome, read_plan
from suture.runs.pulse import alone_in

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
RUNS = [f"{method}-seed{seed}" for method in ("local", "fedprox") for seed in (0, 1)]
FILES = ("metrics.jsonl", "ledger.jsonl", "manifest.json", "result.json", "evaluation.json", "model.safetensors", "run.json")


def _asked(**more: Any) -> dict[str, Any]:
    return {"clients": 4, "rounds": 2, "overrides": ["fedprox.mu=0.5"], **more}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole comparison, and the same in three pieces."""
    home = tmp_path_factory.mktemp("pieces")
    suture.compare(GRAPH, ["local", "fedprox"], seeds=(0, 1), out=home / "whole", **_asked())
    suture.compare(GRAPH, ["local"], seeds=(1, 0), out=home / "local", **_asked(overrides=()))
    for seed in (0, 1):
        suture.run(GRAPH, "fedprox", seed=seed, out=home / "array" / f"fedprox-{seed}", **_asked())
    return home


def _numbers(folder: Path) -> list[dict[str, object]]:
    found = [read_outcome(folder / run) for run in RUNS]
    return [{**outcome.as_json(), "seconds": None} for outcome in found if outcome is not None]


def test_merged_pieces_are_the_comparison_computed_at_once(pieces: Path, tmp_path: Path) -> None:
    merged = merge([pieces / "local", pieces / "array"], tmp_path / "all")
    assert (merged.methods, merged.seeds, merged.runs, merged.missing) == (("local", "fedprox"), (0, 1), 4, ())
    assert merged.notes == ()
    assert _numbers(tmp_path / "all") == _numbers(pieces / "whole")
    assert read_asked(tmp_path / "all") == read_asked(pieces / "whole")
    assert read_plan(tmp_path / "all").methods == read_plan(pieces / "whole").methods
    assert read_toml(tmp_path / "all" / "config.toml") == read_toml(pieces / "whole" / "config.toml")
    for run in RUNS:
        for name in set(FILES) - {"result.json"}:
            assert (tmp_path / "all" / run / name).read_bytes() == (pieces / "whole" / run / name).read_bytes(), (run, name)


def test_what_is_missing_is_named_and_resume_computes_it(
    pieces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    assert main(["merge", str(pieces / "local"), str(pieces / "array" / "fedprox-1"), "--out", str(out)]) == 0
    assert f"missing: fedprox seed 0; compute them with: suture resume {out}" in capsys.readouterr().err
    suture.resume(out)
    assert _numbers(out) == _numbers(pieces / "whole")


def test_the_same_run_twice_is_taken_once(pieces: Path, tmp_path: Path) -> None:
    merged = merge([pieces / "whole", pieces / "array"], tmp_path / "all")
    assert merged.runs == 4 and len(merged.notes) == 2
    assert re.fullmatch("fedprox seed 0 is in .*, with the same numbers; the first was taken", merged.notes[0])


def test_one_cut_of_all_seeds_stays_the_cut_of_what_is_missing(pieces: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "cut.json"
    save_manifest(load_manifest(pieces / "whole" / "local-seed1" / "manifest.json"), manifest)
    for seed in (0, 1):
        suture.run(GRAPH, "local", seed=seed, manifest=manifest, out=tmp_path / "runs" / f"local-{seed}", **_asked())
    suture.run(GRAPH, "fedprox", seed=0, manifest=manifest, out=tmp_path / "runs" / "fedprox", **_asked())
    merged = merge([tmp_path / "runs"], tmp_path / "all")
    assert merged.missing == ("fedprox seed 1",)
    suture.resume(tmp_path / "all")
    cuts = {(tmp_path / "all" / run / "manifest.json").read_text() for run in RUNS}
    assert cuts == {manifest.read_text()}
    with pytest.raises(ConfigError, match="have other cuts of seed 0; run one anew with the other's --manifest"):
        merge([pieces / "local", tmp_path / "runs"], tmp_path / "mixed")
    suture.run(GRAPH, "local", seed=2, manifest=manifest, out=tmp_path / "by hand", **_asked())
    with pytest.raises(ConfigError, match="has a cut from a manifest, and others have another one"):
        merge([pieces / "local" / "local-seed0", tmp_path / "by hand"], tmp_path / "mixed")


@pytest.mark.parametrize(
    ("graph", "asked", "sentence"),
    [
        (GRAPH.replace("240", "241"), {}, "were not computed on the same graph"),
        (GRAPH, {"rounds": 3}, "do not follow one protocol: training.rounds is 2 and 3"),
        (GRAPH, {"overrides": ["fedprox.mu=0.1"]}, "ran fedprox with other values: mu is 0.5 and 0.1"),
        (GRAPH, {"overrides": ["fedprox.mu=0.5", "fedprox.training.lr=0.2"]}, r"other values: training.lr is 0.01 and 0.2"),
        (GRAPH, {"clients": 5}, "do not follow one protocol: partition.clients is 4 and 5"),
    ],
)
def test_what_does_not_fit_is_refused(
    pieces: Path, tmp_path: Path, graph: str, asked: dict[str, Any], sentence: str
) -> None:
    suture.run(graph, "fedprox", seed=7, out=tmp_path / "other", **_asked(**asked))
    with pytest.raises(ConfigError, match=sentence):
        merge([pieces / "array", tmp_path / "other"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_other_numbers_of_the_same_run_are_refused(pieces: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(pieces / "array" / "fedprox-0", changed)
    told = json.loads((changed / "result.json").read_text())
    (changed / "result.json").write_text(json.dumps({**told, "bytes_up": 1}))
    with pytest.raises(ConfigError, match=r"fedprox seed 0 is in .* with other numbers: bytes_up is \d+ and 1; leave one"):
        merge([pieces / "whole", changed], tmp_path / "all")
    (changed / "result.json").write_text(json.dumps(told))
    lines = (changed / "metrics.jsonl").read_text().splitlines()
    (changed / "metrics.jsonl").write_text("\n".join(lines[:1]) + "\n")
    with pytest.raises(ConfigError, match="their metrics of single rounds"):
        merge([pieces / "whole", changed], tmp_path / "all")
    (changed / "result.json").write_text(json.dumps({**told, "seed": 5}))
    with pytest.raises(IntegrityError, match="asked for other runs than the one whose result it holds"):
        merge([changed], tmp_path / "all")


def test_folders_that_are_none_or_busy_or_full_are_refused(pieces: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run, and no folder in it does"):
        merge([tmp_path], tmp_path / "all")
    with pytest.raises(ConfigError, match="holds no run"):
        merge([tmp_path / "not there"], tmp_path / "all")
    with pytest.raises(ConfigError, match="holds a run already"):
        merge([pieces / "local"], pieces / "whole")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is there already"):
        merge([pieces / "local"], tmp_path / "full")
    with alone_in(pieces / "local"), pytest.raises(ConfigError, match="is being carried out; wait for it"):
        merge([pieces / "local"], tmp_path / "all")


def test_a_list_of_commands_as_slurm_runs_it_merges_to_the_comparison(
    pieces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--dataset", GRAPH, "--clients", "4", "--set", "rounds=2", "--set", "fedprox.mu=0.5", "--threads", "1"]
    file, out = tmp_path / "runs.txt", tmp_path / "with space" / "array"
    command = ["compare", *asked, "--methods", "local,fedprox", "--seeds", "1", "--out", str(out), "--commands", str(file)]
    assert main(command) == 0
    assert "wrote 2 commands to" in capsys.readouterr().err and not out.exists()
    lines = file.read_text().splitlines()
    assert len(lines) == 2 and all(line.startswith("suture run --method ") for line in lines)
    for line in lines[1:]:
        assert main(_words(line)) == 0
    # The first one as a job of an array does it.
    here = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHON": sys.executable, "FILE": str(file)}
    script = 'suture() { "$PYTHON" -m suture "$@"; }; eval "$(sed -n "${SLURM_ARRAY_TASK_ID}p" "$FILE")"'
    subprocess.run(["bash", "-c", script], env=here, check=True, capture_output=True)
    assert main(["merge", str(out), "--out", str(tmp_path / "all"), "--json", "-"]) == 0
    assert _numbers(tmp_path / "all") == [one for one in _numbers(pieces / "whole") if one["seed"] == 1]


def _words(line: str) -> list[str]:
    return shlex.split(line)[1:]

"""`suture reproduce` as people type it, on a paper of a few rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_papers import small_papers

from suture.cli import main
from suture.commands.reproducing import seconds_of
from suture.errors import ConfigError


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["reproduce", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_listed_planned_run_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    papers, store = str(small_papers(tmp_path / "papers", rounds=3)), str(tmp_path / "store")
    where = ("--papers", papers, "--store", store, "--data-root", str(tmp_path))
    code, out, _ = typed(capsys, *where)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("tiny-")] == [
        "tiny-table-1",
        "tiny-table-2",
        "tiny-figure-1",
    ]

    code, out, _ = typed(capsys, "all", "--dry-run", *where)
    assert code == 0
    assert "Would do 12 runs" in out
    assert "1 cell: no method here stands for nobody." in out
    assert "1 cell: the raw files of arxiv are not here." in out
    assert not (tmp_path / "store").exists()

    wanted = ("tiny-table-1", "--methods", "local,fedavg,fedpub", "--jobs", "2")
    code, out, err = typed(capsys, *wanted, *where)
    assert code == 0, err
    assert "8 runs to do" in err
    assert "rankings of the paper's own methods hold" in out
    again = typed(capsys, *wanted, *where)
    assert (again[0], again[1]) == (0, out), "nothing is run again, and the same is shown"
    assert "to do" not in again[2]

    picture, tex = tmp_path / "table.svg", tmp_path / "table.tex"
    code, out, _ = typed(
        capsys, *wanted, "--show", "--format", "latex", "--out", str(tex), "--picture", str(picture), *where
    )
    assert (code, out) == (0, "")
    assert r"\begin{tabular}" in tex.read_text()
    assert picture.read_text().startswith("<svg")

    code, out, _ = typed(capsys, *wanted, "--json-lines", *where)
    result = json.loads(out.splitlines()[-1])["result"]["tiny-table-1"]
    (pub,) = [one for one in result if one["method"] == "fedpub" and not one["variant"] and one["metric"] == "accuracy"]
    assert set(pub["seeds"]) == {"0", "1"}
    assert [one["against"] for one in pub["rankings"]] == ["fedavg", "local"]
    assert pub["command"].startswith("suture compare --protocol fedpub-disjoint")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fedpub-tabel-2",), "did you mean 'fedpub-table-2'?"),
        (("fedpub-table-2", "--dataset", "croa"), "did you mean 'cora'?"),
        (("fedpub-table-2", "--methods", "fedpubs"), "did you mean 'fedpub'?"),
        (("fedpub-table-2", "--clients", "11"), "unknown number of clients '11'"),
        (("fedpub-table-2", "--budget", "soon"), "--budget must be a time such as 2h, 90min or 1h30m, got 'soon'"),
        (("fedpub-table-2", "--format", "word"), "unknown format 'word'"),
        (("fedpub-table-2", "--seeds", "-1"), "--seeds must be whole numbers"),
        (("fedsage-table-2", "--dataset", "cs", "--clients", "1", "--methods", "fedsage"), "no cell of these tables"),
    ],
)
def test_what_is_mistyped_is_refused_in_a_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(capsys, *words, "--dry-run")
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_times_as_people_write_them() -> None:
    assert [seconds_of(text) for text in ("2h", "90min", "1h30m", "45s", "1.5h", "1h 30m")] == [
        7200,
        5400,
        5400,
        45,
        5400,
        5400,
    ]
    for text in ("", "2", "h", "2x", "-1h"):
        with pytest.raises(ConfigError):
            seconds_of(text)

"""From run folders to records and pages, whatever somebody has put into the folders."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from suture.errors import ConfigError, IntegrityError
from suture.report import privacy, tabled
from suture.report.gathering import gather, unlike
from suture.report.page import Page, written
from suture.report.records import Gathered
from suture.report.report import report_page
from suture.runs import folder as folders

EVIL = "</script><script>alert(1)</script><!--\u202e\x1b[2J"


def _words(page: Page) -> str:
    return written(page)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_hold_what_the_files_say(comparison: Path, gathered: Gathered) -> None:
    assert gathered.methods == ("local", "fedavg", "fedpub", "fedsage_plus", "global") and gathered.seeds == (0, 1, 2)
    assert not any(run.problems for run in gathered.runs)
    for run in gathered.runs:
        folder = comparison / f"{run.method}-seed{run.seed}"
        result, told = json.loads((folder / "result.json").read_text()), lines(folder / "metrics.jsonl")
        assert run.outcome is not None and run.outcome.accuracy_client_mean == result["accuracy_client_mean"]
        tested = [line for line in told if "validation" in line]
        assert run.curve.test == tuple(line["test"] for line in tested)
        assert [list(row) for row in run.curve.client_test] == [line["client_test"] for line in tested]
        assert run.iterations.reported["loss"][-1] == told[-1]["loss"]


def test_traffic_of_iterations_adds_up_to_what_the_run_counted(comparison: Path, gathered: Gathered) -> None:
    for run in gathered.runs:
        assert run.outcome is not None
        census = [line for line in lines(comparison / run.name / "ledger.jsonl") if str(line["step"]).startswith("census")]
        assert not census
        if run.method != "global":
            assert sum(value or 0 for value in run.iterations.up) == run.outcome.bytes_up
            assert sum(value or 0 for value in run.iterations.down) == run.outcome.bytes_down


def test_a_run_of_before_knows_its_rounds_by_their_tests(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison / "fedavg-seed0", tmp_path / "run")
    told = lines(folder / "metrics.jsonl")
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "asked"}) + "\n" for line in told)
    )
    assert gather([folder]).runs[0].iterations.up == gather([comparison / "fedavg-seed0"]).runs[0].iterations.up


FILES = [
    "metrics.jsonl",
    "ledger.jsonl",
    "evaluation.json",
    "result.json",
    "sketch.json",
    "views.json",
    "config.toml",
    "manifest.json",
    "data.json",
    "environment.json",
    "privacy.json",
    "model.safetensors",
]


@pytest.mark.parametrize("name", FILES)
def test_without_a_file_the_rest_is_shown(comparison: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(comparison / "fedpub-seed0", tmp_path / "run")
    (folder / name).unlink()
    found = gather([folder])
    assert "What was asked" in _words(report_page(found))


SPOILED: dict[str, Callable[[Path], object]] = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "not json": lambda path: path.write_text("{" * 10),
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "other kinds": lambda path: path.write_text(_other_kinds(path)),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 20),
}


def _other_kinds(path: Path) -> str:
    """Valid JSON in which numbers are texts, lists are numbers and texts are lists."""
    if path.suffix not in (".json", ".jsonl"):
        return "name = 3\n[evaluation]\nmetric = [1, 2]\n"

    def turned(value: object) -> object:
        if isinstance(value, dict):
            return {key: turned(one) for key, one in value.items()}
        if isinstance(value, list):
            return len(value) if len(value) > 3 else [turned(one) for one in value]
        return EVIL if isinstance(value, int | float) else [value]

    whole = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
    return "\n".join(json.dumps(turned(json.loads(one))) for one in whole) + "\n"


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("name", FILES[:-1])
def test_a_spoiled_file_is_a_sentence_and_no_crash(comparison: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = shutil.copytree(comparison / "fedpub-seed0", tmp_path / "run")
    SPOILED[how](folder / name)
    found = gather([folder])
    page = report_page(found)
    text = "".join(part for section in page.sections for part in map(str, section.parts))
    # What follows the last line break of a file of lines is being written at this moment.
    harmless = {(file, way) for file in ("metrics.jsonl", "ledger.jsonl") for way in ("half", "empty", "not json", "deep")}
    unread = {"privacy.json"}
    toml = {("config.toml", "empty"), ("config.toml", "other kinds")}
    if (name, how) not in harmless | toml and name not in unread:
        assert found.runs[0].problems or "cannot be drawn" in text, (name, how)
    assert "<script>alert" not in "".join(map(str, page.lead))


def test_links_pipes_and_huge_files_are_not_read(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison / "fedpub-seed0", tmp_path / "run")
    secret = tmp_path / "secret.json"
    secret.write_text('{"owners": ["secret"]}')
    for name in ("sketch.json", "evaluation.json", "views.json"):
        (folder / name).unlink()
    os.mkfifo(folder / "evaluation.json")
    (folder / "views.json").write_bytes(b"")
    os.truncate(folder / "views.json", 10**10)  # sparse: no disk is used
    run = gather([folder]).runs[0]
    assert run.evaluation is None and run.scatter is None
    assert any("not a file" in one for one in run.problems) and any("10,000,000,000 bytes" in one for one in run.problems)
    (folder / "sketch.json").symlink_to(secret)
    with pytest.raises(Exception, match="leads out of"):
        gather([folder])


def test_names_of_others_reach_the_page_as_text_alone(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison / "fedpub-seed0", tmp_path / "run")
    for name in ("data.json", "sketch.json", "evaluation.json", "views.json", "ledger.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(
            text.replace("client-00", json.dumps(EVIL)[1:-1]).replace("client-0", json.dumps(EVIL)[1:-1])
        )
    asked = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**asked, "methods": [EVIL], "dataset": EVIL}))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "method": EVIL, "warnings": [EVIL], "privacy": EVIL}))
    page = written(report_page(gather([folder])))
    assert "<script>alert" not in page and "<!--" not in page.split("</head>")[1].split("window.vegaEmbed")[0]
    assert "\u202e" not in page and "\x1b" not in page
    assert "&lt;/script&gt;" in page  # it is there, as text


AUDIT = {
    "client": EVIL,
    "mechanism": "m",
    "run": "r",
    "lower": 1,
    "upper": math.inf,
    "delta": 0,
    "bounds": {},
    "holds": True,
}
STRANGE = [
    ("views.json", {"mended": "abc"}),
    ("views.json", {"mended": [1]}),
    ("views.json", {"mended": {"neighbours": "x", "learned": 5, "server": [1]}}),
    ("views.json", {"mended": {"server": {"inside_class": 1, "inside_by_chance": EVIL, "links": 1, "things": 1}}}),
    ("audit.json", {"audits": "abc"}),
    ("audit.json", {"audits": [[1]]}),
    ("audit.json", {"audits": [AUDIT | {"lower": EVIL * 10_000}]}),
    ("attacks.json", {"findings": [{"attack": EVIL, "view": EVIL, "measured": {"success": EVIL}}]}),
]


@pytest.mark.parametrize(("name", "content"), STRANGE, ids=range(len(STRANGE)))
def test_parts_of_another_kind_are_a_sentence(comparison: Path, tmp_path: Path, name: str, content: object) -> None:
    folder = shutil.copytree(comparison / "fedsage_plus-seed0", tmp_path / "run")
    assert name in (privacy.AUDIT, folders.VIEWS, folders.ATTACKS)
    (folder / name).write_text(json.dumps(content))
    page = _words(report_page(gather([folder])))
    assert "<script>alert" not in page and len(page) < 3_000_000
    assert "damaged" in page or "cannot be drawn" in page or "an object is expected" in page
    if name == privacy.AUDIT:
        with pytest.raises(IntegrityError, match="delete it"):
            privacy.read_audits(folder)


def test_an_audit_that_promises_nothing_is_shown(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison / "fedavg-seed0", tmp_path / "run")
    (folder / privacy.AUDIT).write_text(json.dumps({"audits": [AUDIT]}))
    assert "canaries show epsilon &gt;= 1, promised &lt;= inf" in _words(report_page(gather([folder])))
    assert privacy.read_audits(folder)[0]["holds"]


def test_runs_of_other_protocols_are_not_compared_silently(comparison: Path, tmp_path: Path) -> None:
    other = shutil.copytree(comparison / "fedavg-seed0", tmp_path / "other")
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('name = "fedpub-disjoint"', 'name = "mine"'))
    found = gather([comparison / "local-seed0", other])
    assert any("different protocols" in one for one in unlike(found))
    page = report_page(found)
    assert "their numbers cannot be compared" in written(page)
    assert page.lead == () and not any(cell.mark for sheet in page.sheets() for row in sheet.rows for cell in row)


def test_two_settings_of_one_method_are_not_taken_for_one(comparison: Path, tmp_path: Path) -> None:
    other = shutil.copytree(comparison / "fedavg-seed0", tmp_path / "slower")
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**result, "accuracy_client_mean": 0.123}))
    found = gather([comparison / "fedavg-seed0", other, comparison / "local-seed0"])
    assert found.methods == ("fedavg @ fedavg-seed0", "fedavg @ slower", "local")
    sheet = tabled.final(found)
    assert sheet is not None and [row[0].text for row in sheet.rows] == list(found.methods)
    assert [row[1].text for row in sheet.rows][1] == "12.30"


def test_a_folder_without_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        gather([tmp_path])


def test_an_unfinished_run_is_shown_as_far_as_it_is(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison / "fedavg-seed0", tmp_path / "run")
    for name in ("result.json", "evaluation.json", "views.json"):
        (folder / name).unlink()
    page = report_page(gather([folder]))
    assert "No run has ended yet" in written(page)
    assert {"curves", "graph"} <= {figure.name for figure in page.figures()}

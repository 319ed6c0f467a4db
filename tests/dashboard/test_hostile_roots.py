"""Folders that anybody may have filled: a line with a sentence, never a crash, and nothing of outside."""

from __future__ import annotations

import http.client
import json
import os
import shutil
from pathlib import Path

import pytest
from dashboards import Serve, Served

from suture.dashboard.index import Index
from suture.runs.folder import COMPARISON, CONFIG, METRICS, RESULT, RUN
from suture.runs.pulse import LOCK, PROGRESS

SECRET = "the-secret-of-another-folder"


def _raw(served: Served, path: str) -> tuple[int, str]:
    """The path as it is: other libraries tidy it up before they send it."""
    gate = served.dashboard.gate
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=120)
    connection.request("GET", path, headers={"cookie": f"{gate.cookie}={gate.session}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_ids_stand_for_folders_below_the_root_alone(serve: Serve, copied: Path) -> None:
    outside = copied.parent / "outside"
    shutil.copytree(copied / "one", outside)
    served = serve(copied)
    ways = ["..", "../outside", "%2e%2e%2foutside", "..%2Foutside", str(outside), "one", "one/../one", "%00", "a" * 5000]
    for way in ways:
        for path in (
            f"/api/runs/{way}",
            f"/api/runs/{way}/events",
            f"/runs/{way}/report",
            f"/static/{way}",
            f"/api/curves?id={way}",
        ):
            status, text = _raw(served, path)
            assert status in (404, 409), (path, status)
            assert "fedavg" not in text
    assert {row["name"] for row in served.rows()} == {"one", "both"}


def test_links_are_not_followed(serve: Serve, copied: Path) -> None:
    outside = copied.parent / "outside"
    shutil.copytree(copied / "one", outside)
    (copied / "linked").symlink_to(outside)
    (copied / "one" / "kept").mkdir()
    (copied / "one" / "kept" / "a.safetensors").symlink_to("/etc/hostname")
    served = serve(copied)
    rows = {row["name"]: row for row in served.rows()}
    assert set(rows) == {"one", "both"}
    assert rows["one"]["standing"] == "damaged" and "link that leads out" in rows["one"]["note"]
    assert str(copied) not in json.dumps(rows)


@pytest.mark.parametrize("name", [RUN, CONFIG, RESULT, METRICS, PROGRESS, LOCK, "console.log", "status.json", "order.json"])
def test_no_file_of_outside_is_read_through_a_link(serve: Serve, copied: Path, name: str) -> None:
    secret = copied.parent / "secret"
    secret.write_text(json.dumps({"dataset": SECRET, "reason": SECRET, "test": SECRET}) + f"\nsuture: {SECRET}\n")
    (copied / "one" / name).unlink(missing_ok=True)
    (copied / "one" / name).symlink_to(secret)
    served = serve(copied)
    id = served.row("one")["id"]
    for path in ("/api/runs", f"/api/runs/{id}", f"/api/curves?id={id}", f"/runs/{id}/report"):
        assert SECRET not in served.get(path).text, path


def test_pipes_and_huge_files_do_not_hold_it_up(serve: Serve, copied: Path) -> None:
    for number, name in enumerate((RUN, METRICS, PROGRESS, RESULT)):
        place = copied / f"pipe-{number}"
        shutil.copytree(copied / "one", place)
        (place / name).unlink()
        os.mkfifo(place / name)
    shutil.copytree(copied / "one", copied / "huge")
    with (copied / "huge" / RESULT).open("wb") as file:
        file.truncate(1 << 33)
    served = serve(copied)
    rows = {row["name"]: row for row in served.rows()}
    assert rows["huge"]["standing"] == "damaged" and "too large" in rows["huge"]["note"]
    assert all(rows[f"pipe-{number}"]["standing"] == "damaged" for number in range(4))
    for row in rows.values():
        assert served.get(f"/api/runs/{row['id']}").status_code == 200


HALVES = [b"", b"{", b"[]", b"null", b'{"dataset": 3}', b"\xff\xfe", b"[" * 100_000, b'{"state": "running", "done": "x"}']


@pytest.mark.parametrize("content", HALVES, ids=range(len(HALVES)))
@pytest.mark.parametrize("name", [RUN, CONFIG, RESULT, METRICS, PROGRESS, LOCK, "launch.json"])
def test_half_written_files_are_a_sentence(copied: Path, name: str, content: bytes) -> None:
    (copied / "one" / name).write_bytes(content)
    rows = {row.name: row for row in Index(copied).rows()}
    assert rows["both"].standing == "finished"
    row = rows["one"]
    assert "\n" not in row.note and "Traceback" not in row.note
    if row.standing == "damaged":
        assert row.note
    json.dumps(row.as_json(), allow_nan=False)


def test_strange_comparisons(copied: Path) -> None:
    told = json.loads((copied / "both" / COMPARISON).read_text())
    for number, change in enumerate(
        ({"methods": ["../../one"]}, {"methods": ["a"] * 200_000}, {"seeds": []}, {"methods": []}, {"dataset": ""})
    ):
        place = copied / f"strange-{number}"
        shutil.copytree(copied / "both", place)
        (place / COMPARISON).write_text(json.dumps(told | change))
    rows = {row.name: row for row in Index(copied).rows()}
    assert len(rows) == 7 and rows["strange-0"].standing == "damaged" and rows["strange-1"].standing == "damaged"


def test_names_are_data(serve: Serve, copied: Path) -> None:
    name = "<img src=x onerror=alert(1)>\"'&\u202e"
    shutil.move(copied / "one", copied / name)
    told = json.loads((copied / "both" / COMPARISON).read_text())
    (copied / "both" / COMPARISON).write_text(json.dumps(told | {"dataset": "</script><script>alert(1)</script>"}))
    served = serve(copied)
    answer = served.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    assert {row["name"] for row in answer.json()["rows"]} == {name, "both"}
    id = served.row(name)["id"]
    report = served.get(f"/runs/{id}/report")
    assert report.status_code == 200 and name not in report.text
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts")


def test_folders_that_vanish(serve: Serve, copied: Path) -> None:
    served = serve(copied)
    id = served.row("one")["id"]
    shutil.rmtree(copied / "one")
    assert served.get(f"/api/runs/{id}").status_code in (200, 404)
    assert [row["name"] for row in served.rows()] == ["both"]
    assert served.get(f"/api/runs/{id}").status_code == 404
    assert served.get(f"/runs/{id}/report").status_code == 404
    shutil.rmtree(copied)
    assert served.rows() == []


def test_a_thousand_folders(serve: Serve, copied: Path) -> None:
    for name in ("model.safetensors", "ledger.jsonl", "evaluation.json"):
        (copied / "one" / name).unlink()
    for number in range(998):
        shutil.copytree(copied / "one", copied / f"run-{number:03d}")
    served = serve(copied)
    told = served.get("/api/runs?per=50").json()
    assert (told["all"], told["found"], len(told["rows"])) == (1000, 1000, 50)
    assert told["counts"]["finished"] == 1000
    pages = [row["id"] for page in range(20) for row in served.get(f"/api/runs?per=50&page={page}").json()["rows"]]
    assert len(set(pages)) == 1000
    assert served.get("/api/runs?q=run-123").json()["found"] == 1
    # What has not changed is not read again: the very same lines come back.
    index = served.dashboard.index
    before = {row.id: row for row in index.rows(0.0)}
    (copied / "run-007" / RESULT).unlink()
    after = {row.id: row for row in index.rows(0.0)}
    changed = [row.name for id, row in after.items() if row is not before[id]]
    assert (
        changed == ["run-007"]
        and after[next(id for id, row in after.items() if row.name == "run-007")].standing == "resumable"
    )

"""Runs between owners in the list: at the coordinator, whose log lies beside, and at the operator, who hears of rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare")
from dashboards import Serve
from test_faults import InProcess, ordered, planned, shards  # noqa: F401

from suture.core.storage import make_folder, write_json
from suture.dashboard.curves import courses_of
from suture.dashboard.index import Index
from suture.dashboard.rows import Row
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.operator.errand import note_job
from suture.federation.operator.files import followed
from suture.federation.wire.orders import ORDER
from suture.runs.outcome import Tick
from suture.runs.pulse import telling


def test_at_the_coordinator(serve: Serve, shards: Path, tmp_path: Path) -> None:  # noqa: F811
    home = make_folder(tmp_path / "suture")
    index, seen = Index(home), list[Row]()

    def stop() -> bool:
        seen.extend(index.rows(0.0))
        return any(row.progress.get("done", 0) >= 2 for row in seen)

    order, owners = ordered(planned(rounds=5)), InProcess(tmp_path / "owners", shards)
    log = AuditLog(home / AUDIT, "coordinator")
    assert Coordinator(order, home / "runs" / "run", owners, log, stop).carry_on() is None
    running = next(row for row in seen if row.standing == "running")
    assert (running.kind, running.name, running.methods, running.runs) == ("federation", "runs/run", ("fedavg",), 1)
    assert (running.progress["owners"], running.progress["absent"]) == (3, {}) and running.progress["bytes_up"] > 0
    assert (running.clients, running.can_report) == (3, True)
    (row,) = index.rows(0.0)
    assert row.standing == "stopped" and not row.can_resume  # that is the operator's to do
    assert Coordinator(order, home / "runs" / "run", owners, log).carry_on() is not None
    served = serve(home)
    (told,) = served.rows()
    assert told["standing"] == "finished" and told["results"][0]["mean"] is not None
    events = [line["event"] for line in served.get(f"/api/runs/{told['id']}").json()["audit"]]
    assert "run finished" in events
    # A root that does not hold the log does not show it.
    served = serve(home / "runs")
    assert served.get(f"/api/runs/{served.rows()[0]['id']}").json()["audit"] == []


def test_at_the_operator(tmp_path: Path) -> None:
    folder, order = make_folder(tmp_path / "mine"), ordered(planned(rounds=9))
    write_json(folder / ORDER, order.as_json())
    note_job(folder, "", order.run, tmp_path / "kit")
    index = Index(tmp_path)
    with pytest.raises(KeyboardInterrupt), followed(folder), telling(folder) as pulse:
        pulse.remark("waiting for b to connect and to answer")
        (row,) = index.rows(0.0)
        assert (row.standing, row.note, row.kind) == ("starting", "waiting for b to connect and to answer", "federation")
        for done in (2, 5):
            tick = Tick("round", done, 9, 4.0, {"phase": "round", "round": done, "test": 0.5, "validation": 0.5})
            pulse.follow(tick)
            pulse.beat("fedavg", 0, tick, owners=3, absent={"b": "gives no sign of life"})
        pulse.remark("b gives no sign of life")
        (row,) = index.rows(0.0)
        assert row.standing == "running" and row.note == "without b gives no sign of life" and row.can_stop
        assert (row.clients, row.can_report) == (3, False)  # the protocol's number of clients is not that of owners
        (course,) = courses_of(folder, row)
        assert [point[0] for point in course.more()[1]] == [2, 5]
        raise KeyboardInterrupt
    (row,) = index.rows(0.0)
    assert row.standing == "stopped" and row.can_resume

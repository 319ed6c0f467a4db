"""What a federation refuses, between real processes, with the reason in the audit log.

A step that the method does not declare is in `test_faults.py`: no coordinator of ours would ask for it.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, planned

from suture.federation.audit import AUDIT, read_audit
from suture.federation.flare import kits
from suture.federation.flare.jobs import JOBS
from suture.federation.flare.provisioning import provision
from suture.federation.flare.session import Session, wait_until
from suture.federation.wire.reasons import Code

pytestmark = pytest.mark.federation
OWNER = "client-00"


def reasons(federation: Loopback, party: str) -> list[tuple[object, str]]:
    """(code, sentence) of every line of a party's audit log."""
    lines = read_audit(federation.kits[party] / "suture" / AUDIT)
    return [(line.get("code"), str(line.get("reason"))) for line in lines]


def codes(federation: Loopback, party: str) -> list[object]:
    return [code for code, _ in reasons(federation, party)]


def eventually(condition: Callable[[], bool], seconds: float = 240) -> bool:
    """Not how fast, but whether: on a busy machine FLARE takes minutes to give up on a job whose owners have failed."""
    return wait_until(condition, seconds)


@contextmanager
def knocking(federation: Loopback, certificate: Path | None) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=federation.kits[OWNER] / "startup" / "rootCA.pem")
    if certificate:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    with (
        socket.create_connection(("localhost", federation.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        yield secured


def turned_away(federation: Loopback, certificate: Path | None) -> bool:
    """With TLS 1.3 one is told so after the handshake."""
    try:
        with knocking(federation, certificate) as secured:
            return secured.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def let_in(federation: Loopback, certificate: Path) -> bool:
    """The coordinator waits for us to speak, so look at its log."""
    with knocking(federation, certificate) as secured:
        entry = f"<= 127.0.0.1:{secured.getsockname()[1]} SSL {OWNER}"
        return eventually(lambda: entry in (federation.kits["coordinator"] / "log.txt").read_text(), 60)


def test_a_member_is_let_in(federation: Loopback) -> None:
    """Or the next two tests would prove nothing."""
    assert let_in(federation, federation.kits[OWNER] / "startup")


def test_no_certificate(federation: Loopback) -> None:
    assert turned_away(federation, None)
    assert eventually(lambda: Code.NO_CERTIFICATE in codes(federation, "coordinator"))


def test_a_strangers_certificate(federation: Loopback, tmp_path: Path) -> None:
    other = provision(tmp_path / "kits", "other", federation.owners, "localhost", federation.port, "tcp", JOBS)
    assert turned_away(federation, other[OWNER] / "startup")
    assert eventually(lambda: Code.UNKNOWN_CERTIFICATE in codes(federation, "coordinator"))


def test_a_silent_stranger_keeps_nobody_out(federation: Loopback) -> None:
    with socket.create_connection(("localhost", federation.port), timeout=20):
        assert let_in(federation, federation.kits[OWNER] / "startup")


def ended(federation: Loopback, job: Path) -> str:
    session = Session(federation.kit("operator"), timeout=60)
    try:
        number = session.submit(job)
        assert eventually(lambda: session.state(number).startswith("FINISHED"))
        return session.state(number)
    finally:
        session.close()


def test_a_job_with_code(federation: Loopback, tmp_path: Path) -> None:
    job = kits.write_job(tmp_path / "job", "code", federation.owners, [], JOBS)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "theirs.py").write_text("raise SystemExit")
    assert ended(federation, job) != "FINISHED:COMPLETED"
    expected = (Code.FOREIGN_CODE, "a job brings code of its own; operator@suture.local submitted it")
    assert reasons(federation, "coordinator").count(expected) == 1


def test_a_job_with_another_class(federation: Loopback, tmp_path: Path) -> None:
    job = kits.write_job(tmp_path / "job", "class", federation.owners, [], JOBS)
    config = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    ran = tmp_path / "ran"
    content["components"][0] = {"id": "ours", "path": "subprocess.Popen", "args": {"args": ["touch", str(ran)]}}
    config.write_text(json.dumps(content))
    assert ended(federation, job) != "FINISHED:COMPLETED"
    expected = (Code.FOREIGN_CLASS, "a job names the class subprocess.Popen, which is not one of ours")
    for owner in federation.owners:
        assert reasons(federation, owner).count(expected) == 1
    assert not ran.exists()


POLICY = """
forbid_fields = ["loss"]
max_rounds = 10
[privacy]
epsilon = 8.0
"""


def test_what_an_owners_policy_forbids(federation: Loopback, tmp_path: Path) -> None:
    """Four runs, each refused for its own reason, by that owner alone; a fifth on the operator's screen."""
    federation.policy(OWNER).write_text(POLICY)
    noisy = ("training.dp_sigma=5.0", "batch_size=5")
    runs = {
        "too-many-rounds": (("rounds=20", *noisy), "the policy allows 10 iterations a run, asked are 20", Code.POLICY),
        "no-noise": (("rounds=2",), "this run has no DP-SGD", Code.POLICY),
        "too-little-noise": (
            ("rounds=5", "training.dp_sigma=0.3", "batch_size=5"),
            "the privacy budget is exceeded",
            Code.BUDGET,
        ),
        "a-forbidden-field": (("rounds=2", *noisy), "the policy forbids loss to leave", Code.POLICY),
    }
    orders = [
        federation.order(planned("fedavg", 3, "model.hidden=8", *overrides), f"refused-{name}").as_json()
        for name, (overrides, *_) in runs.items()
    ]
    try:
        ended(federation, kits.write_job(tmp_path / "job", "refused", federation.owners, orders, JOBS))
        arguments = ["--kit", str(federation.kits["operator"]), "--protocol", "fedpub-disjoint"]
        arguments += ["--set", "rounds=20", "--out", str(tmp_path / "run")]
        code, printed = federation.run("federation", "run", *arguments)
    finally:
        federation.policy(OWNER).write_text("")
    for name, (_, reason, why) in runs.items():
        for party in ("coordinator", OWNER):
            lines = read_audit(federation.kits[party] / "suture" / AUDIT)
            noted = [line for line in lines if line.get("run") == f"refused-{name}" and "refused" in str(line["event"])]
            assert noted and reason in str(noted[0]["reason"]) and noted[0]["code"] == why, (name, party)
        assert not any(
            name in str(line) and line["event"] == "refused"
            for line in read_audit(federation.kits["client-01"] / "suture" / AUDIT)
        )
    assert code == 2
    assert "owner client-00 refuses: the policy allows 10 iterations a run, asked are 20" in " ".join(printed.split())
    assert "Traceback" not in printed

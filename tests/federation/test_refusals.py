"""What a federation refuses at its door, with the reason in the audit log."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from loopback import Loopback, planned, running

from suture.engines import flare_kits
from suture.federation.audit import AUDIT, read_audit

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("federation")
    with running(planned("fedavg", 3), folder) as parties:
        yield parties


def reasons(federation: Loopback, party: str) -> list[str]:
    return [str(line.get("reason")) for line in read_audit(federation.kits[party] / "suture" / AUDIT)]


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
    return condition()


def knock(federation: Loopback, certificate: Path | None) -> None:
    context = ssl.create_default_context(cafile=federation.kits[federation.owners[0]] / "startup" / "rootCA.pem")
    if certificate:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    with (
        socket.create_connection(("localhost", federation.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"hello")
        assert secured.recv(1) != b""


def test_no_certificate(federation: Loopback) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        knock(federation, None)
    assert eventually(lambda: any("PEER_DID_NOT_RETURN" in reason for reason in reasons(federation, "coordinator")))


def test_a_strangers_certificate(federation: Loopback, tmp_path: Path) -> None:
    other = flare_kits.provision(tmp_path / "kits", "other", federation.owners, "localhost", federation.port, "tcp")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        knock(federation, other[federation.owners[0]] / "startup")
    assert eventually(lambda: any("VERIFY_FAILED" in reason for reason in reasons(federation, "coordinator")))


def ended(federation: Loopback, job: Path) -> str:
    operator = flare_kits.Operator(federation.kit("operator"), timeout=60)
    try:
        number = operator.submit(job)
        assert eventually(lambda: operator.state(number).startswith("FINISHED"))
        return operator.state(number)
    finally:
        operator.close()


def test_a_job_with_code(federation: Loopback, tmp_path: Path) -> None:
    job = flare_kits.write_job(tmp_path / "job", "code", federation.owners, [])
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "theirs.py").write_text("raise SystemExit")
    assert ended(federation, job) != "FINISHED:COMPLETED"
    assert any("BYOC not permitted" in reason for reason in reasons(federation, "coordinator"))


def test_a_job_with_another_class(federation: Loopback, tmp_path: Path) -> None:
    job = flare_kits.write_job(tmp_path / "job", "class", federation.owners, [])
    config = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    content["components"][0] = {"id": "ours", "path": "subprocess.Popen", "args": {"args": ["true"]}}
    config.write_text(json.dumps(content))
    assert ended(federation, job) != "FINISHED:COMPLETED"
    owner = federation.owners[0]
    assert eventually(lambda: any("subprocess.Popen" in reason for reason in reasons(federation, owner)))

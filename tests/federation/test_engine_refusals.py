"""What FLARE and TLS refuse becomes a code: asked of the real FLARE and the real OpenSSL, without any process."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthorizationService, Authorizer, AuthzContext, Person
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.security.security import COMMAND_CATEGORIES

from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.flare import kits
from suture.federation.flare.jobs import JOBS, OwnerJob
from suture.federation.flare.process import failed_handshake
from suture.federation.flare.provisioning import provision
from suture.federation.flare.refusals import note_refusals
from suture.federation.wire.reasons import Code, Reason


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("federation") / "kits"
    return provision(out, "here", ["a", "b"], "localhost", 8102, "tcp", JOBS)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An audit log of what FLARE refuses in this process, for one test."""
    monkeypatch.setattr(Authorizer, "authorize", Authorizer.authorize)
    kept = ComponentPathAuthorizer.authorize_component_config
    monkeypatch.setattr(ComponentPathAuthorizer, "authorize_component_config", kept)
    note_refusals(AuditLog(tmp_path / AUDIT, "a"))
    return tmp_path / AUDIT


def codes(log: Path) -> list[object]:
    return [line["code"] for line in read_audit(log)]


def test_a_class_that_is_not_ours(made: dict[str, Path], noted: Path) -> None:
    """As FLARE checks the classes of a job, with the list that is in an owner's kit."""
    workspace = Workspace(str(made["a"]), "a")
    check = ComponentPathAuthorizer().authorize_component_config
    for allowed in JOBS.allowed:
        check({"path": allowed}, fl_ctx=FLContext(), workspace=workspace)
    assert codes(noted) == []
    for _ in range(2):
        with pytest.raises(UnsafeComponentError):
            check({"path": "subprocess.Popen"}, fl_ctx=FLContext(), workspace=workspace)
    (line,) = read_audit(noted)
    assert (line["event"], line["code"]) == ("refused", Code.FOREIGN_CLASS)
    assert line["reason"] == "a job names the class subprocess.Popen, which is not one of ours"


def test_a_job_with_code_and_a_user_without_rights(
    made: dict[str, Path], noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FLARE decides, with the rights that are in the coordinator's kit."""
    authorizer = Authorizer("coordinator", COMMAND_CATEGORIES)
    rights = json.loads((made["coordinator"] / "local" / "authorization.json").read_text())
    assert not authorizer.load_policy(rights)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    admin = ("operator", "coordinator", "project_admin")
    assert AppAuthzService.authorize_app_info({"byoc": False}, *admin) == (True, "")
    assert AuthorizationService.authorize(AuthzContext("submit_job", Person(*admin), Person(*admin)))[0]
    assert codes(noted) == []
    assert not AppAuthzService.authorize_app_info({"byoc": True}, *admin)[0]
    member = Person("guest", "coordinator", "member")
    assert not AuthorizationService.authorize(AuthzContext("submit_job", member, member))[0]
    assert codes(noted) == [Code.FOREIGN_CODE, Code.NO_RIGHT]


def handshake(server: ssl.SSLContext, client: ssl.SSLContext | None) -> Reason | None:
    """What the server says of a client that knocks; None as a client: one that only looks, and goes."""
    near, far = socket.socketpair()

    def knock() -> None:
        with far:
            if client is not None:
                try:
                    with client.wrap_socket(far, server_hostname="localhost") as secured:
                        secured.recv(1)
                except OSError:
                    pass

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        with near, server.wrap_socket(near, server_side=True, do_handshake_on_connect=False) as secured:
            secured.settimeout(30)
            secured.do_handshake()
            return Reason(Code.FAILED, "it was let in")
    except OSError as error:
        return failed_handshake(error)
    finally:
        thread.join()


def contexts(kit: Path, party: Path | None, certificate: tuple[str, str] = ("client.crt", "client.key")) -> tuple:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
    server.load_verify_locations(kit / "startup" / "rootCA.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=kit / "startup" / "rootCA.pem")
    if party is not None:
        client.load_cert_chain(party / certificate[0], party / certificate[1])
    return server, client


def test_handshakes(made: dict[str, Path], tmp_path: Path) -> None:
    kit = made["coordinator"]
    other = provision(tmp_path / "kits", "other", ["a", "b"], "localhost", 8102, "tcp", JOBS)
    told = {
        "member": handshake(*contexts(kit, made["a"] / "startup")),
        "nobody": handshake(*contexts(kit, None)),
        "stranger": handshake(*contexts(kit, other["a"] / "startup")),
        "outdated": handshake(*contexts(kit, outdated(kit.parent / "authority", tmp_path))),
        "looks": handshake(contexts(kit, None)[0], None),
    }
    assert told["looks"] is None, "whoever only looks is not refused"
    assert {who: why.code for who, why in told.items() if why} == {
        "member": Code.FAILED,
        "nobody": Code.NO_CERTIFICATE,
        "stranger": Code.UNKNOWN_CERTIFICATE,
        "outdated": Code.EXPIRED_CERTIFICATE,
    }
    late = failed_handshake(TimeoutError("timed out"))
    assert late == Reason(Code.NO_HANDSHAKE, "no handshake (TLS: timed out)")


def outdated(authority: Path, folder: Path) -> Path:
    """A certificate that the federation's authority has signed for last year."""
    root_key = serialization.load_pem_private_key((authority / "root.key").read_bytes(), None)
    root = x509.load_pem_x509_certificate((authority / "rootCA.pem").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=700))
        .not_valid_after(today - datetime.timedelta(days=340))
        .sign(root_key, hashes.SHA256())  # type: ignore[arg-type]
    )
    encoding = serialization.Encoding.PEM
    (folder / "client.crt").write_bytes(certificate.public_bytes(encoding))
    (folder / "client.key").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def test_kits_name_installed_classes_only(made: dict[str, Path]) -> None:
    """The paths in a kit are those of the classes that were given, and FLARE can import them."""
    settings = json.loads((made["a"] / "local" / "resources.json").read_text())
    assert kits.path_of(OwnerJob) in settings["class_allow_list"]
    assert len(settings["class_allow_list"]) == 4
    for path in [*settings["class_allow_list"], *(one["path"] for one in settings["components"] if "path" in one)]:
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(__import__(module, fromlist=[name]), name), type), path

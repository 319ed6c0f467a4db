"""Who wants to be somebody else: with FLARE's drivers over TLS on this machine, and with files on their way."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.private.fed.utils.identity_utils import IdentityAsserter, IdentityVerifier

from suture.cli import main
from suture.errors import ConfigError, IntegrityError, SutureError
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.flare import authority as authorities
from suture.federation.flare import certificates as certs
from suture.federation.flare import enrolment
from suture.federation.flare.authority import OPERATOR, Authority
from suture.federation.flare.certificates import Member, Role
from suture.federation.flare.jobs import JOBS
from suture.federation.flare.kits import Kit
from suture.federation.flare.members import members_only
from suture.federation.flare.process import note_strangers
from suture.federation.flare.provisioning import Federation, found, invited, plan_of
from suture.federation.flare.requests import Invitation, Request
from suture.federation.flare.session import Session, SessionError, wait_until
from suture.federation.wire.reasons import Code, Refused


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """A federation whose owners a and b have enrolled; c is only invited."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        plan = Federation("here", ("a", "b", "c"), "localhost", self.port, "tcp")
        self.kits, self.invitations = found(folder / "kits", plan, JOBS, with_keys=False)
        self.authority = Authority(folder / "kits" / "authority")
        for owner in ("a", "b"):
            self.kits[owner] = self.enrolled(owner)

    def enrolled(self, owner: str) -> Path:
        path, token = self.invitations[owner]
        kit = self.folder / owner
        request = enrolment.begin(Invitation.read(path), token, kit, JOBS)
        signed = self.folder / f"{owner}.crt"
        certs.write_certificate(signed, self.authority.sign(Request.read(request)))
        enrolment.install(self.kit(kit, "owner"), signed)
        return kit

    def kit(self, at: Path | str, role: str) -> Kit:
        return Kit.read(self.kits[at] if isinstance(at, str) else at, role)

    def codes(self, party: str = "coordinator") -> list[object]:
        return [line.get("code") for line in read_audit(self.kits[party] / "suture" / AUDIT)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    members_only()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certs, "KEY_BITS", certs.FEWEST_BITS)
        made = World(tmp_path_factory.mktemp("world"))
        # As in a coordinator's own process: FLARE's listener alone does not survive a handshake that fails.
        for function in ("get_request", "finish_request"):
            patch.setattr(TcpStreamServer, function, getattr(TcpStreamServer, function))
        patch.setattr(net_utils, "get_ssl_context", net_utils.get_ssl_context)
        note_strangers(AuditLog(made.kits["coordinator"] / "suture" / AUDIT, "coordinator"))
        yield made


def credentials(startup: Path, use: str, pair: str) -> dict[str, str]:
    """In FLARE's words: the certificate `pair` of a kit, used as a `server`'s or a `client`'s."""
    return {
        "ca_cert": str(startup / "rootCA.pem"),
        f"{use}_cert": str(startup / f"{pair}.crt"),
        f"{use}_key": str(startup / f"{pair}.key"),
    }


@contextmanager
def listening(startup: Path, pair: str = "server", name: str = "server") -> Iterator[tuple[Communicator, int]]:
    """On a port of its own: FLARE does not give one back in this process."""
    port = free_port()
    cell = Communicator(Endpoint(name, conn_props=credentials(startup, "server", pair)), CellIdentityResolver(name))
    cell.add_connector(f"tcp://localhost:{port}?admin_listener=true", Mode.PASSIVE, secure=True)
    cell.start()
    try:
        assert wait_until(lambda: _open(port), 30, 0.05)
        yield cell, port
    finally:
        cell.stop()


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@contextmanager
def connecting(port: int, startup: Path, name: str) -> Iterator[Communicator]:
    """A party that FLARE connects, as in a job, under whatever name it likes."""
    known = CellIdentityResolver(name, {"server": "localhost"})
    cell = Communicator(Endpoint(name, conn_props=credentials(startup, "client", "client")), known)
    cell.add_connector(f"tcp://localhost:{port}", Mode.ACTIVE, secure=True)
    cell.start()
    try:
        yield cell
    finally:
        cell.stop()


def reached(cell: Communicator, name: str) -> bool:
    endpoint = cell.conn_manager.find_endpoint(name)
    return endpoint is not None and endpoint.state == EndpointState.READY


def refused_with(world: World, code: Code, party: str = "coordinator") -> Callable[[], bool]:
    before = world.codes(party).count(code)
    return lambda: world.codes(party).count(code) > before


def test_members_meet(world: World) -> None:
    """Or the refusals below would prove nothing."""
    admin = new_admin_client_name()
    with (
        listening(world.kits["coordinator"] / "startup") as (coordinator, port),
        connecting(port, world.kits["a"] / "startup", "a") as owner,
        connecting(port, world.kits["operator"] / "startup", admin),
    ):
        assert wait_until(lambda: reached(coordinator, "a") and reached(owner, "server") and reached(coordinator, admin), 60)


def test_an_owner_in_the_coordinators_place(world: World) -> None:
    """Neither an owner nor the operator says a word to it, whatever it calls itself."""
    thief = world.kits["b"] / "startup"
    for name in ("server", "b"):
        with (
            listening(thief, "client", name) as (fake, port),
            connecting(port, world.kits["a"] / "startup", "a") as owner,
        ):
            assert not wait_until(lambda: bool(fake.conn_manager.sfm_endpoints or owner.conn_manager.sfm_endpoints), 3)
    operators = world.kits["operator"] / "startup" / "fed_admin.json"
    kept = operators.read_text()
    try:
        with listening(thief, "client") as (_, port):
            operators.write_text(kept.replace(f'"port": {world.port}', f'"port": {port}'))
            with pytest.raises(SessionError, match="is not the coordinator of here"):
                Session(world.kit("operator", "operator"))
    finally:
        operators.write_text(kept)


@pytest.mark.parametrize(
    ("who", "name"),
    [
        ("b", "a"),
        ("b", "a.some-job"),
        ("b", "server.some-job"),
        ("b", new_admin_client_name()),
        ("operator", "a"),
        ("operator", OPERATOR),
    ],
    ids=[
        "owner as another",
        "owner as another's job",
        "owner as coordinator's job",
        "owner as operator",
        "operator as owner",
        "operator as itself",
    ],
)
def test_under_another_name(world: World, who: str, name: str) -> None:
    noted = refused_with(world, Code.WRONG_CERTIFICATE)
    with (
        listening(world.kits["coordinator"] / "startup") as (coordinator, port),
        connecting(port, world.kits[who] / "startup", name),
    ):
        assert wait_until(noted, 30)
        assert not reached(coordinator, name)


def test_what_flare_takes_as_a_proof(world: World) -> None:
    """FLARE's own check of identities: an owner is no coordinator and no operator, and no other owner."""
    verifier = IdentityVerifier(str(world.kits["coordinator"] / "startup" / "rootCA.pem"))

    def proves(party: str, asserted: str, use: object) -> bool:
        base = world.kits[party] / "startup" / ("server" if party == "coordinator" else "client")
        asserter = IdentityAsserter(f"{base}.key", f"{base}.crt")
        named = {
            "asserter_cert": asserter.cert,
            "signature": asserter.sign_common_name("n"),
            "nonce": "n",
            "expected_eku": use,
        }
        try:
            return bool(verifier.verify_common_name(asserted_cn=asserted, intermediate_certs=[], **named))
        except Exception:
            return False

    server, client, login = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH, None
    assert proves("coordinator", "localhost", server) and proves("a", "a", client) and proves("operator", OPERATOR, login)
    assert not proves("a", "a", server)
    assert not proves("a", "a", login)
    assert not proves("b", "a", client)
    assert not proves("coordinator", "localhost", client)


def test_another_federation_and_an_ended_certificate(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have a right signature of somebody; TLS itself turns them away."""
    startups = []
    for authority, valid in (
        (Authority.create(tmp_path / "x", "here"), authorities.VALID),
        (world.authority, -timedelta(minutes=1)),
    ):
        monkeypatch.setattr(authorities, "VALID", valid)
        startup = tmp_path / str(len(startups)) / "startup"
        startup.mkdir(parents=True)
        (startup.parent / "about.json").write_text(json.dumps({"role": "owner", "name": "a", "federation": "here"}))
        key = certs.new_key()
        certs.write_key(startup / "client.key", key)
        certs.write_certificate(
            startup / "client.crt", authority._certificate(Member("here", Role.OWNER, "a"), key.public_key(), None)
        )
        certs.write_certificate(startup / "rootCA.pem", world.authority.root)
        startups.append(startup)
    with listening(world.kits["coordinator"] / "startup") as (coordinator, port):
        for startup in startups:
            with connecting(port, startup, "a"):
                assert not wait_until(lambda: reached(coordinator, "a"), 2)
    ended = Kit(startups[1].parent, "owner", "a", "here", ())
    with pytest.raises(Refused, match="not valid now; it ended on"):
        ended.remarks()


def test_warned_before_the_end(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorities, "VALID", timedelta(days=10))
    kit = world.kit("operator", "operator")
    assert kit.remarks() == []
    certs.write_certificate(tmp_path / "new.crt", world.authority.sign(Request.read(enrolment.renew(kit))))
    enrolment.install(kit, tmp_path / "new.crt")
    assert "renew it with `suture federation renew" in kit.remarks()[0]
    (kit.path / "startup" / "client.key").chmod(0o644)
    assert "may read the private key" in kit.remarks()[1]
    (kit.path / "startup" / "client.key").chmod(0o600)


def test_keys_stay_where_they_were_made(world: World) -> None:
    """Readable by their party only, and each in one file of one folder."""
    keys = {path: path.read_bytes() for path in world.folder.rglob("*.key")}
    assert len(keys) == 5
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in (*world.kits.values(), world.authority.folder))
    secrets = {path: content.split(b"\n")[3] for path, content in keys.items()}
    for file in world.folder.rglob("*"):
        if file.is_file():
            holds = [path for path, secret in secrets.items() if secret in file.read_bytes()]
            assert holds in ([], [file]), f"{file} holds the key of {holds}"
    for _, token in world.invitations.values():
        assert not any(token.encode() in file.read_bytes() for file in world.folder.rglob("*") if file.is_file())


def invitation_of_c(world: World) -> tuple[Invitation, str]:
    path, token = invited(world.authority, plan_of(world.authority), "c", world.folder)
    return Invitation.read(path), token


def test_requests_that_are_not_signed(world: World, tmp_path: Path) -> None:
    """A thief of the file without the token, somebody in between, and an owner that wants another's name."""
    invitation, token = invitation_of_c(world)
    with pytest.raises(ConfigError, match="not the token"):
        enrolment.begin(invitation, token[:-2] + "zz", tmp_path / "c", JOBS)
    assert not (tmp_path / "c").exists()
    member, key = invitation.member, certs.new_key()
    honest, foreign = Request.by_token(member, key, token), certs.new_key()
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    anothers = certs.read_key(world.kits["a"] / "startup" / "client.key")
    as_a = Member("here", Role.OWNER, "a")
    refused = {
        "made with the token": Request.by_token(member, key, "guessed"),
        "or was changed": Request(member, Request.made(member, foreign), honest.proof),
        "says something else": Request(member, Request.made(as_a, key), honest.proof),
        "is used up": Request.by_token(as_a, key, token),
        "not to here": Request.by_token(Member("there", Role.OWNER, "c"), key, token),
        "was not invited": Request.by_token(Member("here", Role.OWNER, "d"), key, token),
        "the operator was not invited": Request.by_token(Member("here", Role.OPERATOR, "operator"), key, token),
        "too weak": Request.by_token(member, weak, token),
        "each member has its own": Request.by_token(member, anothers, token),
        "is another's": Request.by_certificate(
            member, key, anothers, certs.read_certificate(world.kits["a"] / "startup" / "client.crt")
        ),
        "not signed with the key": Request.by_certificate(
            as_a, key, foreign, certs.read_certificate(world.kits["a"] / "startup" / "client.crt")
        ),
    }
    before = len(world.authority.entries())
    for number, (why, request) in enumerate(refused.items()):
        request.write(tmp_path / f"{number}.json")
        if why == "the operator was not invited":
            why = "is used up"
        with pytest.raises(SutureError, match=why):
            world.authority.sign(Request.read(tmp_path / f"{number}.json"))
    assert len(world.authority.entries()) == before
    honest.write(tmp_path / "honest.json")
    world.authority.sign(Request.read(tmp_path / "honest.json"))
    with pytest.raises(ConfigError, match="used up"):
        world.authority.sign(Request.read(tmp_path / "honest.json"))


def test_certificates_that_are_not_taken(world: World, tmp_path: Path) -> None:
    """Into a kit goes only what its own authority made for its own key and name."""
    kit = world.kit("a", "owner")
    before = (kit.path / "startup" / "client.crt").read_bytes()
    other = Authority.create(tmp_path / "other", "here")
    key = certs.read_key(kit.path / "startup" / "client.key").public_key()
    offered = {
        "is the certificate of owner b": world.authority._certificate(Member("here", Role.OWNER, "b"), key, None),
        "is the certificate of the operator": world.authority._certificate(
            Member("here", Role.OPERATOR, "operator"), key, None
        ),
        "for another key": world.authority._certificate(kit.member, certs.new_key().public_key(), None),
        "another federation": other._certificate(kit.member, key, None),
    }
    for why, certificate in offered.items():
        certs.write_certificate(tmp_path / "offered.crt", certificate)
        with pytest.raises(SutureError, match=why):
            enrolment.install(kit, tmp_path / "offered.crt")
    assert (kit.path / "startup" / "client.crt").read_bytes() == before


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", "..", "", "a\n", "server", "a" * 41, "é", "\x1b[2J"])
def test_names_that_would_be_paths(world: World, tmp_path: Path, name: str) -> None:
    """In an invitation, a request, a register: nothing is written anywhere."""
    path, _ = world.invitations["a"]
    for change in ({"name": name}, {"federation": name}, {"host": f"{name} "}, {"owners": ["a", name]}, {"role": name}):
        file = tmp_path / "changed.json"
        file.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(IntegrityError):
            Invitation.read(file)
    with pytest.raises(ConfigError, match="letters, digits and dashes"):
        world.authority.revoke(name)
    assert [file.name for file in tmp_path.iterdir()] == ["changed.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"[]", b"{}", b"\xff" * 100, b'{"kind": "suture invitation"}', b" " * 1_000_001]
)
def test_files_that_are_something_else(
    content: bytes, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 2, wherever a file of somebody goes in."""
    file = tmp_path / "file"
    file.write_bytes(content)
    folder = str(world.authority.folder)
    for command in (
        ["owner", "enrol", str(file), "--token", "x", "--out", str(tmp_path / "kit")],
        ["owner", "enrol", "--complete", str(world.kits["a"]), str(file)],
        ["federation", "sign", str(file), "--authority", folder, "--out", str(tmp_path / "crt")],
        ["federation", "install", str(world.kits["coordinator"]), str(file)],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_who_is_revoked_is_cut_off_and_stays_out(world: World, tmp_path: Path) -> None:
    """The last of this file: b is no member afterwards."""
    coordinator = world.kit("coordinator", "coordinator")
    startup = world.kits["b"] / "startup"
    first = world.authority.folder / "first.pem"
    with listening(coordinator.path / "startup") as (cell, port), connecting(port, startup, "b"):
        assert wait_until(lambda: reached(cell, "b"), 30)
        noted = refused_with(world, Code.REVOKED_CERTIFICATE)
        assert main(["federation", "revoke", "b", "--authority", str(world.authority.folder), "--out", str(first)]) == 0
        assert main(["federation", "install", str(coordinator.path), str(first)]) == 0
        assert wait_until(noted, 30), "the connection that stood is cut"
        again = refused_with(world, Code.REVOKED_CERTIFICATE)
        assert wait_until(again, 60), "FLARE connects again, and is turned away"
        assert not reached(cell, "b")
    owner = world.kit("b", "owner")
    enrolment.install(owner, first)
    with pytest.raises(Refused, match="is revoked"):
        owner.remarks()
    with pytest.raises(SutureError, match="is revoked"):
        enrolment.renew(owner)
    assert ("b", "revoked") in [(entry.member.name, entry.state) for entry in world.authority.entries()]
    world.authority.revoke("a")
    enrolment.install(coordinator, world.authority.folder / "revoked.pem")
    with pytest.raises(IntegrityError, match="older"):
        enrolment.install(coordinator, first)
    forged = Authority.create(tmp_path / "forged", "here")
    forged.issue(Member("here", Role.OWNER, "a"), certs.new_key().public_key())
    with pytest.raises(IntegrityError, match="not signed by this federation's authority"):
        enrolment.install(coordinator, forged.revoke("a"))
    assert isinstance(coordinator.trust.root, x509.Certificate) and len(coordinator.trust.revoked.serials) == 2

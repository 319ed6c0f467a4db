"""The authority of a federation: the one key that says who is a member. It can stay offline; files go in and out.

    authority/root.key         signs; readable by its keeper only
    authority/rootCA.pem       in every kit: by it members know each other
    authority/register.jsonl   every invitation, certificate and revocation, each line bound to those before it
    authority/revoked.pem      the newest list of revoked certificates, for every kit

It never sees a member's private key: it gets a request (`requests`), which must be for a name that was invited, or come from
who holds the certificate that is to be renewed.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from suture.core.chained import ChainedFile, Line
from suture.core.storage import disk_errors, write_atomically
from suture.errors import ConfigError, IntegrityError
from suture.federation.flare import certificates as certs
from suture.federation.flare.certificates import Member, Role
from suture.federation.flare.requests import Invitation, Request, check_of, key_of, new_token
from suture.federation.pem import REVOKED, ROOT, common_name

OPERATOR = "operator@suture.local"
"""FLARE's name of the operator; no owner can be called so."""
OPERATORS_RIGHTS = "project_admin"
"""FLARE's role of who may submit jobs."""
VALID = timedelta(days=360)
ROOT_VALID = timedelta(days=5 * 365)
CLOCKS_DIFFER = timedelta(minutes=10)
KEY, REGISTER = "root.key", "register.jsonl"


@dataclass(frozen=True)
class Entry:
    """One certificate, or one open invitation, in the register."""

    member: Member
    serial: int | None
    expires: str
    state: str


class Authority:
    """The folder with the federation's own key."""

    def __init__(self, folder: Path) -> None:
        if not (folder / KEY).exists():
            raise ConfigError(
                f"{folder} is not the folder of a federation's authority; `suture federation create` makes one"
            )
        self.folder = folder
        self.root = certs.read_certificate(folder / ROOT)
        self.federation = common_name(self.root)
        self._register = ChainedFile(folder / REGISTER, "register of certificates")

    @staticmethod
    def create(folder: Path, federation: str) -> Authority:
        """A new key, and its own certificate."""
        with disk_errors("write", folder):
            folder.mkdir(parents=True)
            folder.chmod(0o700)
        key = certs.new_key()
        certs.write_key(folder / KEY, key)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation)])
        now = datetime.now(UTC)
        builder = _begun(name, name, key.public_key(), key, now + ROOT_VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_others=True), critical=True)
        certs.write_certificate(folder / ROOT, builder.sign(key, hashes.SHA256()))
        return Authority(folder)

    def invite(self, name: str, host: str, port: int, scheme: str, owners: Sequence[str]) -> tuple[Invitation, str]:
        """An invitation, which is no secret, and the token that whoever enrols must have too, which is one."""
        member = self._member(Role.OWNER, name)
        token = new_token()

        def noted(lines: Sequence[Line]) -> list[Line]:
            if any(entry.state == "valid" and entry.member == member for entry in self._entries(lines)):
                raise ConfigError(f"{member} has a certificate that is valid; revoke it first, or renew it from its kit")
            return [{"event": "invited", "name": name, "role": member.role.value, "key": key_of(member, token).hex()}]

        self._register.append_if(noted)
        made = Invitation(member, host, port, scheme, tuple(owners), certs.pem(self.root).decode(), check_of(member, token))
        return made, token

    def issue(self, member: Member, key: rsa.RSAPublicKey, host: str | None = None) -> x509.Certificate:
        """A certificate for a key that was made where this authority is."""
        made = self._certificate(member, key, host)
        self._register.append(_signed(member, made, "made here"))
        return made

    def sign(self, request: Request, revoke_old: bool = False) -> x509.Certificate:
        """A certificate for a key that this authority never sees, if the request may be believed."""
        made: list[x509.Certificate] = []
        member = self._member(request.member.role, request.member.name)
        if request.member != member:
            raise ConfigError(f"this is a request to the federation {request.member.federation}, not to {self.federation}")
        key = request.checked_key()

        def decided(lines: Sequence[Line]) -> list[Line]:
            self._not_anothers(key, member, lines)
            host = None
            if request.certificate is None:
                self._invited(request, lines)
            else:
                host = self._renewed(request, request.certificate, lines)
            made.append(self._certificate(member, key, host))
            added = [_signed(member, made[0], "invitation" if request.certificate is None else "renewal")]
            if request.certificate is not None and revoke_old:
                added.append(self._revocation(member, [request.certificate.serial_number], lines))
            return added

        lines = self._register.append_if(decided)
        if revoke_old:
            self._write_list(lines)
        return made[0]

    def revoke(self, name: str) -> Path:
        """Every certificate of this name, from now on, wherever the new list is; where the list is."""
        role = Role(name) if name in (Role.COORDINATOR, Role.OPERATOR) else Role.OWNER
        member = self._member(role, name)

        def decided(lines: Sequence[Line]) -> list[Line]:
            valid = [e.serial for e in self._entries(lines) if e.member == member and e.state == "valid" and e.serial]
            if not valid:
                raise ConfigError(f"{member} has no certificate that is valid; `suture federation certificates` lists them")
            return [self._revocation(member, valid, lines)]

        self._write_list(self._register.append_if(decided))
        return self.folder / REVOKED

    def entries(self) -> list[Entry]:
        """Everything in the register, in its order."""
        return self._entries(self._register.verified())

    def _member(self, role: Role, name: str) -> Member:
        if not certs.is_name(role, name):
            raise ConfigError(f"an owner's name is letters, digits and dashes, and not reserved, got {name!r}")
        return Member(self.federation, role, name)

    def _invited(self, request: Request, lines: Iterable[Line]) -> None:
        """An invitation counts once."""
        events = [line for line in lines if line["name"] == request.member.name and line["role"] == request.member.role]
        events = [line for line in events if line["event"] in ("invited", "signed")]
        if not events:
            raise ConfigError(f"{request.member} was not invited to {self.federation}")
        if events[-1]["event"] == "signed":
            raise ConfigError(
                f"the invitation of {request.member} is used up: it got its certificate on it; "
                "it can renew that from its kit, or be revoked and invited again"
            )
        if not hmac.compare_digest(
            request.proof, hmac.digest(bytes.fromhex(str(events[-1]["key"])), request.signed_part(), "sha256")
        ):
            raise ConfigError(
                f"the request of {request.member} was not made with the token of its newest invitation, or was changed "
                "since; nothing is signed"
            )

    def _renewed(self, request: Request, old: x509.Certificate, lines: Sequence[Line]) -> str | None:
        """Whoever renews must hold the key of a certificate that counts; returns a coordinator's host."""
        known = {entry.serial: entry for entry in self._entries(lines)}.get(old.serial_number)
        certs.Trust(self.folder, self.federation).check(old, [request.member.role])
        if known is None or known.member != request.member or certs.member_of(old) != request.member:
            raise ConfigError(f"the request is not by {request.member} itself: the certificate it renews is another's")
        if not request.signed_by(old.public_key()):
            raise ConfigError(
                f"the request of {request.member} is not signed with the key of its certificate; nothing is signed"
            )
        return next(iter(certs.hosts_of(old)), None)

    def _not_anothers(self, key: rsa.RSAPublicKey, member: Member, lines: Iterable[Line]) -> None:
        print_of = certs.fingerprint(key)
        for line in lines:
            if line.get("fingerprint") == print_of and (line["name"], line["role"]) != (member.name, member.role.value):
                raise ConfigError(
                    f"the key of this request is that of {line['role']} {line['name']}; each member has its own"
                )

    def _certificate(self, member: Member, key: rsa.RSAPublicKey, host: str | None) -> x509.Certificate:
        if self.root.not_valid_after_utc <= datetime.now(UTC):
            raise ConfigError(
                f"the authority of {self.federation} ended on {certs.expiry(self.root)}; make a new federation"
            )
        server = member.role is Role.COORDINATOR
        if server and not host:
            raise IntegrityError("a coordinator's certificate must say under which name it is reached")
        end = min(datetime.now(UTC) + VALID, self.root.not_valid_after_utc)
        builder = _begun(_subject(member, host), self.root.subject, key, self._key(), end)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(member.uri)]
        use = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        if server:
            names.append(_host(str(host)))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        return builder.add_extension(_usage(signs_others=False), critical=True).sign(self._key(), hashes.SHA256())

    def _key(self) -> rsa.RSAPrivateKey:
        return certs.read_key(self.folder / KEY)

    def _revocation(self, member: Member, serials: Sequence[int], lines: Sequence[Line]) -> Line:
        number = 1 + sum(line["event"] == "revoked" for line in lines)
        whose: Line = {"event": "revoked", "name": member.name, "role": member.role.value}
        return {**whose, "number": number, "serials": [str(serial) for serial in serials], "time": _now()}

    def _write_list(self, lines: Sequence[Line]) -> None:
        revoked = [line for line in lines if line["event"] == "revoked"]
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.root.subject).last_update(now)
        # The list is handed on by people: it must not end before the federation does.
        builder = builder.next_update(self.root.not_valid_after_utc)
        builder = builder.add_extension(x509.CRLNumber(len(revoked)), critical=False)
        for line in revoked:
            for serial in _list(line["serials"]):
                when = datetime.fromisoformat(str(line["time"]))
                entry = x509.RevokedCertificateBuilder().serial_number(int(str(serial))).revocation_date(when).build()
                builder = builder.add_revoked_certificate(entry)
        write_atomically(self.folder / REVOKED, certs.pem(builder.sign(self._key(), hashes.SHA256())))

    def _entries(self, lines: Iterable[Line]) -> list[Entry]:
        found: list[Entry] = []
        revoked = {str(serial) for line in lines if line["event"] == "revoked" for serial in _list(line["serials"])}
        for line in lines:
            member = Member(self.federation, Role(str(line["role"])), str(line["name"]))
            if line["event"] == "signed":
                serial, end = int(str(line["serial"])), str(line["expires"])
                over = datetime.fromisoformat(end) <= datetime.now(UTC)
                state = "revoked" if str(serial) in revoked else "expired" if over else "valid"
                found = [e for e in found if e.member != member or e.serial is not None]
                found.append(Entry(member, serial, end[:10], state))
            elif line["event"] == "invited":
                found = [e for e in found if e.member != member or e.serial is not None]
                found.append(Entry(member, None, "", "invited"))
        return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _signed(member: Member, made: x509.Certificate, how: str) -> Line:
    return {
        "event": "signed",
        "name": member.name,
        "role": member.role.value,
        "serial": str(made.serial_number),
        "expires": made.not_valid_after_utc.isoformat(),
        "fingerprint": certs.fingerprint(made.public_key()),
        "how": how,
        "time": _now(),
    }


def _subject(member: Member, host: str | None) -> x509.Name:
    """FLARE knows a coordinator by its host, and what a user may do by its unstructured name."""
    common = {Role.COORDINATOR: str(host), Role.OPERATOR: OPERATOR, Role.OWNER: member.name}[member.role]
    company = organisation(member.name) if member.role is Role.OWNER else "coordinator"
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common), x509.NameAttribute(NameOID.ORGANIZATION_NAME, company)]
    if member.role is Role.OPERATOR:
        names.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, OPERATORS_RIGHTS))
    return x509.Name(names)


def organisation(owner: str) -> str:
    """FLARE allows no dashes there."""
    return owner.replace("-", "_").replace(".", "_")


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey, signer: rsa.RSAPrivateKey, end: datetime
) -> x509.CertificateBuilder:
    """What all certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCKS_DIFFER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _usage(signs_others: bool) -> x509.KeyUsage:
    """An authority signs certificates and lists and nothing else; a member signs for itself and certifies nobody."""
    return x509.KeyUsage(
        digital_signature=not signs_others,
        content_commitment=False,
        key_encipherment=not signs_others,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        encipher_only=False,
        decipher_only=False,
    )

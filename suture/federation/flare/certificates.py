"""Who a certificate is for, and whether it still counts.

Every certificate of a federation names one member, in a URI among its alternative names, beside the common name that FLARE
reads:

    suture:FEDERATION/ROLE/NAME          such as suture:heart/owner/clinic-a

and the use of its key: servers for the coordinator, clients for owners and the operator. So TLS itself refuses an owner's
certificate in the coordinator's place; what is more to check (federation, role, name, revocation) is `Trust.check`.

Revocation is an X.509 list (RFC 5280, section 5) that the federation's authority signs, in a kit's `startup/revoked.pem`.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from suture.core.storage import disk_errors, write_atomically
from suture.errors import IntegrityError
from suture.federation.pem import REVOKED, ROOT, SCHEME, Revocations, certificate_in, common_name, read_small, uris_in
from suture.federation.wire.reasons import Code, Refused

KEY_BITS = 3072
FEWEST_BITS = 2048
EXPONENT = 65537
WARNED_BEFORE = timedelta(days=30)
FEDERATION = re.compile(r"[a-z][a-z0-9-]{0,39}")
OWNER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")
"""An owner may be called as in its tables, such as DE."""
RESERVED = {"coordinator", "operator", "authority", "server"}


class Role(StrEnum):
    """What a member of a federation is."""

    COORDINATOR = "coordinator"
    OPERATOR = "operator"
    OWNER = "owner"


@dataclass(frozen=True)
class Member:
    """For whom a certificate is made out."""

    federation: str
    role: Role
    name: str

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{SCHEME}:{self.federation}/{self.role}/{self.name}"

    @staticmethod
    def read(uri: str) -> Member | None:
        """The member of a URI; None if it is something else."""
        scheme, _, rest = uri.partition(":")
        federation, role, name = rest.split("/") if rest.count("/") == 2 else ("", "", "")
        known = scheme == SCHEME and FEDERATION.fullmatch(federation) and role in set(Role) and is_name(Role(role), name)
        return Member(federation, Role(role), name) if known else None

    def __str__(self) -> str:
        return f"{self.role} {self.name}" if self.role is Role.OWNER else f"the {self.role}"


def is_name(role: Role, name: str) -> bool:
    """Whether a member of this role may be called so; names become folders."""
    if role is not Role.OWNER:
        return name == role.value
    return bool(OWNER.fullmatch(name)) and name.lower() not in RESERVED


def pair_of(role: Role, startup: Path) -> tuple[Path, Path]:
    """Where FLARE looks for a party's certificate and its private key."""
    base = "server" if role is Role.COORDINATOR else "client"
    return startup / f"{base}.crt", startup / f"{base}.key"


def new_key() -> rsa.RSAPrivateKey:
    """RSA: FLARE signs with nothing else."""
    return rsa.generate_private_key(public_exponent=EXPONENT, key_size=KEY_BITS)


def write_key(path: Path, key: rsa.RSAPrivateKey) -> None:
    """For its owner's eyes only, from the first byte on."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    beside = path.with_name(f".{path.name}.part")
    with disk_errors("write", path):
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


def read_key(path: Path) -> rsa.RSAPrivateKey:
    """A private key of ours, or one sentence."""
    try:
        key = serialization.load_pem_private_key(read_small(path), None)
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{path} is no private key; it is damaged, or encrypted") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise IntegrityError(f"{path} is no RSA key, and FLARE signs with nothing else")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file."""
    return certificate_in(read_small(path), path)


def pem(certificate: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """As it lies in files."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def member_of(certificate: x509.Certificate) -> Member | None:
    """For whom a certificate is; None if it does not say so, or says it in two ways."""
    uris = uris_in(certificate)
    member = Member.read(uris[0]) if len(uris) == 1 else None
    if member is not None and member.role is Role.OWNER and common_name(certificate) != member.name:
        return None  # FLARE knows a client by its common name
    return member


def hosts_of(certificate: x509.Certificate) -> set[str]:
    """Under which names and addresses a coordinator may be reached."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return {name.lower() for name in names.get_values_for_type(x509.DNSName)} | addresses


def fingerprint(key: object) -> str:
    """SHA-256 of a public key."""
    if not isinstance(key, rsa.RSAPublicKey):
        raise IntegrityError("only RSA keys are used here: FLARE signs with nothing else")
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def expiry(certificate: x509.Certificate) -> str:
    """Until when, as a date."""
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


NONE_REVOKED = Revocations(0, frozenset())


@dataclass(frozen=True)
class Trust:
    """Whom a party of a federation believes: the authority's certificate, and its list of revoked ones."""

    startup: Path
    federation: str

    @property
    def root(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(self.startup / ROOT)

    @property
    def revoked(self) -> Revocations:
        """As the file is now: the list can be changed while a party runs."""
        path = self.startup / REVOKED
        if not path.exists():
            return NONE_REVOKED
        with disk_errors("read", path):
            state = path.stat()
        return _revoked(path, self.startup / ROOT, state.st_mtime_ns, state.st_ino)

    def check(self, certificate: x509.Certificate, roles: Collection[Role], host: str | None = None) -> Member:
        """The member whose certificate this is; `Refused`, with the reason, where it does not count for these roles."""
        try:
            certificate.verify_directly_issued_by(self.root)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise Refused("a certificate of another federation", Code.UNKNOWN_CERTIFICATE) from error
        member = member_of(certificate)
        if member is None:
            raise Refused(
                "a certificate that names no member; kits of earlier versions must be made anew", Code.WRONG_CERTIFICATE
            )
        if member.federation != self.federation:
            raise Refused(f"a certificate of the federation {member.federation}", Code.UNKNOWN_CERTIFICATE)
        if certificate.serial_number in self.revoked.serials:
            raise Refused(f"the certificate of {member} is revoked", Code.REVOKED_CERTIFICATE)
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            raise Refused(f"the certificate of {member} is not valid now", Code.EXPIRED_CERTIFICATE)
        if member.role not in roles:
            expected = " or ".join(sorted(roles))
            raise Refused(f"the certificate of {member}, where one of the {expected} belongs", Code.WRONG_CERTIFICATE)
        if host is not None and host.lower() not in hosts_of(certificate):
            raise Refused(f"the certificate of {member} is not for the host {host}", Code.WRONG_CERTIFICATE)
        return member


@lru_cache(maxsize=8)
def _revoked(path: Path, root: Path, changed: int, inode: int) -> Revocations:
    """Read again only where the file is another one: it is asked for at every connection."""
    return Revocations.read(read_small(path), read_certificate(root), path)


def own_remarks(trust: Trust, member: Member) -> list[str]:
    """What a party should know of its own certificate before it starts; `Refused` or another sentence if it cannot start."""
    path, key_path = pair_of(member.role, trust.startup)
    if not path.exists():
        raise Refused(
            f"this kit has no certificate yet: let the authority sign its request, then put it in with "
            f"`suture federation install {trust.startup.parent} FILE`",
            Code.NO_CERTIFICATE,
        )
    certificate = read_certificate(path)
    if fingerprint(certificate.public_key()) != fingerprint(read_key(key_path).public_key()):
        raise Refused(f"{path} is not the certificate of {key_path}", Code.WRONG_CERTIFICATE)
    try:
        named = trust.check(certificate, [member.role])
    except Refused as error:
        hint = (
            f"; it ended on {expiry(certificate)}: ask the authority for an invitation"
            if error.code is Code.EXPIRED_CERTIFICATE
            else ""
        )
        raise Refused(f"{trust.startup.parent} cannot be used: {error}{hint}", error.code) from error
    if named != member:
        raise Refused(f"{path} is the certificate of {named}, not of {member}", Code.WRONG_CERTIFICATE)
    remarks = []
    if certificate.not_valid_after_utc - datetime.now(UTC) < WARNED_BEFORE:
        verb = "owner" if member.role is Role.OWNER else "federation"
        remarks.append(
            f"the certificate of {member} ends on {expiry(certificate)}; "
            f"renew it with `suture {verb} renew {trust.startup.parent}`"
        )
    with disk_errors("look at", key_path):
        if key_path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            remarks.append(f"others on this machine may read the private key {key_path}; chmod 600 it")
    return remarks


def certificate_shown(host: str, port: int, startup: Path, seconds: float = 5.0) -> x509.Certificate:
    """What a server shows to the client whose key and certificate are in `startup`; `OSError` where TLS refuses it."""
    context = ssl.create_default_context(cafile=startup / ROOT)
    context.check_hostname = False  # `Trust.check` says it in our words
    context.load_cert_chain(*pair_of(Role.OWNER, startup))
    with (
        socket.create_connection((host, port), timeout=seconds) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Whole or not at all."""
    write_atomically(path, pem(certificate))

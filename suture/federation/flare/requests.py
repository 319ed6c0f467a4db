"""What travels between a member and the authority, as files that may pass through anybody's hands.

An invitation holds no secret: whoever wants to use it needs the token too, which goes another way (a call, a message). A
request holds the public key, and what binds it to the token (HMAC, RFC 2104) or, to renew, to the key of the certificate
that ends. Whoever changes a request on its way has neither, so the authority does not sign it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from suture.core.storage import write_json
from suture.errors import ConfigError, IntegrityError
from suture.federation.flare import certificates as certs
from suture.federation.flare.certificates import Member, Role
from suture.federation.pem import SCHEME, certificate_in, common_name, read_small

INVITATION, REQUEST = "suture invitation", "suture certificate request"
HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
LONGEST_HOST = 64
"""More does not fit a certificate's common name, by which FLARE knows a coordinator."""
SCHEMES = ("tcp", "http", "grpc")
MOST_OWNERS = 10_000


def new_token() -> str:
    """128 random bits, in groups that can be read out on the telephone."""
    letters = base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
    return "-".join(letters[at : at + 4] for at in range(0, len(letters), 4))


def key_of(member: Member, token: str) -> bytes:
    """What a request is authenticated with."""
    return _derived("key", member, token)


def check_of(member: Member, token: str) -> str:
    """Tells an owner that it has mistyped its token, and nobody what the token is."""
    return _derived("check", member, token).hex()


def _derived(what: str, member: Member, token: str) -> bytes:
    plain = re.sub(r"[^a-z0-9]", "", token.lower())
    return hashlib.sha256("\n".join(["suture enrolment", what, member.uri, plain]).encode()).digest()


@dataclass(frozen=True)
class Invitation:
    """All that an owner needs to make its own kit, but the token."""

    member: Member
    host: str
    port: int
    scheme: str
    owners: tuple[str, ...]
    root: str
    check: str

    def write(self, path: Path) -> None:
        """As a file that may be seen by others."""
        member = {"federation": self.member.federation, "role": self.member.role.value, "name": self.member.name}
        where = {"host": self.host, "port": self.port, "scheme": self.scheme, "owners": list(self.owners)}
        write_json(path, {"kind": INVITATION, **member, **where, "root": self.root, "token_check": self.check})

    @staticmethod
    def read(path: Path) -> Invitation:
        """Somebody's file: everything in it is checked."""
        content = _object(path, INVITATION)
        member = _member(content, path)
        host, port, scheme, owners = (content.get(key) for key in ("host", "port", "scheme", "owners"))
        if not (
            isinstance(host, str) and is_host(host) and isinstance(port, int) and 0 < port < 65536 and scheme in SCHEMES
        ):
            raise IntegrityError(f"the invitation {path} does not say where the coordinator is; ask for a new one")
        names = owners if isinstance(owners, list) and len(owners) <= MOST_OWNERS else []
        known = tuple(name for name in names if isinstance(name, str) and certs.is_name(Role.OWNER, name))
        if member.role is not Role.OWNER or len(known) < len(names) or member.name not in known:
            raise IntegrityError(f"the invitation {path} is not for one of the owners it names; ask for a new one")
        root, check = _text(content, "root", path), _text(content, "token_check", path)
        invitation = Invitation(member, host, port, str(scheme), known, root, check)
        certificate = certificate_in(invitation.root.encode(), path)
        _check_root(certificate, member.federation, path)
        return invitation


def is_host(host: str) -> bool:
    """A name or address under which a coordinator can be reached."""
    return len(host) <= LONGEST_HOST and HOST.fullmatch(host) is not None


def _check_root(root: x509.Certificate, federation: str, path: Path) -> None:
    """It signs itself, may sign others, and is called as the federation."""
    try:
        root.verify_directly_issued_by(root)
        signs = root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        signs = False
    if not signs or common_name(root) != federation:
        raise IntegrityError(f"the certificate in {path} is not that of the authority of {federation}")


@dataclass(frozen=True)
class Request:
    """A member's wish for a certificate: its public key, its name, and why it may be believed."""

    member: Member
    request: x509.CertificateSigningRequest
    proof: bytes
    certificate: x509.Certificate | None = None
    """The one to renew; without it the proof is by an invitation's token."""

    @staticmethod
    def made(member: Member, key: rsa.RSAPrivateKey) -> x509.CertificateSigningRequest:
        """Signed with the key it is for (PKCS #10, RFC 2986)."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member.name)])
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(member.uri)])
        builder = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(names, critical=False)
        return builder.sign(key, hashes.SHA256())

    @staticmethod
    def by_token(member: Member, key: rsa.RSAPrivateKey, token: str) -> Request:
        """The first one, on an invitation."""
        made = Request.made(member, key)
        return Request(member, made, hmac.digest(key_of(member, token), _bytes(made), "sha256"))

    @staticmethod
    def by_certificate(
        member: Member, key: rsa.RSAPrivateKey, old: rsa.RSAPrivateKey, certificate: x509.Certificate
    ) -> Request:
        """A later one: the key that ends speaks for the one that begins."""
        made = Request.made(member, key)
        return Request(member, made, old.sign(_bytes(made), _padding(), hashes.SHA256()), certificate)

    def signed_part(self) -> bytes:
        """What the proof is for."""
        return _bytes(self.request)

    def signed_by(self, key: object) -> bool:
        """Whether the proof is a signature with this key."""
        if not isinstance(key, rsa.RSAPublicKey):
            return False
        try:
            key.verify(self.proof, self.signed_part(), _padding(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True

    def checked_key(self) -> rsa.RSAPublicKey:
        """The public key, if its owner has it, it is strong enough, and the request is for one name only."""
        key = self.request.public_key()
        if (
            not isinstance(key, rsa.RSAPublicKey)
            or key.key_size < certs.FEWEST_BITS
            or key.public_numbers().e != certs.EXPONENT
        ):
            raise ConfigError(
                f"the key of {self.member} is too weak or of another kind: RSA of {certs.FEWEST_BITS} bits or more is needed"
            )
        try:
            names = self.request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except (ValueError, x509.ExtensionNotFound):
            uris = []
        if not self.request.is_signature_valid or uris != [self.member.uri]:
            raise ConfigError(
                f"the request is not by {self.member}: what is signed in it says something else; nothing is signed"
            )
        return key

    def write(self, path: Path) -> None:
        """As a file that may be seen by others."""
        member = {"federation": self.member.federation, "role": self.member.role.value, "name": self.member.name}
        text = self.request.public_bytes(serialization.Encoding.PEM).decode()
        old = {} if self.certificate is None else {"certificate": certs.pem(self.certificate).decode()}
        write_json(path, {"kind": REQUEST, **member, "request": text, "proof": self.proof.hex(), **old})

    @staticmethod
    def read(path: Path) -> Request:
        """Somebody's file: what it claims is for the authority to check."""
        content = _object(path, REQUEST)
        member = _member(content, path)
        try:
            request = x509.load_pem_x509_csr(_text(content, "request", path).encode())
            proof = bytes.fromhex(_text(content, "proof", path))
            request.public_key()
        except ValueError as error:
            raise IntegrityError(f"the request {path} cannot be read; let its member make it again") from error
        old = certificate_in(_text(content, "certificate", path).encode(), path) if "certificate" in content else None
        return Request(member, request, proof, old)


def _bytes(request: x509.CertificateSigningRequest) -> bytes:
    return request.public_bytes(serialization.Encoding.DER)


def _padding() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _object(path: Path, kind: str) -> dict[str, object]:
    try:
        content = json.loads(read_small(path))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is no {kind}: it is not valid JSON") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise IntegrityError(f"{path} is no {kind}")
    return content


def _member(content: dict[str, object], path: Path) -> Member:
    """Names become folders, so they are checked before anything else is done with them."""
    named = [content.get(key) for key in ("federation", "role", "name")]
    member = Member.read(f"{SCHEME}:{'/'.join(map(str, named))}") if all(isinstance(part, str) for part in named) else None
    if member is None:
        raise IntegrityError(f"{path} names a federation, role or member that cannot be: {named!r}"[:300])
    return member


def _text(content: dict[str, object], key: str, path: Path) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise IntegrityError(f"{path} has no {key!r}")
    return value

"""Who a party is: the key and the certificate of its start-up kit, with which it signs, and by which it knows the others.

An owner believes another owner's signature if the certificate that comes with it

- was issued by the authority whose certificate is in the own kit, and is valid now;
- is not in the authority's signed X.509 list of revoked certificates, `startup/revoked.pem`, if there is one;
- is made out to an owner of this name: it says so in an alternative name, `suture:FEDERATION/owner/NAME`. Where the own
  certificate says nothing of the kind, being one of FLARE's provisioning, others need not either; the common name must then
  be one of the owners that the kit lists, for a coordinator's certificate looks the same.

RSA (PSS), elliptic curve and Ed25519 keys are understood; FLARE makes RSA keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from suture.core.storage import read_json
from suture.errors import IntegrityError
from suture.federation.pem import REVOKED, ROOT, SCHEME, Revocations, certificate_in, common_name, read_small, uris_in

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
STARTUP, ABOUT = "startup", "about.json"
CERTIFICATE, KEY = "client.crt", "client.key"
OURS = f"{SCHEME}:"
OWNER = "owner"
LARGEST = 20_000
"""Characters of a certificate; those of federations have 2,000."""
PSS = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=32)


@dataclass(frozen=True)
class Title:
    """For whom a certificate is made out."""

    name: str
    role: str | None
    """None: it does not say."""
    federation: str | None

    @staticmethod
    def of(certificate: x509.Certificate) -> Title:
        """As the certificate says; one that says two things says nothing."""
        common = common_name(certificate)
        ours = [uri for uri in uris_in(certificate) if uri.startswith(OURS)]
        if not ours:
            return Title(common, None, None)
        parts = ours[0].removeprefix(OURS).split("/")
        if len(ours) != 1 or len(parts) != 3 or parts[2] != common:
            return Title("", "", "")
        return Title(common, parts[1], parts[0])


@dataclass(frozen=True)
class Identity:
    """One owner, and whom it believes."""

    name: str
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate
    root: x509.Certificate
    revoked: frozenset[int] = frozenset()
    """Serial numbers that do not count any more."""
    owners: tuple[str, ...] = ()
    """Owners that the kit lists, for certificates that do not tell an owner's from a coordinator's."""

    @staticmethod
    def of_kit(path: Path) -> Identity:
        """That of a start-up kit, or one sentence."""
        startup = path / STARTUP
        certificate, root = (certificate_in(read_small(file), file) for file in (startup / CERTIFICATE, startup / ROOT))
        try:
            key = serialization.load_pem_private_key(read_small(startup / KEY), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IntegrityError(f"{startup / KEY} is not a private key; it is damaged, enrol again") from error
        if not isinstance(key, PrivateKey) or key.public_key() != certificate.public_key():
            raise IntegrityError(f"{startup / KEY} is not the key of {startup / CERTIFICATE}; enrol again")
        listed = read_json(path / ABOUT, "start-up kit").get("owners") if (path / ABOUT).exists() else []
        owners = tuple(map(str, listed)) if isinstance(listed, list) else ()
        return Identity(Title.of(certificate).name, key, certificate, root, _revoked(startup / REVOKED, root), owners)

    @property
    def pem(self) -> str:
        """The certificate as it travels."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, data: bytes) -> bytes:
        """A signature that others check with the certificate."""
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(data, PSS, SHA256())
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(data, ec.ECDSA(SHA256()))
        return self.key.sign(data)

    def verify(self, name: str, certificate: str, data: bytes, signature: bytes) -> None:
        """Nothing, if the owner `name` of this federation has signed `data`; else one sentence about that owner."""
        theirs = _certificate(certificate)
        self._check(name, theirs)
        check_signature(name, theirs, data, signature)

    def _check(self, name: str, theirs: x509.Certificate) -> None:
        try:
            theirs.verify_directly_issued_by(self.root)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IntegrityError(f"the certificate of {name} is not from this federation's authority") from error
        if not theirs.not_valid_before_utc <= datetime.now(UTC) <= theirs.not_valid_after_utc:
            raise IntegrityError(f"the certificate of {name} is not valid now")
        if theirs.serial_number in self.revoked:
            raise IntegrityError(f"the certificate of {name} is revoked")
        mine, title = Title.of(self.certificate), Title.of(theirs)
        known = title.role == OWNER if mine.role is not None else title.role is None and name in self.owners
        if title.name != name or title.federation != mine.federation or not known:
            raise IntegrityError(f"the certificate that came for {name} is not that of an owner of this name")


def check_signature(name: str, certificate: x509.Certificate | str, data: bytes, signature: bytes) -> None:
    """Whether a certificate's key has signed this; whose certificate it is, is another question."""
    theirs = _certificate(certificate) if isinstance(certificate, str) else certificate
    key = theirs.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, PSS, SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        else:
            raise IntegrityError(f"the certificate of {name} has a key of a kind that is not used here")
    except InvalidSignature as error:
        raise IntegrityError(f"{name} has not signed what came in its name") from error


def _certificate(text: str) -> x509.Certificate:
    """One certificate in PEM, as it came."""
    if len(text) > LARGEST:
        raise IntegrityError("a certificate is larger than any of a federation")
    return certificate_in(text.encode(), "what should be a certificate")


def _revoked(path: Path, root: x509.Certificate) -> frozenset[int]:
    """Serial numbers in the authority's list; a list that somebody else has signed is no list."""
    return Revocations.read(read_small(path), root, path).serials if path.exists() else frozenset()

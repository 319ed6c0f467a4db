"""Certificates and lists of revoked ones as they lie in files and come from others: read, or refused in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from suture.core.storage import disk_errors
from suture.errors import IntegrityError

SCHEME = "suture"
ROOT = "rootCA.pem"
REVOKED = "revoked.pem"
LARGEST_FILE = 1_000_000
"""Bytes. Nothing that belongs to a federation's keys is near it."""
SIGNING = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
"""What an authority may sign with."""


def read_small(path: Path) -> bytes:
    """A file that somebody handed over: read only if it can be what it should be."""
    with disk_errors("read", path), path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise IntegrityError(f"{path} is larger than anything that belongs to a federation's keys")
    return content


def certificate_in(content: bytes, where: object) -> x509.Certificate:
    """The one certificate of a PEM text, or one sentence."""
    try:
        certificates = x509.load_pem_x509_certificates(content)
        # Both are read late otherwise, and then it raises where nobody expects it.
        certificates[0].extensions  # noqa: B018
        certificates[0].public_key()
    except (ValueError, TypeError, IndexError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise IntegrityError(f"{where} holds no certificate that can be read") from error
    if len(certificates) > 1:
        raise IntegrityError(f"{where} holds {len(certificates)} certificates, expected is one")
    return certificates[0]


def common_name(certificate: x509.Certificate) -> str:
    """By which FLARE knows a party."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def uris_in(certificate: x509.Certificate) -> list[str]:
    """The URIs among its alternative names, one of which says for whom it is: `suture:FEDERATION/ROLE/NAME`."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


@dataclass(frozen=True)
class Revocations:
    """The authority's list of certificates that do not count any more."""

    number: int
    serials: frozenset[int]

    @staticmethod
    def read(content: bytes, root: x509.Certificate, where: object) -> Revocations:
        """A list that this federation's authority has signed, or one sentence."""
        try:
            signed = x509.load_pem_x509_crl(content)
            number = signed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            serials = frozenset(entry.serial_number for entry in signed)
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
            raise IntegrityError(f"{where} holds no list of revoked certificates that can be read") from error
        key = root.public_key()
        if signed.issuer != root.subject or not isinstance(key, SIGNING) or not signed.is_signature_valid(key):
            raise IntegrityError(f"the list of revoked certificates {where} is not signed by this federation's authority")
        return Revocations(number, serials)

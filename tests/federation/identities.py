"""Certificates for owners that have no start-up kit of FLARE's: an authority, its kits, its list of revoked ones."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
DAY = timedelta(days=1)


class Authority:
    """Signs certificates, good ones and others."""

    def __init__(self, federation: str = "trial") -> None:
        self.federation, self.key = federation, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation)])
        self.root = self._built(self.name, self.key.public_key(), DAY, 100 * DAY).sign(self.key, hashes.SHA256())
        self.revoked: list[int] = []

    def _built(self, subject: x509.Name, key, before: timedelta, after: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - before).not_valid_after(now + after)

    def certificate(self, name: str, key: Key, title: str | None, after: timedelta = 10 * DAY) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._built(subject, key.public_key(), 20 * DAY, after)
        if title is not None:
            made = made.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(title)]), False)
        return made.sign(self.key, hashes.SHA256())

    def kit(
        self, folder: Path, name: str, key: Key | None = None, role: str | None = "owner", after: timedelta = 10 * DAY
    ) -> Path:
        """A start-up kit, as far as an owner's identity is in it."""
        key = key or ed25519.Ed25519PrivateKey.generate()
        title = f"suture:{self.federation}/{role}/{name}" if role else None
        startup = folder / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        certificate = self.certificate(name, key, title, after)
        encoding = serialization.Encoding.PEM
        (startup / "client.crt").write_bytes(certificate.public_bytes(encoding))
        (startup / "rootCA.pem").write_bytes(self.root.public_bytes(encoding))
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (startup / "client.key").write_bytes(key.private_bytes(encoding, *plain))
        return folder

    def revoke(self, kit: Path, *at: Path) -> None:
        """Put a kit's certificate on the list, and the list into these kits."""
        self.revoked.append(x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes()).serial_number)
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(now).next_update(now + DAY)
        for serial in self.revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            made = made.add_revoked_certificate(entry)
        made = made.add_extension(x509.CRLNumber(len(self.revoked)), False)
        listed = made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        for one in at:
            (one / "startup" / "revoked.pem").write_bytes(listed)


@cache
def _trial() -> tuple[Authority, Path]:
    folder = Path(tempfile.mkdtemp(prefix="suture-kits-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Authority(), folder


@cache
def kit_of(owner: str) -> Path:
    """The kit of an owner of the trial federation, made once; do not write into it."""
    authority, folder = _trial()
    return authority.kit(folder / owner, owner)

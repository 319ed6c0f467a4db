"""A member makes its own key, asks for a certificate, and puts what the authority made into its kit.

The private key is made in the kit and stays there; what leaves is a request (`requests`). To renew, the new key waits beside
the old one until its certificate has come, so that the member can go on meanwhile.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from cryptography import x509

from suture.core.storage import disk_errors, staged_folder, write_atomically
from suture.errors import ConfigError, IntegrityError
from suture.federation.flare import certificates as certs
from suture.federation.flare.certificates import Role
from suture.federation.flare.kits import JobClasses, Kit, harden
from suture.federation.flare.provisioning import planned, unpack
from suture.federation.flare.requests import Invitation, Request, check_of
from suture.federation.pem import REVOKED, ROOT, Revocations, certificate_in, read_small

WAITING = ".new"
"""Behind the name of a key whose certificate has not come yet."""
REQUEST = "request.json"
LIST_OF_REVOKED = b"-----BEGIN X509 CRL-----"


def begin(invitation: Invitation, token: str, out: Path, jobs: JobClasses) -> Path:
    """Make a kit with a new key in `out`; returns the request that is to be sent to the authority."""
    member = invitation.member
    if not hmac.compare_digest(check_of(member, token), invitation.check):
        raise ConfigError(f"this is not the token of the invitation of {member}; it is in groups of four letters and digits")
    if out.exists():
        raise ConfigError(f"{out} exists already; choose a new folder for the kit")
    key = certs.new_key()
    with staged_folder(out) as folder:
        kit = unpack(folder, planned(invitation), [member], jobs)[member.name]
        write_atomically(kit / "startup" / ROOT, invitation.root.encode())
        certs.write_key(certs.pair_of(member.role, kit / "startup")[1], key)
        Request.by_token(member, key, token).write(kit / REQUEST)
        for part in list(kit.iterdir()):
            part.rename(folder / part.name)
        kit.rmdir()
        folder.chmod(0o700)
    harden(out, jobs)
    return out / REQUEST


def renew(kit: Kit) -> Path:
    """Make the next key, and a request that the present one signs."""
    path, key_path = certs.pair_of(Role(kit.role), kit.path / "startup")
    kit.remarks()
    key = certs.new_key()
    certs.write_key(_waiting(key_path), key)
    request = Request.by_certificate(kit.member, key, certs.read_key(key_path), certs.read_certificate(path))
    request.write(kit.path / REQUEST)
    return kit.path / REQUEST


def install(kit: Kit, file: Path) -> str:
    """Put a certificate or a list of revoked ones into a kit, if the kit's authority made it for this kit, and say so."""
    content = read_small(file)
    if LIST_OF_REVOKED in content:
        return _install_list(kit, content, file)
    return _install_certificate(kit, certificate_in(content, file), file)


def _install_certificate(kit: Kit, certificate: x509.Certificate, file: Path) -> str:
    path, key_path = certs.pair_of(Role(kit.role), kit.path / "startup")
    named = kit.trust.check(certificate, list(Role))
    if named != kit.member:
        raise ConfigError(f"{file} is the certificate of {named}, and this is the kit of {kit.member}")
    wanted = certs.fingerprint(certificate.public_key())
    ours = [at for at in (_waiting(key_path), key_path) if at.exists() and _print_of(at) == wanted]
    if not ours:
        raise ConfigError(f"{file} is for another key than this kit's; let the authority sign this kit's own {REQUEST}")
    # Key first: killed in between, the same command does the rest.
    if ours[0] != key_path:
        with disk_errors("write", key_path):
            os.replace(ours[0], key_path)
    certs.write_certificate(path, certificate)
    (kit.path / REQUEST).unlink(missing_ok=True)
    return f"{kit.path} has its certificate: {named} of {named.federation}, until {certs.expiry(certificate)}"


def _install_list(kit: Kit, content: bytes, file: Path) -> str:
    trust = kit.trust
    revoked = Revocations.read(content, trust.root, file)
    if revoked.number < trust.revoked.number:
        raise IntegrityError(f"{file} is older than the list of revoked certificates that {kit.path} has; it stays")
    write_atomically(trust.startup / REVOKED, content)
    return f"{kit.path} knows {len(revoked.serials)} revoked certificate(s) now"


def _waiting(key: Path) -> Path:
    return key.with_name(key.name + WAITING)


def _print_of(key: Path) -> str:
    return certs.fingerprint(certs.read_key(key).public_key())

"""From a plan of a federation to start-up kits, by FLARE's provisioning, with certificates of our own authority.

FLARE's own builder of certificates makes every party's private key in one place, keeps copies of them, and lets any member's
certificate pass for the coordinator's; so it is not used.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvflare.lighter.entity import Project
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from suture.core.storage import Json, disk_errors, read_json, write_atomically, write_json
from suture.errors import IntegrityError
from suture.federation.flare import certificates as certs
from suture.federation.flare.authority import OPERATOR, OPERATORS_RIGHTS, Authority, organisation
from suture.federation.flare.certificates import Member, Role
from suture.federation.flare.kits import JobClasses, harden, silent
from suture.federation.flare.places import ABOUT
from suture.federation.flare.requests import Invitation
from suture.federation.pem import ROOT

AUTHORITY = "authority"
INVITATION = ".invitation.json"


@dataclass(frozen=True)
class Federation:
    """Who takes part, and where they meet."""

    name: str
    owners: tuple[str, ...]
    host: str
    port: int
    scheme: str

    def parties(self) -> list[tuple[Member, str]]:
        """Every member, and FLARE's name of it."""
        owners = [(Member(self.name, Role.OWNER, owner), owner) for owner in self.owners]
        coordinator = (Member(self.name, Role.COORDINATOR, "coordinator"), self.host)
        return [coordinator, (Member(self.name, Role.OPERATOR, "operator"), OPERATOR), *owners]


def provision(
    out: Path, federation: str, owners: Sequence[str], host: str, port: int, scheme: str, jobs: JobClasses
) -> dict[str, Path]:
    """A full kit for each party in `out`, for trials: all private keys are made here. The authority: `out`/authority."""
    return found(out, Federation(federation, tuple(owners), host, port, scheme), jobs, with_keys=True)[0]


def found(
    out: Path, plan: Federation, jobs: JobClasses, with_keys: bool
) -> tuple[dict[str, Path], dict[str, tuple[Path, str]]]:
    """An authority, kits for who is here, and for each owner a file to send and the token to tell it."""
    authority = Authority.create(out / AUTHORITY, plan.name)
    write_json(
        authority.folder / ABOUT, {"host": plan.host, "port": plan.port, "scheme": plan.scheme, "owners": list(plan.owners)}
    )
    here = [member for member, _ in plan.parties() if with_keys or member.role is not Role.OWNER]
    kits = unpack(out, plan, here, jobs)
    for member in here:
        give_keys(kits[member.name], member, authority, plan.host)
    return kits, {owner: invited(authority, plan, owner, out) for owner in plan.owners if owner not in kits}


def plan_of(authority: Authority) -> Federation:
    """What was planned when this authority was made."""
    about = read_json(authority.folder / ABOUT, "plan of the federation")
    host, port, owners = about.get("host"), about.get("port"), about.get("owners")
    if not isinstance(host, str) or not isinstance(port, int) or not isinstance(owners, list):
        raise IntegrityError(f"{authority.folder / ABOUT} does not say where the federation meets; it is damaged")
    return Federation(authority.federation, tuple(map(str, owners)), host, port, str(about.get("scheme")))


def invited(authority: Authority, plan: Federation, owner: str, out: Path) -> tuple[Path, str]:
    """One owner's invitation as a file in `out`, and its token."""
    invitation, token = authority.invite(owner, plan.host, plan.port, plan.scheme, plan.owners)
    path = out / f"{owner}{INVITATION}"
    invitation.write(path)
    return path, token


def planned(invitation: Invitation) -> Federation:
    """The federation one is invited to."""
    return Federation(invitation.member.federation, invitation.owners, invitation.host, invitation.port, invitation.scheme)


def unpack(out: Path, plan: Federation, wanted: Sequence[Member], jobs: JobClasses) -> dict[str, Path]:
    """Kits without keys and certificates for the wanted members, each a folder of its name in `out`."""
    project = Project(plan.name, f"the federation {plan.name}", props={"api_version": 3})
    project.set_server(plan.host, "coordinator", {"fed_learn_port": plan.port})
    for owner in plan.owners:
        project.add_client(owner, organisation(owner), {})
    project.add_admin(OPERATOR, "coordinator", {"role": OPERATORS_RIGHTS})
    work = out / ".work"
    kits: dict[str, Path] = {}
    with disk_errors("write", out):
        out.mkdir(parents=True, exist_ok=True)
        with silent():
            builders = [
                WorkspaceBuilder(template_file=["master_template.yml"]),
                StaticFileBuilder(config_folder="config", scheme=plan.scheme),
            ]
            Provisioner(str(work), builders).provision(project)
        for member, flares_name in plan.parties():
            if member not in wanted:
                continue
            kit = kits[member.name] = out / member.name
            shutil.move(work / plan.name / "prod_00" / flares_name, kit)
            kit.chmod(0o700)
            about: dict[str, Json] = {"role": member.role.value, "name": member.name, "federation": plan.name}
            write_json(kit / ABOUT, {**about, "owners": list(plan.owners)})
            if member.role is not Role.OPERATOR:
                harden(kit, jobs)
        shutil.rmtree(work)
    return kits


def give_keys(kit: Path, member: Member, authority: Authority, host: str) -> None:
    """A key made here, and its certificate."""
    key = certs.new_key()
    path, key_path = certs.pair_of(member.role, kit / "startup")
    certs.write_key(key_path, key)
    certs.write_certificate(
        path, authority.issue(member, key.public_key(), host if member.role is Role.COORDINATOR else None)
    )
    write_atomically(kit / "startup" / ROOT, certs.pem(authority.root))

"""Commands around keys and certificates: who is a member of a federation, and until when. None of them needs torch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from suture.commands.kits import engine
from suture.core.storage import disk_errors, write_atomically
from suture.errors import ConfigError
from suture.report import console

if TYPE_CHECKING:
    from suture.federation.flare.kits import Kit

STARTS = {"coordinator": "suture coordinator start KIT", "operator": "suture federation run --kit KIT"}
START_OWNER = "suture owner start KIT --data FILE_OR_FOLDER"


def create(owners: Sequence[str], server: str, out: Path, name: str, scheme: str, with_keys: bool) -> None:
    """Found a federation: its authority, and for each party a kit or an invitation."""
    flare = engine()
    from suture.federation.flare.provisioning import AUTHORITY, Federation, found

    host, _, port = server.rpartition(":")
    checked(owners, host, port, name, scheme)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; choose a new folder for the kits")
    plan = Federation(name, tuple(owners), host, int(port), scheme)
    kits, invitations = found(out, plan, flare.jobs.JOBS, with_keys)
    table = console.grid("party", "kit", "starts with")
    for party, path in kits.items():
        table.add_row(party, str(path), STARTS.get(party, START_OWNER))
    console.results().print(table)
    if invitations:
        shown = console.grid("owner", "send it this file", "and, on another way, this token")
        for owner, (path, token) in invitations.items():
            shown.add_row(owner, str(path), token)
        console.results().print()
        console.results().print(shown)
        told = (
            "an owner makes its own key with `suture owner enrol FILE`; tokens are shown only now, each good for one key. "
            f"{out / AUTHORITY} signs what owners ask for (`suture federation sign`): keep it offline"
        )
    else:
        told = (
            "for trials: every private key was made here, so whoever has made these kits can be every party; "
            f"without --with-keys owners make their own. {out / AUTHORITY} signs new certificates: keep it offline"
        )
    console.notes().print(told, soft_wrap=True)


def checked(owners: Sequence[str], host: str, port: str, name: str, scheme: str) -> None:
    """One sentence for what cannot be the plan of a federation."""
    from suture.federation.flare.certificates import FEDERATION, Role, is_name
    from suture.federation.flare.requests import SCHEMES, is_host

    if not is_host(host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--server must be HOST:PORT such as example.org:8102, got {host + ':' + port!r}")
    if not FEDERATION.fullmatch(name):
        raise ConfigError(f"--name is lower-case letters, digits and dashes, got {name!r}")
    for owner in owners:
        if not is_name(Role.OWNER, owner):
            raise ConfigError(f"an owner's name is letters, digits and dashes, and not reserved, got {owner!r}")
        if owner.lower() == host.lower():
            raise ConfigError(f"an owner cannot be called as the coordinator's host, got {owner!r}")
    # Kits are folders, and not every disk tells DE from de.
    if len(owners) < 2 or len({owner.lower() for owner in owners}) < len(owners):
        raise ConfigError(f"--owners must be two or more different names, got {', '.join(owners) or 'none'}")
    if scheme not in SCHEMES:
        raise ConfigError(f"--scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")


def enrol(file: Path, out: Path | None, token: str | None, complete: Path | None) -> None:
    """An owner's two steps: make a key and a request; later put the certificate in."""
    flare = engine()
    from suture.federation.flare import enrolment
    from suture.federation.flare.requests import Invitation

    if complete is not None:
        if out is not None or token is not None:
            raise ConfigError("--complete KIT takes the file that the authority has signed, and neither --out nor --token")
        console.notes().print(Text(enrolment.install(flare.kits.Kit.read(complete, "owner"), file)), soft_wrap=True)
        return
    invitation = Invitation.read(file)
    name = invitation.member.name
    kit = out if out is not None else Path(name)
    request = enrolment.begin(invitation, token or typer.prompt(f"token of {name}"), kit, flare.jobs.JOBS)
    console.notes().print(
        f"{kit} has a private key now, which never leaves it. Send {request} to the authority of "
        f"{invitation.member.federation}; with the file it sends back: suture owner enrol --complete {kit} FILE",
        soft_wrap=True,
    )


def renew(path: Path, roles: Sequence[str]) -> None:
    """A new key beside the present one, and a request for it."""
    flare = engine()
    from suture.federation.flare import enrolment

    role = _role_of(path)
    if role not in roles:
        raise ConfigError(
            f"{path} is the kit of the {role}; use `suture {'owner' if role == 'owner' else 'federation'} renew`"
        )
    request = enrolment.renew(flare.kits.Kit.read(path, role))
    console.notes().print(
        f"{path} goes on with its present key. Send {request} to the authority; with the file it sends back: "
        f"suture federation install {path} FILE",
        soft_wrap=True,
    )


def install(path: Path, file: Path) -> None:
    """What the authority made, into a kit."""
    flare = engine()
    from suture.federation.flare import enrolment

    kit = flare.kits.Kit.read(path, _role_of(path))
    console.notes().print(Text(enrolment.install(kit, file)), soft_wrap=True)


def sign(request: Path, folder: Path, out: Path | None, revoke_old: bool) -> None:
    """Sign a member's request, if it may be believed."""
    engine()
    from suture.federation.flare.authority import Authority
    from suture.federation.flare.certificates import expiry, pem
    from suture.federation.flare.requests import Request

    authority, asked = Authority(folder), Request.read(request)
    target = out if out is not None else Path(f"{asked.member.name}.crt")
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another file with --out")
    made = authority.sign(asked, revoke_old)
    write_atomically(target, pem(made))
    console.notes().print(
        f"signed: {asked.member} of {authority.federation}, until {expiry(made)}. Send {target} back; it is no secret",
        soft_wrap=True,
    )
    if revoke_old:
        _hand_on(authority.folder)


def invite(name: str, folder: Path, out: Path | None) -> None:
    """A new invitation for an owner of the federation."""
    engine()
    from suture.federation.flare.authority import Authority
    from suture.federation.flare.provisioning import invited, plan_of

    authority = Authority(folder)
    plan = plan_of(authority)
    if name not in plan.owners:
        raise ConfigError(
            f"{name!r} is not an owner of {plan.name} ({', '.join(plan.owners)}); who takes part is set by create"
        )
    path, token = invited(authority, plan, name, out if out is not None else Path())
    shown = console.grid("owner", "send it this file", "and, on another way, this token")
    shown.add_row(name, str(path), token)
    console.results().print(shown)


def revoke(name: str, folder: Path, out: Path | None) -> None:
    """From now on a name's certificates do not count, wherever the new list is."""
    engine()
    from suture.federation.flare.authority import Authority

    path = Authority(folder).revoke(name)
    if out is not None:
        with disk_errors("write", out):
            shutil.copyfile(path, out)
    console.notes().print(Text(f"{name} is revoked"), soft_wrap=True)
    _hand_on(folder if out is None else None, out)


def _hand_on(folder: Path | None, file: Path | None = None) -> None:
    path = file if folder is None else folder / "revoked.pem"
    console.notes().print(
        f"the new list is {path}. It counts where it is: at the coordinator and every owner, "
        f"suture federation install KIT {path}; a running party reads it within seconds",
        soft_wrap=True,
    )


def certificates(path: Path) -> None:
    """Everything an authority has signed, or what a kit holds."""
    engine()
    from suture.federation.flare.authority import KEY, Authority

    table = console.grid("name", "role", "ends", "state", "serial number")
    if (path / KEY).exists():
        for entry in Authority(path).entries():
            serial = f"{entry.serial:x}" if entry.serial is not None else ""
            table.add_row(entry.member.name, entry.member.role.value, entry.expires, entry.state, serial)
    else:
        for row in _of_kit(path):
            table.add_row(*row)
    console.results().print(table)


def _of_kit(path: Path) -> list[tuple[str, str, str, str, str]]:
    from suture.errors import SutureError
    from suture.federation.flare.certificates import Role, expiry, pair_of, read_certificate

    kit: Kit = engine().kits.Kit.read(path, _role_of(path))
    rows = []
    trust = kit.trust
    own, _ = pair_of(Role(kit.role), trust.startup)
    if own.exists():
        certificate = read_certificate(own)
        try:
            trust.check(certificate, [Role(kit.role)])
            state = "valid"
        except SutureError as error:
            state = str(error)
        rows.append((kit.name, kit.role, expiry(certificate), state, f"{certificate.serial_number:x}"))
    else:
        rows.append((kit.name, kit.role, "", "no certificate yet", ""))
    root = trust.root
    rows.append((kit.federation, "authority", expiry(root), "", f"{root.serial_number:x}"))
    rows += [("", "", "", "revoked", f"{serial:x}") for serial in sorted(trust.revoked.serials)]
    return rows


def _role_of(path: Path) -> str:
    from suture.core.storage import read_json
    from suture.federation.flare.places import ABOUT

    if not (path / ABOUT).exists():
        raise ConfigError(f"{path} is neither a start-up kit nor the folder of an authority")
    role = read_json(path / ABOUT, "start-up kit").get("role")
    if role not in ("coordinator", "operator", "owner"):
        raise ConfigError(f"{path} is no start-up kit: it says of no party whose it is")
    return str(role)

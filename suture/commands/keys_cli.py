"""Options and help of the commands around keys; what they do is in `keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.federation_cli import federation_app, owner_app
from suture.commands.registering import command

__all__ = ["federation_app", "owner_app"]
# The groups of commands, with those of this module in them.

AuthorityFolder = Annotated[
    Path, typer.Option("--authority", metavar="DIR", help="The authority's folder, which `suture federation create` made")
]
AnyKit = Annotated[Path, typer.Argument(metavar="KIT", help="Folder of a party's start-up kit")]


@command(
    federation_app,
    "create",
    "suture federation create --owners clinic-a,clinic-b,clinic-c --server hub.example.org:8102 --out kits",
    "suture federation create --owners a,b,c --server localhost:8102 --out kits --with-keys",
)
def federation_create(
    owners: Annotated[str, typer.Option(metavar="A,B,C", help="Names of the owners")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where owners will reach the coordinator")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the kits")] = Path("kits"),
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the federation")] = "suture",
    scheme: Annotated[str, typer.Option(metavar="NAME", help="tcp is fastest, http passes proxies, grpc")] = "tcp",
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="For trials: make the owners' private keys here too, and full kits")
    ] = False,
) -> None:
    """Found a federation: start-up kits for coordinator and operator, an invitation for each owner.

    Owners make their own keys from an invitation (`suture owner enrol`), and the folder `authority` signs what they ask for
    (`suture federation sign`). Keep that folder to yourself, best on a machine without network: whoever has it decides who
    is a member.
    """
    from suture.commands import keys

    keys.create(opt.words(owners), server, out, name, scheme, with_keys)


@command(
    owner_app,
    "enrol",
    "suture owner enrol clinic-a.invitation.json --out clinic-a",
    "suture owner enrol --complete clinic-a clinic-a.crt",
)
def owner_enrol(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The invitation; with --complete what the authority has signed")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="KIT", help="New folder for the kit  [default: the owner's name]")
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="What came with the invitation on another way  [default: asked for]")
    ] = None,
    complete: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Put the signed certificate into this kit: the second step")
    ] = None,
) -> None:
    """Become an owner of a federation, with a private key that nobody else ever has.

    First from the invitation: a kit with a new key, and in it request.json, which goes to the authority's keeper. Then, with
    the certificate that comes back, --complete. It is checked that it is for this key, this name and this federation.
    """
    from suture.commands import keys

    keys.enrol(file, out, token, complete)


@command(owner_app, "renew", "suture owner renew clinic-a", "suture owner enrol --complete clinic-a clinic-a.crt")
def owner_renew(kit: opt.KitFolder) -> None:
    """Ask for the next certificate, with a new key, before the present one ends.

    The request is signed with the present key, so no invitation is needed; the kit goes on with the present one meanwhile.
    """
    from suture.commands import keys

    keys.renew(kit, ["owner"])


@command(federation_app, "renew", "suture federation renew kits/coordinator")
def federation_renew(kit: AnyKit) -> None:
    """Ask for the next certificate of a coordinator or operator, with a new key.

    Sign the request with `suture federation sign`, and put the result in with `suture federation install`.
    """
    from suture.commands import keys

    keys.renew(kit, ["coordinator", "operator"])


@command(
    federation_app,
    "sign",
    "suture federation sign request.json --authority kits/authority",
    "suture federation sign request.json --authority kits/authority --out clinic-a.crt --revoke-old",
)
def federation_sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="request.json of a member's kit")],
    authority: AuthorityFolder,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate  [default: NAME.crt]")] = None,
    revoke_old: Annotated[
        bool, typer.Option("--revoke-old", help="When it renews: revoke the old one at once instead of letting it end")
    ] = False,
) -> None:
    """Make a member of who asks, if it was invited or renews its own certificate.

    Checked are the name, the role, the token of the invitation (once only), the strength of the key, and that the request
    was not changed on its way. It needs no network.
    """
    from suture.commands import keys

    keys.sign(request, authority, out, revoke_old)


@command(federation_app, "invite", "suture federation invite clinic-a --authority kits/authority")
def federation_invite(
    name: Annotated[str, typer.Argument(metavar="OWNER", help="An owner of this federation")],
    authority: AuthorityFolder,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to put the invitation  [default: here]")] = None,
) -> None:
    """Invite an owner again: its token is lost, its certificate has ended, or it was revoked."""
    from suture.commands import keys

    keys.invite(name, authority, out)


@command(
    federation_app,
    "revoke",
    "suture federation revoke clinic-a --authority kits/authority",
    "suture federation install kits/coordinator kits/authority/revoked.pem",
)
def federation_revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An owner's name, or coordinator, or operator")],
    authority: AuthorityFolder,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the new list here")] = None,
) -> None:
    """Declare all certificates of a member void: a key was lost or stolen, or it is to leave.

    It makes a signed list, revoked.pem. Who is on it cannot connect to a coordinator that has it, and is cut off if it is
    connected; owners that have it accept nobody on it.
    """
    from suture.commands import keys

    keys.revoke(name, authority, out)


@command(
    federation_app,
    "install",
    "suture federation install kits/coordinator revoked.pem",
    "suture federation install kits/operator operator.crt",
)
def federation_install(
    kit: AnyKit,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate or a list of revoked ones")],
) -> None:
    """Put what the authority made into a kit: its certificate, or the list of revoked ones.

    It must be signed by this kit's authority; a certificate must be for this kit's key, and a list not older than the
    present one.
    """
    from suture.commands import keys

    keys.install(kit, file)


@command(
    federation_app,
    "certificates",
    "suture federation certificates kits/authority",
    "suture federation certificates kits/coordinator",
)
def federation_certificates(
    path: Annotated[Path, typer.Argument(metavar="KIT|AUTHORITY", help="A start-up kit, or the authority's folder")],
) -> None:
    """List who is a member, in which role, until when, and who is revoked or only invited."""
    from suture.commands import keys

    keys.certificates(path)

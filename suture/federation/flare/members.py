"""Who is on the other end of a connection: members of this federation only, each in its own place.

TLS says that a certificate was signed by the federation's authority. FLARE says further that a client's endpoint is called
as its certificate, but takes any member for an administrator, and looks neither at roles nor at revocation. So every
connection is looked at here once more, before the first byte of ours passes, and so is every certificate that FLARE takes as
a proof of identity. The credentials that a connection uses say which kit it belongs to; there is nothing to configure.

A connection that stands when its member is revoked is cut within seconds.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvflare.fuel.f3.cellnet.identity import get_param, is_mtls_connection
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import CellMessageHeaderKeys, ClientType
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from suture.core.storage import read_json
from suture.errors import SutureError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.flare.authority import OPERATOR
from suture.federation.flare.certificates import Role, Trust
from suture.federation.flare.places import ABOUT, HOME
from suture.federation.wire.reasons import Code, Reason, Refused

LOOK_AGAIN_SECONDS = 2.0
LOOKS = "looks_at_members"
"""Marks FLARE's function once it is ours."""
CLIENTS = (Role.OWNER, Role.OPERATOR)
SERVERS = (Role.COORDINATOR,)


class MembersOnly:
    """A component of a party's start-up kit: FLARE builds it in each of its processes before they connect to anybody."""

    def __init__(self) -> None:
        members_only()


def members_only() -> None:
    """From now on, in this process, for every kit it uses."""
    if getattr(BaseDriver.add_connection, LOOKS, False):
        return
    _Standing().watch_connections()
    _watch_endpoints()
    _watch_identities()
    _watch_registrations()


class _Standing:
    """The open connections, and whose they are."""

    def __init__(self) -> None:
        self._open: weakref.WeakKeyDictionary[Any, tuple[x509.Certificate, Trust]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._looking = False

    def watch_connections(self) -> None:
        """All of FLARE's drivers announce a connection here, before anything is read from it or written to it."""
        add = BaseDriver.add_connection

        def add_connection(driver: Any, conn: Any) -> None:
            certificate = None
            if is_mtls_connection(conn.connector.params):
                certificate = _admitted(conn)
            add(driver, conn)
            if certificate is not None:
                self._remember(conn, certificate)

        setattr(add_connection, LOOKS, True)
        BaseDriver.add_connection = add_connection

    def _remember(self, conn: Any, certificate: x509.Certificate) -> None:
        with self._lock:
            self._open[conn] = (certificate, trust_of(conn.connector.params))
            if not self._looking:
                self._looking = True
                threading.Thread(target=self._look_again, name="revoked members", daemon=True).start()

    def _look_again(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(LOOK_AGAIN_SECONDS):
            with self._lock:
                standing = list(self._open.items())
            for conn, (certificate, trust) in standing:
                try:
                    trust.check(certificate, list(Role))
                except Refused as error:
                    refuse(trust, Reason.of(error), peer_of(conn))
                    with self._lock:
                        self._open.pop(conn, None)
                    conn.close()
                except SutureError:
                    # A file that is just being replaced, or gone with its kit: that is for the next connection to say.
                    continue


def _admitted(conn: Any) -> x509.Certificate | None:
    """The certificate at the other end, if it may be there; the connection is closed otherwise."""
    params = conn.connector.params
    trust = trust_of(params)
    passive = conn.connector.mode == Mode.PASSIVE
    try:
        certificate = certificate_of(conn)
        if certificate is not None:
            trust.check(
                certificate, CLIENTS if passive else SERVERS, None if passive else get_param(params, DriverParams.HOST)
            )
        elif passive:
            raise Refused("no certificate", Code.NO_CERTIFICATE)
        # FLARE's gRPC client does not show the server's certificate. gRPC has checked its host and its use by then,
        # and the rest is looked at when the coordinator proves its identity.
        return certificate
    except SutureError as error:
        refuse(trust, Reason.of(error), peer_of(conn))
        conn.close()
        raise CommError(CommError.BAD_DATA, str(error)) from error


def certificate_of(conn: Any) -> x509.Certificate | None:
    """What the other end has shown, by any of FLARE's drivers."""
    if getattr(conn, "sock", None) is not None:
        shown = conn.sock.getpeercert(binary_form=True)
    elif getattr(conn, "websocket", None) is not None:
        tls = conn.websocket.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
    elif getattr(conn, "context", None) is not None:
        told = conn.context.auth_context().get("x509_pem_cert")
        return x509.load_pem_x509_certificate(told[0]) if told else None
    else:
        return None
    return x509.load_der_x509_certificate(shown) if shown else None


def trust_of(params: dict[str, Any]) -> Trust:
    """By the kit whose credentials a connection uses."""
    startup = Path(str(get_param(params, DriverParams.CA_CERT))).parent
    return Trust(startup, str(read_json(startup.parent / ABOUT, "start-up kit").get("federation")))


def peer_of(conn: Any) -> str:
    """Where the other end is."""
    return str(get_param(conn.get_conn_properties(), DriverParams.PEER_ADDR, ""))


def refuse(trust: Trust, reason: Reason, peer: str) -> None:
    """On this party's screen, and in its audit log."""
    kit = trust.startup.parent
    print(f"refused {peer or 'a connection'}: {reason.text}", file=sys.stderr, flush=True)
    if (kit / HOME).is_dir():
        party = str(read_json(kit / ABOUT, "start-up kit").get("name"))
        AuditLog(kit / HOME / AUDIT, party).note("connection refused", **reason.as_json(), peer=peer)


def _watch_endpoints() -> None:
    """A member speaks under its own name, and the operator alone as an administrator."""
    update = ConnManager.update_endpoint

    def update_endpoint(self: Any, sfm_conn: Any, data: dict[str, Any]) -> None:
        conn = sfm_conn.conn
        if not is_mtls_connection(conn.connector.params):
            update(self, sfm_conn, data)
            return
        name = str(data.get(HandshakeKeys.ENDPOINT_NAME))
        shown = str(get_param(conn.get_conn_properties(), DriverParams.PEER_CN, ""))
        trust = trust_of(conn.connector.params)
        if conn.connector.mode == Mode.PASSIVE and is_valid_admin_client_name(name) != (shown == OPERATOR):
            reason = Reason(
                Code.WRONG_CERTIFICATE, f"{shown} wants to speak as {'the operator' if shown != OPERATOR else name!r}"[:200]
            )
            refuse(trust, reason, peer_of(conn))
            conn.close()
            raise CommError(CommError.BAD_DATA, reason.text)
        try:
            update(self, sfm_conn, data)
        except CommError as error:
            refuse(trust, Reason(Code.WRONG_CERTIFICATE, f"{shown} wants to speak as {name!r}"[:200]), peer_of(conn))
            raise error

    ConnManager.update_endpoint = update_endpoint


def _watch_identities() -> None:
    """Where FLARE takes a certificate and a signature as a proof of identity, over whatever way it came."""
    begin, verify = IdentityVerifier.__init__, IdentityVerifier.verify_common_name

    def remember(self: Any, root_cert_file: str) -> None:
        begin(self, root_cert_file)
        self.startup = Path(root_cert_file).parent

    def verified(self: Any, *arguments: Any, **named: Any) -> bool:
        proven: bool = verify(self, *arguments, **named)
        trust = Trust(self.startup, str(read_json(self.startup.parent / ABOUT, "start-up kit").get("federation")))
        # Without a purpose FLARE lets an administrator in.
        roles: dict[Any, tuple[Role, ...]]
        roles = {ExtendedKeyUsageOID.SERVER_AUTH: SERVERS, ExtendedKeyUsageOID.CLIENT_AUTH: CLIENTS}
        try:
            trust.check(named["asserter_cert"], roles.get(named.get("expected_eku"), (Role.OPERATOR,)))
        except SutureError as error:
            refuse(trust, Reason.of(error), "")
            raise
        return proven

    IdentityVerifier.__init__, IdentityVerifier.verify_common_name = remember, verified


def _watch_registrations() -> None:
    """An owner registers as an owner, the operator as an administrator, and nobody as anything else."""
    authenticate: Callable[..., Any] = ClientManager.authenticated_client

    def authenticated(self: Any, request: Any, fl_ctx: Any, client_type: Any) -> Any:
        # Before FLARE's own check, which ends an earlier registration of that name; the name is proven there.
        name = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        if client_type != (ClientType.ADMIN if name == OPERATOR else ClientType.REGULAR):
            self.logger.error("%s wants to register as %s; refused", name, client_type)
            return None
        return authenticate(self, request, fl_ctx, client_type)

    ClientManager.authenticated_client = authenticated

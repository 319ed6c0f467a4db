"""A party's own process: FLARE's program, which turns strangers away silently, with a line in the audit log for each.

python -m suture.federation.flare.process MODULE ARGUMENTS...

FLARE's tcp listener shakes hands in the thread that accepts, so a stranger who connects and says nothing would keep
everybody else out; here every connection shakes hands in a thread of its own, and has ten seconds for it.
"""

from __future__ import annotations

import runpy
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer

from suture.federation.audit import AUDIT, AuditLog
from suture.federation.flare.casualties import write_down_casualties
from suture.federation.flare.memory import keep_flat
from suture.federation.flare.places import HOME, kit_folder
from suture.federation.wire.reasons import Code, Reason

HANDSHAKE_SECONDS = 10.0
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
LEFT = "UNEXPECTED_EOF_WHILE_READING"
"""OpenSSL's names of reasons."""
NOT_VALID_NOW = (9, 10)
"""OpenSSL's numbers for a certificate that is not valid yet, or not any more."""
FOR_ANOTHER_USE = 26
"""OpenSSL's number for a server's certificate that a client shows, or the other way round."""

Refusal = Callable[[OSError, str], None]


def note_strangers(audit: AuditLog) -> None:
    """Let the listeners write down every connection whose TLS handshake fails; FLARE's grpc listener cannot."""

    def refused(error: OSError, peer: str) -> None:
        reason = failed_handshake(error)
        if reason is not None:
            audit.note("connection refused", **reason.as_json(), **({"peer": peer} if peer else {}))

    _watch_tcp(refused)
    _watch_http(refused)


def failed_handshake(error: OSError) -> Reason | None:
    """Why a handshake failed; None if it was only broken off.

    Whoever only looked whether somebody listens, as `suture federation status` does, was not refused.
    """
    name = error.reason if isinstance(error, ssl.SSLError) else None
    if isinstance(error, ssl.SSLEOFError) or name == LEFT:
        return None
    code, text = Code.NO_HANDSHAKE, "no handshake"
    if name == NO_CERTIFICATE:
        code, text = Code.NO_CERTIFICATE, "no certificate"
    elif isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in NOT_VALID_NOW:
        code, text = Code.EXPIRED_CERTIFICATE, "a certificate that is not valid now"
    elif isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == FOR_ANOTHER_USE:
        code, text = Code.WRONG_CERTIFICATE, "the coordinator's certificate in a client's place"
    elif isinstance(error, ssl.SSLCertVerificationError):
        code, text = Code.UNKNOWN_CERTIFICATE, "a certificate of another federation"
    return Reason(code, f"{text} (TLS: {name or error})")


def _watch_tcp(refused: Refusal) -> None:
    finish = TcpStreamServer.finish_request

    def get_request(self: Any) -> tuple[socket.socket, Any]:
        plain, address = socket.socket.accept(self.socket)
        if not self.ssl_context:
            return plain, address
        return self.ssl_context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def finish_request(self: Any, request: socket.socket, address: Any) -> None:
        """In the connection's own thread."""
        if isinstance(request, ssl.SSLSocket):
            request.settimeout(HANDSHAKE_SECONDS)
            try:
                request.do_handshake()
            except OSError as error:
                refused(error, str(address[0]))
                return
            request.settimeout(None)
        finish(self, request, address)

    TcpStreamServer.get_request = get_request
    TcpStreamServer.finish_request = finish_request


def _watch_http(refused: Refusal) -> None:
    make_context = net_utils.get_ssl_context

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise  # not an error: more bytes are to come
            except ssl.SSLError as error:
                refused(error, "")
                raise

    def get_ssl_context(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
        context: ssl.SSLContext | None = make_context(params, ssl_server)
        if context is not None and ssl_server:
            context.sslobject_class = Watched
        return context

    net_utils.get_ssl_context = get_ssl_context


def main(arguments: list[str]) -> None:
    """Become FLARE's program `arguments[0]`."""
    folder = kit_folder()
    note_strangers(AuditLog(folder / HOME / AUDIT, folder.name))
    keep_flat()
    if ".server." in arguments[0]:
        write_down_casualties()
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

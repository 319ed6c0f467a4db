"""A party's own process: FLARE's program, which refuses strangers silently, with a line in the audit log for each of them.

python -m suture.commands.party MODULE ARGUMENTS...
"""

from __future__ import annotations

import os
import runpy
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer

from suture.engines.flare import KIT
from suture.federation.audit import AUDIT, AuditLog


def note_refusals(audit: AuditLog) -> None:
    """Let the listener of the tcp scheme write down every connection whose TLS handshake fails."""
    accept = TcpStreamServer.get_request

    def get_request(self: Any) -> tuple[socket.socket, Any]:
        try:
            accepted: tuple[socket.socket, Any] = accept(self)
            return accepted
        except ssl.SSLError as error:
            audit.note("connection refused", reason=f"TLS: {error.reason or error}")
            raise

    TcpStreamServer.get_request = get_request


def main(arguments: list[str]) -> None:
    """Become FLARE's program `arguments[0]`."""
    folder = Path(os.environ[KIT])
    note_refusals(AuditLog(folder / "suture" / AUDIT, folder.name))
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The operator's session with the coordinator, through FLARE's own administration client."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session as FlareSession
from nvflare.fuel.flare_api.flare_api import new_secure_session

from suture.core.storage import Json
from suture.errors import SutureError
from suture.federation.flare.authority import OPERATOR
from suture.federation.flare.certificates import Role, certificate_shown
from suture.federation.flare.kits import Kit, silent
from suture.federation.flare.members import members_only
from suture.federation.flare.places import TOPIC
from suture.federation.wire.reasons import Refused


class SessionError(SutureError):
    """The coordinator could not be reached, or did not do what the operator wanted."""


class Session:
    """An open session; what fails in it is a `SessionError`."""

    def __init__(self, kit: Kit, timeout: float = 20.0) -> None:
        self.kit = kit
        members_only()
        _probe(kit)
        try:
            # FLARE's client complains about every failed attempt; the one sentence below is enough.
            logging.getLogger("nvflare").setLevel(logging.CRITICAL)
            for noisy in ("sfm", "cellnet", "cell", "core_cell", "conn_manager", "sfm_conn"):
                logging.getLogger(noisy).setLevel(logging.CRITICAL)
            with silent():
                self._session: FlareSession = new_secure_session(OPERATOR, str(kit.path), timeout=timeout)
        except Exception as error:
            raise SessionError(f"the coordinator cannot be reached ({_first_line(error)}); is it started?") from error

    def close(self) -> None:
        """End the session."""
        with suppress(Exception), silent():
            self._session.close()

    def connected(self) -> set[str]:
        """Owners that are connected to the coordinator now."""
        return {client.name for client in self._do(self._session.get_connected_client_list)}

    def jobs(self) -> list[tuple[str, str]]:
        """(id, state) of every job the coordinator knows."""
        return [(str(job["job_id"]), str(job["status"])) for job in self._do(self._session.list_jobs)]

    def submit(self, folder: Path) -> str:
        """Hand a job over; returns its id."""
        return str(self._do(lambda: self._session.submit_job(str(folder))))

    def state(self, job: str) -> str:
        """FLARE's word for where a job stands, such as RUNNING or FINISHED:COMPLETED."""
        return str(self._do(lambda: self._session.get_job_meta(job))["status"])

    def command(self, job: str, wanted: Mapping[str, Json]) -> dict[str, Json] | None:
        """Ask the coordinator's job process; None while, or once, there is none."""
        try:
            with silent():
                answer = self._session.do_app_command(job, TOPIC, dict(wanted))
        except Exception:
            return None
        return answer if isinstance(answer, dict) else None

    def fetch(self, job: str, into: Path) -> Path:
        """What the coordinator left for the operator after a job."""
        return Path(str(self._do(lambda: self._session.download_job_result(job, str(into))))) / "workspace" / TOPIC

    def _do(self, action: Callable[[], Any]) -> Any:
        try:
            with silent():
                return action()
        except Exception as error:
            raise SessionError(f"the coordinator did not answer ({_first_line(error)}); see its log") from error


def _probe(kit: Kit) -> None:
    """FLARE's client tries on for long where nobody listens, or a wrong one, and leaves threads behind; so look first."""
    about: dict[str, Any] = json.loads((kit.path / "startup" / "fed_admin.json").read_text())["admin"]
    host, port = str(about["host"]), int(about["port"])
    try:
        shown = certificate_shown(host, port, kit.trust.startup)
        kit.trust.check(shown, [Role.COORDINATOR], host)
    except (Refused, ssl.SSLCertVerificationError) as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
        raise SessionError(f"who answers at {host}:{port} is not the coordinator of {kit.federation}: {reason}") from error
    except OSError as error:
        raise SessionError(f"nobody listens at {host}:{port} ({_first_line(error)}); is the coordinator started?") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def wait_until(condition: Callable[[], bool], seconds: float, every: float = 0.2) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(every)
    return condition()

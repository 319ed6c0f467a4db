"""The operator's session with the coordinator, through FLARE's own administration client."""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session as FlareSession
from nvflare.fuel.flare_api.flare_api import new_secure_session

from suture.core.storage import Json, read_json
from suture.errors import IntegrityError, SutureError
from suture.federation.flare.authority import OPERATOR
from suture.federation.flare.casualties import DIED
from suture.federation.flare.certificates import Role, certificate_shown
from suture.federation.flare.kits import Kit, silent
from suture.federation.flare.members import members_only
from suture.federation.flare.places import HEARTBEAT, TOPIC
from suture.federation.wire.names import job_id
from suture.federation.wire.reasons import Refused

RUNNING = "RUNNING"
"""FLARE's word for a job that has begun and, as far as it has written down, not ended."""
SILENCE = 2.0 * HEARTBEAT
"""Seconds without a sign of life after which an owner is not called connected."""


class SessionError(SutureError):
    """The coordinator could not be reached, or did not do what the operator wanted."""


@dataclass(frozen=True)
class Sign:
    """The last sign of life of an owner."""

    last: object
    """When, by the coordinator's clock, which is not ours: it is only compared with itself."""
    since: float
    """When it was first seen here."""
    sure: bool
    """Whether it came in while somebody looked, and so is not an old one."""


@dataclass(frozen=True)
class JobRecord:
    """Where a job stands."""

    state: str
    """FLARE's word for it."""
    died: frozenset[str]
    """Owners whose process of this job has died."""

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state.startswith("FINISHED")


class Session:
    """An open session; what fails in it is a `SessionError`."""

    def __init__(self, kit: Kit, timeout: float = 20.0) -> None:
        self.kit = kit
        self._signs: dict[str, Sign] = {}
        self._looked = -math.inf
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
        """Owners that are connected to the coordinator and give signs of life.

        FLARE lists an owner half a minute longer than it lives, and one that hangs for as long. So an owner counts once a
        sign of it has been seen to come in; whoever is looked at for the first time is looked at for some seconds.
        """
        end = time.monotonic() + SILENCE
        while (unsure := self._look()) and time.monotonic() < end:
            time.sleep(0.3)
        for name in unsure:  # looked at for long enough: the sign is an old one
            self._signs[name] = replace(self._signs[name], since=-math.inf, sure=True)
        now = time.monotonic()
        return {name for name, seen in self._signs.items() if now - seen.since <= SILENCE}

    def _look(self) -> set[str]:
        """Take the signs of life that have come in; the owners of whom it is not known yet whether they give any."""
        listed = {client.name: client.last_connect_time for client in self._do(self._session.get_connected_client_list)}
        now = time.monotonic()
        # What has changed since a look long ago may have changed long ago.
        before = self._signs if now - self._looked <= HEARTBEAT else {}
        self._signs, self._looked = {}, now
        for name, last in listed.items():
            seen = before.get(name)
            if seen is None or seen.last != last:
                seen = Sign(last, now, seen is not None)
            self._signs[name] = seen
        return {name for name, seen in self._signs.items() if not seen.sure}

    def running(self) -> set[str]:
        """Ids of the jobs that have a process at the coordinator now."""
        return {str(job.job_id) for job in self._do(self._session.get_system_info).job_info}

    def under_way(self) -> list[str]:
        """Ids of the jobs that wait, start or run; not those that a killed coordinator left behind as if they ran."""
        listed = [(str(job["job_id"]), str(job["status"])) for job in self._do(self._session.list_jobs)]
        at_work = self.running()
        return [job for job, state in listed if not state.startswith("FINISHED") and (state != RUNNING or job in at_work)]

    def submit(self, folder: Path) -> str:
        """Hand a job over; returns its id."""
        return str(self._do(lambda: self._session.submit_job(str(folder))))

    def state(self, job: str) -> str:
        """FLARE's word for where a job stands, such as RUNNING or FINISHED:COMPLETED."""
        return self.record(job).state

    def record(self, job: str) -> JobRecord:
        """What the coordinator has written down of a job."""
        kept = self._do(lambda: self._session.get_job_meta(job))
        died = kept.get(DIED)
        return JobRecord(str(kept["status"]), frozenset({died} if isinstance(died, str) else ()))

    def abort(self, job: str) -> None:
        """End a job at once, begun or not."""
        self._do(lambda: self._session.abort_job(job_id(job)))

    def command(self, job: str, wanted: Mapping[str, Json]) -> dict[str, Json] | None:
        """Ask the coordinator's job process; None while, or once, there is none."""
        named = job_id(job)
        try:
            with silent():
                answer = self._session.do_app_command(named, TOPIC, dict(wanted))
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
    path = kit.path / "startup" / "fed_admin.json"
    about: Any = read_json(path, "start-up kit's settings").get("admin")
    try:
        host, port = str(about["host"]), int(about["port"])
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} does not say where the coordinator is; ask for the kit again") from error
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

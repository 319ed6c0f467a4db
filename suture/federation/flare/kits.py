"""FLARE around a run: start-up kits, jobs without code, starting a party, and the operator's session.

A kit is what FLARE's provisioning makes (keys, certificates, a signed configuration) with the permissive parts taken out:
no role may bring code, only our four classes can be named by a job, no logs are shipped, and nothing is written to a shared
temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from suture.core.storage import Json, read_json, write_json
from suture.errors import ConfigError, SutureError
from suture.federation.flare.places import HOME, KIT, TOPIC

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
COORDINATING = "suture.federation.flare.parties.Coordinator"
ANSWERING = "suture.federation.flare.parties.Owner"
ALLOWED = [CONTROLLER, EXECUTOR, COORDINATING, ANSWERING]
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "app_command")
ABOUT = "about.json"
OPERATOR = "operator@suture.local"
STARTER = "suture.federation.flare.process"
"""The module that turns a process into a party."""


class SessionError(SutureError):
    """The coordinator could not be reached, or did not do what the operator wanted."""


@dataclass(frozen=True)
class Kit:
    """A party's start-up kit."""

    path: Path
    role: str
    name: str
    federation: str
    owners: tuple[str, ...]

    @staticmethod
    def read(path: Path, role: str) -> Kit:
        """A kit of this role, or one sentence."""
        if not (path / ABOUT).exists():
            raise ConfigError(f"{path} is not a start-up kit; make one with `suture federation create`")
        about = read_json(path / ABOUT, "start-up kit")
        if about.get("role") != role:
            raise ConfigError(
                f"{path} is the kit of {'an' if role != 'owner' else 'the'} {about.get('role')}, not of the {role}"
            )
        owners = about.get("owners")
        known = tuple(map(str, owners)) if isinstance(owners, list) else ()
        return Kit(path.resolve(), role, str(about.get("name")), str(about.get("federation")), known)


def provision(out: Path, federation: str, owners: Sequence[str], host: str, port: int, scheme: str) -> dict[str, Path]:
    """One kit per party in `out`: coordinator, operator, and each owner; the authority's key in `out`/authority."""
    project = Project(federation, f"the federation {federation}", props={"api_version": 3})
    project.set_server(host, "coordinator", {"fed_learn_port": port})
    for owner in owners:
        project.add_client(owner, owner.replace("-", "_").replace(".", "_"), {})
    project.add_admin(OPERATOR, "coordinator", {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme=scheme),
        CertBuilder(),
        SignatureBuilder(),
    ]
    work = out / ".work"
    with _silent():
        Provisioner(str(work), builders).provision(project)
    made = work / federation / "prod_00"
    kits: dict[str, Path] = {}
    parties = [("coordinator", "coordinator", host), ("operator", "operator", OPERATOR), *(("owner", o, o) for o in owners)]
    for role, name, folder in parties:
        kits[name] = out / name
        shutil.move(made / folder, out / name)
        (out / name).chmod(0o700)
        about: dict[str, Json] = {"role": role, "name": name, "federation": federation, "owners": list(owners)}
        write_json(out / name / ABOUT, about)
        if role != "operator":
            harden(out / name)
    shutil.move(work / federation / "state", out / "authority")
    (out / "authority").chmod(0o700)
    shutil.rmtree(work)
    return kits


def harden(kit: Path) -> None:
    """Our classes only, no code for any role, no log shipping, all files inside the kit (so: again wherever it moves to)."""
    local = kit / "local"
    settings: dict[str, Any] = json.loads((local / "resources.json.default").read_text())
    settings.update(class_list_enforcement_mode="enforce", class_allow_list=ALLOWED, allow_log_streaming=False)
    settings["components"] = [c for c in settings["components"] if c["id"] not in ("site_log_streamer", "log_receiver")]
    if "snapshot_persistor" in settings:
        settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.resolve() / "snapshots")
        for component in settings["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(kit.resolve() / "jobs")
            if component["id"] == "job_scheduler":
                component["args"].update(min_schedule_interval=0.5, max_schedule_interval=2.0)
        settings["servers"][0]["heart_beat_timeout"] = 30
    write_json(local / "resources.json", settings)
    rights: dict[str, Any] = json.loads((local / "authorization.json.default").read_text())
    rights["permissions"] = {
        "project_admin": {**dict.fromkeys(RIGHTS, "any"), "shell_commands": "none", "byoc": "none"},
        **{role: {"view": "any", "byoc": "none", "shell_commands": "none"} for role in ("org_admin", "lead", "member")},
    }
    write_json(local / "authorization.json", rights)
    logs: dict[str, Any] = json.loads((local / "log_config.json.default").read_text())
    about = read_json(kit / ABOUT, "start-up kit")
    (kit / HOME).mkdir(exist_ok=True)
    logs["handlers"]["audit"] = {
        "class": "suture.federation.audit.AuditHandler",
        "path": str(kit.resolve() / HOME / "audit.jsonl"),
        "party": about["name"],
    }
    logs["loggers"]["root"]["handlers"] = ["logFileHandler", "errorFileHandler", "audit"]
    # Every call is logged at this level otherwise, which is most of the log and some of the time.
    logs["loggers"]["nvflare.collab"] = {"level": "WARNING"}
    write_json(local / "log_config.json", logs)


def start_command(kit: Kit) -> list[str]:
    """The program that is this party; it runs in the foreground."""
    harden(kit.path)
    common = ["--set", "secure_train=true", "config_folder=config"]
    python = [sys.executable, "-u", "-m", STARTER]
    if kit.role == "coordinator":
        module = "nvflare.private.fed.app.server.server_train"
        return [*python, module, "-m", str(kit.path), "-s", "fed_server.json", *common, "org=coordinator"]
    module = "nvflare.private.fed.app.client.client_train"
    org = kit.name.replace("-", "_").replace(".", "_")
    return [*python, module, "-m", str(kit.path), "-s", "fed_client.json", *common, f"uid={kit.name}", f"org={org}"]


def become(kit: Kit) -> None:
    """Turn this process into the party; does not return."""
    (kit.path / "transfer").mkdir(exist_ok=True)
    os.environ[KIT] = str(kit.path)
    command = start_command(kit)
    os.execv(command[0], command)


def write_job(folder: Path, name: str, owners: Sequence[str], orders: Sequence[Mapping[str, Json]]) -> Path:
    """A job without code: three JSON files that name installed classes."""
    shutil.rmtree(folder, ignore_errors=True)
    base = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "tensor_download_chunk_size": 0}
    write_json(
        folder / "meta.json",
        {"name": name, "resource_spec": {}, "min_clients": len(owners), "deploy_map": {"app": ["server", *owners]}},
    )
    write_json(
        folder / "app" / "config" / "config_fed_server.json",
        {
            **base,
            # Owners ask for a task when a job begins, and then in vain so often: often enough to begin soon, and no oftener.
            "server": {"task_request_interval": 1.0},
            "workflows": [
                {"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "ours", "sync_task_timeout": 120}}
            ],
            "components": [{"id": "ours", "path": COORDINATING, "args": {"orders": list(orders)}}],
        },
    )
    write_json(
        folder / "app" / "config" / "config_fed_client.json",
        {
            **base,
            "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "ours"}}}],
            "components": [{"id": "ours", "path": ANSWERING, "args": {}}],
        },
    )
    return folder


class Operator:
    """The operator's session with the coordinator."""

    def __init__(self, kit: Kit, timeout: float = 20.0) -> None:
        self.kit = kit
        _probe(kit)
        try:
            # FLARE's client complains about every failed attempt; the one sentence below is enough.
            logging.getLogger("nvflare").setLevel(logging.CRITICAL)
            for noisy in ("sfm", "cellnet", "cell", "core_cell", "conn_manager", "sfm_conn"):
                logging.getLogger(noisy).setLevel(logging.CRITICAL)
            with _silent():
                self._session: Session = new_secure_session(OPERATOR, str(kit.path), timeout=timeout)
        except Exception as error:
            raise SessionError(f"the coordinator cannot be reached ({_first_line(error)}); is it started?") from error

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception), _silent():
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
            with _silent():
                answer = self._session.do_app_command(job, TOPIC, dict(wanted))
        except Exception:
            return None
        return answer if isinstance(answer, dict) else None

    def fetch(self, job: str, into: Path) -> Path:
        """What the coordinator left for the operator after a job."""
        return Path(str(self._do(lambda: self._session.download_job_result(job, str(into))))) / "workspace" / TOPIC

    def abort(self, job: str) -> None:
        """End a job at once."""
        self._do(lambda: self._session.abort_job(job))

    def _do(self, action: Any) -> Any:
        try:
            with _silent():
                return action()
        except Exception as error:
            raise SessionError(f"the coordinator did not answer ({_first_line(error)}); see its log") from error


def _probe(kit: Kit) -> None:
    """FLARE's client tries on for long where nobody listens, and leaves threads behind; so look first."""
    about: dict[str, Any] = json.loads((kit.path / "startup" / "fed_admin.json").read_text())["admin"]
    host, port = str(about["host"]), int(about["port"])
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        raise SessionError(f"nobody listens at {host}:{port} ({_first_line(error)}); is the coordinator started?") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """FLARE prints; our output is for what was asked for."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def wait_until(condition: Any, seconds: float, every: float = 0.2) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(every)
    return bool(condition())

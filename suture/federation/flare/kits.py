"""Start-up kits, and jobs without code.

A kit is what FLARE's provisioning makes (`provisioning`), with a party's key and certificate, less the permissive parts:
no role may bring code, only two classes of FLARE and two of ours can be named by a job, no logs are shipped, and nothing is
written to a shared temporary folder. Which classes of ours is for whoever makes a kit or a job to say (`JobClasses`).

Imported by commands that do not wait for torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.collab.runtime.controller import CollabController
from nvflare.collab.runtime.executor import CollabExecutor

from suture.core.storage import Json, read_json, real_path, write_json
from suture.errors import ConfigError, IntegrityError
from suture.federation.audit import AUDIT
from suture.federation.flare import certificates, process
from suture.federation.flare.authority import organisation
from suture.federation.flare.members import MembersOnly
from suture.federation.flare.places import ABOUT, HEARTBEAT, HOME, KIT
from suture.federation.flare.refusals import RefusalsNoted

RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "app_command")
BEAT = f"heart_beat_interval={HEARTBEAT}"


def path_of(kind: type) -> str:
    """Under which FLARE finds an installed class."""
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class JobClasses:
    """What a job starts: one installed class in the coordinator's job process, one in every owner's."""

    coordinator: type
    owner: type

    @property
    def allowed(self) -> list[str]:
        """All that a job may name."""
        return [path_of(kind) for kind in (CollabController, CollabExecutor, self.coordinator, self.owner)]


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
        return Kit(real_path(path), role, str(about.get("name")), str(about.get("federation")), known)

    @property
    def member(self) -> certificates.Member:
        """Whose kit it is."""
        return certificates.Member(self.federation, certificates.Role(self.role), self.name)

    @property
    def trust(self) -> certificates.Trust:
        """Whom this party believes."""
        return certificates.Trust(self.path / "startup", self.federation)

    def remarks(self) -> list[str]:
        """What this party should know of its certificate before it starts; one sentence instead where it cannot start."""
        return certificates.own_remarks(self.trust, self.member)


def harden(kit: Path, jobs: JobClasses) -> None:
    """Our classes only, no code for any role, no log shipping, all files inside the kit (so: again wherever it moves to)."""
    local = kit / "local"
    settings: dict[str, Any] = read_json(local / "resources.json.default", "start-up kit's settings")
    settings.update(class_list_enforcement_mode="enforce", class_allow_list=jobs.allowed, allow_log_streaming=False)
    settings["components"] = [c for c in settings["components"] if c["id"] not in ("site_log_streamer", "log_receiver")]
    (kit / HOME).mkdir(exist_ok=True)
    noted = {"path": str(kit.resolve() / HOME / AUDIT), "party": read_json(kit / ABOUT, "start-up kit")["name"]}
    settings["components"].append({"id": "refusals", "path": path_of(RefusalsNoted), "args": noted})
    settings["components"].append({"id": "members", "path": path_of(MembersOnly), "args": {}})
    if "snapshot_persistor" in settings:
        settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.resolve() / "snapshots")
        for component in settings["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(kit.resolve() / "jobs")
            if component["id"] == "job_scheduler":
                component["args"].update(min_schedule_interval=0.5, max_schedule_interval=2.0)
        settings["servers"][0]["heart_beat_timeout"] = 30
    write_json(local / "resources.json", settings)
    rights: dict[str, Any] = read_json(local / "authorization.json.default", "start-up kit's settings")
    rights["permissions"] = {
        "project_admin": {**dict.fromkeys(RIGHTS, "any"), "shell_commands": "none", "byoc": "none"},
        **{role: {"view": "any", "byoc": "none", "shell_commands": "none"} for role in ("org_admin", "lead", "member")},
    }
    write_json(local / "authorization.json", rights)
    logs: dict[str, Any] = read_json(local / "log_config.json.default", "start-up kit's settings")
    logs["loggers"]["root"]["handlers"] = ["logFileHandler", "errorFileHandler"]
    # Every call is logged at this level otherwise, which is most of the log and some of the time.
    logs["loggers"]["nvflare.collab"] = {"level": "WARNING"}
    write_json(local / "log_config.json", logs)


def start_command(kit: Kit, jobs: JobClasses) -> list[str]:
    """The program that is this party; it runs in the foreground."""
    try:
        harden(kit.path, jobs)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise IntegrityError(f"the settings in {kit.path / 'local'} are not complete; ask for the kit again") from error
    common = ["--set", "secure_train=true", "config_folder=config"]
    python = [sys.executable, "-u", "-m", process.__name__]
    if kit.role == "coordinator":
        module = "nvflare.private.fed.app.server.server_train"
        return [*python, module, "-m", str(kit.path), "-s", "fed_server.json", *common, "org=coordinator"]
    module = "nvflare.private.fed.app.client.client_train"
    org = organisation(kit.name)
    return [*python, module, "-m", str(kit.path), "-s", "fed_client.json", *common, f"uid={kit.name}", f"org={org}", BEAT]


def become(kit: Kit, jobs: JobClasses) -> None:
    """Turn this process into the party; does not return."""
    (kit.path / "transfer").mkdir(exist_ok=True)
    os.environ[KIT] = str(kit.path)
    command = start_command(kit, jobs)
    os.execv(command[0], command)


def write_job(
    folder: Path, name: str, owners: Sequence[str], orders: Sequence[Mapping[str, Json]], jobs: JobClasses
) -> Path:
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
                {
                    "id": "controller",
                    "path": path_of(CollabController),
                    "args": {"server_obj_id": "ours", "sync_task_timeout": 120},
                }
            ],
            "components": [{"id": "ours", "path": path_of(jobs.coordinator), "args": {"orders": list(orders)}}],
        },
    )
    write_json(
        folder / "app" / "config" / "config_fed_client.json",
        {
            **base,
            "executors": [
                {"tasks": ["*"], "executor": {"path": path_of(CollabExecutor), "args": {"client_obj_id": "ours"}}}
            ],
            "components": [{"id": "ours", "path": path_of(jobs.owner), "args": {}}],
        },
    )
    return folder


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """FLARE prints; our output is for what was asked for."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield

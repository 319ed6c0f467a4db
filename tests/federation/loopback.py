"""A federation of real processes on this machine: kits, parties that can be killed, an operator."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil
import torch

from suture import api
from suture.cli import main
from suture.federation.flare.kits import Kit
from suture.federation.flare.session import Session, SessionError
from suture.federation.operator.operator import Operator
from suture.federation.wire.orders import FaultSettings, Order, order_of
from suture.graph.shard import save_shard
from suture.runs.prepare import Prepared, Source

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGINS = {"fedamp": "fedamp.py:FedAMP", "feddyn": "feddyn.py:FedDyn"}
"""Methods that are not installed: every party names their files itself when it starts."""
SMALL = "csbm:nodes=240,features=40,words_per_node=8"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spelling(method: str) -> str:
    """A plug-in's file and class, or the name."""
    return f"{REPOSITORY / 'examples' / PLUGINS[method]}" if method in PLUGINS else method


def planned(method: str, clients: int, *overrides: str, dataset: str = SMALL) -> api.Plan:
    method = spelling(method)
    return api.plan(dataset, [method], clients=clients, seeds=[0], overrides=overrides)


def prepared(made: api.Plan, data_root: Path | None = None) -> Prepared:
    return Source(made, data_root=data_root).prepared(0)


def write_shards(made: api.Plan, folder: Path, data_root: Path | None = None) -> Prepared:
    """The piece of every client of a cut in a file of its own."""
    world = prepared(made, data_root)
    normalised = made.protocol.preprocess.row_normalise
    for owner in world.clients.ids:
        path = folder / f"{owner}.safetensors"
        save_shard(world.clients, owner, path, classes=world.task.classes, row_normalised=normalised)
    return world


@dataclass
class Loopback:
    """One coordinator and its owners, each a process."""

    folder: Path
    owners: Sequence[str]
    shards: Path

    def __post_init__(self) -> None:
        self.port = free_port()
        kits = self.folder / "kits"
        server = f"localhost:{self.port}"
        self.found(server, kits)
        self.kits = {name: kits / name for name in ("coordinator", "operator", *self.owners)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def found(self, server: str, kits: Path) -> None:
        """All keys made in one place: the quick way."""
        arguments = ["--owners", ",".join(self.owners), "--server", server, "--out", str(kits)]
        assert main(["federation", "create", *arguments, "--with-keys"]) == 0

    def policy(self, owner: str) -> Path:
        """An owner's policy; read at the start of every job, so it can be changed between runs."""
        return self.folder / f"{owner}.toml"

    def kit(self, name: str) -> Kit:
        role = name if name in ("coordinator", "operator") else "owner"
        return Kit.read(self.kits[name], role)

    def start(self, *names: str) -> None:
        """Each party as its own command starts it."""
        for name in names or ("coordinator", *self.owners):
            arguments = ["coordinator", "start", str(self.kits[name])]
            if name != "coordinator":
                folder = self.shards / name
                data = folder if folder.is_dir() else self.shards / f"{name}.safetensors"
                policy = self.policy(name)
                policy.touch()
                arguments = ["owner", "start", str(self.kits[name]), "--data", str(data), "--policy", str(policy)]
            arguments += [part for plugin in PLUGINS for part in ("--plugin", spelling(plugin))]
            with (self.kits[name] / "output.txt").open("ab") as output:
                self.processes[name] = self.suture(*arguments, output=output)

    def suture(self, *arguments: str, output: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "suture", *arguments]
        # A session each, as on terminals of their own: a Ctrl-C is for the tests, not for the parties.
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder, start_new_session=True
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """A command to its end: (exit code, everything it printed)."""
        process = self.suture(*arguments)
        printed, _ = process.communicate(timeout=600)
        return process.returncode, printed.decode()

    def wait(self, seconds: float = 900) -> None:
        """Until the coordinator answers and every started owner is connected."""
        expected = {name for name in self.processes if name != "coordinator"}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                session = Session(self.kit("operator"), timeout=30)
            except SessionError:
                time.sleep(0.5)
                continue
            try:
                while time.monotonic() < end:
                    if expected <= session.connected():
                        return
                    time.sleep(0.3)
            finally:
                session.close()
        raise TimeoutError(f"not connected: {expected}")

    def job_process(self, name: str) -> psutil.Process | None:
        children = psutil.Process(self.processes[name].pid).children()
        return children[0] if children else None

    def kill(self, name: str) -> None:
        """kill -9, as a power cut would."""
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is not None:
                continue
            parent = psutil.Process(process.pid)
            for one in [*parent.children(recursive=True), parent]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()

    def order(self, made: api.Plan, run: str, **faults: object) -> Order:
        return order_of(made, run, replace(FaultSettings(), **faults))  # type: ignore[arg-type]

    def carry_out(self, orders: Sequence[Order]) -> list[Path]:
        """Submit and follow; the folder of each run."""
        operator = Operator(self.kit("operator"), patience=300)
        out = [self.folder / "runs" / order.run for order in orders]
        try:
            operator.carry_out(orders, out)
        finally:
            operator.close()
        return out


def embedded(made: api.Plan, out: Path, data_root: Path | None = None) -> Path:
    """The same run in one process, one client at a time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    api.run_plan(made, out=out, options=api.Options(data_root=data_root, chunk=1))
    torch.set_num_threads(threads)
    return out


@contextlib.contextmanager
def running(made: api.Plan, folder: Path) -> Iterator[Loopback]:
    """A coordinator and an owner for every client, up and warm."""
    world = write_shards(made, folder / "shards")
    parties = Loopback(folder, world.clients.ids, folder / "shards")
    parties.start()
    try:
        parties.wait()
        yield parties
    finally:
        parties.stop()

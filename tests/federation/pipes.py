"""Owners as real processes behind pipes: what every transport does, without a network and within a second."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from pathlib import Path

from identities import kit_of

from suture.federation.owner.owner import Owner
from suture.federation.wire.reasons import Unreachable

SERVE = """
import struct, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from suture.federation.owner.owner import Owner
desk = Owner.at(Path(sys.argv[1])).desk()
inward, outward = sys.stdin.buffer, sys.stdout.buffer
while head := inward.read(4):
    reply = desk.answer(inward.read(struct.unpack("<I", head)[0]))
    outward.write(struct.pack("<I", len(reply)) + reply)
    outward.flush()
"""


class Piped:
    """One process an owner; a killed one does not answer until it is started again."""

    def __init__(
        self,
        folder: Path,
        owners: tuple[str, ...],
        shards: Path,
        policies: dict[str, Path] | None = None,
        plugins: dict[str, list[str]] | None = None,
    ) -> None:
        self.folder, self._owners = folder, owners
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.locks = {owner: threading.Lock() for owner in owners}
        self.heard: list[tuple[str, bytes, bytes]] = []
        for owner in owners:
            own = (policies or {}).get(owner), folder / owner, (plugins or {}).get(owner, [])
            Owner.set_up(owner, shards / f"{owner}.safetensors", *own, kit=kit_of(owner))
            self.start(owner)

    @property
    def owners(self) -> tuple[str, ...]:
        return self._owners

    def start(self, owner: str) -> None:
        command = [sys.executable, "-c", SERVE, str(self.folder / owner)]
        self.processes[owner] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def kill(self, owner: str) -> None:
        self.processes[owner].kill()
        self.processes[owner].wait()

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        process = self.processes[owner]
        assert process.stdin and process.stdout
        with self.locks[owner]:
            try:
                process.stdin.write(struct.pack("<I", len(request)) + request)
                process.stdin.flush()
                head = process.stdout.read(4)
                reply = process.stdout.read(struct.unpack("<I", head)[0])
            except (OSError, struct.error, ValueError) as error:
                raise Unreachable(f"no answer ({error})") from error
        self.heard.append((owner, request, reply))
        return reply

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

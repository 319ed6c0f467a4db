"""Real desks and a real coordinator's cohort, fed with damaged traffic; what took too long, too much memory or fell over.

Recorded is what passes in whole runs of several methods, plain and secure. An owner's desk then gets damaged requests; a
coordinator's cohort gets, from one of three owners, a damaged reply to a step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from mutations import Mutator
from test_faults import DATASET, OWNERS, QUICK, InProcess, coordinator

from suture import api
from suture.errors import SutureError
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of
from suture.federation.wire.signatures import read, signature, wire_types
from suture.graph.shard import save_shard
from suture.method import Task
from suture.runs.prepare import Source

METHODS = (("fedavg", False), ("fedavg", True), ("fedsage_plus", False), ("fedpub", False), ("fedproto", False))
SLOW = 1.0
"""Seconds of processor time: what a machine does beside is nobody's fault here."""
SLACK = 48 * 2**20
"""Bytes a step may take whatever its request's size: training is not reading."""
FACTOR = 10
"""An allocation is too large if it is above this many times the input."""


def made_for(method: str) -> api.Plan:
    """Small, but with every message."""
    return api.plan(DATASET, [method], clients=3, seeds=[0], overrides=["rounds=2", "model.hidden=8"])


def write_shards(folder: Path) -> Path:
    """The piece of each owner."""
    made = made_for("fedavg")
    world = Source(made).prepared(0)
    folder.mkdir(parents=True)
    for owner in OWNERS:
        path = folder / f"{owner}.safetensors"
        normalised = made.protocol.preprocess.row_normalise
        save_shard(world.clients, owner, path, classes=world.task.classes, row_normalised=normalised)
    return folder


class Recording(InProcess):
    """Keeps what passes: (owner, request, reply)."""

    def __init__(self, folder: Path, shards: Path) -> None:
        super().__init__(folder, shards)
        self.passed: list[tuple[str, bytes, bytes]] = []

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        reply = super().call(owner, request, timeout)
        self.passed.append((owner, request, reply))
        return reply


class Replying:
    """Owners that answer as they did before, but for one whose reply is damaged."""

    def __init__(self, passed: list[tuple[str, bytes, bytes]]) -> None:
        self.owners = OWNERS
        self.replies = {(owner, request): reply for owner, request, reply in passed}
        self.victim: tuple[str, Mutator] | None = None
        self.damaged = b""

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        reply = self.replies[owner, request]
        if self.victim is not None and self.victim[0] == owner:
            self.damaged = self.victim[1].changed(reply)
            return self.damaged
        return reply


@dataclass
class Watch:
    """Times and memory of what was tried."""

    tried: int = 0
    slowest: float = 0.0
    largest: int = 0
    findings: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def over(self, data: bytes, what: str) -> Iterator[None]:
        """Watch one try."""
        self.tried += 1
        before = reset_peak()
        began = time.process_time()
        try:
            yield
        except SutureError as error:
            self.answers[type(error).__name__] += 1
        except Exception as error:  # whatever it is, it is a finding
            self.findings.append(f"{what}: {type(error).__name__}: {str(error)[:200]} on {data[:160]!r}")
        took = time.process_time() - began
        grown = peak() - before
        self.slowest, self.largest = max(self.slowest, took), max(self.largest, grown)
        if took > SLOW:
            self.findings.append(f"{what}: {took:.2f} s on {len(data)} bytes {data[:160]!r}")
        if grown > FACTOR * len(data) + SLACK:
            self.findings.append(f"{what}: {grown / 2**20:.0f} MB on {len(data)} bytes {data[:160]!r}")


def reset_peak() -> int:
    """Let the system count the peak of memory from here; what is taken now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


class NoAudit:
    """Nobody reads a million lines."""

    def note(self, event: str, **details: object) -> None:
        """Nothing."""


class AtCoordinator:
    """A coordinator's cohort that asks a run's first step again and again."""

    def __init__(self, method: str, passed: list[tuple[str, bytes, bytes]], mutator: Mutator) -> None:
        self.method, self.mutator, self.transport = made_for(method).methods[0], mutator, Replying(passed)
        opened = next(f for _, r, _ in passed for f in Frame.unpack(r).parts() if f.header["verb"] == "open")
        frames: dict[str, Frame] = {}
        for owner, request, _ in passed:
            for frame in Frame.unpack(request).parts():
                if frame.header["verb"] == "ask":
                    frames.setdefault(owner, frame)
        first = frames[OWNERS[0]]
        self.step, self.round = getattr(self.method, first.text("step")), first.number("round")
        declared, known = signature(type(self.method), first.text("step")).message, wire_types(type(self.method))
        messages = [read(frames[owner].body, declared, known) for owner in OWNERS]
        self.message = type(messages[0]).concat(messages)
        terms = opened.header["terms"]
        assert isinstance(terms, dict)
        task = Task(terms["features"], terms["classes"], terms["seed"])
        faults = replace(QUICK, on_loss="continue", patience=0.0)
        self.cohort: OwnersCohort[Any] = OwnersCohort.start(
            self.method, task, "run", self.transport, terms, NoAudit(), faults=faults
        )

    def ask(self, owner: str) -> None:
        """The first step, with this owner's reply damaged."""
        run = self.cohort._common
        run.asked, run.base, run.round = 0, 0, self.round
        run.attendance.absent.clear()
        run.attendance.banned.clear()
        run.calls.owed.clear()
        run.checks.expectations.seen.clear()
        self.transport.victim = owner, self.mutator
        self.cohort.ask(self.step, self.message)


class Fuzzer:
    """One damaged frame after the other, by turns for an owner and for the coordinator."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)
        shards = write_shards(folder / "shards")
        self.watch = Watch()
        self.desks: list[tuple[Recording, Mutator]] = []
        self.cohorts: list[AtCoordinator] = []
        for place, (method, secure) in enumerate(METHODS):
            home = folder / f"{place}-{method}"
            recording = Recording(home / "owners", shards)
            order = order_of(made_for(method), "run", QUICK, secure=secure)
            assert coordinator(order, home, recording).carry_on() is not None
            requests = [request for _, request, _ in recording.passed]
            replies = [reply for _, _, reply in recording.passed]
            self.desks.append((recording, Mutator(seed + 2 * place, requests)))
            if not secure:  # a secure sum is another one every time: there is nothing to play again
                self.cohorts.append(AtCoordinator(method, recording.passed, Mutator(seed + 2 * place + 1, replies)))

    def owner_once(self, turn: int) -> None:
        """A damaged request at a desk."""
        recording, mutator = self.desks[turn % len(self.desks)]
        owner, request, _ = mutator.random.choice(recording.passed)
        damaged = mutator.changed(request)
        with self.watch.over(damaged, "owner"):
            reply = Frame.unpack(recording.desks[owner].answer(damaged))
            for one in reply.parts():
                refused = one.refused
                self.watch.answers["answered" if refused is None else refused.code.value] += 1
                if refused is not None and "an error of its own" in str(refused):
                    self.watch.findings.append(f"owner: {refused} on {damaged[:200]!r}")

    def coordinator_once(self, turn: int) -> None:
        """A damaged reply at the coordinator."""
        at = self.cohorts[turn % len(self.cohorts)]
        with self.watch.over(at.transport.damaged, "coordinator"):
            at.ask(at.mutator.random.choice(OWNERS))
            self.watch.answers["taken"] += 1

    def run(self, frames: int, told: Callable[[Watch], None] = lambda watch: None) -> Watch:
        """By turns; `told` hears of it now and then."""
        for turn in range(frames):
            (self.owner_once if turn % 2 else self.coordinator_once)(turn // 2)
            if turn % 10_000 == 9_999:
                told(self.watch)
        return self.watch

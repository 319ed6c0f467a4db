"""Real desks and a real coordinator's cohort, fed with damaged traffic; what took too long, too much memory or fell over.

Recorded is what passes in whole runs of several methods, plain and secure. An owner's desk then gets damaged requests; a
coordinator's cohort gets, from one of three owners, a damaged reply to a step.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from mutations import Mutator
from test_faults import DATASET, OWNERS, QUICK, InProcess, coordinator

from suture import api
from suture.core.message import Message
from suture.errors import SutureError
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.owner.sealing import told_of_everybody
from suture.federation.wire.checks import check_finite, check_sizes
from suture.federation.wire.frames import MAGIC, Frame
from suture.federation.wire.names import MATCHING
from suture.federation.wire.orders import order_of
from suture.federation.wire.signatures import Signature, read, signature, wire_types
from suture.graph.shard import save_shard
from suture.method import Method, Task
from suture.methods.matching import Matching
from suture.runs.prepare import Source

METHODS = (
    *(("fedavg", False), ("fedavg", True), ("fedsage_plus", False), ("fedpub", False), ("fedproto", False)),
    *(("fedgcn", False), ("fedgram", True)),
)
MORE = {"fedgcn": ("partition.boundary=both", "training.stitch=1"), "fedgram": ("fedgram.rank=4",)}
"""With known links there is a matching before the run, and stitching after it."""
SLOW = 1.0
"""Seconds of processor time: what a machine does beside is nobody's fault here."""
SLACK = 8 * 2**20
"""Bytes a step may take whatever its request's size: training is not reading."""
FACTOR = 10
"""An allocation is too large if it is above this many times the input."""


def made_for(method: str) -> api.Plan:
    """Small, but with every message."""
    overrides = ["rounds=2", "model.hidden=8", *MORE.get(method, ())]
    return api.plan(DATASET, [method], clients=3, seeds=[0], overrides=overrides)


def write_shards(folder: Path) -> Path:
    """The piece of each owner."""
    made = made_for("fedgcn")
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
    """Owners that answer as they did before, but for one whose reply is another."""

    def __init__(self, passed: list[tuple[str, bytes, bytes]]) -> None:
        self.owners = OWNERS
        self.replies = {(owner, request): reply for owner, request, reply in passed}
        self.instead: dict[str, bytes] = {}
        self.last: dict[str, bytes] = {}

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        self.last[owner] = self.instead.get(owner) or self.replies[owner, request]
        return self.last[owner]


@dataclass
class Watch:
    """Times and memory of what was tried."""

    tried: int = 0
    slowest: float = 0.0
    largest: int = 0
    findings: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def over(self, data: bytes, what: str) -> Iterator[None]:
        """Watch one try.

        Without Python's collector: it would look through all that Hypothesis keeps, millions of objects and a second
        or two after twenty thousand examples, and a frame would be blamed for it.
        """
        self.tried += 1
        self.places[what] += 1
        gc.disable()
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
        gc.enable()
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


class AtOnce(ThreadPoolExecutor):
    """Calls one owner after the other: what they answer is the same, and three threads a frame are most of the time."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class AtCoordinator:
    """A coordinator's cohort that asks a run's first step again and again."""

    def __init__(self, method: str, passed: list[tuple[str, bytes, bytes]], mutator: Mutator) -> None:
        self.method, self.mutator, self.transport = made_for(method).methods[0], mutator, Replying(passed)
        parts = [(owner, frame) for owner, request, _ in passed for frame in Frame.unpack(request).parts()]
        parts = [(owner, frame) for owner, frame in parts if frame.header.get("run") == "run"]  # and not what comes before
        opened = next(frame for _, frame in parts if frame.header["verb"] == "open")
        frames: dict[str, Frame] = {}
        for owner, frame in parts:
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
        self.cohort._common.calls._pool = AtOnce()
        self.ask()
        self.honest = dict(self.transport.last)

    def ask(self, **instead: bytes) -> None:
        """The first step, with some owners' replies replaced."""
        run = self.cohort._common
        run.asked, run.base, run.round = 0, 0, self.round
        run.attendance.absent.clear()
        run.attendance.banned.clear()
        run.calls.owed.clear()
        run.checks.expectations.seen.clear()
        self.transport.instead = instead
        self.cohort.ask(self.step, self.message)


class AtReaders:
    """What both sides do first with all that comes: frames are unpacked, and messages read as the step declares them."""

    def __init__(self, method: str, passed: list[tuple[str, bytes, bytes]], mutator: Mutator) -> None:
        kind = type(made_for(method).methods[0])
        self.mutator, self.known, self.passed = mutator, wire_types(kind) | wire_types(Matching), []
        self.passed: list[tuple[bytes, list[type[Message] | None]]]
        for _, request, reply in passed:
            declared = [_declared(kind, frame) for frame in Frame.unpack(request).parts()]
            self.passed += [(request, [one.message for one in declared]), (reply, [one.reply for one in declared])]

    def read(self, data: bytes, declared: list[type[Message] | None]) -> None:
        """To the last number, or a refusal."""
        for frame, kind in zip(Frame.unpack(data).parts(), declared, strict=False):
            if frame.refused is None and frame.body[:1] == b"{":
                told_of_everybody(frame)
            elif frame.refused is None and frame.body:
                message = read(frame.body, kind, self.known)
                check_finite(message)
                check_sizes(message)


def _declared(kind: type[Method[Any, Any]], frame: Frame) -> Signature:
    """What a request and its answer hold."""
    step, run = frame.header.get("step"), str(frame.header.get("run"))
    if not isinstance(step, str):
        return Signature(None, None)
    return signature(Matching if run.endswith(MATCHING) else kind, step)


class Fuzzer:
    """One damaged or invented frame after the other: one in five at a party, the others at its readers.

    A party takes milliseconds for a frame, most of them for what it does with good ones.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)
        shards = write_shards(folder / "shards")
        self.watch, self.seed = Watch(), seed
        self.desks: list[tuple[Recording, Mutator]] = []
        self.cohorts: list[AtCoordinator] = []
        self.readers: list[AtReaders] = []
        for place, (method, secure) in enumerate(METHODS):
            home = folder / f"{place}-{method}"
            recording = Recording(home / "owners", shards)
            order = order_of(made_for(method), "run", QUICK, secure=secure)
            assert coordinator(order, home, recording).carry_on() is not None
            requests = [request for _, request, _ in recording.passed]
            replies = [reply for _, _, reply in recording.passed]
            self.desks.append((recording, Mutator(seed + 2 * place, requests)))
            self.readers.append(AtReaders(method, recording.passed, Mutator(seed + 1000 + place, requests + replies)))
            if not secure:  # a secure sum is another one every time: there is nothing to play again
                self.cohorts.append(AtCoordinator(method, recording.passed, Mutator(seed + 2 * place + 1, replies)))

    def owner_once(self, turn: int) -> None:
        """A damaged request at a desk."""
        recording, mutator = self.desks[turn % len(self.desks)]
        owner, request, _ = mutator.random.choice(recording.passed)
        self.at_desk(recording, owner, mutator.changed(request))

    def at_desk(self, recording: Recording, owner: str, request: bytes) -> None:
        """Any request at a desk, and what came of it."""
        with self.watch.over(request, "owner"):
            reply = Frame.unpack(recording.desks[owner].answer(request))
            for one in reply.parts():
                refused = one.refused
                self.watch.answers["answered" if refused is None else refused.code.value] += 1
                if refused is not None and "an error of its own" in str(refused):
                    self.watch.findings.append(f"owner: {refused} on {request[:200]!r}")

    def coordinator_once(self, turn: int) -> None:
        """A damaged reply at the coordinator."""
        at = self.cohorts[turn % len(self.cohorts)]
        owner = at.mutator.random.choice(OWNERS)
        self.at_coordinator(at, owner, at.mutator.changed(at.honest[owner]))

    def at_coordinator(self, at: AtCoordinator, owner: str, reply: bytes) -> None:
        """Any reply of one of the owners at the coordinator."""
        with self.watch.over(reply, "coordinator"):
            at.ask(**{owner: reply})
            self.watch.answers["taken"] += 1

    def readers_once(self, turn: int) -> None:
        """A damaged frame, request or reply, where it is read."""
        at = self.readers[turn % len(self.readers)]
        data, declared = at.mutator.random.choice(at.passed)
        damaged = at.mutator.changed(data)
        with self.watch.over(damaged, "readers"):
            at.read(damaged, declared)
            self.watch.answers["read"] += 1

    def run(self, frames: int, told: Callable[[Watch], None] = lambda watch: None) -> Watch:
        """By turns, the last twentieth invented; `told` hears of it now and then."""
        drawn = frames // 40
        for turn in range(frames - 2 * drawn):
            TURNS[turn % len(TURNS)](self, turn // len(TURNS))
            if turn % 10_000 == 9_999:
                told(self.watch)
        self.invented(drawn)
        return self.watch

    def invented(self, examples: int) -> None:
        """Frames that nobody ever sent, by Hypothesis, each at a desk and at a coordinator.

        It would stop at the first finding, so findings are kept and not raised.
        """

        @seed(self.seed)
        @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(
            invented_frames(self.desks), st.sampled_from(self.desks), st.sampled_from(self.cohorts), st.sampled_from(OWNERS)
        )
        def each(frame: bytes, desk: tuple[Recording, Mutator], at: AtCoordinator, owner: str) -> None:
            self.at_desk(desk[0], owner, frame)
            self.at_coordinator(at, owner, frame)

        each()


TURNS = (Fuzzer.coordinator_once, *[Fuzzer.readers_once] * 4, Fuzzer.owner_once, *[Fuzzer.readers_once] * 4)


def invented_frames(desks: list[tuple[Recording, Mutator]]) -> st.SearchStrategy[bytes]:
    """Headers of entries that parties know, with contents of their own; bodies that were sent, or any."""
    known = [part for one, _ in desks for _, *both in one.passed for data in both for part in Frame.unpack(data).parts()]
    keys = sorted({key for frame in known for key in frame.header})
    verbs = sorted({str(frame.header["verb"]) for frame in known if "verb" in frame.header})
    bodies = sorted({frame.body for frame in known}, key=len)[:200]
    plain = (
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from([*keys, *OWNERS])
    )
    nested = st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8) | st.sampled_from(keys), inner, max_size=5)
        ),
    )
    fixed = {"verb": st.sampled_from(verbs), "run": st.just("run"), "number": st.integers(0, 9)}
    header = st.builds(lambda one, two: {**one, **two}, st.fixed_dictionaries({}, optional=fixed),
                       st.dictionaries(st.sampled_from(keys), nested, max_size=6))  # fmt: skip
    body = st.sampled_from(bodies) | st.binary(max_size=300)
    return st.builds(lambda content, rest: framed(json.dumps(content).encode(), rest), header, body)


def framed(header: bytes, body: bytes = b"") -> bytes:
    """A frame with any bytes for a header."""
    return MAGIC + len(header).to_bytes(4, "little") + header + body

"""Run folders, shards, kits and policies as somebody hostile would hand them over, read by what people use to read them.

A genuine set is made once; then one file at a time is damaged. Whatever reads it must end with a result or one sentence,
within a second of what it takes undamaged, with memory in proportion, without a traceback, and without a byte that moves the
terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fuzzing import FACTOR, SLACK, made_for, peak, reset_peak, write_shards
from mutations import DEEP, Mutator
from test_faults import OWNERS, QUICK, InProcess, coordinator

from suture.cli import main
from suture.errors import SutureError
from suture.federation.flare.kits import Kit
from suture.federation.owner.owner import Owner
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of

DATASET = "csbm:nodes=240,features=20,words_per_node=5"
SLOW = 1.0
"""Seconds of processor time: what a machine does beside is nobody's fault here."""
LONGEST_SENTENCE = 4200
"""Characters: a sentence that quotes a hostile value does not quote all of it."""
POLICY = 'methods = ["fedavg"]\nforbid_fields = ["loss"]\nmax_rounds = 200\n[privacy]\nepsilon = 8.0\ndelta = 1e-5\n'
Action = Callable[[Path], str]
"""Reads a damaged folder; what it says."""


def command(*words: str, place: Path) -> str:
    """A command as a user types it, {} being the folder: what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([word.replace("{}", str(place)) for word in words])
    said = out.getvalue() + err.getvalue()
    if code not in (0, 2):
        raise AssertionError(f"exit code {code}: {said[-300:]}")
    return said if code == 0 else _one_sentence(said)


def _one_sentence(said: str) -> str:
    if len(said) > LONGEST_SENTENCE:
        raise AssertionError(f"a refusal of {len(said)} characters: {said[:200]}")
    return said


def set_up(place: Path) -> str:
    """An owner that starts with this shard and this policy."""
    owner = Owner.set_up(OWNERS[0], place / "shard.safetensors", place / "policy.toml", place / "home")
    return str(owner.describe())[:0]


def opened(place: Path, terms: dict[str, object]) -> str:
    """An owner that opens a run again with this home."""
    frame = Frame({"verb": "open", "run": "run", "number": 2, "terms": terms})  # type: ignore[dict-item]
    desk = Owner.at(place).desk()
    try:
        answer = Frame.unpack(desk.answer(frame.pack())).refused
    finally:
        desk.close()
    said = "" if answer is None else str(answer)
    if "an error of its own" in said:
        raise AssertionError(said)
    return _one_sentence(said)


@dataclass
class Case:
    """Genuine files, and what reads them."""

    name: str
    genuine: Path
    actions: dict[str, Action]
    usual: dict[str, float] = field(default_factory=dict)
    """Seconds of each action on the genuine files."""


@dataclass
class Reader:
    """Damages files and lets commands read them."""

    folder: Path
    seed: int
    findings: list[str] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def __post_init__(self) -> None:
        self.mutator = Mutator(self.seed, [b"\x1b[2J" * 30, json.dumps({"a": [1, 2]}).encode(), DEEP.encode()])
        self.cases = [self._run(), *self._federation(write_shards(self.folder / "shards"))]
        for case in self.cases:
            for name, action in case.actions.items():
                for _ in range(2):  # the first call imports
                    began = time.process_time()
                    action(self._copied(case))
                    case.usual[name] = time.process_time() - began

    def _run(self) -> Case:
        """A finished run, as `suture run` leaves it."""
        place = self.folder / "genuine-run"
        command("run", "--dataset", DATASET, "--method", "fedavg", "--clients", "3", "--set", "rounds=3", "--quiet",
                "--out", str(place), place=place)  # fmt: skip
        words = {"show": ["{}"], "privacy": ["{}"], "predict": ["{}", "--out", "{}/p.csv"],
                 "export": ["{}", "--out", "{}/e"], "resume": ["{}", "--quiet"]}  # fmt: skip
        return Case("run", place, {name: _typed(name, *more) for name, more in words.items()})

    def _federation(self, shards: Path) -> list[Case]:
        """A federation's run, an owner's home, its policy and shard, and a kit."""
        place = self.folder / "genuine-federation"
        order = order_of(made_for("fedavg"), "run", QUICK)
        assert coordinator(order, place, InProcess(place / "owners", shards)).carry_on() is not None
        terms = json.loads((place / "owners" / OWNERS[0] / "runs" / "run" / "terms.json").read_text())
        policy = self.folder / "genuine-policy"
        policy.mkdir()
        (policy / "policy.toml").write_text(POLICY)
        shutil.copy(shards / f"{OWNERS[0]}.safetensors", policy / "shard.safetensors")
        kits = self.folder / "kits"
        create = ["federation", "create", "--owners", "a,b,c", "--server", "localhost:9", "--with-keys", "--out", "{}"]
        command(*create, place=kits)
        reading = {"read": lambda kit: str(Kit.read(kit, "owner"))[:0], "ledger": _typed("owner", "ledger", "{}")}
        return [
            Case("federation's run", place / "run", {name: _typed(name, "{}") for name in ("show", "privacy")}),
            Case("owner's home", place / "owners" / OWNERS[0], {"open": partial(opened, terms=terms)}),
            Case("policy and shard", policy, {"start": set_up}),
            Case("kit", kits / "a", reading),
        ]

    def _copied(self, case: Case) -> Path:
        place = self.folder / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(case.genuine, place, symlinks=True)
        return place

    def once(self, turn: int) -> None:
        """One damaged file, read by one action."""
        case = self.cases[turn % len(self.cases)]
        place = self._copied(case)
        # What FLARE reads is FLARE's; a kit's own file is about.json.
        files = [file for file in sorted(place.rglob("*")) if file.is_file() and "startup" not in file.parts]
        target = self.mutator.random.choice(files)
        how = self._damage(target)
        name = self.mutator.random.choice(list(case.actions))
        what = f"{case.name}, {name}, {target.relative_to(place)} {how}"
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        before, began = reset_peak(), time.process_time()
        try:
            said = case.actions[name](place)
            self.ended["read" if said == "" or "\n" in said.strip() else "sentence"] += 1
            if any((ord(letter) < 32 and letter not in "\n\t") or letter in "\x7f\x9b\u202e" for letter in said):
                self.findings.append(f"{what}: moves the terminal: {said[:200]!r}")
        except SutureError:
            self.ended["refused"] += 1
        except BaseException as error:
            self.findings.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
        took = time.process_time() - began - case.usual[name]
        self.slowest = max(self.slowest, took)
        if took > SLOW:
            self.findings.append(f"{what}: {took:.2f} s more than usual")
        if (grown := peak() - before) > FACTOR * size + SLACK:
            self.findings.append(f"{what}: {grown / 2**20:.0f} MB for {size} bytes")

    def _damage(self, path: Path) -> str:
        """Change one file; how."""
        chance, data = self.mutator.random, path.read_bytes()
        way = chance.choice(["bytes", "bytes", "json", "json", "json", "gone", "empty", "deep", "folder", "link", "huge"])
        if way == "json" and (changed := self._as_json(data)) is not None:
            path.write_bytes(changed)
            return "with other values"
        path.unlink()
        if way == "empty":
            path.write_bytes(b"")
        elif way == "deep":
            path.write_text(DEEP * 10)
        elif way == "folder":
            path.mkdir()
        elif way == "link":
            path.symlink_to(chance.choice(["/dev/null", "/etc/hostname", str(path), "/nowhere"]))
        elif way == "huge":
            path.write_bytes(data + b" " * 5_000_000)
        elif way != "gone":
            path.write_bytes(self.mutator.changed(data))
            return "with other bytes"
        return way

    def _as_json(self, data: bytes) -> bytes | None:
        """With one entry of it changed: a JSON file, one line of a file of lines, or a tensor file's header."""
        chance = self.mutator.random
        if data[8:9] == b"{":
            end = 8 + int.from_bytes(data[:8], "little")
            with contextlib.suppress(ValueError):
                header = json.dumps(self.mutator.edited(json.loads(data[8:end])))
                return len(header).to_bytes(8, "little") + header.encode() + data[end:]
            return None
        lines = data.split(b"\n")
        for pick in (None, chance.randrange(len(lines))):
            with contextlib.suppress(ValueError):
                text = json.dumps(self.mutator.edited(json.loads(data if pick is None else lines[pick]))).encode()
                return text if pick is None else b"\n".join([*lines[:pick], text, *lines[pick + 1 :]])
        return None


def _typed(*words: str) -> Action:
    return lambda place: command(*words, place=place)


def reads(folder: Path, cases: int, seed: int, told: Callable[[Reader], None] = lambda reader: None) -> Reader:
    """So many damaged files, one after the other."""
    os.environ.setdefault("COLUMNS", "120")
    reader = Reader(folder, seed)
    for turn in range(cases):
        reader.once(turn)
        if turn % 100 == 99:
            told(reader)
    return reader

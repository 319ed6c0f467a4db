"""An owner's account: what its runs have cost, under which terms, and how often it has answered. It only grows.

`account.jsonl` has a line for every run that was opened:

    {"event": "opened", "run": "night-7", "terms": sha256, "rounds": 20, "noise": [[2.0, 0.1, 80]], "tests": []}

- The terms of a run are fixed when it is opened first. Its name is refused under other ones, whoever asks.
- All that a run can cost is charged then, and never given back. Opened again it costs nothing, unless the owner's data have
  changed so that it costs something else: that is charged too.
- It is decided and written under one lock, so that two processes cannot spend the same.

`accounts/RUN.jsonl` has a line for every step that was run, every test, and every reply that left, each before it happened:

    {"event": "ran", "step": "local_update", "key": first bytes of the hash of its key, "bytes": sent so far}

Both are chained (`suture.core.chained`). A killed process has counted what it answered. Lines of noisy steps are also on
disk before the step is run; the others survive a kill, but a crash of the machine may take the last of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from suture.core.chained import ChainedFile, Line
from suture.core.storage import Json, damaged, disk_errors, make_folder, sha256_of_json
from suture.federation.owner.cost import Cost
from suture.federation.wire.reasons import Code, Refused

ACCOUNT, ACCOUNTS = "account.jsonl", "accounts"
SPENT = "spent.json"
"""What versions before this one wrote instead."""


class Account:
    """What all runs of an owner have cost."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._file = ChainedFile(home / ACCOUNT, "account")

    def open(self, run: str, terms: dict[str, Json], cost: Cost, check: Callable[[Sequence[Cost]], None]) -> list[str]:
        """Fix a run's terms and charge it; `check` refuses, being told what everything else has cost.

        Returns runs that were carried over from the record of an earlier version, if that happened now.
        """
        carried: list[str] = []
        digest = sha256_of_json(terms)

        def decide(lines: Sequence[Line]) -> list[Line]:
            old = [] if lines else self._carried_over()
            carried.extend(str(line["run"]) for line in old)
            known = [*lines, *old]
            mine = [line for line in known if line.get("event") == "opened" and line.get("run") == run]
            if any(line.get("terms") != digest for line in mine):
                raise Refused(f"run {run!r} was opened here under other terms; give the new run another name", Code.TERMS)
            paid = [self._cost(line) for line in mine]
            check([self._cost(line) for line in known if line not in mine] + [one for one in paid if one != cost])
            line: Line = {"event": "opened", "run": run, "terms": digest, **cost.as_json()}
            return [*old, *([] if cost in paid else [line])]

        self._file.append_if(decide)
        return carried

    def _carried_over(self) -> list[Line]:
        spent = Cost.read_spent(self.home / SPENT)
        return [{"event": "carried over", "run": run, **cost.as_json()} for run, cost in spent.items()]

    def _cost(self, line: Line) -> Cost:
        try:
            return Cost.from_json(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(self._file.path) from error

    def of_run(self, run: str, caps: Caps) -> RunAccount:
        """How often one run was answered."""
        return RunAccount(make_folder(self.home / ACCOUNTS) / f"{run}.jsonl", caps)


@dataclass(frozen=True)
class Caps:
    """How often an owner answers in one run."""

    asks: int
    """Runs of each step that the plan can need: iterations, times how often one of them asks the same step."""
    spare: int
    """Runs of steps beyond that, in all: an iteration may begin anew without an owner that got lost. Not of noisy steps,
    which are accounted for as often as the plan can need them."""
    tests: int
    """Tests of different models."""
    total_bytes: int | None = None
    """Of everything that leaves, in all runs together."""
    few: Mapping[str, int] = field(default_factory=dict)
    """Steps that are run so often, whatever the plan."""


class RunAccount:
    """How often one run was answered; several processes may share the file."""

    def __init__(self, path: Path, caps: Caps) -> None:
        self.path, self.caps = path, caps
        self._file = ChainedFile(path, "account")
        self.ran: Counter[str] = Counter()
        self.bytes = 0
        self._keys: set[str] = set()
        self._tests: dict[str, str] = {}
        self._append(list)  # to know what earlier processes have counted

    def run(self, step: str, key: bytes | None) -> None:
        """Charge a step before it is run; one with noise by its key: what a kill interrupted is not charged twice."""
        mark = hashlib.sha256(key).hexdigest()[:16] if key else ""

        def decide() -> list[Line]:
            if mark in self._keys:
                return []
            asks, spare = self.caps.few.get(step, self.caps.asks), 0 if key else self.caps.spare
            beyond = sum(max(0, times - asks) for times in self.ran.values())
            if self.ran[step] >= asks and beyond >= spare:
                why = "the privacy budget is spent: " if key else ""
                spared = f", and the {spare} more that the policy spares are used" if spare else ""
                raise Refused(f"{why}{step} was accounted for {asks} times in this run{spared}", Code.BUDGET)
            return [{"event": "ran", "step": step, **({"key": mark} if key else {})}]

        self._append(decide, sync=key is not None)

    def test(self, mark: str, reply: Callable[[], bytes]) -> bytes | None:
        """The reply to a test, by what was tested: what was told once, a new one, or None where none is left."""

        def decide() -> list[Line]:
            if mark in self._tests or len(self._tests) >= self.caps.tests:
                return []
            return [{"event": "tested", "test": mark, "reply": reply().hex()}]

        self._append(decide)
        return bytes.fromhex(self._tests[mark]) if mark in self._tests else None

    def send(self, size: int) -> None:
        """Count a reply before it leaves."""
        with self._total_locked():
            most = self.caps.total_bytes
            if most is not None and (sent := self._sent_by_others()) + self.bytes + size > most:
                raise Refused(
                    f"the policy allows {most} bytes to leave in all runs together, {sent + self.bytes} have left, and this "
                    f"reply has {size}",
                    Code.BUDGET,
                )
            self._append(lambda: [{"event": "sent", "size": size}])

    def _append(self, decide: Callable[[], list[Line]], sync: bool = False) -> None:
        def after(new: Sequence[Line]) -> list[Line]:
            for line in new:
                self._count(line)
            added = decide()
            for line in added:
                self._count(line)
                line["bytes"] = self.bytes
            return added

        self._file.append_after(after, sync=sync)

    def _count(self, line: Line) -> None:
        event = line.get("event")
        if event == "ran":
            self.ran[str(line["step"])] += 1
            self._keys |= {str(line["key"])} if "key" in line else set()
        elif event == "tested":
            self._tests[str(line["test"])] = str(line["reply"])
        elif event == "sent":
            self.bytes += int(str(line["size"]))

    def _sent_by_others(self) -> int:
        return sum(_last_bytes(path) for path in self.path.parent.glob("*.jsonl") if path != self.path)

    @contextmanager
    def _total_locked(self) -> Iterator[None]:
        """Nobody else sends meanwhile, if there is a total to keep."""
        if self.caps.total_bytes is None:
            yield
            return
        path = self.path.parent / ".lock"
        with path.open("a") as lock:
            with disk_errors("lock", path):
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._append(list)  # to know what other processes have sent in this run
            yield


def _last_bytes(path: Path) -> int:
    """`bytes` of the last whole line: what this run has sent."""
    with disk_errors("read", path):
        lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return int(json.loads(lines[-1])["bytes"]) if lines else 0
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error

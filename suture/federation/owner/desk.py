"""An owner's side: the desk at which its process answers the coordinator.

The desk opens a run only under terms its owner accepts, runs declared steps on the owner's own graph with K = 1, and keeps
a journal of every answered step (the state after it, and the reply), so that

- a step delivered twice is answered twice and run once,
- a step with a number it has answered before, but another content (the coordinator went on differently after a crash), is
  run from the state before it,
- a new process goes on where the last one was killed.

Nothing raised here reaches the coordinator but one sentence without any data in it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from suture.core.message import Message, Model, Nothing
from suture.core.storage import Json, LineFile, disk_errors, make_folder, read_json, read_lines, write_atomically, write_json
from suture.core.streams import Streams
from suture.errors import IntegrityError, SutureError
from suture.federation.wire.exchange import Frame, Refused, check_finite, digest, read, signature, wire_types
from suture.federation.wire.sealed import Sealed, layout_of, to_words
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, S, Task
from suture.privacy.disclosure import EVALUATION_STEP
from suture.privacy.ledger import RunLedger
from suture.privacy.secure_aggregation import Member
from suture.runs.checkpoint import load_models, save_models
from suture.seam import Audit

log = logging.getLogger(__name__)
LATER_THAN_ANY = 2**63
CHECK_BYTES = 4
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TERMS = "terms.json"
MODEL, PREDICTIONS = "model.safetensors", "predictions.csv"


@dataclass(frozen=True)
class Opened:
    """A run this owner takes part in: installed code, its own graph, and what may leave."""

    method: Method[Any, Any]
    graph: GraphBatch
    task: Task
    permit: Callable[[str, Message], None]
    """(step, reply): raises `Refused` where the owner's policy forbids what would leave."""
    secure: bool = False
    """Replies to summed steps leave under secure aggregation only."""
    salt: str = ""
    """A secret of the owner in its random streams, where noise must not be known to the coordinator."""
    noisy: Mapping[str, int] = field(default_factory=dict)
    """Steps that cost privacy, and how often each may be run in this run: that often it has been accounted for."""


@dataclass(frozen=True)
class Entry:
    """One answered step."""

    number: int
    digest: str
    state: bytes
    reply: bytes


class Journal:
    """Answered steps on disk, one file each; older ones go when the coordinator cannot ask for them any more."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_folder(folder)
        with disk_errors("read", folder):
            self.numbers = sorted(int(path.stem) for path in folder.glob("*.step"))

    def last_before(self, number: int) -> Entry | None:
        """The latest step answered before `number`."""
        earlier = [n for n in self.numbers if n < number]
        return self.get(earlier[-1]) if earlier else None

    def get(self, number: int) -> Entry | None:
        """A step by its number."""
        if number not in self.numbers:
            return None
        path = self._path(number)
        with disk_errors("read", path):
            data = path.read_bytes()
        check, content = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if zlib.crc32(content).to_bytes(CHECK_BYTES, "little") != check:
            raise IntegrityError(f"the journal entry {path} is damaged; start the run anew")
        size = int.from_bytes(content[64:72], "little")
        return Entry(number, content[:64].decode(), content[72 : 72 + size], content[72 + size :])

    def put(self, entry: Entry) -> None:
        """Write a step down, in the place of this and all later ones."""
        content = [entry.digest.encode(), len(entry.state).to_bytes(8, "little"), entry.state, entry.reply]
        check = 0
        for piece in content:
            check = zlib.crc32(piece, check)
        # A killed process loses nothing that was written; only a crash of the machine could, and the check would tell.
        path = self._path(entry.number)
        with disk_errors("write", path):
            for number in [n for n in self.numbers if n >= entry.number]:
                self._path(number).unlink(missing_ok=True)
            part = path.with_suffix(".part")
            with part.open("wb", buffering=0) as file:
                for piece in (check.to_bytes(CHECK_BYTES, "little"), *content):
                    file.write(piece)
            part.replace(path)
        self.numbers = [n for n in self.numbers if n < entry.number] + [entry.number]

    def forget_before(self, base: int) -> None:
        """Keep the state at step `base` and everything after it."""
        at_base = [n for n in self.numbers if n <= base]
        with disk_errors("clean", self.folder):
            for number in at_base[:-1]:
                self._path(number).unlink(missing_ok=True)
        self.numbers = [n for n in self.numbers if n not in at_base[:-1]]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.step"


class OpenRun(Generic[S]):
    """One run at this owner."""

    def __init__(self, name: str, opened: Opened, folder: Path, terms: dict[str, Json], number: int) -> None:
        self.name, self.opened, self.folder = name, opened, make_folder(folder)
        before = read_json(folder / TERMS, "terms") if (folder / TERMS).exists() else None
        if number == 0 or before != terms:
            # Another run, or the same one from its start: nothing of it has been answered yet. What has been charged to a
            # budget and which sums have been opened stays: a coordinator cannot make an owner forget that.
            for old in ("journal", "retained"):
                shutil.rmtree(folder / old, ignore_errors=True)
        write_json(folder / TERMS, terms)
        self.charged = folder / "charged.txt"
        self.steps = type(opened.method).steps()
        self.known = wire_types(type(opened.method))
        self.journal = Journal(folder / "journal")
        method, graph, task = opened.method, opened.graph, opened.task
        self.initial: S = method.init_clients(Clients(graph, Nothing(graph.ids), self._rng("init"), task))
        ledger = folder / "ledger.jsonl"
        self.lines = LineFile(ledger, ledger.stat().st_size if ledger.exists() else 0)
        self.ledger = RunLedger(self.lines)
        for line in read_lines(ledger):
            if line["step"] != EVALUATION_STEP:
                self.ledger.totals["up"] += sum(line["bytes"])
        self.member: Member | None = None
        last = self.journal.last_before(LATER_THAN_ANY)
        self.held: tuple[int, S] = (last.number, self._state(last)) if last else (0, self.initial)

    def _rng(self, *labels: int | str) -> Streams:
        secret = (self.opened.salt,) if self.opened.salt else ()
        return Streams.of(self.opened.task.seed, self.opened.graph.ids, *labels, *secret, device=self.opened.graph.device)

    def _state(self, entry: Entry) -> S:
        return type(self.initial).unpack(entry.state)

    def state_before(self, number: int) -> S:
        """What the owner kept when it was asked step `number`."""
        if self.held[0] < number:
            return self.held[1]
        last = self.journal.last_before(number)
        return self._state(last) if last else self.initial

    def ask(self, step: str, number: int, base: int, body: bytes, round: int) -> tuple[Message, bytes]:
        """Answer a numbered step: from the journal, or by running it."""
        if number == 0:
            raise Refused("steps are numbered from 1")
        declared = self._declared(step)
        mark = digest(f"{step} {round}".encode() + b"\0" + body)
        known = self.journal.get(number)
        if known is None or known.digest != mark:
            message = self._message(declared, body)
            # The same noise on two contents could be subtracted; without noise the streams are those of an embedded run.
            content = (self._charge(step, mark),) if step in self.opened.noisy else ()
            rng = self._rng("ask", number, *content)
            state, reply = self._run(declared, self.state_before(number), message, rng, round)
            self.opened.permit(step, reply)
            packed = reply.pack()
            self.journal.put(Entry(number, mark, state.pack(), packed))
            self.held = (number, state)
        else:
            packed = known.reply
            reply = read(packed, signature(declared).reply, self.known)
        self.journal.forget_before(base)
        return reply, packed

    def _charge(self, step: str, mark: str) -> str:
        """Write a noisy step down before it is run, and refuse one more than has been accounted for."""
        with disk_errors("read", self.charged):
            before = set(self.charged.read_text().splitlines()) if self.charged.exists() else set()
        line = f"{step} {mark}"
        if line not in before:
            if sum(other.startswith(f"{step} ") for other in before) >= self.opened.noisy[step]:
                raise Refused(f"the privacy budget is spent: {step} was accounted for {self.opened.noisy[step]} times")
            with disk_errors("write", self.charged), self.charged.open("a") as file:
                file.write(f"{line}\n")
        return mark

    def evaluate(self, number: int, body: bytes) -> Message:
        """Test the model; nothing is kept."""
        declared = self._declared(EVALUATION_STEP)
        message = self._message(declared, body)
        _, reply = self._run(declared, self.state_before(number + 1), message, self._rng("ask", number))
        self.opened.permit(EVALUATION_STEP, reply)
        return reply

    def retain(self, number: int, base: int, body: bytes) -> None:
        """Keep the complete model as it is after step `number`, for the owner's own use."""
        self._save(self.folder / "retained" / f"{number:08d}.safetensors", self._model(number, body))
        earlier = [n for n in self._retained() if n <= base]
        with disk_errors("clean", self.folder):
            for old in earlier[:-1]:
                (self.folder / "retained" / f"{old:08d}.safetensors").unlink(missing_ok=True)

    def record(self, number: int, step: str, reply: Message) -> None:
        """Write down what leaves, before it does."""
        self.ledger.record(number, step, "up", reply)
        self.lines.flush()

    def rewind(self, number: int) -> None:
        """The coordinator goes on from step `number`: forget models retained after it."""
        with disk_errors("clean", self.folder):
            for late in [n for n in self._retained() if n > number]:
                (self.folder / "retained" / f"{late:08d}.safetensors").unlink(missing_ok=True)

    def finish(self, number: int, body: bytes) -> None:
        """Leave the reported model and its predictions with the owner: the last retained one, or the one that came."""
        method, graph, task = self.opened.method, self.opened.graph, self.opened.task
        kept = self._retained()
        if body:
            model = self._model(number, body)
        elif kept:
            models, _ = load_models(self.folder / "retained" / f"{kept[-1]:08d}.safetensors")
            model = Model(graph.ids, models[graph.ids[0]])
        else:
            raise Refused("no model was handed over or retained")
        self._save(self.folder / MODEL, model)
        with torch.no_grad():
            predicted = method.predict(graph, model, task)
        if graph.pairs is None:
            lines = io.StringIO()
            rows = csv.writer(lines)
            rows.writerow(["node", "prediction"])
            rows.writerows(zip(graph.node_id.tolist(), predicted.argmax(1).tolist(), strict=True))
            write_atomically(self.folder / PREDICTIONS, lines.getvalue().encode())
        write_json(self.folder / "finished.json", {"run": self.name, "method": method.name, "nodes": graph.num_nodes})

    def _retained(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "retained").glob("*.safetensors"))

    def _model(self, number: int, body: bytes) -> Model:
        deployed = self._message(self._declared(EVALUATION_STEP), body)
        clients = Clients(self.opened.graph, self.state_before(number + 1), self._rng("peek"), self.opened.task)
        with torch.no_grad():
            return self.opened.method.assemble(clients, deployed)

    def _save(self, path: Path, model: Model) -> None:
        method = self.opened.method
        save_models(path, [model], {"method": method.name, "model": dataclasses.asdict(method.model)})

    def _declared(self, step: str) -> Callable[..., Any]:
        if step not in self.steps:
            raise Refused(
                f"{step!r} is not a step that {self.opened.method.name} declares ({', '.join(sorted(self.steps))})"
            )
        bound: Callable[..., Any] = getattr(self.opened.method, step)
        return bound

    def _message(self, step: Callable[..., Any], body: bytes) -> Message:
        message = read(body, signature(step).message, self.known)
        if message.ids != self.opened.graph.ids:
            raise Refused(f"a message for {', '.join(message.ids)} came to {self.opened.graph.ids[0]}")
        check_finite(message)
        return message

    def _run(self, step: Callable[..., Any], state: S, message: Message, rng: Streams, round: int = 0) -> tuple[S, Message]:
        new: S
        reply: Message
        new, reply = step(Clients(self.opened.graph, state, rng, self.opened.task, round), message)
        check_finite(reply)
        return new, reply


class Desk:
    """Answers frames, one at a time; see the module docstring."""

    def __init__(
        self,
        owner: str,
        home: Path,
        describe: Callable[[], dict[str, Json]],
        open_run: Callable[[str, dict[str, Json]], Opened],
        audit: Audit,
    ) -> None:
        self.owner, self.home, self.audit = owner, make_folder(home), audit
        self._describe, self._open_run = describe, open_run
        self._runs: dict[str, OpenRun[Any]] = {}
        self._lock = threading.Lock()
        self._verbs: dict[str, Callable[[Frame], Frame]] = {
            "describe": lambda frame: Frame(self._describe()),
            "open": self._open,
            "ask": self._ask,
            "evaluate": self._evaluate,
            "seal-keys": self._seal_keys,
            "seal-shares": self._seal_shares,
            "seal-ask": self._seal_ask,
            "seal-open": self._seal_open,
            "retain": self._retain,
            "finish": self._finish,
        }

    def answer(self, request: bytes) -> bytes:
        """Never raises: a refusal is an answer too."""
        with self._lock:
            try:
                requests = Frame.unpack(request).parts()
            except SutureError as error:
                self.audit.note("refused", reason=str(error))
                return Frame({"refused": str(error)}).pack()
            answers: list[Frame] = []
            for frame in requests:
                answers.append(self._answer(frame))
                if "refused" in answers[-1].header:
                    break  # what comes behind was asked in the belief that this would be done
            return Frame.several(answers).pack()

    def _answer(self, frame: Frame) -> Frame:
        details = {key: value for key, value in frame.header.items() if key in ("verb", "run", "step", "number")}
        try:
            verb = frame.text("verb")
            if verb not in self._verbs:
                raise Refused(f"{verb!r} is nothing this owner can be asked for")
            return self._verbs[verb](frame)
        except SutureError as error:
            self.audit.note("refused", reason=str(error), **details)
            return Frame({"refused": str(error)})
        except Exception as error:
            # The text of an unexpected error may quote data: it stays in the owner's own log.
            log.exception("a request failed")
            self.audit.note("failed", reason=f"{type(error).__name__}: {error}", **details)
            return Frame({"refused": f"an error of its own ({type(error).__name__}); see the owner's log"})

    def close(self) -> None:
        """Close the ledgers."""
        for run in self._runs.values():
            run.lines.close()

    def _open(self, frame: Frame) -> Frame:
        name, terms = frame.text("run"), frame.header.get("terms")
        if not RUN_NAME.fullmatch(name):
            raise Refused("the run's name may hold letters, digits, dots and dashes only")
        if not isinstance(terms, dict):
            raise Refused("a run cannot be opened without terms")
        folder = self.home / "runs" / name
        if name in self._runs:
            self._runs.pop(name).lines.close()
        opened = self._open_run(name, terms)
        number = frame.number("number")
        run: OpenRun[Any] = OpenRun(name, opened, folder, terms, number)
        run.rewind(number)
        self._runs[name] = run
        self.audit.note("opened", run=name, method=opened.method.name)
        return Frame({"features": opened.task.features, "answered": run.held[0]})

    def _run(self, frame: Frame) -> OpenRun[Any]:
        name = frame.text("run")
        if name not in self._runs:
            raise Refused(f"run {name!r} has not been opened here")
        return self._runs[name]

    def _ask(self, frame: Frame) -> Frame:
        run, step, number = self._run(frame), frame.text("step"), frame.number("number")
        if run.opened.secure and step in run.opened.method.sums:
            raise Refused(f"the terms promise secure aggregation, so {step} is not answered openly")
        reply, packed = run.ask(step, number, frame.number("base"), frame.body, frame.number("round"))
        run.record(number, step, reply)
        return Frame({"number": number}, packed)

    def _seal_keys(self, frame: Frame) -> Frame:
        run = self._run(frame)
        if not run.opened.secure:
            raise Refused("the terms do not speak of secure aggregation")
        run.member = Member(self.owner, frame.text("session"))
        encryption, masking = run.member.public_keys()
        return Frame({"encryption": encryption.hex(), "masking": masking.hex()})

    def _member(self, frame: Frame) -> Member:
        member = self._run(frame).member
        if member is None or member.session != frame.text("session"):
            raise Refused("this is not the secure sum this owner has begun")
        return member

    def _seal_shares(self, frame: Frame) -> Frame:
        listed = frame.header.get("keys")
        if not isinstance(listed, dict):
            raise Refused("a secure sum needs everybody's public keys")
        keys = {}
        for name, pair in listed.items():
            if not isinstance(pair, list) or len(pair) != 2:
                raise Refused("a public key is missing")
            keys[name] = (bytes.fromhex(str(pair[0])), bytes.fromhex(str(pair[1])))
        shares: dict[str, Json] = {name: data.hex() for name, data in self._member(frame).shares(keys).items()}
        return Frame({"shares": shares})

    def _seal_ask(self, frame: Frame) -> Frame:
        run, step, number, member = self._run(frame), frame.text("step"), frame.number("number"), self._member(frame)
        if step not in run.opened.method.sums:
            raise Refused(f"{run.opened.method.name} does not declare that it needs only sums of {step}")
        shares = frame.header.get("shares")
        if not isinstance(shares, dict):
            raise Refused("a secure sum needs everybody's shares")
        reply, _ = run.ask(step, number, frame.number("base"), frame.body, frame.number("round"))
        received = {name: bytes.fromhex(str(data)) for name, data in shares.items()}
        words = member.masked(to_words(reply, len(member.keys)), received)
        sealed = Sealed(run.opened.graph.ids, torch.from_numpy(words.view("int64")).unsqueeze(0))
        run.record(number, step, sealed)
        layout: list[Json] = [[path, dtype, list(shape)] for path, dtype, shape in layout_of(reply)]
        return Frame({"number": number, "layout": layout}, sealed.pack())

    def _seal_open(self, frame: Frame) -> Frame:
        run, number, member = self._run(frame), frame.number("number"), self._member(frame)
        listed = frame.header.get("survivors")
        survivors = sorted(map(str, listed)) if isinstance(listed, list) else []
        # Written down before anything is opened: a new process must not open the same step for others either.
        record = run.folder / "opened.json"
        opened = read_json(record, "record of opened sums") if record.exists() else {}
        if opened.get(str(number), survivors) != survivors:
            raise Refused(f"step {number} has been opened for other survivors; two sums would give an owner away")
        given = member.open(survivors)
        write_json(record, {**opened, str(number): survivors})
        shares: dict[str, Json] = {name: f"{kind} {share:x}" for name, (kind, share) in given.items()}
        return Frame({"opened": shares})

    def _evaluate(self, frame: Frame) -> Frame:
        run, number = self._run(frame), frame.number("number")
        reply = run.evaluate(number, frame.body)
        run.record(number, EVALUATION_STEP, reply)
        return Frame({"number": number}, reply.pack())

    def _retain(self, frame: Frame) -> Frame:
        self._run(frame).retain(frame.number("number"), frame.number("base"), frame.body)
        return Frame({"retained": True})

    def _finish(self, frame: Frame) -> Frame:
        run = self._run(frame)
        run.finish(frame.number("number"), frame.body)
        self.audit.note("finished", run=run.name, sent_bytes=run.ledger.totals["up"])
        return Frame({"finished": True})

"""One run at an owner: declared steps on its own graph with K = 1, each written into a journal before it is answered."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.core.message import Kind, Message, Model, Nothing, Record
from suture.core.metrics import metric_for
from suture.core.storage import Json, LineFile, disk_errors, make_folder, read_json, write_json
from suture.core.streams import Streams
from suture.federation.owner.account import RunAccount
from suture.federation.owner.journal import LATER_THAN_ANY, Entry, Journal
from suture.federation.owner.keys import StepKey
from suture.federation.owner.matching import MatchingAtOwner
from suture.federation.owner.policy import Policy
from suture.federation.owner.scores import noised, nothing_told, rounded
from suture.federation.owner.secrecy import Secrecy
from suture.federation.owner.sitting import Sittings
from suture.federation.owner.travelling import check_entries, entries_handed_out
from suture.federation.wire.checks import check_finite
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.signatures import Signature, read, signature, wire_types
from suture.graph.batch import GraphBatch
from suture.method import Clients, Method, S, Scores, Task
from suture.privacy.disclosure import EVALUATION_STEP, read_disclosure
from suture.privacy.keystream import Keystream
from suture.privacy.ledger import RunLedger
from suture.runs.answers import answers_of
from suture.runs.appraisal import appraise, examples_of, warnings_of
from suture.runs.card import DataCard
from suture.runs.checkpoint import load_models, save_models
from suture.runs.folder import DATA, EVALUATION, MODELS
from suture.runs.predicting import Predictions
from suture.tables.predictions import Answers, frame_of, write_predictions

log = logging.getLogger(__name__)
MISFITS = (AttributeError, KeyError, IndexError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError)
"""What becomes of a message of another type, or with other names or shapes inside, once it is used."""
TERMS = "terms.json"
PREDICTIONS, FINISHED = "predictions.csv", "finished.json"


@dataclass(frozen=True)
class Agreement:
    """What an owner has agreed to in a run: installed code, its own graph, and what may leave."""

    method: Method[Any, Any]
    graph: GraphBatch
    task: Task
    policy: Policy
    """What may leave, and how exactly."""
    data: Data
    """The graph as the owner knows it, with the ids of its nodes."""
    card: DataCard
    """What is known of the owner's graph; it stays here."""
    account: RunAccount
    """How often it was answered, and may be."""
    secrecy: Secrecy | None = None
    """If given, replies to summed steps leave under secure aggregation only."""
    noisy: frozenset[str] = frozenset()
    """Steps that add noise, which nobody else may be able to draw again."""
    before: Record | None = None
    """What an earlier run has left, to begin with; None: nothing."""
    gate: MatchingAtOwner | None = None
    """Counts what is answered in a matching, and keeps what it finds."""


class RunAtOwner(Generic[S]):
    """One open run, with its journal, its ledger and its models."""

    def __init__(self, name: str, agreed: Agreement, folder: Path, terms: dict[str, Json], number: int) -> None:
        self.name, self.agreed, self.folder = name, agreed, make_folder(folder)
        before = read_json(folder / TERMS, "terms") if (folder / TERMS).exists() else terms
        if before != terms or (number == 0 and not agreed.noisy):
            # Begun by an earlier version, or from its start: nothing of it has been answered yet. What has been charged to a
            # budget and which sums have been opened stays: a coordinator cannot make an owner forget that. Replies with
            # noise stay too: each was paid for, and whoever asks for the same again must get the same noise.
            shutil.rmtree(folder / "journal", ignore_errors=True)
        write_json(folder / TERMS, terms)
        self.key = StepKey(folder)
        self.steps = agreed.method.asked()
        self.known = wire_types(type(agreed.method))
        self.travelling = entries_handed_out(agreed.method, agreed.task)
        self.journal = Journal(folder / "journal")
        method, graph, task = agreed.method, agreed.graph, agreed.task
        fresh: S = method.init_clients(Clients(graph, Nothing(graph.ids), self._rng("init"), task))
        self.initial: S = fresh if agreed.before is None else type(fresh).unpack(agreed.before.pack())
        ledger = folder / "ledger.jsonl"
        self.lines = LineFile(ledger, ledger.stat().st_size if ledger.exists() else 0)
        self.ledger = RunLedger(self.lines)
        self.ledger.totals["up"] += sum(read_disclosure(folder).of_client(graph.ids[0]).values())
        self.sittings = Sittings()
        last = self.journal.last_before(LATER_THAN_ANY)
        self.held: tuple[int, S] = (last.number, self._state(last)) if last else (0, self.initial)

    def _rng(self, *labels: int | str) -> Streams:
        return Streams.of(self.agreed.task.seed, self.agreed.graph.ids, *labels, device=self.agreed.graph.device)

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
            raise Refused("steps are numbered from 1", Code.MALFORMED)
        declared = self._declared(step)
        mark = hashlib.sha256(f"{step} {round}".encode() + b"\0" + body).hexdigest()
        known = self.journal.get(number)
        if known is None or known.digest != mark:
            message, gate = self._message(step, body), self.agreed.gate
            before = self.state_before(number)
            if gate is not None:
                gate.before(message, before)
            state, reply = self._run(declared, before, message, self._charged(step, number, mark, before), round)
            if gate is not None:
                reply = gate.signed(message, reply)
            self.agreed.policy.permit(step, reply)
            if gate is not None:
                gate.after(step, state)
            packed = reply.pack()
            self.journal.put(Entry(number, mark, state.pack(), packed))
            self.key.forget()
            self.held = (number, state)
        else:
            packed = known.reply
            reply = read(packed, self._signature(step).reply, self.known)
        self.journal.forget_before(base)
        return reply, packed

    def _charged(self, step: str, number: int, mark: str, before: S) -> Streams:
        """The streams of a step that is about to be run, once it is written down.

        They are those of an embedded run. A step with noise gets a secret beside them, for this content alone: the same
        noise on two contents could be subtracted.
        """
        rng = self._rng("ask", number)
        if step not in self.agreed.noisy:
            self.agreed.account.run(step, None)
            return rng
        key = self.key.for_content(str(number).encode(), mark.encode(), before.pack())
        self.agreed.account.run(step, key)
        return dataclasses.replace(rng, secret=Keystream(key))

    def evaluate(self, number: int, body: bytes) -> Message:
        """Test the model; nothing is kept but what was told, which is told again if the same is asked again."""
        message = self._message(EVALUATION_STEP, body)
        policy, account = self.agreed.policy, self.agreed.account

        def told() -> bytes:
            test = self.agreed.method.evaluate
            _, reply = self._run(test, self.state_before(number + 1), message, self._rng("ask", number))
            if not isinstance(reply, Scores):
                raise Refused(f"a test gives scores, not a {type(reply).__name__}", Code.UNDECLARED)
            return self._told(reply).pack()

        where = f"{number} {self.held[0]} {account.ran.total()}"
        mark = hashlib.sha256(where.encode() + b"\0" + body).hexdigest()
        packed = None if policy.scores == "off" else account.test(mark, told)
        reply = nothing_told(self.agreed.graph.ids) if packed is None else Scores.unpack(packed)
        policy.permit(EVALUATION_STEP, reply)
        return reply

    def _told(self, scores: Scores) -> Scores:
        """Scores as the policy lets them leave."""
        policy = self.agreed.policy
        if policy.scores == "noised" and policy.privacy is not None:
            metric = metric_for(self.agreed.task.metric, "link" if self.agreed.task.link else "node")
            return noised(scores, metric.name, policy.privacy.evaluation_sigma, Keystream(Keystream.fresh()))
        return rounded(scores) if policy.scores == "rounded" else scores

    def retain(self, number: int, base: int, body: bytes) -> None:
        """Keep the complete model as it is after step `number`, for the owner's own use."""
        self._save(self.folder / "retained" / f"{number:08d}.safetensors", self._model(number, body))
        earlier = [n for n in self._retained() if n <= base]
        with disk_errors("clean", self.folder):
            for old in earlier[:-1]:
                (self.folder / "retained" / f"{old:08d}.safetensors").unlink(missing_ok=True)

    def record(self, number: int, step: str, reply: Message) -> None:
        """Write down what leaves, before it does."""
        self.agreed.account.send(sum(reply.nbytes()))
        self.ledger.record(number, step, "up", reply)
        self.lines.flush()

    def record_keys(self, number: int, verb: str, size: int) -> None:
        """Write down what secure aggregation sends beside the sealed words."""
        self.ledger.record_bytes(number, verb, "up", {self.agreed.graph.ids[0]: size}, Kind.KEYS)
        self.lines.flush()

    def rewind(self, number: int) -> None:
        """The coordinator goes on from step `number`: forget models retained after it."""
        with disk_errors("clean", self.folder):
            for late in [n for n in self._retained() if n > number]:
                (self.folder / "retained" / f"{late:08d}.safetensors").unlink(missing_ok=True)

    def finish(self, number: int, body: bytes) -> None:
        """Leave the reported model and its predictions with the owner: the last retained one, or the one that came."""
        method, graph, task = self.agreed.method, self.agreed.graph, self.agreed.task
        kept = self._retained()
        if body:
            model = self._model(number, body)
        elif kept:
            models, _ = load_models(self.folder / "retained" / f"{kept[-1]:08d}.safetensors")
            model = Model(graph.ids, models[graph.ids[0]])
        else:
            raise Refused("no model was handed over or retained", Code.MALFORMED)
        self._save(self.folder / MODELS, model)
        clients = Clients(graph, self.state_before(number + 1), self._rng("peek"), task)
        with fitting("a model"), torch.no_grad():
            seen, predicted = method.outputs(clients, model)
        card = self.agreed.card
        write_json(self.folder / DATA, card.as_json())
        if graph.pairs is None:
            # What a method has added to mend the graph comes behind the owner's own nodes.
            write_predictions(frame_of(self._answers(predicted[: graph.num_nodes])), self.folder / PREDICTIONS)
        examples = examples_of(seen, predicted)
        evaluation = appraise(examples, metric_for(task.metric, examples.predicted), card.class_names)
        write_json(self.folder / EVALUATION, evaluation)
        about = {"run": self.name, "method": method.name, "nodes": graph.num_nodes}
        write_json(self.folder / FINISHED, {**about, "warnings": list(warnings_of(examples, evaluation))})

    def _answers(self, out_NC: Tensor) -> Answers:
        """What the owner is told of its nodes."""
        graph, data, card = self.agreed.graph, self.agreed.data, self.agreed.card
        owner = torch.zeros(graph.num_nodes, dtype=torch.int64)
        return answers_of(
            Predictions(data, graph.ids, owner, out_NC, graph.role, graph.target, card.class_names, card.notes)
        )

    def _retained(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "retained").glob("*.safetensors"))

    def _model(self, number: int, body: bytes) -> Model:
        deployed = self._message(EVALUATION_STEP, body)
        clients = Clients(self.agreed.graph, self.state_before(number + 1), self._rng("peek"), self.agreed.task)
        with fitting("a model"), torch.no_grad():
            return self.agreed.method.assemble(clients, deployed)

    def _save(self, path: Path, model: Model) -> None:
        method = self.agreed.method
        save_models(path, [model], {"method": method.name, "model": dataclasses.asdict(method.model)})

    def _declared(self, step: str) -> Callable[..., Any]:
        if step not in self.steps:
            raise Refused(
                f"{step!r} is not a step that {self.agreed.method.name} asks for under these terms "
                f"({', '.join(sorted(self.steps))})",
                Code.UNDECLARED,
            )
        bound: Callable[..., Any] = getattr(self.agreed.method, step)
        return bound

    def _signature(self, step: str) -> Signature:
        return signature(type(self.agreed.method), step)

    def _message(self, step: str, body: bytes) -> Message:
        message = read(body, self._signature(step).message, self.known)
        if message.ids != self.agreed.graph.ids:
            raise Refused(f"a message for {', '.join(message.ids)} came to {self.agreed.graph.ids[0]}", Code.MALFORMED)
        check_finite(message)
        return message

    def _run(self, step: Callable[..., Any], state: S, message: Message, rng: Streams, round: int = 0) -> tuple[S, Message]:
        new: S
        reply: Message
        with fitting(step.__name__):
            new, reply = step(Clients(self.agreed.graph, state, rng, self.agreed.task, round), message)
        check_entries(self.agreed.method, reply, self.travelling)
        reply = self.agreed.policy.told(reply)  # before it is checked: a loss that is not finite would tell by a refusal
        check_finite(reply)
        return new, reply


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Refuse what does not fit, once that shows. The error's text may quote data: it stays here."""
    try:
        yield
    except MISFITS as error:
        log.exception("%s could not be carried out", what)
        told = f"what came with {what} does not fit it ({type(error).__name__}); see the owner's log"
        raise Refused(told, Code.MALFORMED) from error

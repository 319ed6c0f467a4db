"""The desk at which an owner's process answers the coordinator.

A run is opened only under terms its owner accepts; then declared steps are answered, see `suture.federation.owner.run`.
Nothing raised here reaches the coordinator but a code and one sentence without any data in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suture.core.storage import Json, make_folder, read_json, write_json
from suture.errors import ConfigError, SutureError
from suture.federation.audit import HEAD
from suture.federation.owner.binding import bind
from suture.federation.owner.run import FINISHED, Agreement, RunAtOwner
from suture.federation.owner.sealing import Sealing
from suture.federation.wire.bounds import MOST_REQUEST_BYTES
from suture.federation.wire.frames import Frame
from suture.federation.wire.names import run_name
from suture.federation.wire.reasons import Code, Reason, Refused
from suture.privacy.disclosure import EVALUATION_STEP
from suture.seam import Audit

log = logging.getLogger(__name__)


class Desk:
    """Answers frames, one at a time; see the module docstring."""

    def __init__(
        self,
        owner: str,
        home: Path,
        describe: Callable[[], dict[str, Json]],
        agree: Callable[[str, dict[str, Json]], Agreement],
        audit: Audit,
        fingerprint: Callable[[], str],
    ) -> None:
        self.owner, self.home, self.audit = owner, make_folder(home), audit
        self._describe, self._agree, self._fingerprint = describe, agree, fingerprint
        self._runs: dict[str, RunAtOwner[Any]] = {}
        self._lock = threading.Lock()
        self._sealing = Sealing(owner, self.home, self._run, audit).verbs
        self._verbs: dict[str, Callable[[Frame], Frame]] = {
            "describe": lambda frame: Frame(self._describe()),
            "open": self._open,
            "ask": self._ask,
            "evaluate": self._evaluate,
            **self._sealing,
            "retain": self._retain,
            "finish": self._finish,
        }

    def answer(self, request: bytes) -> bytes:
        """Never raises: a refusal is an answer too."""
        with self._lock:
            try:
                if len(request) > MOST_REQUEST_BYTES:
                    raise Refused(
                        f"a request of {len(request):,} bytes, at most {MOST_REQUEST_BYTES:,} are read", Code.MALFORMED
                    )
                requests = Frame.unpack(request).parts()
            except SutureError as error:
                return self._refusal("refused", Reason.of(error), {}).pack()
            answers: list[Frame] = []
            for frame in requests:
                answers.append(self._answer(frame).answering(frame))
                if answers[-1].refused is not None:
                    break  # what comes behind was asked in the belief that this would be done
            return Frame.several(answers).pack()

    def _answer(self, frame: Frame) -> Frame:
        details = {key: _short(value) for key, value in frame.header.items() if key in ("verb", "run", "step", "number")}
        try:
            verb = frame.text("verb")
            if verb not in self._verbs:
                raise Refused(f"{verb!r} is nothing this owner can be asked for", Code.UNDECLARED)
            answer = self._verbs[verb](frame)
            if verb in self._sealing:
                self._run(frame).record_keys(frame.number("number"), verb, answer.answering(frame).header_bytes)
            return answer
        except SutureError as error:
            return self._refusal("refused", Reason.of(error), details)
        except Exception as error:
            # The text of an unexpected error may quote data: it stays in the owner's own log.
            log.exception("a request failed")
            self._refusal("failed", Reason(Code.FAILED, f"{type(error).__name__}: {error}"), details)
            told = f"an error of its own ({type(error).__name__}); see the owner's log"
            return Frame.refusal(Reason(Code.FAILED, told))

    def _refusal(self, event: str, reason: Reason, details: dict[str, Json]) -> Frame:
        self.audit.note(event, **reason.as_json(), **details)
        return Frame.refusal(reason)

    def close(self) -> None:
        """Close the ledgers."""
        for run in self._runs.values():
            run.lines.close()

    def _open(self, frame: Frame) -> Frame:
        name, terms = frame.text("run"), frame.header.get("terms")
        try:
            run_name(name)
        except ConfigError as error:
            raise Refused(str(error), Code.MALFORMED) from error
        if not isinstance(terms, dict):
            raise Refused("a run cannot be opened without terms", Code.TERMS)
        folder = self.home / "runs" / name
        data = bind(folder.parent, name, self._fingerprint())
        if name in self._runs:
            self._runs.pop(name).lines.close()
        agreed = self._agree(name, terms)
        number = frame.number("number")
        run: RunAtOwner[Any] = RunAtOwner(name, agreed, folder, terms, number)
        run.rewind(number)
        self._runs[name] = run
        self.audit.note("opened", run=name, method=agreed.method.name, notes=list(agreed.card.notes))
        told: dict[str, Json] = {"features": agreed.task.features, "answered": run.held[0], "data": data}
        return Frame({**told, "held_back": agreed.policy.held_back})

    def _run(self, frame: Frame) -> RunAtOwner[Any]:
        name = frame.text("run")
        if name not in self._runs:
            raise Refused(f"run {name!r} has not been opened here", Code.NOT_OPENED)
        return self._runs[name]

    def _ask(self, frame: Frame) -> Frame:
        run, step, number = self._run(frame), frame.text("step"), frame.number("number")
        if run.agreed.secrecy is not None and step in run.agreed.method.sums:
            raise Refused(f"the terms promise secure aggregation, so {step} is not answered openly", Code.SECRECY)
        reply, packed = run.ask(step, number, frame.number("base"), frame.body, frame.number("round"))
        run.record(number, step, reply)
        return Frame({"number": number}, packed)

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
        record = run.folder / FINISHED
        told = read_json(record, "record of a run").get(HEAD) if record.exists() else None
        run.finish(frame.number("number"), frame.body)
        self.audit.note("finished", run=run.name, sent_bytes=run.ledger.totals["up"])
        # Kept with the run and told to the coordinator: a log that is cut afterwards is found out. What was told once is
        # told again, as a finish that is delivered twice has one answer.
        head: dict[str, Json] = {**(told if isinstance(told, dict) else self.audit.head())}
        write_json(record, {**read_json(record, "record of a run"), HEAD: head})
        return Frame({"finished": True, HEAD: head})


def _short(value: Json) -> Json:
    """For a line of the audit log, which nobody else may fill."""
    return value if isinstance(value, int | float | None) else str(value)[:100]

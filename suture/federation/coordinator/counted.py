"""What secure aggregation sends, in the coordinator's ledger as in the owners': sealed words, keys and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from suture.core.message import Kind
from suture.errors import IntegrityError
from suture.federation.coordinator.calls import Failures, Request
from suture.federation.wire.frames import Frame
from suture.federation.wire.sealed import Sealed
from suture.seam import WireLedger

Call = Callable[[Mapping[str, Sequence[Request]]], tuple[dict[str, list[Frame]], Failures]]
SEALING = "seal-"
"""How the verbs of secure aggregation begin."""
WITH_WORDS = "seal-ask"
"""The one whose request holds the step's message, and whose answer holds sealed words."""


def counted(call: Call, ledger: WireLedger, run: str, step: str) -> Call:
    """The same calls, with a line for what goes down and one for what comes up.

    Under the verb stand keys and shares, under the step the words that an owner has sealed. What is not a sealed message is
    left to whoever reads it to refuse; what travels along is written down by whoever sent it along.
    """

    def called(requests: Mapping[str, Sequence[Request]]) -> tuple[dict[str, list[Frame]], Failures]:
        good, bad = call(requests)
        for owner, wanted in requests.items():
            for k, (header, body) in enumerate(wanted):
                verb, number = str(header["verb"]), int(str(header["number"]))
                if not verb.startswith(SEALING):
                    continue
                size = Frame({"run": run, **header}).header_bytes + (0 if verb == WITH_WORDS else len(body))
                ledger.record_bytes(number, verb, "down", {owner: size}, Kind.KEYS)
                if owner in good:
                    answer = good[owner][k]
                    ledger.record_bytes(number, verb, "up", {owner: answer.header_bytes}, Kind.KEYS)
                    _record_words(ledger, number, step, answer)
        return good, bad

    return called


def _record_words(ledger: WireLedger, number: int, step: str, answer: Frame) -> None:
    if answer.body:
        try:
            ledger.record(number, step, "up", Sealed.unpack(answer.body))
        except IntegrityError:
            return

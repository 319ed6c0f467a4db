"""The ledger: every message that crossed between the server and a client, with its fields, shapes and bytes.

Clients whose messages look alike share a line, so that a thousand clients do not write a thousand lines a round:

    {"ask": 3, "step": "local_update", "direction": "up", "clients": ["client-0", "client-1"], "bytes": [740, 740],
     "fields": {"params.layer1.weight": [16, 8], "weight": [], "loss": []},
     "kinds": {"weights": 512, "counts": 4, "losses": 4}}

`kinds` is how many of each client's bytes are what (`suture.core.message.Kind`); the rest is the envelope.

Evaluation is written down too, but kept out of the totals: it measures a method, it is not part of one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from suture.core.message import UNDECLARED, Message, Rows
from suture.core.storage import LineFile, encoded_line
from suture.privacy.disclosure import EVALUATION_STEP, Disclosure
from suture.privacy.tape import TapeFile


@dataclass(frozen=True)
class _Told:
    """A layout of messages, with all that follows from it: their lines, but for the number of the call."""

    layout: tuple[object, ...]
    size: int
    """Bytes of all clients together."""
    lines: tuple[dict[str, object], ...]
    texts: tuple[bytes, ...]
    """The lines as they are written, from behind their number."""


@dataclass
class RunLedger:
    """Counts bytes per direction and by kind, writes lines if there is a file, and keeps contents if there is a tape.

    A step's messages look the same round after round. What was found out of one is kept, and holds for the next whose layout
    is the same; sums by kind are then made when somebody asks for them.
    """

    file: LineFile | None = None
    tape: TapeFile | None = None
    totals: Counter[str] = field(default_factory=Counter)
    _disclosure: Disclosure = field(default_factory=Disclosure, init=False)
    _known: dict[tuple[str, str], _Told] = field(default_factory=dict, init=False)
    """What was told last, by step and direction."""
    _again: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    """How often since, and not yet in the sums."""

    @property
    def disclosure(self) -> Disclosure:
        """Sums over all lines so far."""
        for key, times in self._again.items():
            for line in self._known[key].lines:
                self._disclosure.add(line, times)
        self._again.clear()
        return self._disclosure

    @disclosure.setter
    def disclosure(self, found: Disclosure) -> None:
        self._disclosure = found
        self._again.clear()

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`."""
        if self.tape is not None:
            self.tape.record(number, step, direction, message)
        key, layout = (step, direction), message.layout()
        told = self._known.get(key)
        if told is None or told.layout != layout:
            told = _told(step, direction, message, layout)
            found = self.disclosure  # with what was told again of the layout before
            for line in told.lines:
                found.add(line)
            self._known[key] = told
        else:
            self._again[key] += 1
        if step != EVALUATION_STEP:
            self.totals[direction] += told.size
        if self.file is not None:
            for text in told.texts:
                self.file.append_encoded(b'{"ask":%d,%b' % (number, text))

    def record_bytes(self, number: int, step: str, direction: str, sizes: Mapping[str, int], kind: str) -> None:
        """So many bytes to or from each client that are no message, such as keys; all of them are of one kind."""
        self.totals[direction] += sum(sizes.values())
        for client, size in sizes.items():
            line: dict[str, object] = {"ask": number, "step": step, "direction": direction, "clients": [client]}
            self._write({**line, "bytes": [size], "fields": {kind: [size]}, "kinds": {kind: size}})

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Lines of another ledger, as if they had been recorded here."""
        for line in lines:
            if line["step"] != EVALUATION_STEP:
                self.totals[str(line["direction"])] += sum(line["bytes"])
            self._write(dict(line))

    def _write(self, line: dict[str, object]) -> None:
        self._disclosure.add(line)
        if self.file is not None:
            self.file.append(line)


def _told(step: str, direction: str, message: Message, layout: tuple[object, ...]) -> _Told:
    """What there is to say of messages such as this one."""
    sizes = message.nbytes()
    groups: dict[str, tuple[dict[str, tuple[int, ...]], list[int]]] = {}
    for k, shapes in enumerate(message.shapes_per_client()):
        groups.setdefault(str(shapes), (shapes, []))[1].append(k)
    lines: tuple[dict[str, object], ...] = tuple(
        {
            "step": step,
            "direction": direction,
            "clients": [message.ids[k] for k in members],
            "bytes": [sizes[k] for k in members],
            "fields": {path: list(shape) for path, shape in shapes.items()},
            "kinds": _bytes_by_kind(message, shapes),
        }
        for shapes, members in groups.values()
    )
    return _Told(layout, sum(sizes), lines, tuple(encoded_line(line).removeprefix(b"{") for line in lines))


def _bytes_by_kind(message: Message, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Payload bytes of one client whose fields have these shapes."""
    width = {path: tensor.element_size() for path, tensor in message.tensors().items()}
    width |= {name: value.values.element_size() for name, value in message.contents() if isinstance(value, Rows)}
    sums: Counter[str] = Counter()
    for path, shape in shapes.items():
        sums[message.kind_of(path) or UNDECLARED] += math.prod(shape) * width[path]
    return {str(kind): size for kind, size in sums.items()}

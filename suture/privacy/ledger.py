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
from suture.core.storage import LineFile
from suture.privacy.disclosure import EVALUATION_STEP, Disclosure
from suture.privacy.tape import TapeFile


@dataclass
class RunLedger:
    """Counts bytes per direction and by kind, writes lines if there is a file, and keeps contents if there is a tape."""

    file: LineFile | None = None
    tape: TapeFile | None = None
    totals: Counter[str] = field(default_factory=Counter)
    disclosure: Disclosure = field(default_factory=Disclosure)

    def record(self, number: int, step: str, direction: str, message: Message) -> None:
        """One message to or from each client in `message.ids`."""
        if self.tape is not None:
            self.tape.record(number, step, direction, message)
        sizes = message.nbytes()
        if step != EVALUATION_STEP:
            self.totals[direction] += sum(sizes)
        groups: dict[str, tuple[dict[str, tuple[int, ...]], list[int]]] = {}
        for k, shapes in enumerate(message.shapes_per_client()):
            groups.setdefault(str(shapes), (shapes, []))[1].append(k)
        for shapes, members in groups.values():
            line: dict[str, object] = {
                "ask": number,
                "step": step,
                "direction": direction,
                "clients": [message.ids[k] for k in members],
                "bytes": [sizes[k] for k in members],
                "fields": {path: list(shape) for path, shape in shapes.items()},
                "kinds": _bytes_by_kind(message, shapes),
            }
            self._write(line)

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
        self.disclosure.add(line)
        if self.file is not None:
            self.file.append(line)


def _bytes_by_kind(message: Message, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Payload bytes of one client whose fields have these shapes."""
    width = {path: tensor.element_size() for path, tensor in message.tensors().items()}
    width |= {name: value.values.element_size() for name, value in message.contents() if isinstance(value, Rows)}
    sums: Counter[str] = Counter()
    for path, shape in shapes.items():
        sums[message.kind_of(path) or UNDECLARED] += math.prod(shape) * width[path]
    return {str(kind): size for kind, size in sums.items()}

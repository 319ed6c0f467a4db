"""What left each client and what reached it, from the ledger: what kind of thing, how many bytes, how often, to whom.

Everything goes to or comes from the server; what comes down is made of what others sent up. The kinds are those that the
messages' own fields declare (`suture.core.message.Kind`); `envelope` is the rest: field names, shapes, client ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suture.core.message import Kind
from suture.core.storage import read_lines
from suture.errors import IntegrityError

EVALUATION_STEP = "evaluate"
ENVELOPE = "envelope"
LEDGER = "ledger.jsonl"
NOT_FROM_DATA = frozenset({Kind.WEIGHTS, Kind.MOMENTS, Kind.MASKS, Kind.SIGNATURES, Kind.KEYS, ENVELOPE})
"""Under DP-SGD these depend on a client's data through noisy gradients alone, so its guarantee covers them."""


@dataclass(frozen=True)
class Flow:
    """One kind of thing in the messages of one step, summed over clients."""

    step: str
    direction: str
    kind: str
    clients: int
    times: int
    """Messages of the client with the most of them."""
    bytes: int

    @property
    def receiver(self) -> str:
        """To whom."""
        return "server" if self.direction == "up" else "clients"

    def as_json(self) -> dict[str, object]:
        """For `suture privacy --json`."""
        return {
            "kind": self.kind,
            "to": self.receiver,
            "step": self.step,
            "clients": self.clients,
            "times_per_client": self.times,
            "bytes": self.bytes,
            "measures_only": self.step == EVALUATION_STEP,
        }


@dataclass
class Disclosure:
    """Sums over the lines of a ledger."""

    bytes: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """By (step, direction, kind, client)."""
    times: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    replies: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """How often each client answered each step."""

    def add(self, line: Mapping[str, Any], times: int = 1) -> None:
        """One line of a ledger, or as many as there are that differ from it by their number alone."""
        step, direction = line["step"], line["direction"]
        for client, size in zip(line["clients"], line["bytes"], strict=True):
            parts = {**line["kinds"], ENVELOPE: size - sum(line["kinds"].values())}
            for kind, part in parts.items():
                self.bytes[step, direction, kind, client] += part * times
                # A field that holds nothing, such as the parameters of a method that shares none, tells nothing.
                self.times[step, direction, kind, client] += times * (part > 0)
            if direction == "up":
                self.replies[client][step] += times

    def flows(self) -> list[Flow]:
        """Step by step in the order of their first message; what was always empty is left out."""
        clients: dict[tuple[str, str, str], dict[str, int]] = {}
        for (step, direction, kind, client), times in self.times.items():
            if times:
                clients.setdefault((step, direction, kind), {})[client] = times
        return [
            Flow(*key, len(each), max(each.values()), sum(self.bytes[*key, client] for client in each))
            for key, each in clients.items()
        ]

    def of_client(self, client: str) -> dict[str, int]:
        """Bytes by kind that left one client, evaluation aside."""
        sums: Counter[str] = Counter()
        for (step, direction, kind, name), size in self.bytes.items():
            if name == client and direction == "up" and step != EVALUATION_STEP and size:
                sums[kind] += size
        return dict(sums)

    def left(self) -> list[str]:
        """The kinds of things that left clients, evaluation aside."""
        flows = [flow for flow in self.flows() if flow.direction == "up" and flow.step != EVALUATION_STEP]
        return list(dict.fromkeys(flow.kind for flow in flows if flow.kind != ENVELOPE))

    def beside_the_weights(self) -> list[str]:
        """The kinds that left clients and that noise on gradients does not cover."""
        return [kind for kind in self.left() if kind not in NOT_FROM_DATA]


def disclosure_of(lines: Iterable[Mapping[str, Any]]) -> Disclosure:
    """The sums of a ledger."""
    found = Disclosure()
    for line in lines:
        found.add(line)
    return found


def read_disclosure(run: Path) -> Disclosure:
    """The sums of a run folder's ledger."""
    path = run / LEDGER
    try:
        return disclosure_of(map(_checked, read_lines(path)))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise IntegrityError(f"{path} does not say what kinds of things were sent; start the run anew") from error


def _checked(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of somebody's file, if its names are texts and its sizes numbers."""
    names = [line["step"], line["direction"], *line["clients"], *line["kinds"]]
    sizes = [*line["bytes"], *line["kinds"].values()]
    if not all(isinstance(name, str) for name in names) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("names must be texts, and sizes numbers")
    return line

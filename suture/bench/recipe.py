"""A recipe: what must be typed to get a run, seeds apart; and the values that it comes to at the moment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from suture.core.storage import sha256_of_json
from suture.runs.plan import Plan, plan

THREADS = 1
"""Of every run: some sums round otherwise with other numbers of threads."""
Values = dict[str, dict[str, Any]]
"""Everything that decides a run's numbers, by section; the method's own values are the section `method`."""
SECTIONS = ("preprocess", "partition", "split", "model", "training", "evaluation")


@dataclass(frozen=True)
class Recipe:
    """Protocol, graph, clients (None: the protocol's), method, and what is set beside."""

    protocol: str
    dataset: str
    clients: int | None
    method: str
    overrides: tuple[str, ...] = ()

    def plan(self, seeds: Sequence[int] | None = None) -> Plan:
        """Every name and value of it checked."""
        return plan(
            self.dataset,
            [self.method],
            protocol=self.protocol,
            clients=self.clients,
            seeds=seeds,
            overrides=self.overrides,
        )

    def command(self, seeds: Sequence[int]) -> str:
        """What to type to compute these seeds again."""
        words = ["suture", "compare", "--protocol", self.protocol, "--dataset", self.dataset]
        words += [] if self.clients is None else ["--clients", str(self.clients)]
        words += ["--methods", self.method, "--seeds", ",".join(map(str, seeds)), "--threads", str(THREADS)]
        return shlex.join([*words, *(word for value in self.overrides for word in ("--set", value))])

    @cached_property
    def values(self) -> Values:
        """What decides its numbers, as JSON has it: a run of other values is another run."""
        made = self.plan()
        (method,) = made.methods
        protocol = made.resolved.protocol_of(method.name)
        found: dict[str, Any] = {name: asdict(getattr(protocol, name)) for name in SECTIONS}
        own = (one.name for one in fields(method) if one.name not in ("model", "training"))
        found["method"] = {name: getattr(method, name) for name in own}
        found["task"] = {"task": protocol.task}
        told: Values = json.loads(json.dumps(found))
        return told

    @property
    def key(self) -> str:
        """The same for recipes that come to the same runs, however they are written."""
        return sha256_of_json({"dataset": self.dataset, "method": self.method, "values": self.values})

    @property
    def column(self) -> str:
        """The score that the protocol reports, as an outcome calls it."""
        asked = self.values["evaluation"]
        if asked["graph"] == "global":
            return "accuracy_global"
        return "accuracy_weighted" if asked["average"] == "nodes" else "accuracy_client_mean"


def agree(then: Mapping[str, Mapping[str, Any]], now: Values) -> bool:
    """Whether values are still what they were; of values that came later, the default is taken to change nothing."""
    return all(
        now.get(section, {}).get(key, value) == value for section, values in then.items() for key, value in values.items()
    )

"""What a run tells: a tick after every iteration, an outcome at its end, and what it leaves in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from suture.core.message import Model, Record
from suture.method import Method
from suture.methods.stitching import Stitched
from suture.runs.appraisal import Evaluation
from suture.runs.prepare import Prepared
from suture.settings import Protocol

NO_GUARANTEE = "no guarantee"
SHARED = "shared"
"""In place of a client's name: the one model for everybody."""
Line = dict[str, Any]
"""One iteration: its phase, its round, what the method reported, and after a test every score. A line of metrics.jsonl."""


@dataclass(frozen=True)
class Tick:
    """One finished iteration, for whoever watches."""

    phase: str
    done: int
    """Iterations of all phases so far."""
    total: int
    """All there will be; fewer than planned once training has ended early."""
    seconds: float
    """Since the first iteration."""
    line: Mapping[str, Any]
    """All that is known of this iteration, as it stands in metrics.jsonl."""
    last_validation: float | None = None
    """Of this iteration, or of the last one before it that was tested."""
    in_percent: bool = True
    """Whether that score is a share."""
    metric: str = "score"
    """The name of what it is."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """Bytes so far, `up` and `down`."""

    @property
    def loss(self) -> float | None:
        """The loss of this iteration, if the method reports one."""
        return _number(self.line.get("loss"))

    @property
    def validation(self) -> float | None:
        """The last validation score so far."""
        return self.last_validation

    @property
    def seconds_left(self) -> float:
        """Estimated from the pace so far."""
        return self.seconds / self.done * (self.total - self.done)


def _number(value: object) -> float | None:
    return value if isinstance(value, float) else None


@dataclass(frozen=True)
class Outcome:
    """The line of a run in a table. Field names are the keys of the JSON output."""

    method: str
    seed: int
    dataset: str
    clients: int
    protocol: str
    accuracy_client_mean: float
    accuracy_weighted: float
    accuracy_worst: float
    accuracy_global: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    rounds: int
    """Rounds that were carried out: as many as planned, or fewer if `training.patience` ran out."""
    best_round: int
    """The one that is reported."""
    metric: str = "accuracy"
    """What the accuracy columns hold."""
    mechanism: str | None = None
    """What hides the clients' data: DP-SGD or NFDP; None: nothing does."""
    epsilon: float | None = None
    """Of the least protected client; None: there is no guarantee, or none with a finite epsilon."""
    delta: float | None = None
    privacy: str = NO_GUARANTEE
    """What that is worth, in words."""
    suspects: tuple[str, ...] = ()
    """Clients whose updates did not fit the others', the worst first; only robust aggregation looks for them."""
    validation: float | None = None
    """Validation score of the reported round, averaged as the protocol says; None: nobody has a validation example."""

    best_rounds: tuple[int, ...] = ()
    """The round that is reported for each client."""
    warnings: tuple[str, ...] = ()
    """What a reader of these numbers must know, one sentence each."""

    def as_json(self) -> dict[str, object]:
        """For `--json` and result.json."""
        return asdict(self)


@dataclass(frozen=True)
class Finished:
    """What a run leaves in memory: its numbers, the one model for everybody, and each client's own model, if any."""

    outcome: Outcome
    shared: Model | None
    personal: Model | None
    prepared: Prepared
    method: Method[Any, Any]
    protocol: Protocol
    history: list[Line]
    """The line of every iteration."""
    evaluation: Evaluation
    """What evaluation.json holds."""
    memory: Record | None = None
    """What the method remembers of its clients, to mend graphs after the run."""
    stitched: Stitched | None = None
    """What clients heard of each other's predictions, where these were smoothed over known links."""

"""An order: all that an operator tells the coordinator about a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from suture.config.strict import strict
from suture.config.toml import parsed_table
from suture.core.storage import Json
from suture.errors import ConfigError
from suture.federation.wire.names import own_run_name
from suture.plugins import refuse_spelled
from suture.runs.execute import robust_for
from suture.runs.origin import FEDERATION
from suture.runs.plan import Plan
from suture.settings import Count, Positive

ORDER = "order.json"


@dataclass(frozen=True)
class FaultSettings:
    """What the coordinator does when something goes wrong."""

    step_timeout: Positive = 600.0
    """Seconds an owner may take for one step."""
    patience: Annotated[float, Field(ge=0)] = 10.0
    """Seconds for which a call that fails at once is repeated."""
    on_loss: Literal["wait", "continue"] = "wait"
    """A lost owner: wait (stop at the last finished round until it is back), or continue without it."""
    min_owners: Count = 2
    """continue: the smallest number of owners a round may have."""
    max_reply_bytes: Count = 1 << 30
    """A larger reply is refused."""


@dataclass(frozen=True)
class Order:
    """What an operator orders: one method on one seed, under a resolved protocol."""

    run: str
    """Name of the run, here and at every owner."""
    method: str
    seed: int
    config: str
    """The resolved protocol in TOML, as in a run folder's config.toml."""
    dataset: str = FEDERATION
    """A label for reports."""
    faults: FaultSettings = field(default_factory=FaultSettings)
    secure: bool = False
    """Secure aggregation: the coordinator learns sums of updates only."""

    def __post_init__(self) -> None:
        own_run_name(self.run)
        refuse_spelled({"method": self.method, "dataset": self.dataset, **parsed_table(self.config)})

    def as_json(self) -> dict[str, Json]:
        """For the job and the run folder."""
        return asdict(self)

    @staticmethod
    def read(content: Mapping[str, object]) -> Order:
        """Check an order that came as JSON."""
        return strict(Order, content, "order")


def order_of(made: Plan, run: str, faults: FaultSettings, secure: bool = False) -> Order:
    """The order for a plan of one method and one seed."""
    method = made.methods[0]
    if method.sees_uncut_graph:
        raise ConfigError(f"{method.name} trains on the uncut graph, which no owner has; choose another method")
    robust_for(method, secure)
    return Order(run, method.name, made.seeds[0], made.config(), made.dataset, faults, secure)

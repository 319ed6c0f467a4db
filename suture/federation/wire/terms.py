"""The terms of a run: all that a coordinator tells an owner about it, before any step.

Only names and numbers travel: the method is looked up in the owner's own installation, its fields are checked there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from suture.config.strict import strict, strict_values
from suture.core.metrics import metric_for
from suture.core.storage import Json
from suture.errors import ConfigError
from suture.federation.wire import bounds
from suture.federation.wire.description import Description
from suture.federation.wire.reasons import Code, Refused
from suture.graph.target import Target
from suture.method import Method
from suture.methods import DOOR, AnyMethod, Methods, own_fields
from suture.methods.census import Census
from suture.methods.matching import Matching
from suture.plugins import refuse_spelled
from suture.runs.counting import Counts, target_from
from suture.runs.matching import uses_links
from suture.runs.piece import Handling
from suture.runs.plan import Plan
from suture.settings import METRICS, Count, ModelSettings, Seed, TrainingSettings

BEFORE_RUNS: dict[str, AnyMethod] = {Census.name: Census, Matching.name: Matching}
"""What nobody chooses: runs that need it carry it out first."""


@dataclass(frozen=True)
class Terms:
    """What is proposed to every owner."""

    method: str
    """Its name in the registry."""
    features: Count
    """Width of everybody's features."""
    classes: Count
    """Number of classes, over all owners."""
    seed: Seed
    """The run's public seed."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The method's own hyper-parameters."""
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    task: Literal["node", "link"] = "node"
    """Classify nodes, or predict links."""
    handling: Handling = field(default_factory=Handling)
    """What owners do with their graphs before the first step."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Iterations of the whole plan."""
    metric: Annotated[str, METRICS] = "auto"
    """By what owners score their models; looked up in their own installation."""
    secure: bool = False
    """Updates are sent under secure aggregation: the coordinator learns their sum alone."""
    owners: tuple[str, ...] = ()
    """Secure aggregation: everybody who may be in a sum."""
    matching: bool = False
    """Owners speak of each other's nodes by addresses that a private matching before the run has given them."""

    @property
    def is_census(self) -> bool:
        """Whether owners are to count, before the run that needs it."""
        return self.method == Census.name

    @property
    def is_matching(self) -> bool:
        """Whether owners are to find out who holds which id, before the run that needs it."""
        return self.method == Matching.name

    @property
    def is_before_run(self) -> bool:
        """Whether it is anything that comes before a run."""
        return self.method in BEFORE_RUNS

    def as_json(self) -> dict[str, Json]:
        """For the wire."""
        plain: dict[str, Json] = _plain(asdict(self))
        return plain


def terms_of(
    made: Plan, common: Description, secure: bool = False, counts: Counts | None = None, owners: Sequence[str] = ()
) -> Terms:
    """The terms of a plan's one run between owners whose graphs have this in common; `counts` is what they counted."""
    protocol, method = made.protocol, made.methods[0]
    statistics, target = counts.statistics if counts else None, Target(common.kind)
    if statistics is not None and protocol.task == "node":
        target = target_from(statistics, protocol, common.kind)
    return Terms(
        method=method.name,
        features=common.features,
        classes=protocol.model.hidden if protocol.task == "link" else common.classes,
        seed=made.seeds[0],
        fields={name: getattr(method, name) for name in sorted(own_fields(type(method)))},
        model=method.model,
        training=method.training,
        task=protocol.task,
        handling=Handling(protocol.preprocess, protocol.split, common.masks, target, statistics),
        rounds=sum(phase.times for phase in method.plan()),
        metric=counts.metric if counts else protocol.evaluation.metric,
        secure=secure,
        owners=tuple(owners) if secure else (),
        matching=matches_privately(made),
    )


def matches_privately(made: Plan) -> bool:
    """Whether owners find out by a private matching who holds the foreign ends of their links."""
    return uses_links(made.methods[0]) and made.protocol.partition.matching != "open"


def terms_before(
    method: Census | Matching, made: Plan, common: Description, secure: bool = False, owners: Sequence[str] = ()
) -> Terms:
    """The terms of what is exchanged before that run."""
    protocol = made.protocol
    return Terms(
        method=method.name,
        features=common.features,
        classes=common.classes,
        seed=made.seeds[0],
        fields={name: getattr(method, name) for name in sorted(own_fields(type(method)))},
        handling=Handling(protocol.preprocess, protocol.split, common.masks, Target(common.kind)),
        rounds=sum(phase.times for phase in method.plan()),
        secure=secure,
        owners=tuple(owners) if secure else (),
    )


def read_terms(content: dict[str, Json], door: Methods = DOOR) -> tuple[Terms, Method[Any, Any]]:
    """Check terms that came over the wire and build their method from code that is behind the owner's own door."""
    try:
        refuse_spelled(content)
        terms = strict(Terms, content, "terms")
        check_bounds(terms)
        metric_for(terms.metric, terms.task)
        terms.handling.check(terms.features, terms.classes)
        kind: AnyMethod = BEFORE_RUNS.get(terms.method) or door.by_name(terms.method)
        if kind.sees_uncut_graph:
            raise ConfigError(f"{terms.method} trains on the uncut graph, which no owner has")
        values = strict_values(kind, {k: v for k, v in terms.fields.items() if v is not None}, kind.name)
        method = kind(model=terms.model, training=terms.training, **values)
    except (ConfigError, TypeError) as error:
        raise Refused(f"the terms cannot be accepted: {error}", Code.TERMS) from error
    if sum(phase.times for phase in method.plan()) != terms.rounds:
        raise Refused(f"the terms speak of {terms.rounds} iterations, the method's plan has another number", Code.TERMS)
    return terms, method


def check_bounds(terms: Terms) -> None:
    """Refuse settings of a size that no run has, before a method is built of them: some make lists as long."""
    if terms.features > bounds.MOST_FEATURES or terms.rounds > bounds.MOST_SETTING:
        raise ConfigError(f"{terms.features} features or {terms.rounds} iterations are too many")
    settings = {"model": vars(terms.model), "training": vars(terms.training), terms.method: terms.fields}
    for where, values in settings.items():
        for name, value in values.items():
            most = bounds.MOST_DEEP if name in bounds.DEEP else bounds.MOST_SETTING
            most = bounds.MOST_MANY if name in bounds.MANY else most
            if isinstance(value, int) and abs(value) > most:
                raise ConfigError(f"{where}.{name} must be at most {most:,}, got {value}")
    fanouts = terms.training.fanouts
    if len(fanouts) > bounds.MOST_DEEP or any(one > bounds.MOST_MANY for one in fanouts):
        raise ConfigError(f"training.fanouts must be at most {bounds.MOST_DEEP} numbers up to {bounds.MOST_MANY:,}")


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON will bring them back."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value

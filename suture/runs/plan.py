"""A plan: what will be run, every name and value of it checked, nothing loaded or written yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suture.config.resolve import Resolved, resolve, to_toml
from suture.config.strict import strict_values
from suture.core.metrics import AUTO, metric_for
from suture.core.metrics import DOOR as METRICS
from suture.errors import ConfigError
from suture.graph.partition import DOOR as PARTITIONS
from suture.graph.partition import GIVEN
from suture.method import Method
from suture.methods import DOOR, AnyMethod, FieldsByMethod, Methods
from suture.nn.backbones import DOOR as BACKBONES
from suture.plugins import Source
from suture.runs import origin
from suture.runs.handed import let_in_named
from suture.settings import Protocol

DEFAULT_METHODS = ("local", "fedavg", "fedprox", "fedper", "fedsage", "gcfl", "fedproto", "fedpub", "global")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A comparison that has been checked but not started: what `--dry-run` shows."""

    dataset: str
    protocol: Protocol
    resolved: Resolved
    methods: tuple[Method[Any, Any], ...]
    seeds: tuple[int, ...]
    named: bool = True
    """Whether the user named the methods; if not, those that do not fit the graph are left out."""
    sources: tuple[Source, ...] = ()
    """Where what does not come with Suture is to be found again."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(method.name for method in self.methods)

    def config(self) -> str:
        """Every resolved value as a protocol file that loads to the same values."""
        return to_toml(self.resolved)

    def single(self) -> Plan:
        """The first method on the first seed alone."""
        return replace(self, methods=self.methods[:1], seeds=self.seeds[:1])


def plan(
    dataset: str,
    methods: Sequence[str | AnyMethod] | None = None,
    *,
    protocol: str | Path | None = None,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
    door: Methods = DOOR,
) -> Plan:
    """Resolve and check every name and value that the user gave, without touching data.

    A method is a name, a spelling such as `my_method.py:Mine`, or a class; names are those behind the door. Without a
    protocol it is the one that fits the graph (`runs.origin`), and without methods those of them that fit it. Code that is
    spelled here, not in a file, is the user's own, and remembered as such.
    """
    let_in_named(dataset, methods or (), overrides, protocol)
    return plan_as_written(
        dataset, methods, protocol=protocol, clients=clients, seeds=seeds, overrides=overrides, config=config, door=door
    )


def plan_as_written(
    dataset: str,
    methods: Sequence[str | AnyMethod] | None = None,
    *,
    protocol: str | Path | None = None,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
    door: Methods = DOOR,
) -> Plan:
    """The same for names out of a file, which somebody else may have written: code must have been let in before."""
    named, methods = methods is not None, DEFAULT_METHODS if methods is None else methods
    dataset = origin.settled(dataset)
    protocol = protocol if protocol is not None else origin.default_protocol(dataset)
    for asked in methods:
        door = door.letting_in(asked)
    classes = [door.find(asked) for asked in methods]
    fields = FieldsByMethod(door)
    resolved = resolve(protocol, dataset, overrides, config_file=config, clients=clients, method_fields=fields)
    settings = resolved.protocol
    built = tuple(_build(kind, resolved) for kind in classes)
    chosen = tuple(seeds) if seeds is not None else settings.seeds
    names = [method.name for method in built]
    _check_list("methods", names)
    _check_list("seeds", chosen)
    settings = replace(settings, seeds=chosen)
    log.info("planned %s on %s, protocol %s, seeds %s", ", ".join(names), dataset, settings.name, list(chosen))
    resolved = replace(resolved, protocol=settings)
    return Plan(dataset, settings, resolved, built, chosen, named, _sources(dataset, settings, built, door))


def _sources(dataset: str, protocol: Protocol, methods: Sequence[Method[Any, Any]], door: Methods) -> tuple[Source, ...]:
    """Look up, and so check, everything that is named; remember where what is not ours was found."""
    found = [door.source(method.name, type(method)) for method in methods]
    found += [BACKBONES.source(kind, BACKBONES.find(kind)) for kind in dict.fromkeys(m.model.kind for m in methods)]
    if protocol.evaluation.metric != AUTO:
        METRICS.find(protocol.evaluation.metric)
    metric, kind = metric_for(protocol.evaluation.metric, protocol.task), protocol.partition.kind
    found.append(METRICS.source(protocol.evaluation.metric, metric))
    if kind not in GIVEN:
        found.append(PARTITIONS.source(kind, PARTITIONS.find(kind)))
    found.append(origin.source_of(dataset))
    return tuple(source for source in found if source is not None)


def _check_list(what: str, given: Sequence[object]) -> None:
    if not given or len(set(given)) < len(given):
        raise ConfigError(f"{what} must be one or several, all different, got {', '.join(map(str, given)) or 'none'}")


def _build(kind: type[Method[Any, Any]], resolved: Resolved) -> Method[Any, Any]:
    values = strict_values(kind, resolved.methods.get(kind.name, {}), kind.name)
    return kind(model=resolved.model_of(kind.name), training=resolved.training_of(kind.name), **values)

"""A plan: what will be run, every name and value of it checked, nothing loaded or written yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suture.config.resolve import Resolved, resolve, to_toml
from suture.config.strict import strict
from suture.errors import ConfigError
from suture.graph import datasets
from suture.method import Method
from suture.methods import METHODS, method_class, own_fields
from suture.settings import Protocol

DEFAULT_PROTOCOL = "fedpub-disjoint"
DEFAULT_METHODS = ("local", "fedavg", "fedprox", "fedper", "fedsage", "gcfl", "fedproto", "fedpub", "global")
IN_MEMORY = "in-memory"
"""In place of a dataset's name: the graph was given as an object."""
FEDERATION = "federation"
"""In place of a dataset's name: the graph is in pieces, and its owners have them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A comparison that has been checked but not started: what `--dry-run` shows."""

    dataset: str
    protocol: Protocol
    resolved: Resolved
    methods: tuple[Method[Any, Any], ...]
    seeds: tuple[int, ...]

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
    methods: Sequence[str] = DEFAULT_METHODS,
    *,
    protocol: str | Path = DEFAULT_PROTOCOL,
    clients: int | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    config: Path | None = None,
) -> Plan:
    """Resolve and check every name and value, without touching data or disk."""
    if dataset not in (IN_MEMORY, FEDERATION):
        datasets.about(dataset)
    classes = [method_class(name) for name in methods]
    fields = {name: own_fields(kind) for name, kind in METHODS.items()}
    resolved = resolve(protocol, dataset, overrides, config_file=config, clients=clients, method_fields=fields)
    settings = resolved.protocol
    built = tuple(_build(kind, resolved) for kind in classes)
    chosen = tuple(seeds) if seeds is not None else settings.seeds
    _check_list("methods", methods)
    _check_list("seeds", chosen)
    settings = replace(settings, seeds=chosen)
    log.info("planned %s on %s, protocol %s, seeds %s", ", ".join(methods), dataset, settings.name, list(chosen))
    return Plan(dataset, settings, replace(resolved, protocol=settings), built, chosen)


def _check_list(what: str, given: Sequence[object]) -> None:
    if not given or len(set(given)) < len(given):
        raise ConfigError(f"{what} must be one or several, all different, got {', '.join(map(str, given)) or 'none'}")


def _build(kind: type[Method[Any, Any]], resolved: Resolved) -> Method[Any, Any]:
    values = strict_values(kind, resolved.methods.get(kind.name, {}))
    return kind(model=resolved.model_of(kind.name), training=resolved.training_of(kind.name), **values)


def strict_values(kind: type[Method[Any, Any]], values: dict[str, object]) -> dict[str, Any]:
    """Check a method's own hyper-parameters against its field types."""
    checked = strict(kind, values, kind.name)
    return {name: getattr(checked, name) for name in values}

"""From TOML files and `--set` to one checked `Protocol`.

Weakest first: the protocol file, its `[dataset.NAME]` table, the user's `--config` file, then `--clients` and `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from suture.config.layers import (
    OWN_SECTIONS,
    SECTIONS,
    Layer,
    MethodFields,
    at,
    check_methods,
    load_protocol,
    user_layers,
)
from suture.config.strict import field_names, strict
from suture.config.toml import Table, as_table, written
from suture.errors import ConfigError
from suture.settings import ModelSettings, Protocol, TrainingSettings

Own = dict[str, dict[str, object]]
"""Values by method, e.g. `{"fedprox": {"mu": 0.1}}`."""


@dataclass(frozen=True)
class Resolved:
    """What a run is made of, every source applied."""

    protocol: Protocol
    methods: Own
    """Hyper-parameters that differ from the methods' own defaults."""
    sections: dict[str, Own] = field(default_factory=dict)
    """Where a method's network or training differs from the protocol's, e.g. `{"model": {"fedpub": {"head": True}}}`."""

    def model_of(self, method: str) -> ModelSettings:
        """The network this method trains."""
        return strict(ModelSettings, self._section_of(method, "model"), f"{method}.model")

    def training_of(self, method: str) -> TrainingSettings:
        """How this method trains it."""
        return strict(TrainingSettings, self._section_of(method, "training"), f"{method}.training")

    def protocol_of(self, method: str) -> Protocol:
        """The protocol as this method follows it."""
        return replace(self.protocol, model=self.model_of(method), training=self.training_of(method))

    def _section_of(self, method: str, section: str) -> Table:
        return {**asdict(getattr(self.protocol, section)), **self.sections.get(section, {}).get(method, {})}


def resolve(
    protocol: str | Path,
    dataset: str,
    overrides: Sequence[str] = (),
    *,
    config_file: Path | None = None,
    clients: int | None = None,
    method_fields: MethodFields,
) -> Resolved:
    """Apply every source to a protocol and check the outcome.

    `protocol` is a shipped name or the path of a `.toml` file. Of `dataset`, what follows a `:` does not matter here.
    `overrides` are the `key=value` texts of `--set`; `config_file` and `clients` are the options of those names.
    `method_fields` gives the hyper-parameter names of every registered method.
    """
    raw = load_protocol(protocol)
    of_user = user_layers(overrides, config_file, clients, method_fields)
    for layer in (raw.base, *raw.datasets.values()):
        check_methods(layer, method_fields, skip_unknown=raw.shipped)
    for layer in of_user:
        check_methods(layer, method_fields, skip_unknown=False)

    of_dataset = raw.datasets.get(dataset.split(":")[0].lower(), Layer(raw.base.place))
    values: dict[str, object] = {}
    methods: Own = {}
    sections: dict[str, Own] = {section: {} for section in OWN_SECTIONS}
    for layer in (raw.base, of_dataset, *of_user):
        values = _overlay(values, layer.values)
        known = {method: table for method, table in layer.methods.items() if method in method_fields}
        for method, table in known.items():
            own = {key: value for key, value in table.items() if key not in OWN_SECTIONS}
            methods[method] = {**methods.get(method, {}), **own}
        for section, of_methods in sections.items():
            sections[section] = _layered(of_methods, layer, known, section)

    filled = {section: _filled(own) for section, own in sections.items()}
    resolved = Resolved(strict(Protocol, values, ""), _filled(methods), {name: own for name, own in filled.items() if own})
    with at(f"protocol {resolved.protocol.name}, everything applied"):
        _check_together(resolved.protocol)
        for method in dict.fromkeys(method for own in resolved.sections.values() for method in own):
            _check_method(method, resolved)
    return resolved


def to_toml(resolved: Resolved) -> str:
    """Write the outcome as a protocol file that loads to the same values."""
    protocol = resolved.protocol
    tables: dict[str, Table] = {section: asdict(getattr(protocol, section)) for section in SECTIONS}
    tables |= {f"methods.{method}": table for method, table in resolved.methods.items()}
    for section, own in resolved.sections.items():
        tables |= {f"methods.{method}.{section}": table for method, table in own.items()}
    lines = [f"{key} = {written(getattr(protocol, key))}" for key in field_names(Protocol) if key not in SECTIONS]
    for header, table in tables.items():
        lines += ["", f"[{header}]", *(f"{key} = {written(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _layered(below: Own, layer: Layer, methods: Mapping[str, Table], section: str) -> Own:
    """One section of the methods' own, with another source on top.

    What a stronger source says of every method also holds for one that a weaker source made different.
    """
    of_all = as_table(layer.values.get(section, {}), section)
    merged = {method: {k: v for k, v in table.items() if k not in of_all} for method, table in below.items()}
    for method, table in methods.items():
        merged[method] = {**merged.get(method, {}), **as_table(table.get(section, {}), section)}
    return merged


def _check_method(method: str, resolved: Resolved) -> None:
    """One method's network and training, where they are not everybody's."""
    different = [section for section, own in resolved.sections.items() if method in own]
    with at(f"methods.{method}.{different[0]}" if len(different) == 1 else f"methods.{method}"):
        protocol, own = resolved.protocol, resolved.protocol_of(method)
        if protocol.task == "link" and own.model.hidden != protocol.model.hidden:
            raise ConfigError("in link prediction all networks are compared with the same hidden width: set model.hidden")
        _check_together(own)


def _check_together(protocol: Protocol) -> None:
    """Refuse values that are each valid but contradict one another."""
    partition, split, model, training = protocol.partition, protocol.split, protocol.model, protocol.training
    shares = split.train + split.val + split.test
    sampled = bool(training.fanouts)
    fanouts = f"training.fanouts = {written(training.fanouts)}"
    rules = (
        (
            sampled and training.batch_size == 0,
            f"{fanouts} needs training.batch_size > 0, got 0: set a batch size, or training.fanouts=[]",
        ),
        (
            sampled and model.kind != "sage",
            f"{fanouts} needs model.kind sage, got {model.kind}: set model.kind=sage, or training.fanouts=[]",
        ),
        (
            sampled and len(training.fanouts) != model.layers,
            f"{fanouts} must hold one number for each layer, got model.layers = {model.layers}",
        ),
        (
            training.momentum > 0 and training.optimizer != "sgd",
            f"training.momentum = {training.momentum:g} needs training.optimizer sgd, got {training.optimizer}: "
            "set training.optimizer=sgd, or training.momentum=0",
        ),
        (
            training.clip > 0 and training.dp_sigma > 0,
            f"training.clip = {training.clip:g} would shorten gradients that DP-SGD has clipped, node by node, before it "
            "added noise: set training.dp_clip instead and training.clip=0, or training.dp_sigma=0",
        ),
        (
            shares > 1 + 1e-9,
            f"split.train + split.val + split.test must be at most 1, got {shares:g}",
        ),
        (
            model.kind == "gat" and model.hidden % model.heads != 0,
            f"model.hidden must be a multiple of model.heads, got {model.hidden} and {model.heads}",
        ),
        (
            partition.clients == 0 and partition.kind not in ("auto", "given", "file"),
            f"partition.kind {partition.kind} must be told into how many clients it cuts: give --clients",
        ),
        (
            partition.kind == "file" and not partition.file,
            "partition.kind file needs the path of the assignment: set partition.file",
        ),
        (
            len(set(protocol.seeds)) < len(protocol.seeds),
            f"seeds must differ from one another, got {written(protocol.seeds)}",
        ),
    )
    for broken, sentence in (*rules, *_rules_of_gap(protocol), *_rules_of_optimisers(training)):
        if broken:
            raise ConfigError(sentence)


def _rules_of_optimisers(training: TrainingSettings) -> tuple[tuple[bool, str], ...]:
    """What clients' and server's optimisers cannot be together."""
    kind = training.server_optimizer
    return (
        (
            training.moments == "averaged" and not training.keep_optimizer,
            "training.moments averaged hands moments on from round to round, and training.keep_optimizer = false forgets "
            "them: set training.keep_optimizer=true, or training.moments=own",
        ),
        (
            training.moments == "server" and (kind != "none" or training.server_lr != 1),
            f"training.moments server makes {training.optimizer} the server's optimiser, and training.server_optimizer = "
            f"{kind} with training.server_lr = {training.server_lr:g} would be a second one: "
            "set training.server_optimizer=none and training.server_lr=1, or training.moments=own",
        ),
        (
            kind in ("adam", "yogi") and training.server_lr >= 1,
            f"training.server_lr = {training.server_lr:g} lets {kind} at the server move every weight by about as much in a "
            "round: set a value below 1, such as training.server_lr=0.01",
        ),
    )


def _rules_of_gap(protocol: Protocol) -> tuple[tuple[bool, str], ...]:
    """What noise on sums over neighbours cannot hide."""
    model, training = protocol.model, protocol.training
    if model.kind != "gap":
        return ()
    return (
        (
            protocol.task == "link",
            "model.kind gap hides edges, and link prediction is trained to tell them: choose another model.kind",
        ),
        (
            model.gap_level == "node" and model.gap_sigma > 0 and training.dp_sigma == 0,
            "model.gap_level node hides what a node tells its neighbours, while its own features and label reach weights by "
            "its loss: set training.dp_sigma above 0, or model.gap_level=edge",
        ),
    )


def _overlay(below: Table, above: Table) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _filled(tables: Own) -> Own:
    return {name: table for name, table in tables.items() if table}

"""From TOML files and `--set` to one checked `Protocol`.

Weakest first: the protocol file, its `[dataset.NAME]` table, the user's `--config` file, then `--clients` and `--set`.
Every source is checked on its own, so that an error names the place where the user can repair it.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue

from suture.errors import ConfigError, unknown
from suture.settings import ModelSettings, Protocol

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

H = TypeVar("H")
Table = Mapping[str, object]
MethodFields = Mapping[str, frozenset[str]]

SHIPPED = Path(__file__).parents[1] / "protocols"
SECTIONS: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(hint)) for name, hint in get_type_hints(Protocol).items() if is_dataclass(hint)
}

NETWORK = "model"
"""Under a method's name: the table of what is different in its network."""


@dataclass(frozen=True)
class Layer:
    """The values that one source sets: a file, one of its dataset tables, or an option of the command line."""

    place: str
    """What an error calls the source."""
    values: Table = field(default_factory=dict)
    """Top-level values and sections, only those that the source names."""
    methods: Mapping[str, Table] = field(default_factory=dict)
    """Hyper-parameters by method name; under `model` what is different in a method's network."""


@dataclass(frozen=True)
class RawProtocol:
    """A protocol file as written; every value in it is checked, but none is filled in."""

    base: Layer
    datasets: Mapping[str, Layer]
    """What differs by dataset."""
    shipped: bool
    """Shipped files may give values for methods that this installation does not have."""


@dataclass(frozen=True)
class ConfigFile:
    """A user's `--config` file."""

    layer: Layer
    protocol: str | None
    dataset: str | None
    methods: tuple[str, ...] | None
    """Which methods to run: `methods = [...]`, or `run = [...]` under `[methods]`."""


@dataclass(frozen=True)
class Resolved:
    """What a run is made of, every source applied."""

    protocol: Protocol
    methods: dict[str, dict[str, object]]
    """Hyper-parameters that differ from the methods' own defaults, e.g. `{"fedprox": {"mu": 0.1}}`."""
    networks: dict[str, dict[str, object]] = field(default_factory=dict)
    """Where a method's network differs from the protocol's, e.g. `{"fedpub": {"head": True}}`."""

    def model_of(self, method: str) -> ModelSettings:
        """The network this method trains."""
        return strict(ModelSettings, {**asdict(self.protocol.model), **self.networks.get(method, {})}, f"{method}.{NETWORK}")


def protocol_names() -> tuple[str, ...]:
    """The protocols that come with Suture."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def load_protocol(name_or_path: str | Path) -> RawProtocol:
    """Read a shipped protocol by name, or a user's own by a path that ends with `.toml`."""
    name = str(name_or_path)
    shipped = not name.endswith(".toml")
    if shipped and name not in protocol_names():
        raise unknown("protocol", name, protocol_names())
    path, place = (SHIPPED / f"{name}.toml", f"protocol {name}") if shipped else (Path(name_or_path), name)
    with _at(place):
        written = {"name": path.stem, **_read(path)}
        datasets = _table(written.pop("dataset", {}), "dataset")
        base = _layer(written, place, allowed=(*_names(Protocol), "dataset", "methods"))
    by_dataset = {}
    for dataset, table in datasets.items():
        where = f"{place} [dataset.{dataset}]"
        with _at(where):
            table = _table(table, f"dataset.{dataset}")
            by_dataset[dataset.lower()] = _layer(table, where, allowed=("seeds", *SECTIONS, "methods"))
    return RawProtocol(base, by_dataset, shipped)


def load_config(path: Path) -> ConfigFile:
    """Read a user's `--config` file."""
    place = str(path)
    with _at(place):
        written = dict(_read(path))
        protocol, dataset = (_text(written.pop(key, None), key) for key in ("protocol", "dataset"))
        methods = written.pop("methods", {})
        # TOML cannot hold both `methods = [...]` and `[methods.fedprox]`, so the list may also stand inside the table.
        methods = {"run": methods} if isinstance(methods, list) else dict(_table(methods, "methods"))
        run = methods.pop("run", None)
        names = None if run is None else _checked(tuple[str, ...], run, "methods.run")
        allowed = ("protocol", "dataset", "methods", "seeds", *SECTIONS)
        layer = _layer({**written, "methods": methods}, place, allowed)
    return ConfigFile(layer, protocol, dataset, names)


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
    of_user = _user_layers(overrides, config_file, clients, method_fields)
    for layer in (raw.base, *raw.datasets.values()):
        _check_methods(layer, method_fields, skip_unknown=raw.shipped)
    for layer in of_user:
        _check_methods(layer, method_fields, skip_unknown=False)

    of_dataset = raw.datasets.get(dataset.split(":")[0].lower(), Layer(raw.base.place))
    values: dict[str, object] = {}
    methods: dict[str, dict[str, object]] = {}
    networks: dict[str, dict[str, object]] = {}
    for layer in (raw.base, of_dataset, *of_user):
        values = _overlay(values, layer.values)
        of_all = _table(layer.values.get("model", {}), "model")
        # What a stronger source says of every network also holds for one that a weaker source made different.
        networks = {method: {k: v for k, v in table.items() if k not in of_all} for method, table in networks.items()}
        for method, table in layer.methods.items():
            if method in method_fields:
                own = {key: value for key, value in table.items() if key != NETWORK}
                methods[method] = {**methods.get(method, {}), **own}
                networks[method] = {**networks.get(method, {}), **_table(table.get(NETWORK, {}), NETWORK)}

    resolved = Resolved(strict(Protocol, values, ""), _filled(methods), _filled(networks))
    with _at(f"protocol {resolved.protocol.name}, everything applied"):
        _check_together(resolved.protocol)
        for method in resolved.networks:
            _check_network(method, resolved)
    return resolved


def to_toml(resolved: Resolved) -> str:
    """Write the outcome as a protocol file that loads to the same values."""
    protocol = resolved.protocol
    lines = [f"{key} = {_toml(getattr(protocol, key))}" for key in _names(Protocol) if key not in SECTIONS]
    for section, keys in SECTIONS.items():
        values = getattr(protocol, section)
        lines += ["", f"[{section}]", *(f"{key} = {_toml(getattr(values, key))}" for key in keys)]
    tables = {f"methods.{method}": table for method, table in resolved.methods.items()}
    tables |= {f"methods.{method}.{NETWORK}": table for method, table in resolved.networks.items()}
    for header, table in tables.items():
        lines += ["", f"[{header}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def strict(cls: type[T], values: Table, where: str) -> T:
    """Build a frozen dataclass, nested ones too, or say in one sentence which value is wrong.

    Types are not coerced (`"5"` and `true` are no integers), except that an integer may stand for a number.
    Bounds come from the fields' annotations, e.g. `Annotated[float, Field(ge=0)]`. `where` is what the keys belong to,
    e.g. `fedprox` for `fedprox.mu`; it may be empty.
    """
    hints = get_type_hints(cls, include_extras=True)
    arguments: dict[str, object] = {}
    for name, value in values.items():
        if name not in _names(cls):
            raise unknown(f"{where} key".lstrip(), name, _names(cls))
        key = _dotted(where, name)
        hint = hints[name]
        if isinstance(hint, type) and is_dataclass(hint):
            arguments[name] = strict(hint, _table(value, key), key)
        else:
            arguments[name] = _checked(hint, value, key)
    for f in fields(cls):
        if f.init and f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{_dotted(where, f.name)} is missing: it must be {_expected(_schema(hints[f.name]))}")
    return cls(**arguments)


def _user_layers(
    overrides: Sequence[str], config_file: Path | None, clients: int | None, method_fields: MethodFields
) -> list[Layer]:
    layers = []
    if config_file is not None:
        config = load_config(config_file)
        for method in config.methods or ():
            if method not in method_fields:
                with _at(config.layer.place):
                    raise unknown("method", method, method_fields)
        layers.append(config.layer)
    from_set = [_set_layer(text, method_fields) for text in overrides]
    if clients is not None:
        for layer in from_set:
            if "clients" in _table(layer.values.get("partition", {}), "partition"):
                raise ConfigError(f"--clients {clients} and {layer.place} both set partition.clients: give one of them")
        place = f"--clients {clients}"
        with _at(place):
            layers.append(_layer({"partition": {"clients": clients}}, place, SECTIONS))
    return layers + from_set


def _set_layer(text: str, method_fields: MethodFields) -> Layer:
    place = f"--set {text}"
    key, equals, value = text.partition("=")
    with _at(place):
        if not equals:
            raise ConfigError("expected key=value, e.g. --set training.rounds=20")
        *outer, last = _path(key.strip(), method_fields)
        table: Table = {last: _toml_value(value.strip())}
        for part in reversed(outer):
            table = {part: table}
        return _layer(table, place, allowed=("seeds", *SECTIONS, "methods"))


def _path(key: str, method_fields: MethodFields) -> tuple[str, ...]:
    """The full path of a `--set` key: `rounds` -> training, rounds; `fedprox.mu` -> methods, fedprox, mu."""
    first, *rest = key.split(".")
    if not rest:
        return _path_of_bare_key(key, method_fields)
    if first in method_fields:
        first, rest = "methods", [first, *rest]
    if first == "methods":
        if len(rest) != 2 and not (len(rest) == 3 and rest[1] == NETWORK):
            raise ConfigError(
                "a method's key is written methods.NAME.KEY or methods.NAME.model.KEY, e.g. methods.fedprox.mu"
            )
        return (first, *rest)
    if len(rest) > 1:
        raise ConfigError(f"{key!r} has too many dots: write SECTION.KEY or methods.NAME.KEY")
    if first in SECTIONS:
        return (first, *rest)
    raise unknown("section or method", first, (*SECTIONS, *method_fields))


def _path_of_bare_key(key: str, method_fields: MethodFields) -> tuple[str, ...]:
    owners = [section for section, keys in SECTIONS.items() if key in keys]
    if key == "seeds":
        return (key,)
    if len(owners) == 1 and key not in SECTIONS:
        return (owners[0], key)
    choices = [f"{section}.{key}" for section in owners]
    if key in SECTIONS:
        choices.append(f"{key}.KEY with one of {', '.join(SECTIONS[key])}")
    if not choices:
        choices = [f"{method}.{key}" for method, names in method_fields.items() if key in names]
    if choices:
        raise ConfigError(f"{key!r} alone does not say which value is meant: write {' or '.join(choices)}")
    raise unknown("key", key, {"seeds"}.union(*SECTIONS.values()))


def _layer(table: Table, place: str, allowed: Iterable[str]) -> Layer:
    """Check one source's keys and values on their own."""
    allowed = tuple(allowed)
    for key in table:
        if key not in allowed:
            raise unknown("key", key, allowed)
    methods = {
        method: _table(values, f"methods.{method}") for method, values in _table(table.get("methods", {}), "methods").items()
    }
    values = {key: value for key, value in table.items() if key != "methods"}
    strict(Protocol, {"name": place, **values}, "")  # no source but a protocol file gives the one required key
    return Layer(place, values, methods)


def _check_methods(layer: Layer, known: MethodFields, skip_unknown: bool) -> None:
    with _at(layer.place):
        for method, table in layer.methods.items():
            if method not in known:
                if skip_unknown:
                    continue
                raise unknown("method", method, known)
            for key, value in table.items():
                if key == NETWORK:
                    strict(ModelSettings, _table(value, f"{method}.{key}"), f"{method}.{key}")
                elif key not in known[method]:
                    raise unknown(f"{method} key", key, known[method] | {NETWORK})


def _check_network(method: str, resolved: Resolved) -> None:
    """One method's network, where it is not everybody's."""
    protocol, model = resolved.protocol, resolved.model_of(method)
    with _at(f"methods.{method}.{NETWORK}"):
        if protocol.task == "link" and model.hidden != protocol.model.hidden:
            raise ConfigError("in link prediction all networks are compared with the same hidden width: set model.hidden")
        _check_together(replace(protocol, model=model))


def _check_together(protocol: Protocol) -> None:
    """Refuse values that are each valid but contradict one another."""
    partition, split, model, training = protocol.partition, protocol.split, protocol.model, protocol.training
    shares = split.train + split.val + split.test
    sampled = bool(training.fanouts)
    fanouts = f"training.fanouts = {_toml(training.fanouts)}"
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
            shares > 1 + 1e-9,
            f"split.train + split.val + split.test must be at most 1, got {shares:g}",
        ),
        (
            model.kind == "gat" and model.hidden % model.heads != 0,
            f"model.hidden must be a multiple of model.heads, got {model.hidden} and {model.heads}",
        ),
        (
            partition.kind == "file" and not partition.file,
            "partition.kind file needs the path of the assignment: set partition.file",
        ),
        (
            len(set(protocol.seeds)) < len(protocol.seeds),
            f"seeds must differ from one another, got {_toml(protocol.seeds)}",
        ),
    )
    for broken, sentence in rules:
        if broken:
            raise ConfigError(sentence)


def _checked(hint: type[H], value: object, key: str) -> H:
    """The value, if it is of the annotated type and within its bounds."""
    adapter = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_python(_frozen(value))
    except ValidationError:
        schema = adapter.json_schema()
        if isinstance(value, str) and "enum" in schema:
            raise unknown(key, value, schema["enum"]) from None
        raise ConfigError(f"{key} must be {_expected(schema)}, got {_toml(value)}") from None


def _schema(hint: type[H]) -> JsonSchemaValue:
    return TypeAdapter(hint).json_schema()


NOUNS = {
    "integer": ("an integer", "integers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "true or false"),
    "string": ("a string", "strings"),
    "object": ("a table", "tables"),
}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _expected(schema: JsonSchemaValue, plural: bool = False) -> str:
    """A JSON schema in words: `an integer >= 1`."""
    if "anyOf" in schema:
        return " or ".join(_expected(part, plural) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if schema.get("type") == "array":
        kind = "a non-empty list" if schema.get("minItems") else "a list"
        return f"{kind} of {_expected(schema.get('items', {}), plural=True)}"
    noun = NOUNS.get(schema.get("type", ""), ("another value", "other values"))[plural]
    bounds = " and ".join(f"{sign} {schema[bound]}" for bound, sign in BOUNDS.items() if bound in schema)
    return f"{noun} {bounds}".rstrip()


def _frozen(value: object) -> object:
    """TOML lists arrive as lists; the settings hold tuples, which strict validation does not take a list for."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _toml(value: object) -> str:
    """One value in TOML syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items())}}}"
    return str(value)


def _toml_value(text: str) -> object:
    """A value in TOML syntax; a bare word that is not TOML is a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    value: object = table["value"]
    # A line break in the text would smuggle in further keys; no setting is a date.
    return text if len(table) > 1 or isinstance(value, datetime.date | datetime.time) else value


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise ConfigError(f"cannot be read ({problem.strerror}): check the path") from None
    except ValueError as problem:
        raise ConfigError(f"is not valid TOML: {problem}") from None


def _text(value: object, key: str) -> str | None:
    return None if value is None else _checked(str, value, key)


def _table(value: object, key: str) -> Table:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a table, got {_toml(value)}")
    return value


def _overlay(below: Table, above: Table) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _filled(tables: Mapping[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    return {name: table for name, table in tables.items() if table}


def _names(cls: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if f.init)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Let an error say where it came from."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None

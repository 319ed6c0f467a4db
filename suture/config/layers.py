"""The sources of settings, each as the values it sets: protocol files, `--config` files, `--set` and `--clients`.

Every source is checked on its own, so that an error names the place where the user can repair it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

from suture.config.strict import checked, field_names, strict
from suture.config.toml import Table, as_table, parsed, read_toml
from suture.core.trusted import is_spelled
from suture.errors import ConfigError, unknown
from suture.plugins import Door
from suture.settings import ModelSettings, Protocol, TrainingSettings

MethodFields = Mapping[str, frozenset[str]]

SECTIONS: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(hint)) for name, hint in get_type_hints(Protocol).items() if is_dataclass(hint)
}

OWN_SECTIONS = {"model": ModelSettings, "training": TrainingSettings}
"""Under a method's name: the tables of what is different in its network and in its training."""


@dataclass(frozen=True)
class Layer:
    """The values that one source sets: a file, one of its dataset tables, or an option of the command line."""

    place: str
    """What an error calls the source."""
    values: Table = field(default_factory=dict)
    """Top-level values and sections, only those that the source names."""
    methods: Mapping[str, Table] = field(default_factory=dict)
    """Hyper-parameters by method name; under `model` and `training` what is different for a method."""


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


def _check_protocol(thing: object, how: str) -> Path:
    if not isinstance(thing, str | Path) or not str(thing).endswith(".toml"):
        raise ConfigError(f"{how} is no protocol: it must be the path of a .toml file")
    return Path(thing)


SHIPPED = {path.stem: path for path in sorted((Path(__file__).parents[1] / "protocols").glob("*.toml"))}
DOOR = Door("protocol", "suture.protocols", SHIPPED, _check_protocol)


def protocol_names() -> tuple[str, ...]:
    """The protocols that come with Suture, and those of installed packages."""
    return DOOR.names()


def load_protocol(name_or_path: str | Path) -> RawProtocol:
    """Read a protocol by name, or a user's own by a path that ends with `.toml`."""
    name = str(name_or_path)
    shipped = not name.endswith(".toml")
    path, place = (DOOR.find(name), f"protocol {name}") if shipped else (Path(name_or_path), name)
    with at(place):
        content = {"name": path.stem, **read_toml(path)}
        datasets = as_table(content.pop("dataset", {}), "dataset")
        base = _layer(content, place, allowed=(*field_names(Protocol), "dataset", "methods"))
    by_dataset = {}
    for dataset, table in datasets.items():
        where = f"{place} [dataset.{dataset}]"
        with at(where):
            table = as_table(table, f"dataset.{dataset}")
            by_dataset[dataset.lower()] = _layer(table, where, allowed=("seeds", *SECTIONS, "methods"))
    return RawProtocol(base, by_dataset, shipped)


def load_config(path: Path) -> ConfigFile:
    """Read a user's `--config` file."""
    place = str(path)
    with at(place):
        content = dict(read_toml(path))
        protocol, dataset = (_text(content.pop(key, None), key) for key in ("protocol", "dataset"))
        methods = content.pop("methods", {})
        # TOML cannot hold both `methods = [...]` and `[methods.fedprox]`, so the list may also stand inside the table.
        methods = {"run": methods} if isinstance(methods, list) else dict(as_table(methods, "methods"))
        run = methods.pop("run", None)
        names = None if run is None else checked(tuple[str, ...], run, "methods.run")
        allowed = ("protocol", "dataset", "methods", "seeds", *SECTIONS)
        layer = _layer({**content, "methods": methods}, place, allowed)
    return ConfigFile(layer, protocol, dataset, names)


def user_layers(
    overrides: Sequence[str], config_file: Path | None, clients: int | None, method_fields: MethodFields
) -> list[Layer]:
    """What the user asked for, weakest first: the `--config` file, `--clients`, every `--set`."""
    layers = []
    if config_file is not None:
        config = load_config(config_file)
        for method in config.methods or ():
            if method not in method_fields and not is_spelled(method):
                with at(config.layer.place):
                    raise unknown("method", method, method_fields)
        layers.append(config.layer)
    from_set = [_set_layer(text, method_fields) for text in overrides]
    if clients is not None:
        for layer in from_set:
            if "clients" in as_table(layer.values.get("partition", {}), "partition"):
                raise ConfigError(f"--clients {clients} and {layer.place} both set partition.clients: give one of them")
        place = f"--clients {clients}"
        with at(place):
            if clients < 1:  # 0 is for files, where it means as many as there are owners
                raise ConfigError(f"partition.clients must be an integer >= 1, got {clients}")
            layers.append(_layer({"partition": {"clients": clients}}, place, SECTIONS))
    return layers + from_set


def check_methods(layer: Layer, known: MethodFields, skip_unknown: bool) -> None:
    """Refuse methods and keys of methods that do not exist."""
    with at(layer.place):
        for method, table in layer.methods.items():
            if method in known:
                for key, value in table.items():
                    _check_key_of_method(method, key, value, known[method])
            elif not skip_unknown:
                raise unknown("method", method, known)


def _check_key_of_method(method: str, key: str, value: object, own: frozenset[str]) -> None:
    if key in OWN_SECTIONS:
        strict(OWN_SECTIONS[key], as_table(value, f"{method}.{key}"), f"{method}.{key}")
    elif key not in own:
        for section in OWN_SECTIONS:
            if key in SECTIONS[section]:
                raise ConfigError(f"{key} is no hyper-parameter of {method}: write {method}.{section}.{key}")
        raise unknown(f"{method} key", key, own | OWN_SECTIONS.keys())


def _set_layer(text: str, method_fields: MethodFields) -> Layer:
    place = f"--set {text}"
    key, equals, value = text.partition("=")
    with at(place):
        if not equals:
            raise ConfigError("expected key=value, e.g. --set training.rounds=20")
        *outer, last = _path(key.strip(), method_fields)
        table: Table = {last: parsed(value.strip())}
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
        if len(rest) != 2 and not (len(rest) == 3 and rest[1] in OWN_SECTIONS):
            raise ConfigError(
                "a method's key is written methods.NAME.KEY, methods.NAME.model.KEY or methods.NAME.training.KEY, "
                "e.g. methods.fedprox.mu"
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
    named = as_table(table.get("methods", {}), "methods")
    methods = {method: as_table(values, f"methods.{method}") for method, values in named.items()}
    values = {key: value for key, value in table.items() if key != "methods"}
    strict(Protocol, {"name": place, **values}, "")  # no source but a protocol file gives the one required key
    return Layer(place, values, methods)


def _text(value: object, key: str) -> str | None:
    return None if value is None else checked(str, value, key)


@contextmanager
def at(place: str) -> Iterator[None]:
    """Let an error say where it came from."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None

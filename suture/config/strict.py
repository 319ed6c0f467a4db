"""Values checked against the annotations of a frozen dataclass, and in one sentence what is wrong with them.

Types are not coerced (`"5"` and `true` are no integers), except that an integer may stand for a number. Bounds come from the
annotations, e.g. `Annotated[float, Field(ge=0)]`; `suture.settings` has names for the usual ones.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, PydanticInvalidForJsonSchema, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue

from suture.config.toml import Table, as_table, written
from suture.errors import ConfigError, unknown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

H = TypeVar("H")

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def strict(cls: type[T], values: Table, where: str) -> T:
    """Build a frozen dataclass, nested ones too, or say in one sentence which value is wrong.

    `where` is what the keys belong to, e.g. `fedprox` for `fedprox.mu`; it may be empty.
    """
    arguments = strict_values(cls, values, where)
    for f in fields(cls):
        if f.init and f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{_dotted(where, f.name)} is missing: it must be {in_words(cls)[f.name]}")
    return cls(**arguments)


def strict_values(cls: type[DataclassInstance], values: Table, where: str) -> dict[str, Any]:
    """Some of the values that a dataclass is built from, checked as `strict` does, without building it."""
    kinds = _kinds(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            raise unknown(f"{where} key".lstrip(), name, kinds)
        key, kind = _dotted(where, name), kinds[name]
        if isinstance(kind, TypeAdapter):
            arguments[name] = _valid(kind, value, key)
        else:
            absent = value is None and name in _optional(cls)
            arguments[name] = None if absent else strict(kind, as_table(value, key), key)
    return arguments


def check_fields(instance: DataclassInstance, where: str) -> None:
    """Check a dataclass that was built in Python, nested ones too: `fedprox.mu must be a number >= 0, got -1`."""
    for name, kind in _kinds(type(instance)).items():
        value, key = getattr(instance, name), _dotted(where, name)
        if isinstance(kind, TypeAdapter):
            _valid(kind, value, key)
        elif isinstance(value, kind):
            check_fields(value, key)
        elif not (value is None and name in _optional(type(instance))):
            raise ConfigError(f"{key} must be of type {kind.__name__}, got {written(value)}")


def schemas(cls: type[DataclassInstance]) -> dict[str, JsonSchemaValue]:
    """What each field may hold, as a JSON schema; tables are left out."""
    return {name: kind.json_schema() for name, kind in _kinds(cls).items() if isinstance(kind, TypeAdapter)}


def in_words(cls: type[DataclassInstance]) -> dict[str, str]:
    """What each field may hold: `an integer >= 1`."""
    return {
        name: _expected(kind.json_schema()) if isinstance(kind, TypeAdapter) else "a table"
        for name, kind in _kinds(cls).items()
    }


def checked(hint: type[H], value: object, key: str) -> H:
    """The value, if it is of the annotated type and within its bounds."""
    valid: H = _valid(TypeAdapter(hint, config=STRICT), value, key)
    return valid


def field_names(cls: type[DataclassInstance]) -> tuple[str, ...]:
    """What its constructor takes."""
    return tuple(f.name for f in fields(cls) if f.init)


@cache
def _kinds(cls: type[DataclassInstance]) -> dict[str, TypeAdapter[Any] | type[DataclassInstance]]:
    """What each field may hold: a dataclass of its own, or whatever the adapter finds valid."""
    hints = get_type_hints(cls, include_extras=True)
    kinds: dict[str, TypeAdapter[Any] | type[DataclassInstance]] = {}
    for name in field_names(cls):
        nested = _nested(hints[name])
        kinds[name] = TypeAdapter(hints[name], config=STRICT) if nested is None else nested
    return kinds


@cache
def _optional(cls: type[DataclassInstance]) -> frozenset[str]:
    """Fields that hold a dataclass or None."""
    hints = get_type_hints(cls)
    return frozenset(name for name in field_names(cls) if _nested(hints[name]) not in (None, hints[name]))


def _nested(hint: Any) -> type[DataclassInstance] | None:
    """The dataclass that a field holds, always or where it is not None."""
    held = [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [hint]
    return held[0] if len(held) == 1 and isinstance(held[0], type) and is_dataclass(held[0]) else None


def _valid(adapter: TypeAdapter[Any], value: object, key: str) -> Any:
    try:
        return adapter.validate_python(_frozen(value))
    except ValidationError:
        try:
            schema = adapter.json_schema()
        except PydanticInvalidForJsonSchema:
            schema = {}
        if isinstance(value, str) and "enum" in schema:
            raise unknown(key, value, schema["enum"]) from None
        raise ConfigError(f"{key} must be {_expected(schema)}, got {written(value)}") from None


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


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

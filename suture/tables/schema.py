"""What the owners of a graph agree on before they import: feature columns, classes, task. A small JSON file, no data.

It holds no value of any row, but the names of columns, categories and classes; a category that fewer than `min_count` rows
have is not written down. Two owners who import with the same schema get features of the same width and meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from suture.core.storage import disk_errors, write_json
from suture.errors import DataError
from suture.tables.summary import listed, shown

FORMAT = "suture-schema/1"
Kind = Literal["numeric", "boolean", "categorical", "date", "text", "tokens", "ignored"]
Task = Literal["classification", "multi-label", "regression"]
Missing = Literal["indicator", "fill", "error"]
Unseen = Literal["other", "zero", "error"]
KINDS: tuple[str, ...] = get_args(Kind)
TASKS: tuple[str, ...] = get_args(Task)
OWNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Owners become names of folders and of parties in a federation."""
LARGEST_WIDTH = 1_000_000

_NON_ZERO = {"numeric": 1, "boolean": 1, "date": 1, "categorical": 1, "text": 8, "tokens": 20, "ignored": 0}
"""Non-zero features a node gets from a column, roughly."""
SPARSE_BELOW = 0.25
"""Expected share of non-zero features below which they are kept sparse."""
NARROW = 100
"""So few features are kept dense all the same: little is saved, and stock layers want them dense."""


@dataclass(frozen=True)
class Column:
    """One column of the node or feature table and the features made of it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: Kind
    missing: Missing = "error"
    """A missing value gets an indicator column besides `fill`, only `fill`, or is refused."""
    fill: float = 0.0
    standardise: bool = False
    """Whether a run standardises it, with statistics of all owners; the import never does."""
    categories: tuple[str, ...] = ()
    unseen: Unseen = "other"
    """Categories (or token numbers) that are not in the schema: a column `other`, nothing, or refused."""
    width: int = 0
    """text, tokens: number of buckets or tokens."""
    hashed: bool = False
    """tokens: words, hashed into `width` buckets, instead of numbers below `width`."""
    why: str = ""
    """ignored: the reason."""

    def __post_init__(self) -> None:
        if not 0 <= self.width <= LARGEST_WIDTH:
            raise ValueError(f"column {shown(self.name)}: width must be between 0 and {LARGEST_WIDTH:,}, got {self.width}")
        if self.kind in ("text", "tokens") and self.width == 0:
            raise ValueError(f"column {shown(self.name)}: a {self.kind} column needs a width of at least 1")
        if len(set(self.categories)) != len(self.categories):
            raise ValueError(f"column {shown(self.name)}: a category is there twice")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features this column becomes, in order."""
        match self.kind:
            case "ignored":
                return ()
            case "categorical":
                names = [f"{self.name}={category}" for category in self.categories]
                names += [f"{self.name} (other)"] * (self.unseen == "other")
            case "text" | "tokens":
                names = [f"{self.name}[{number}]" for number in range(self.width)]
            case _:
                names = [self.name]
        return tuple(names + [f"{self.name} (missing)"] * (self.missing == "indicator"))


@dataclass(frozen=True)
class Roles:
    """Which column is what; an id of several columns names several."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    id: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    owner: str | None = None
    split: str | None = None
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    weight: str | None = None

    def over(self, other: Roles) -> Roles:
        """What is given here, and for the rest what `other` says."""
        return Roles(**{name: value or getattr(other, name) for name, value in vars(self).items()})

    @property
    def node_columns(self) -> set[str]:
        """Columns of the node table that are not features."""
        return {*self.id, *self.label} | {name for name in (self.owner, self.split) if name}


@dataclass(frozen=True)
class Schema:
    """Columns, classes and task: what turns tables into the same kind of graph at every owner."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    columns: tuple[Column, ...]
    roles: Roles
    task: Task = "classification"
    classes: tuple[str, ...] = ()
    """Names in the order of their numbers; empty for regression and for tables without labels."""
    directed: bool = False
    format: str = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"its format is {shown(self.format)}, this version reads {FORMAT!r}")
        for what, names in (("column", [column.name for column in self.columns]), ("class", list(self.classes))):
            if len(set(names)) != len(names):
                raise ValueError(f"a {what} is there twice")

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.kind != "ignored")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for each feature."""
        return tuple(name for column in self.used for name in column.feature_names)

    @property
    def standardise(self) -> tuple[bool, ...]:
        """For each feature, whether a run should standardise it: indicators and categories never."""
        return tuple(
            column.standardise and number == 0 for column in self.used for number in range(len(column.feature_names))
        )

    @property
    def sparse(self) -> bool:
        """Whether features are kept sparse; follows from the columns alone, so that all owners agree."""
        width = len(self.feature_names)
        expected = sum(min(_NON_ZERO[column.kind], max(column.width, 1)) for column in self.used)
        return width > NARROW and expected < SPARSE_BELOW * width

    def with_roles(self, roles: Roles) -> Schema:
        """The same agreement for tables whose columns have other roles."""
        return replace(self, roles=roles)

    def agreed(self) -> Schema:
        """The part that all owners must have alike: without roles of columns and columns that become no feature."""
        return replace(self, columns=self.used, roles=Roles())

    def to_json(self) -> dict[str, Any]:
        """Without the values that every column has anyway."""
        content = asdict(self)
        plain = {name: field.default for name, field in Column.__dataclass_fields__.items()}
        content["columns"] = [
            {name: value for name, value in column.items() if name in ("name", "kind") or value != plain[name]}
            for column in content["columns"]
        ]
        return content

    def write(self, path: Path) -> None:
        """Write schema.json."""
        write_json(path, self.to_json())


_SCHEMA = TypeAdapter(Schema)


def schema_from(content: Mapping[str, object]) -> Schema:
    """As `to_json` gave it, checked."""
    try:
        return _SCHEMA.validate_json(json.dumps(content))
    except (ValidationError, TypeError, ValueError) as error:
        raise DataError("what should be a schema is none; install the same version of Suture everywhere") from error


def read_schema(path: Path) -> Schema:
    """Read and check a schema file."""
    with disk_errors("read", path):
        text = path.read_bytes()
    try:
        return _SCHEMA.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(
            f"{path} is not a schema ({where}: {first['msg']}); make one with: suture schema make --nodes FILE --id COLUMN"
        ) from error


def difference(found: Schema, wanted: Schema, *, scaling: bool = False) -> str | None:
    """What distinguishes two schemas as far as features and labels go, in words; None if nothing does.

    With `scaling`, the same columns must also be marked to be standardised.
    """
    theirs, ours = ({column.name: column for column in schema.used} for schema in (found, wanted))
    for what, names in (("lacks", ours.keys() - theirs.keys()), ("has also", theirs.keys() - ours.keys())):
        if names:
            return f"it {what} the column {shown(min(names))}"
    for name, column in ours.items():
        for part, value in vars(column).items():
            other = getattr(theirs[name], part)
            if other != value and (scaling or part != "standardise"):
                return _otherwise(f"the {part} of column {shown(name)}", other, value)
    if list(theirs) != list(ours):
        return "the columns are in another order"
    for part, what in (("task", "task"), ("classes", "the classes"), ("directed", "directed")):
        if getattr(found, part) != getattr(wanted, part):
            return _otherwise(what, getattr(found, part), getattr(wanted, part))
    return None


def _otherwise(what: str, found: object, wanted: object) -> str:
    """Two values of one thing; of two lists what only one has."""
    if not (isinstance(found, tuple) and isinstance(wanted, tuple)):
        return f"{what} is {_brief(found)}, not {_brief(wanted)}"
    for has, apart in (
        ("lacks", [one for one in wanted if one not in found]),
        ("has also", [one for one in found if one not in wanted]),
    ):
        if apart:
            return f"it {has} {listed(apart)} among {what}"
    return f"{what} are in another order"


def _brief(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)

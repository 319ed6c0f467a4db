"""Tables of any kind to one kind: a Parquet file in a scratch folder that can be read a few columns or rows at a time.

CSV and TSV (also .gz) become columns of text, exactly as written; what they mean is decided by the schema. Parquet keeps its
types. JSON is a list of records, a file of one record a line, or `{id: [tokens]}`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suture.core.storage import disk_errors
from suture.errors import DataError
from suture.tables.csv_shape import examine
from suture.tables.engine import pl, table_errors
from suture.tables.summary import Summary, shown

ROWS_AT_ONCE = 65_536
CELLS_AT_ONCE = 8_000_000
RESERVED = "\x1fid"
"""Name of the column that holds a row's id as text; no file can have it, see `_check_names`."""
ID, TOKENS = "id", "tokens"
"""Columns of a `{id: [tokens]}` file."""
KINDS = "CSV, TSV, Parquet or JSON (CSV, TSV and JSON also as .gz)"
Source = Path | pl.DataFrame
"""A file, or a table that is in memory already."""


@dataclass(frozen=True)
class Table:
    """One staged table."""

    name: str
    """What messages call it: its file's name."""
    path: Path
    rows: int
    types: dict[str, pl.DataType]
    empty: int = 0
    """Rows of the source that held nothing and are not among `rows`."""

    @property
    def columns(self) -> list[str]:
        """Names in order."""
        return list(self.types)

    def scan(self) -> pl.LazyFrame:
        """Read lazily."""
        return pl.scan_parquet(self.path, glob=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """All rows of a few columns at a time, so that a wide table never is in memory as a whole."""
        step = max(1, CELLS_AT_ONCE // max(self.rows, 1))
        for start in range(0, len(columns), step):
            with table_errors(self.name):
                yield self.scan().select(columns[start : start + step]).collect()

    def chunks(self, columns: Sequence[str], rows: int = ROWS_AT_ONCE) -> Iterator[pl.DataFrame]:
        """All columns of a few rows at a time."""
        for start in range(0, self.rows, rows):
            with table_errors(self.name):
                yield self.scan().select(columns).slice(start, rows).collect()


def stage(source: Source, scratch: Path, encoding: str | None, summary: Summary) -> Table:
    """Read one table into the scratch folder."""
    target = scratch / f"{len(list(scratch.iterdir()))}.parquet"
    if isinstance(source, pl.DataFrame):
        _check_names("the table", source.columns)
        return staged("the table", source.lazy(), target)
    if not source.is_file():
        raise DataError(f"{source} {'is a folder' if source.is_dir() else 'does not exist'}; give a file: {KINDS}")
    suffixes = [suffix.lower() for suffix in source.suffixes]
    match suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:]:
        case [(".csv" | ".tsv" | ".txt"), *_]:
            return _stage_csv(source, scratch, target, encoding, summary)
        case [".parquet" | ".pq"]:
            with table_errors(str(source)):
                frame = pl.scan_parquet(source, glob=False)
                _check_names(source.name, frame.collect_schema().names())
                return staged(source.name, frame, target)
        case [(".json" | ".jsonl" | ".ndjson"), *_]:
            try:
                records = _json_frame(source)
                _check_names(source.name, records.columns)
                return staged(source.name, records.lazy(), target)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{source} holds text that is not valid Unicode ({error.reason}); correct the file"
                ) from error
    raise DataError(f"{source} is of no kind that can be read; give {KINDS}")


def staged(name: str, frame: pl.LazyFrame, target: Path) -> Table:
    """Write a frame to the scratch folder."""
    with table_errors(name):
        frame.sink_parquet(target, compression="lz4", row_group_size=ROWS_AT_ONCE, statistics=False, maintain_order=True)
        scan = pl.scan_parquet(target, glob=False)
        return Table(name, target, int(scan.select(pl.len()).collect().item()), dict(scan.collect_schema()))


def id_text(columns: Sequence[str], types: dict[str, pl.DataType]) -> pl.Expr:
    """The id of each row as text; several columns are joined by `/`, in which a `/` of their own is `%2F`.

    Missing where any part is missing. Whole numbers that a table engine has turned into floats are whole again.
    """
    parts = [_plain_text(name, types[name]) for name in columns]
    if len(parts) > 1:
        escaped = [
            part.str.replace_all("%", "%25", literal=True).str.replace_all("/", "%2F", literal=True) for part in parts
        ]
        return pl.concat_str(escaped, separator="/").alias(RESERVED)
    return parts[0].alias(RESERVED)


def _plain_text(name: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if kind.is_nested() or kind in (pl.Binary, pl.Object):
        raise DataError(f"the column {shown(name)} holds {kind}, which cannot be an id; ids are text or whole numbers")
    if kind.is_float():
        return (
            pl.when(column.is_finite() & (column == column.round()))
            .then(column.cast(pl.Int64, strict=False))
            .cast(pl.String)
        )
    text = column.cast(pl.String)
    return pl.when(text != "").then(text)


def _check_names(name: str, columns: Sequence[str]) -> None:
    bad = [column for column in columns if any(ord(letter) < 32 for letter in column)]
    if bad:
        raise DataError(f"{name} has a column named {shown(bad[0])}, with control characters; rename it")
    if not columns:
        raise DataError(f"{name} has no columns; a table needs at least an id")


def _stage_csv(source: Path, scratch: Path, target: Path, encoding: str | None, summary: Summary) -> Table:
    """Text as it stands; the engine must find exactly the rows that were counted."""
    shape = examine(source, scratch, encoding, summary)
    _check_names(source.name, shape.columns)
    with table_errors(str(source)):
        # Names are given by position: the engine would look for them in the header with its own rules of quoting.
        frame = pl.scan_csv(
            shape.path,
            separator=shape.delimiter,
            schema=dict.fromkeys(shape.columns, pl.String()),
            has_header=False,
            skip_rows=1,
            truncate_ragged_lines=False,
            glob=False,
        )
        empty = shape.blank.size
        if empty:
            frame = frame.with_row_index(RESERVED).filter(~pl.col(RESERVED).is_in(shape.blank)).drop(RESERVED)
        table = staged(source.name, frame, target)
    if table.rows + empty != shape.records:
        raise DataError(
            f"{source} has {shape.records:,} rows, but {table.rows + empty:,} could be read; "
            "look for a quotation mark inside a field, it must be doubled and the field quoted"
        )
    return Table(table.name, table.path, table.rows, table.types, empty)


def _json_frame(source: Path) -> pl.DataFrame:
    records = _json_content(source)
    if isinstance(records, dict):
        if not all(isinstance(tokens, list) for tokens in records.values()):
            raise DataError(f"{source} is a JSON object, but not one of id: [tokens]; give a list of records instead")
        return pl.DataFrame({ID: list(records), TOKENS: _column(source, TOKENS, list(records.values()))})
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise DataError(f'{source} must hold a list of records such as [{{"id": 1}}], or {{id: [tokens]}}')
    names = list(dict.fromkeys(name for record in records for name in record))
    if not names:
        raise DataError(f"{source} is empty; a table needs at least an id")
    return pl.DataFrame({name: _column(source, name, [record.get(name) for record in records]) for name in names})


def _json_content(source: Path) -> Any:
    with disk_errors("read", source):
        raw = source.read_bytes()
    try:
        text = (gzip.decompress(raw) if source.suffix == ".gz" else raw).decode("utf-8-sig")
        lines = any(suffix in (".jsonl", ".ndjson") for suffix in source.suffixes)
        if lines:
            return [json.loads(line, object_pairs_hook=_once) for line in text.splitlines() if line.strip()]
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{source} is not valid JSON in UTF-8 ({str(error)[:120]}); correct the file") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {shown(next(name for name in names if names.count(name) > 1))} is there twice")
    return made


def _column(source: Path, name: str, values: list[Any]) -> pl.Series:
    """Lists stay lists, of whole numbers or of words; everything else becomes text, as in a CSV file."""
    if any(isinstance(value, dict) for value in values):
        raise DataError(f"{source}: {shown(name)} holds objects inside records; make each of them a column of its own")
    if any(isinstance(value, list) for value in values):
        rows = [value if isinstance(value, list) or value is None else [value] for value in values]
        if any(isinstance(item, (list, dict)) for row in rows for item in row or ()):
            raise DataError(f"{source}: {shown(name)} holds lists inside lists; a token is a number or a word")
        numbers = all(type(item) is int and abs(item) < 2**62 for row in rows for item in row or ())
        if numbers:
            return pl.Series(name, rows, dtype=pl.List(pl.Int64))
        return pl.Series(
            name, [None if row is None else [_text(item) for item in row] for row in rows], dtype=pl.List(pl.String)
        )
    return pl.Series(name, [_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)

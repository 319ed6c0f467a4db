"""Rows of a table to rows of features, as the schema says; a block of rows at a time.

numeric      the number               boolean      0 or 1               date    days since 2000-01-01
categorical  a column per category    text         its words, hashed    tokens  a column per token, 1 if it is there
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from suture.errors import DataError
from suture.tables import values
from suture.tables.engine import pl
from suture.tables.schema import Column, Schema
from suture.tables.summary import Summary, shown

Matrix: TypeAlias = Any
"""Features [N, F], float32: a NumPy array or a SciPy CSR matrix (SciPy has no types to name here)."""


@dataclass(frozen=True)
class Entries:
    """Non-zero features of one column: row, position among the column's features, value."""

    row: np.ndarray
    position: np.ndarray
    value: np.ndarray


class Encoder:
    """Turns blocks of rows into features, and remembers what it had to decide on the way."""

    def __init__(self, schema: Schema, table: str) -> None:
        self.columns = schema.used
        self.width = len(schema.feature_names)
        self.sparse = schema.sparse
        self.table = table
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """How often, by column, what was found and what was done."""

    def encode(self, block: pl.DataFrame) -> Matrix:
        """Features [rows, F] of a block of rows, float32: dense, or CSR where the schema says sparse."""
        rows, columns, parts, start = [], [], [], 0
        dense = None if self.sparse else np.zeros((block.height, self.width), dtype=np.float32)
        for column in self.columns:
            entries = self._entries(block[column.name], column)
            if dense is not None:
                dense[entries.row, start + entries.position] = entries.value
            else:
                rows.append(entries.row)
                columns.append(start + entries.position)
                parts.append(entries.value.astype(np.float32))
            start += len(column.feature_names)
        if dense is not None:
            return dense
        stacked = sp.coo_matrix(
            (np.concatenate(parts), (np.concatenate(rows), np.concatenate(columns))), shape=(block.height, self.width)
        )
        return stacked.tocsr()

    def report(self, summary: Summary) -> None:
        """One line for everything that was filled in or not known."""
        for (name, found, done), count in sorted(self.counts.items()):
            summary.note(f"column {shown(name)} of {self.table}", f"{count:,} {found}", done, count)

    def _entries(self, cells: pl.Series, column: Column) -> Entries:
        match column.kind:
            case "numeric" | "boolean" | "date":
                return self._number(cells, column)
            case "categorical":
                return self._category(cells, column)
            case _:
                return self._tokens(cells, column)

    def _number(self, cells: pl.Series, column: Column) -> Entries:
        parse = {"numeric": values.try_numbers, "boolean": values.try_truths, "date": values.try_days}[column.kind]
        parsed = values.finite(parse(cells), self.table)
        values.all_parsed(cells, parsed, column.kind, self.table)
        filled = parsed.to_numpy(writable=True)
        absent = np.isnan(filled)
        missing = self._missing(absent, column, 1)
        filled[absent] = column.fill
        row = np.flatnonzero(filled)
        return _joined(Entries(row, np.zeros_like(row), filled[row]), missing)

    def _category(self, cells: pl.Series, column: Column) -> Entries:
        text = values.plain(cells.cast(pl.String))
        empty = values.is_empty(text)
        missing = self._missing(empty.to_numpy(), column, len(column.feature_names) - 1)
        numbers = {name: number for number, name in enumerate(column.categories)}
        code = (
            text.replace_strict(numbers, default=-1, return_dtype=pl.Int64).to_numpy() if numbers else np.full(len(text), -1)
        )
        code = np.where(empty.to_numpy(), -2, code)
        unseen = np.flatnonzero(code == -1)
        if unseen.size:
            self._unseen(column, unseen.size, text[int(unseen[0])])
            code[unseen] = len(column.categories) if column.unseen == "other" else -2
        row = np.flatnonzero(code >= 0)
        return _joined(Entries(row, code[row], np.ones(row.size)), missing)

    def _tokens(self, cells: pl.Series, column: Column) -> Entries:
        lists = words(cells) if column.kind == "text" else token_lists(cells, column.hashed, self.table)
        missing = self._missing(lists.is_null().to_numpy(), column, column.width)
        lengths = lists.list.len().fill_null(0).to_numpy()
        row = np.repeat(np.arange(len(lists)), lengths)
        flat = lists.filter(lengths > 0).explode()
        known = flat.is_not_null().to_numpy()
        row, flat = row[known], flat.filter(known)
        if column.kind == "text" or column.hashed:
            code = _hashed(flat, column.width)
        else:
            code = flat.to_numpy()
            inside = (code >= 0) & (code < column.width)
            if not inside.all():
                self._unseen(column, int((~inside).sum()), code[~inside][0])
                row, code = row[inside], code[inside]
        once = np.unique(row * np.int64(column.width) + code)  # a token that is there twice counts once
        return _joined(Entries(once // column.width, once % column.width, np.ones(once.size)), missing)

    def _missing(self, absent: np.ndarray, column: Column, position: int) -> Entries:
        """Entries of the indicator column; a refusal where nothing may be missing."""
        row = np.flatnonzero(absent)
        if row.size and column.missing == "error":
            raise DataError(
                f"column {shown(column.name)} of {self.table} has missing values, the schema allows none; fill them in, or "
                f"make the schema with --missing {shown(column.name)}=indicator"
            )
        if row.size:
            done = "kept as a feature of its own" if column.missing == "indicator" else f"changed to {column.fill:g}"
            self.counts[column.name, "missing", done] += row.size
        if column.missing != "indicator":
            row = row[:0]
        return Entries(row, np.full(row.size, position), np.ones(row.size))

    def _unseen(self, column: Column, count: int, first: object) -> None:
        if column.unseen == "error":
            raise DataError(
                f"column {shown(column.name)} of {self.table} has {count:,} values the schema does not know, the first is "
                f"{shown(first)}; correct them, or make the schema again with these tables"
            )
        done = "kept in its feature (other)" if column.unseen == "other" and column.kind == "categorical" else "dropped"
        self.counts[column.name, "values that the schema does not name", done] += count


def words(cells: pl.Series) -> pl.Series:
    """Text to lists of its words in small letters."""
    text = cells.cast(pl.String)
    return text.set(values.is_empty(text), None).str.to_lowercase().str.extract_all(r"\w+")


def token_lists(cells: pl.Series, hashed: bool, table: str) -> pl.Series:
    """Lists of tokens: as they are, or from text such as `3 17 5`, `3|17|5` or `[3, 17, 5]`."""
    if isinstance(cells.dtype, pl.List):
        return cells if not hashed else cells.cast(pl.List(pl.String))
    text = cells.cast(pl.String)
    lists = text.set(values.is_empty(text), None).str.extract_all(r"[^\s,;|\[\]\"']+")
    if hashed:
        return lists
    try:
        return lists.cast(pl.List(pl.Int64))
    except pl.exceptions.InvalidOperationError as error:
        raise DataError(
            f"column {shown(cells.name)} of {table} should hold token numbers, but one is no whole number; "
            f"correct it, or say --type {shown(cells.name)}=text"
        ) from error


def _hashed(flat: pl.Series, width: int) -> np.ndarray:
    """A bucket for each word; the same on every machine and in every year."""
    text = flat.cast(pl.String)
    distinct = text.unique()
    buckets = [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") % width for word in distinct]
    if not buckets:
        return np.zeros(0, dtype=np.int64)
    return text.replace_strict(distinct, pl.Series(buckets, dtype=pl.Int64), return_dtype=pl.Int64).to_numpy()


def _joined(first: Entries, second: Entries) -> Entries:
    if not second.row.size:
        return first
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return Entries(*(np.concatenate(pair) for pair in pairs))


def encode_table(blocks: Iterable[pl.DataFrame], rows: int, encoder: Encoder) -> Matrix:
    """Features of all rows, block by block."""
    if encoder.sparse:
        parts = [encoder.encode(block) for block in blocks]
        return (
            sp.vstack(parts, format="csr", dtype=np.float32)
            if parts
            else sp.csr_matrix((0, encoder.width), dtype=np.float32)
        )
    whole, start = np.empty((rows, encoder.width), dtype=np.float32), 0
    for block in blocks:
        whole[start : start + block.height] = encoder.encode(block)
        start += block.height
    return whole

"""What the cells of a column mean: missing, number, truth value, date. One column in, one column or a refusal out."""

from __future__ import annotations

import numpy as np

from suture.errors import DataError
from suture.tables.engine import pl
from suture.tables.summary import shown

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""How tables write that they do not know a number, a truth value, a date or a label, whatever the case of its letters."""
TRUE, FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")
LARGEST = 1e18
"""Numbers beyond this overflow when they are squared in single precision."""
EPOCH_DAYS = 10_957
"""2000-01-01, in days since 1970-01-01: dates are counted from there, so that they are small numbers."""


def plain(series: pl.Series) -> pl.Series:
    """Text without surrounding blanks; other types as they are."""
    return series.str.strip_chars() if series.dtype == pl.String else series


def is_missing(series: pl.Series) -> pl.Series:
    """Where a number, truth value, date or label is not given."""
    if series.dtype == pl.String:
        return series.is_null() | plain(series).str.to_lowercase().is_in(MISSING)
    if series.dtype.is_float():
        return series.is_null() | series.is_nan()
    return series.is_null()


def is_empty(series: pl.Series) -> pl.Series:
    """Where a category, text or list of tokens is not given; `NA` may be Namibia."""
    return series.is_null() | (plain(series) == "") if series.dtype == pl.String else series.is_null()


def try_numbers(series: pl.Series) -> pl.Series:
    """Float64, null where the cell is missing or no number."""
    numbers = series.cast(pl.Float64, strict=False)
    if numbers.null_count() > series.null_count():
        numbers = plain(series).cast(pl.Float64, strict=False)
    return numbers.fill_nan(None)


def try_truths(series: pl.Series) -> pl.Series:
    """Float64 of 0 and 1, null where the cell is missing or neither."""
    if series.dtype == pl.Boolean:
        return series.cast(pl.Float64)
    text = plain(series.cast(pl.String)).str.to_lowercase()
    known = pl.DataFrame({"text": text}).select(
        pl.when(pl.col("text").is_in(TRUE)).then(1.0).when(pl.col("text").is_in(FALSE)).then(0.0).alias(series.name)
    )
    return known.to_series()


def try_days(series: pl.Series) -> pl.Series:
    """Float64 days since 2000-01-01, null where the cell is missing or no date (2024-05-31, with or without a time)."""
    if series.dtype == pl.String:
        days = (
            plain(series).str.extract(r"^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:\d{2}.*)?$").str.to_date("%Y-%m-%d", strict=False)
        )
    elif series.dtype.is_temporal() and series.dtype not in (pl.Time, pl.Duration):
        days = series.cast(pl.Date)
    else:
        days = pl.Series(series.name, [None] * len(series), dtype=pl.Date)
    return (days.cast(pl.Int32) - EPOCH_DAYS).cast(pl.Float64)


def finite(series: pl.Series, table: str) -> pl.Series:
    """The numbers, unless one of them is infinite or too large to be trained on."""
    wrong = np.abs(series.to_numpy()) > LARGEST  # what is missing is NaN here, and not beyond anything
    if wrong.any():
        first = int(wrong.argmax())
        raise DataError(
            f"column {shown(series.name)} of {table} has {int(wrong.sum()):,} infinite or huge numbers (the first is "
            f"{series[first]:g}); correct them, or leave the column out with --ignore {shown(series.name)}"
        )
    return series


def all_parsed(cells: pl.Series, parsed: pl.Series, kind: str, table: str) -> None:
    """Refuse a column in which a cell is neither missing nor of the kind."""
    if parsed.null_count() == cells.null_count():
        return
    wrong = parsed.is_null() & ~is_missing(cells)
    if wrong.any():
        first = cells[int(wrong.arg_max() or 0)]
        raise DataError(
            f"column {shown(cells.name)} of {table} is {kind}, but {int(wrong.sum()):,} of its cells are not (the first is "
            f"{shown(first)}); correct them, or say what it is with --type {shown(cells.name)}=categorical, text or ignored"
        )

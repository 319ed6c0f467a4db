"""Columns that should not be features: those that identify a person, and those that repeat the label."""

from __future__ import annotations

import re

import numpy as np

from suture.tables import values
from suture.tables.engine import pl
from suture.tables.profile import Profile
from suture.tables.schema import Column

UNIQUE_SHARE, UNIQUE_FROM = 0.99, 20
"""A column is unique in every row if this share of its cells is distinct, and there are this many."""
PERSONAL = {
    "email", "mail", "iban", "bic", "phone", "telephone", "mobile", "ssn", "passport", "surname", "firstname", "lastname",
    "fullname", "address", "street", "birthday", "birthdate", "dob", "ip", "username", "nhs", "mrn",
}  # fmt: skip
"""Words in a column's name that mean a person whatever the cells hold."""
NUMBERING = {
    "id",
    "ids",
    "uuid",
    "guid",
    "key",
    "number",
    "nr",
    "no",
    "name",
    "account",
    "customer",
    "patient",
    "user",
    "index",
}
"""Words that mean a person if the cells also differ in every row."""
REPEATS_FROM = 0.95
"""Share of the label's entropy that a column must explain to repeat it."""
BINS = 50
SAMPLE = 100_000
CELLS = 8_000_000


def identifies(column: Column, found: Profile) -> str | None:
    """Why a column identifies a person or row, or None."""
    named = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", column.name)} | {column.name.lower()}
    if named & PERSONAL:
        return "its name says that it identifies a person"
    unique = found.given >= UNIQUE_FROM and found.distinct >= UNIQUE_SHARE * found.given
    if unique and column.kind in ("categorical", "text") and found.mean_words < 3:
        return "it differs in every row, so it identifies rows"
    if unique and column.kind == "numeric" and found.whole == found.given and named & NUMBERING:
        return "it differs in every row and its name says that it numbers them"
    return None


def merely_unique(column: Column, found: Profile) -> bool:
    """Whether whole numbers differ in every row without a name that would explain it."""
    unique = found.given >= UNIQUE_FROM and found.distinct >= UNIQUE_SHARE * found.given
    return unique and column.kind == "numeric" and found.whole == found.given


def explained(cells: pl.Series, label: np.ndarray) -> float:
    """The share of the label's entropy that a column explains, I(column; label) / H(label), between 0 and 1.

    Numbers are put into at most 50 bins. A column with so many values that it would explain anything counts as 0.
    """
    codes = codes_of(cells)
    if codes is None or label.size < UNIQUE_FROM:
        return 0.0
    classes = int(label.max()) + 1
    table = np.bincount(codes * classes + label, minlength=(int(codes.max()) + 1) * classes).reshape(-1, classes)
    whole = _entropy(table.sum(axis=0))
    if whole == 0:
        return 0.0
    rows = table.sum(axis=1)
    rest = sum(_entropy(row) * count for row, count in zip(table, rows, strict=True) if count) / rows.sum()
    return float(1.0 - rest / whole)


def codes_of(cells: pl.Series) -> np.ndarray | None:
    """Each cell as the number of its value or bin."""
    if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
        return None
    numbers = values.try_numbers(cells) if not cells.dtype.is_temporal() else cells.cast(pl.Int64).cast(pl.Float64)
    if numbers.null_count() == int(values.is_missing(cells).sum()) and numbers.n_unique() > BINS:
        known = numbers.fill_null(0.0).to_numpy()
        return np.searchsorted(np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1])), known)
    codes = values.plain(cells.cast(pl.String)).fill_null("").rank("dense").to_numpy().astype(np.int64) - 1
    return None if codes.max(initial=0) + 1 > max(BINS, len(cells) / 20) else codes


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())

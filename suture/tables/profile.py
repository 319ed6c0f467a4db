"""What is in a column, as counts: enough to say what kind of column it is, and small enough to add up over owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from suture.errors import DataError
from suture.tables import values
from suture.tables.engine import pl
from suture.tables.reading import Table
from suture.tables.schema import LARGEST_WIDTH, Column, Kind, Missing
from suture.tables.summary import shown

MOST_CATEGORIES = 100
MOST_COUNTED = 1000
BUCKETS = 64
"""Hash buckets of text, unless told otherwise."""
WORDS_OF_TEXT = 3.0
"""Mean number of words from which a column is text rather than names."""
MIXED_FROM = 0.5


@dataclass(frozen=True)
class Profile:
    """Counts of one column; all but `counts`, `lists` and `mean_words` are numbers of cells."""

    cells: int
    missing: int
    """Empty, or written as NA, NaN, null or none."""
    empty: int
    numbers: int
    whole: int
    truths: int
    dates: int
    distinct: int
    """Summed over tables, in each of which rows are compared."""
    counts: Counter[str] | None
    """How often each value occurs, if there are not too many."""
    mean_words: float
    lists: bool
    largest_token: int | None
    """None unless every token is a whole number from 0."""
    nested: bool = False

    @property
    def given(self) -> int:
        """Cells that are not missing."""
        return self.cells - self.missing

    def plus(self, other: Profile) -> Profile:
        """The profile of both tables together."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("cells", "missing", "empty", "numbers", "whole", "truths", "dates", "distinct")
        }
        counts = None if self.counts is None or other.counts is None else self.counts + other.counts
        tokens = (self.largest_token, other.largest_token)
        return Profile(
            **sums,
            counts=None if counts is not None and len(counts) > MOST_COUNTED else counts,
            mean_words=max(self.mean_words, other.mean_words),
            lists=self.lists or other.lists,
            largest_token=None if None in tokens else max(token for token in tokens if token is not None),
            nested=self.nested or other.nested,
        )


def profiles(tables: Iterable[Table], columns: Sequence[str]) -> dict[str, Profile]:
    """The profiles of some columns over all tables, each of which must have them."""
    found: dict[str, Profile] = {}
    for table in tables:
        absent = [name for name in columns if name not in table.types]
        if absent:
            raise DataError(f"{table.name} has no column {shown(absent[0])}, another owner's table has it")
        for batch in table.batches(columns):
            for cells in batch:
                one = profile(cells)
                found[cells.name] = found[cells.name].plus(one) if cells.name in found else one
    return found


def profile(cells: pl.Series) -> Profile:
    """Count what is in one column of one table."""
    kind = cells.dtype
    if isinstance(kind, pl.List) and (kind.inner == pl.String or kind.inner.is_integer() or kind.inner == pl.Null):
        return _profile_lists(cells)
    if kind.is_nested() or kind in (pl.Binary, pl.Object, pl.Time, pl.Duration):
        return Profile(len(cells), 0, 0, 0, 0, 0, 0, 0, None, 0.0, False, None, nested=True)
    if not kind.is_temporal():
        numbers = values.try_numbers(cells)
        if numbers.null_count() == cells.null_count():
            return _profile_numbers(cells, numbers)
    else:
        numbers = pl.Series([None] * len(cells), dtype=pl.Float64)
    text = values.plain(cells.cast(pl.String))
    known = text.filter(~values.is_empty(text))
    counts, sample = _counted(known), known.head(10_000)
    return Profile(
        cells=len(cells),
        missing=int(values.is_missing(cells).sum()),
        empty=int(values.is_empty(cells).sum()),
        numbers=len(numbers) - numbers.null_count(),
        whole=int((numbers == numbers.round()).sum()),
        truths=_truths(counts),
        dates=int(values.try_days(cells).is_not_null().sum()),
        distinct=int(known.n_unique()),
        counts=counts,
        mean_words=int(sample.str.count_matches(r"\S+").sum()) / max(len(sample), 1),
        lists=False,
        largest_token=None,
    )


def _profile_numbers(cells: pl.Series, numbers: pl.Series) -> Profile:
    """The common case, without a look at each cell's text: wide tables have thousands of such columns."""
    known = numbers.drop_nulls().to_numpy()
    counts = _counted(cells.drop_nulls())
    whole, absent = int((known == np.round(known)).sum()), cells.null_count()
    distinct = int(cells.n_unique()) - (absent > 0)
    return Profile(len(cells), absent, absent, known.size, whole, _truths(counts), 0, distinct, counts, 1.0, False, None)


def _counted(known: pl.Series) -> Counter[str] | None:
    if known.n_unique() > MOST_COUNTED:
        return None
    return Counter(values.plain(known.cast(pl.String)).to_list()) if len(known) else Counter()


def _truths(counts: Counter[str] | None) -> int:
    return sum(count for name, count in (counts or {}).items() if name.lower() in values.TRUE + values.FALSE)


def _profile_lists(cells: pl.Series) -> Profile:
    tokens = cells.filter(cells.list.len() > 0).explode().drop_nulls()
    largest: int | None = None
    if tokens.dtype.is_integer() or not len(tokens):
        numbers = tokens.cast(pl.Int64).to_numpy()
        largest = int(numbers.max(initial=0)) if numbers.min(initial=0) >= 0 else None
    absent = cells.null_count()
    return Profile(len(cells), absent, absent, 0, 0, 0, 0, 0, None, 0.0, True, largest)


def infer(name: str, found: Profile) -> Column:
    """The column's kind by what is in it."""
    absent: Missing = "indicator" if found.missing else "error"
    if found.nested:
        return Column(name, "ignored", why="its cells are neither numbers, text, dates nor lists of tokens")
    if found.lists:
        if found.largest_token is not None and found.largest_token < LARGEST_WIDTH:
            return Column(name, "tokens", "fill", width=found.largest_token + 1)
        return Column(name, "tokens", "fill", width=BUCKETS, hashed=True)
    if not found.given:
        return Column(name, "ignored", why="all its cells are missing")
    if found.truths == found.given:
        return Column(name, "boolean", absent)
    if found.numbers == found.given:
        return Column(name, "numeric", absent, standardise=True)
    if found.dates == found.given:
        return Column(name, "date", absent, standardise=True)
    kind: Kind = "categorical" if _few(found) else "text"
    if kind == "text" and found.numbers >= MIXED_FROM * found.given:
        raise DataError(
            f"column {shown(name)} has {found.numbers:,} numbers and {found.given - found.numbers:,} cells that are none; "
            f"correct them, or say what it is with --type {name}=categorical, text or ignored"
        )
    return of_kind(name, kind, found)


def _few(found: Profile) -> bool:
    return found.counts is not None and len(found.counts) <= MOST_CATEGORIES and found.mean_words < WORDS_OF_TEXT


def of_kind(name: str, kind: Kind, found: Profile, argument: str = "") -> Column:
    """The column as the user says it is, e.g. `text` with the argument `128`."""
    match kind:
        case "text" | "tokens":
            whole = _width(name, argument)
            if kind == "text":
                return Column(name, kind, "fill", width=whole or BUCKETS)
            hashed = found.lists and found.largest_token is None
            return Column(name, kind, "fill", width=whole or (found.largest_token or BUCKETS - 1) + 1, hashed=hashed)
        case "categorical":
            if found.counts is None:
                raise DataError(f"column {shown(name)} has more than {MOST_COUNTED:,} categories; say --type {name}=text")
            return Column(name, kind, "indicator" if found.empty else "fill", categories=tuple(sorted(found.counts)))
        case "ignored":
            return Column(name, kind, why="you said so")
        case _:
            absent: Missing = "indicator" if found.missing else "error"
            scaled = kind in ("numeric", "date") and argument != "raw"
            return Column(name, kind, absent, standardise=scaled)


def _width(name: str, argument: str) -> int:
    if not argument:
        return 0
    if not argument.isdecimal() or not 1 <= int(argument) <= LARGEST_WIDTH:
        raise DataError(f"--type {name}=...:{argument} must end with a whole number from 1 to {LARGEST_WIDTH:,}")
    return int(argument)

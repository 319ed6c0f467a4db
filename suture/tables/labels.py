"""Labels and splits: cells to class numbers, sets of classes or numbers; -1 or NaN where nothing is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from suture.errors import DataError
from suture.tables import values
from suture.tables.engine import pl
from suture.tables.schema import Schema, Task
from suture.tables.summary import Summary, listed, shown

MOST_CLASSES = 1000
FEW_CLASSES = 20
"""So many may be learned from a node each, in a small table."""
UNLABELLED = "-1"
SPLITS = {
    "train": 1, "training": 1, "tr": 1,
    "val": 2, "valid": 2, "validation": 2, "dev": 2, "va": 2,
    "test": 3, "testing": 3, "te": 3,
}  # fmt: skip
"""Numbers of the parts as in the rest of Suture: 0 is no part."""


def label_text(cells: pl.Series) -> pl.Series:
    """A class as text; null where the label is missing. Whole numbers written as `1.0` are `1`."""
    if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
        raise DataError(f"the label {shown(cells.name)} holds {cells.dtype}; a class is a word or a whole number")
    text = values.plain(cells.cast(pl.String)).str.replace(r"^(-?\d+)\.0+$", "$1")
    return text.set(values.is_missing(cells), None)


def label_sets(block: pl.DataFrame) -> pl.Series:
    """Sets of classes, for multi-label tasks: from several columns of 0 and 1, or one such as `a|b`; null if missing."""
    if block.width == 1:
        cells = block.to_series()
        if isinstance(cells.dtype, pl.List):
            return cells.cast(pl.List(pl.String))
        text = values.plain(cells.cast(pl.String))
        return text.set(values.is_missing(cells), None).str.extract_all(r"[^|;]+")
    rows: list[list[str] | None] = [[] for _ in range(block.height)]
    for cells in block:
        truths = values.try_truths(cells)
        values.all_parsed(cells, truths, "a class of a multi-label task, 0 or 1", "the node table")
        for number, truth in enumerate(truths):
            held = rows[number]
            if held is not None and truth == 1.0:
                held.append(cells.name)
            elif truth is None:
                rows[number] = None
    return pl.Series("label", rows, dtype=pl.List(pl.String))


def find_classes(counts: Counter[str], task: Task, label: Sequence[str], summary: Summary) -> tuple[str, ...]:
    """The classes in their order: whole numbers by size, words by letter. `-1` is no class, unless the other one is `1`."""
    if task == "multi-label" and len(label) > 1:
        return tuple(label)
    names = set(counts)
    if UNLABELLED in names and names != {UNLABELLED, "1"} and task == "classification":
        names.discard(UNLABELLED)
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"the label {listed(list(label))} has {len(names):,} different values, at most {MOST_CLASSES:,} can be classes; "
            "if it is a number to predict, say --task regression"
        )
    _check_repeated(names, counts, label)
    whole = all(name.lstrip("-").isdecimal() and name.isascii() for name in names)
    ordered = sorted(names, key=lambda name: (int(name), name)) if whole else sorted(names)
    if len(ordered) == 1:
        summary.note(
            "label", f"every labelled node is of the class {shown(ordered[0])}", "look: nothing can be learned from it"
        )
    _note_doubtful(names, summary)
    return tuple(ordered)


def _check_repeated(names: set[str], counts: Counter[str], label: Sequence[str]) -> None:
    """Refuse classes most of which have a single node: these are numbers to predict, or names of the nodes."""
    nodes = sum(counts[name] for name in names)
    if len(names) > FEW_CLASSES and nodes < 2 * len(names):
        raise DataError(
            f"the label {listed(list(label))} has {len(names):,} different values in {nodes:,} labelled rows, too many to "
            "learn as classes; if it is a number to predict, say --task regression; classes can be named with --classes"
        )


def _note_doubtful(names: set[str], summary: Summary) -> None:
    """Say what may not be meant: numbers taken as classes, and classes that are written in two ways."""
    numbers = values.try_numbers(pl.Series(sorted(names), dtype=pl.String))
    if names and not numbers.null_count() and (len(names) > FEW_CLASSES or bool((numbers != numbers.round()).any())):
        summary.note("label", f"{len(names):,} different numbers are taken as classes", "look: or say --task regression")
    alike = Counter(name.casefold() for name in names)
    twice = sorted(name for name in names if alike[name.casefold()] > 1)
    if twice:
        summary.note(
            "label", f"classes that differ in capital letters only: {listed(twice)}", "look: kept as different classes"
        )


def encode_labels(block: pl.DataFrame, schema: Schema, notes: Counter[str]) -> np.ndarray:
    """int64 classes with -1, float32 numbers with NaN, or float32 [N, C] with rows of NaN; `notes` counts what is odd."""
    if not schema.roles.label:
        return _nothing(block.height, schema)
    cells = block.select(schema.roles.label)
    match schema.task:
        case "regression":
            numbers = values.finite(values.try_numbers(cells.to_series()), "the node table")
            values.all_parsed(cells.to_series(), numbers, "the number to predict", "the node table")
            notes["unlabelled"] += numbers.null_count()
            return numbers.fill_null(float("nan")).to_numpy().astype(np.float32)
        case "classification":
            return _classes(label_text(cells.to_series()), schema.classes, notes)
        case _:
            return _sets(label_sets(cells), schema.classes, notes)


def _nothing(rows: int, schema: Schema) -> np.ndarray:
    match schema.task:
        case "classification":
            return np.full(rows, -1, dtype=np.int64)
        case "regression":
            return np.full(rows, np.nan, dtype=np.float32)
        case _:
            return np.full((rows, len(schema.classes)), np.nan, dtype=np.float32)


def _classes(text: pl.Series, classes: Sequence[str], notes: Counter[str]) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(classes)}
    code = text.replace_strict(numbers, default=-1, return_dtype=pl.Int64) if numbers else pl.Series([-1] * len(text))
    y = code.fill_null(-1).to_numpy().astype(np.int64)
    unknown = (y == -1) & text.is_not_null().to_numpy() & (text != UNLABELLED).fill_null(False).to_numpy()
    notes["unlabelled"] += int((y == -1).sum() - unknown.sum())
    for name in text.filter(pl.Series(unknown)):
        notes[f"unknown class {shown(name)}"] += 1
    return y


def _sets(sets: pl.Series, classes: Sequence[str], notes: Counter[str]) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(classes)}
    y = np.zeros((len(sets), len(classes)), dtype=np.float32)
    for row, names in enumerate(sets.to_list()):
        if names is None:
            y[row] = np.nan
            notes["unlabelled"] += 1
            continue
        for name in (str(name).strip() for name in names):
            if name in numbers:
                y[row, numbers[name]] = 1.0
            else:
                notes[f"unknown class {shown(name)}"] += 1
    return y


def encode_split(cells: pl.Series) -> np.ndarray:
    """int8: 1 train, 2 val, 3 test, 0 where the cell is empty."""
    text = values.plain(cells.cast(pl.String)).str.to_lowercase()
    text = text.set(values.is_missing(text), None)
    code = text.replace_strict(SPLITS, default=-1, return_dtype=pl.Int8).fill_null(0).to_numpy()
    code = np.where(text.is_null().to_numpy(), 0, code)
    if (code < 0).any():
        wrong = text[int((code < 0).argmax())]
        raise DataError(f"the split column {shown(cells.name)} holds {shown(wrong)}; it must be train, val, test or empty")
    return code.astype(np.int8)

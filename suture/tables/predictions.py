"""Predictions as a table: one row a node, under the ids it was imported with.

    id, owner, prediction, probability A, probability B, ..., labelled, label, role         one class a node
    id, owner, predicted A, probability A, ..., labelled, label A, ..., role                several labels
    id, owner, prediction, labelled, label, role                                            a number, or prediction A, ...

Ids are written as they are, also those that a spreadsheet would take for a formula.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suture.core.storage import disk_errors
from suture.errors import ConfigError, DataError
from suture.tables.engine import pl
from suture.tables.preparing import FORMULA

FORMATS = (".csv", ".parquet")
ROLES = (None, "train", "val", "test")


@dataclass(frozen=True)
class Answers:
    """What is known of N nodes, in plain arrays. Shapes: owner [N] a place in `owners` or -1; the others below."""

    ids: Sequence[str]
    owners: Sequence[str]
    owner: np.ndarray
    kind: str
    """class, labels or value, as in `suture.graph.target`."""
    names: Sequence[str]
    """Of the C classes, labels or numbers."""
    prediction: np.ndarray
    """[N] or [N, C]; -1 or NaN where nobody predicts."""
    probability: np.ndarray
    """[N, C]."""
    label: np.ndarray
    """[N] or [N, C]; -1 or NaN where it is not known."""
    role: np.ndarray | None = None
    """[N], a place in `ROLES`."""


def frame_of(answers: Answers) -> pl.DataFrame:
    """The table."""
    owners = pl.Series([*answers.owners, None], dtype=pl.String)
    known = answers.label >= 0 if answers.kind == "class" else ~np.isnan(_columns(answers.label)).any(axis=1)
    made = {"id": pl.Series(list(answers.ids), dtype=pl.String), "owner": _named(owners, answers.owner)}
    made |= _predicted(answers) | {"labelled": pl.Series(known)} | _labels(answers)
    roles = pl.Series(list(ROLES), dtype=pl.String)
    nothing = np.zeros(len(answers.ids), dtype=np.int64)
    made["role"] = roles.gather(nothing if answers.role is None else answers.role.astype(np.int64))
    return pl.DataFrame(made)


def _predicted(answers: Answers) -> dict[str, pl.Series]:
    shares = {f"probability {name}": _number(answers.probability[:, c]) for c, name in enumerate(answers.names)}
    if answers.kind == "class":
        classes = pl.Series([*answers.names, None], dtype=pl.String)
        return {"prediction": _named(classes, answers.prediction), **shares}
    decided = _columns(answers.prediction)
    if answers.kind == "value":
        return {_heading("prediction", answers.names, c): _number(decided[:, c]) for c in range(decided.shape[1])}
    made: dict[str, pl.Series] = {}
    for c, name in enumerate(answers.names):
        made[f"predicted {name}"] = _whole(decided[:, c])
        made[f"probability {name}"] = shares[f"probability {name}"]
    return made


def _labels(answers: Answers) -> dict[str, pl.Series]:
    if answers.kind == "class":
        most = max(len(answers.names), int(answers.label.max(initial=-1)) + 1)
        names = [*answers.names, *(str(number) for number in range(len(answers.names), most)), None]
        return {"label": _named(pl.Series(names, dtype=pl.String), answers.label)}
    label = _columns(answers.label)
    if answers.kind == "value":
        return {_heading("label", answers.names, c): _number(label[:, c]) for c in range(label.shape[1])}
    return {f"label {name}": _whole(np.nan_to_num(label[:, c], nan=-1)) for c, name in enumerate(answers.names)}


def _heading(what: str, names: Sequence[str], place: int) -> str:
    return what if len(names) == 1 else f"{what} {names[place]}"


def _columns(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).astype(np.float32)


def _named(names: pl.Series, places: np.ndarray) -> pl.Series:
    """Names by their places; the last of them, null, for -1."""
    return names.gather(np.where(places < 0, len(names) - 1, places).astype(np.int64))


def _number(values: np.ndarray) -> pl.Series:
    return pl.Series(values.astype(np.float32)).fill_nan(None)


def _whole(values: np.ndarray) -> pl.Series:
    return pl.Series(np.where(values < 0, 2, values).astype(np.int8)).replace(2, None)


def formulas_in(frame: pl.DataFrame) -> int:
    """Ids that a spreadsheet would take for formulas."""
    return int(frame["id"].str.contains(FORMULA).sum() or 0)


def check_target(path: Path, force: bool) -> None:
    """Find out before the work that its result could not be written."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"predictions are written as {' or '.join(FORMATS)}, not {path.name!r}; choose another --out")
    if path.is_dir() or (path.exists() and not force):
        raise DataError(f"{path} is there already; choose another name with --out, or replace it with --force")


def write_predictions(frame: pl.DataFrame, path: Path) -> None:
    """Write a table as its name says, whole or not at all; folders on the way are made."""
    with disk_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        try:
            if path.suffix.lower() == ".csv":
                frame.write_csv(draft)
            else:
                frame.write_parquet(draft)
            os.replace(draft, path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()

"""A schema from tables: what each column is, which of them should not be features, and what the classes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from suture.errors import DataError, unknown
from suture.tables import checks, values
from suture.tables.engine import pl, table_errors
from suture.tables.labels import find_classes, label_sets, label_text
from suture.tables.preparing import Prepared, Wishes
from suture.tables.profile import Profile, infer, of_kind, profiles
from suture.tables.schema import KINDS, Column, Kind, Missing, Roles, Schema, Task
from suture.tables.summary import Summary, listed, shown

MOST_LINES = 30
"""Columns that get a line each; of more, each kind gets one."""


def schema_of(owners: Sequence[Prepared], wishes: Wishes, summary: Summary) -> Schema:
    """The schema that fits all owners' tables."""
    columns = list(dict.fromkeys(name for owner in owners for name in owner.feature_columns))
    for option, names in (("--type", wishes.kinds), ("--keep", wishes.keep), ("--missing", set(wishes.missing) - {"*"})):
        for name in names:
            if name not in columns:
                raise unknown(f"column for {option}", name, columns[:50], DataError)
    task: Task = wishes.task or "classification"
    roles = owners[0].roles
    if len(roles.label) > 1 and task != "multi-label":
        raise DataError(f"--label names {len(roles.label)} columns; that is only meant with --task multi-label")
    classes = wishes.classes or _classes(owners, roles, task, summary)
    found = profiles([owner.nodes for owner in owners], columns)
    made = [_column(name, found[name], wishes) for name in columns]
    made = [_without_persons(column, found[column.name], wishes, summary) for column in made]
    made = _without_labels(made, owners, roles, task, wishes, summary)
    made = [_without_rare(column, found[column.name], wishes.min_count, summary) for column in made]
    schema = Schema(tuple(made), roles, task, classes, bool(wishes.directed))
    _note_columns(schema, summary)
    if not schema.feature_names:
        raise DataError(
            "no column is left to be a feature; give a table of them with --features, or keep one with --keep COLUMN"
        )
    return schema


def _classes(owners: Sequence[Prepared], roles: Roles, task: Task, summary: Summary) -> tuple[str, ...]:
    if not roles.label or task == "regression":
        return ()
    counts: Counter[str] = Counter()
    for owner in owners:
        if owner.roles.label != roles.label:
            continue
        with table_errors(owner.nodes.name):
            cells = owner.nodes.scan().select(roles.label).collect()
        if task == "classification":
            text = label_text(cells.to_series()).drop_nulls()
        elif len(roles.label) == 1:
            text = label_sets(cells).drop_nulls().explode().drop_nulls().str.strip_chars()
        else:
            continue
        counts.update(dict(text.value_counts().iter_rows()))
    classes = find_classes(counts, task, roles.label, summary)
    renamed = [f"{name} is {number}" for number, name in enumerate(classes) if name != str(number)]
    if renamed:
        summary.note("label", f"classes are numbered in order: {listed(renamed)}", "changed to these numbers")
    return classes


def _column(name: str, found: Profile, wishes: Wishes) -> Column:
    said = wishes.kinds.get(name)
    if said is None:
        column = infer(name, found)
    else:
        kind, _, argument = said.partition(":")
        if kind not in KINDS:
            raise unknown("kind of column", kind, KINDS, DataError)
        column = of_kind(name, cast(Kind, kind), found, argument)
    column = replace(column, unseen=wishes.unseen)
    rule = wishes.missing.get(name, wishes.missing.get("*"))
    if rule is None or column.kind == "ignored":
        return column
    if rule in ("indicator", "error"):
        return replace(column, missing=cast(Missing, rule))
    try:
        number = float(rule)
    except ValueError:
        number = float("nan")
    if not abs(number) <= values.LARGEST:
        raise DataError(f"--missing {name}={rule} must be indicator, error or a number to fill in")
    return replace(column, missing="fill", fill=number)


def _without_persons(column: Column, found: Profile, wishes: Wishes, summary: Summary) -> Column:
    """Leave out what identifies a person, unless the user said what the column is."""
    if column.kind == "ignored":
        return column
    why = checks.identifies(column, found)
    where = f"column {shown(column.name)}"
    if why is None:
        if checks.merely_unique(column, found):
            summary.note(
                where, "its whole numbers differ in every row", f"kept; look, and leave it out with --ignore {column.name}"
            )
        return column
    if column.name in wishes.keep or column.name in wishes.kinds:
        summary.note(where, why, "kept, as you said")
        return column
    summary.note(where, why, f"dropped; --keep {column.name} would keep it")
    return Column(column.name, "ignored", why=why)


def _without_labels(
    columns: list[Column], owners: Sequence[Prepared], roles: Roles, task: Task, wishes: Wishes, summary: Summary
) -> list[Column]:
    """Leave out what repeats the label, unless the user said to keep it."""
    names = [column.name for column in columns if column.kind not in ("ignored", "tokens", "text")]
    if task == "multi-label" or len(roles.label) != 1 or not names:
        return columns
    repeats: dict[str, float] = {}
    step = max(1, checks.CELLS // max(sum(min(owner.nodes.rows, checks.SAMPLE) for owner in owners), 1))
    for start in range(0, len(names), step):
        sample = _sample(owners, roles.label[0], names[start : start + step])
        label = _label_codes(sample[roles.label[0]], task)
        repeats |= {name: checks.explained(sample[name], label) for name in names[start : start + step] if label is not None}
    made = []
    for column in columns:
        share = repeats.get(column.name, 0.0)
        if share > checks.REPEATS_FROM:
            why = f"it repeats the label (it explains {100 * share:.1f} % of it)"
            kept = column.name in wishes.keep
            done = "kept, as you said" if kept else f"dropped; --keep {column.name} would keep it"
            summary.note(f"column {shown(column.name)}", why, done)
            column = column if kept else Column(column.name, "ignored", why=why)
        made.append(column)
    return made


def _sample(owners: Sequence[Prepared], label: str, names: list[str]) -> pl.DataFrame:
    """Labelled rows from all over the tables."""
    frames = []
    for owner in owners:
        if label in owner.nodes.types:
            step = max(1, owner.nodes.rows * len(owners) // checks.SAMPLE)
            with table_errors(owner.nodes.name):
                rows = owner.nodes.scan().select([label, *names]).gather_every(step).collect()
            frames.append(rows.filter(~values.is_missing(rows[label])).cast({label: pl.String}))
    return pl.concat(frames, how="vertical_relaxed")


def _label_codes(label: pl.Series, task: Task) -> np.ndarray | None:
    if not len(label):
        return None
    if task == "regression":
        return checks.codes_of(label)
    return label_text(label).fill_null("").rank("dense").to_numpy().astype(np.int64) - 1


def _without_rare(column: Column, found: Profile, least: int, summary: Summary) -> Column:
    """Leave rare categories out of the schema: they may be one person's, and nothing can be learned from them."""
    if column.kind != "categorical" or found.counts is None:
        return column
    common = tuple(name for name in column.categories if found.counts[name] >= least)
    rare = len(column.categories) - len(common)
    if rare:
        done = "kept in its feature (other)" if column.unseen == "other" else "dropped"
        what = f"{rare:,} of its {len(column.categories):,} categories have fewer than {least} rows"
        summary.note(f"column {shown(column.name)}", what, f"{done}, not named in the schema", rare)
    if rare and column.unseen == "error":
        raise DataError(
            f"column {shown(column.name)} has categories with fewer than {least} rows; say --min-count 1 to allow them"
        )
    return replace(column, categories=common)


def _note_columns(schema: Schema, summary: Summary) -> None:
    """What each column has become."""
    told = {line.subject for line in summary.lines if line.done.startswith("dropped")}
    for column in schema.columns:
        if column.kind == "ignored" and f"column {shown(column.name)}" not in told:
            summary.note(f"column {shown(column.name)}", column.why, "dropped")
    if len(schema.used) <= MOST_LINES:
        for column in schema.used:
            scaled = ", standardised when a run starts" if column.standardise else ""
            absent = {"error": "none may be missing", "indicator": f"missing is {column.fill:g} and a feature of its own"}
            rule = absent.get(column.missing, f"missing is {column.fill:g}")
            summary.note(
                f"column {shown(column.name)}",
                f"{column.kind}, {len(column.feature_names):,} features",
                f"kept{scaled}; {rule}",
            )
        return
    for kind, count in Counter(column.kind for column in schema.used).items():
        width = sum(len(column.feature_names) for column in schema.used if column.kind == kind)
        scaled = ", standardised when a run starts" if kind in ("numeric", "date") else ""
        summary.note(f"{count:,} columns", f"{kind}, {width:,} features", f"kept{scaled}; schema.json says more")

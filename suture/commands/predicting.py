"""`suture predict`: a finished run and a graph in, a table of predictions out."""

from __future__ import annotations

from pathlib import Path

from suture.report import console
from suture.report.text import count
from suture.runs import origin
from suture.runs.answers import answers_of
from suture.runs.outcome import SHARED
from suture.runs.predicting import graph_for, predict
from suture.runs.trained import Trained
from suture.tables.predictions import check_target, formulas_in, frame_of, write_predictions


def predict_table(
    run: Path, data: Path | None, out: Path, mend: bool | None, uncut: bool, force: bool, data_root: Path | None
) -> None:
    """Write what a run says of every node of a graph, and say what it is."""
    check_target(out, force)
    trained = Trained.read(run)
    graph = graph_for(trained, None if data is None else origin.named(data), data_root)
    found = predict(trained, graph, mend=mend, uncut=uncut)
    frame = frame_of(answers_of(found))
    write_predictions(frame, out)
    told = console.notes()
    for note in found.notes:
        told.print(f"note: {note}", soft_wrap=True)
    if out.suffix.lower() == ".csv" and (odd := formulas_in(frame)):
        told.print(f"note: {odd:,} ids look like spreadsheet formulas and stand there as they are", soft_wrap=True)
    whose = "" if SHARED in trained.models else f" --client {next(iter(trained.models))}"
    labelled = int(frame["labelled"].sum())
    owners = "" if found.whole else f" of {count(len(found.owners), 'owner')}"
    console.results().print(
        f"wrote {out}: {len(frame):,} nodes{owners}, {labelled:,} of them with a label; "
        f"columns {', '.join(frame.columns[:3])}, ...",
        soft_wrap=True,
    )
    told.print(
        f"next, the model itself for use without Suture: suture export {run}{whose} --out model",
        soft_wrap=True,
    )

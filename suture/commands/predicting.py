"""`suture predict`: a finished run and a graph in, a table of predictions out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from suture.report import console
from suture.runs import origin
from suture.runs.predicting import Predictions, graph_for, predict
from suture.runs.trained import Trained
from suture.tables.predictions import Answers, check_target, formulas_in, frame_of, write_predictions


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
        told.print(f"note: {note}", soft_wrap=True, markup=False)
    if out.suffix.lower() == ".csv" and (odd := formulas_in(frame)):
        told.print(f"note: {odd:,} ids look like spreadsheet formulas and stand there as they are", soft_wrap=True)
    labelled = int(frame["labelled"].sum())
    console.results().print(
        f"wrote {out}: {len(frame):,} nodes of {len(found.owners):,} owners, {labelled:,} of them with a label; "
        f"columns {', '.join(frame.columns[:3])}, ...",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    told.print(
        f"next, the model itself for use without Suture: suture export {run} --out model", soft_wrap=True, markup=False
    )


def answers_of(found: Predictions) -> Answers:
    """Predictions as the arrays that a table is made of."""
    data, outputs = found.data, found.score.shape[1]
    numbers = data.node_id if data.get("node_id") is not None else range(int(data.num_nodes))
    names = found.class_names if len(found.class_names) == outputs else tuple(str(number) for number in range(outputs))
    label = data.y.numpy()
    if found.target.kind != "class" and not data.y.is_floating_point():
        label = np.full((len(label), outputs), np.nan, dtype=np.float32)
    return Answers(
        ids=data.get("node_name") or [str(int(number)) for number in numbers],
        owners=[] if found.whole else found.owners,
        owner=np.full(len(label), -1) if found.whole else found.owner.numpy(),
        kind=found.target.kind,
        names=names,
        prediction=found.prediction.numpy(),
        probability=found.probability.numpy(),
        label=label,
        role=None if found.role is None else found.role.numpy(),
    )

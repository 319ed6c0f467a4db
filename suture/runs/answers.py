"""Predictions as the arrays that a table is made of; apart from `runs.predicting`, because tables need Polars."""

from __future__ import annotations

import numpy as np

from suture.runs.predicting import Predictions
from suture.tables.predictions import Answers


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

"""What the reported models say, small enough to draw: a part of views.json.

    scatter   a sample of test nodes at two principal components of the models' outputs, with true and predicted class

Legend: E test nodes, S of them sampled, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suture.runs.appraisal import Examples

POINTS = 600
DIGITS = 4


def scatter_of(examples: Examples, class_names: Sequence[str]) -> dict[str, Any] | None:
    """The scatter; None where no single classes are predicted, or nobody can be tested."""
    if examples.predicted != "class":
        return None
    tested = examples.tested()
    finite = tested.output.isfinite().all(1).nonzero().squeeze(1)
    if len(finite) < 3:
        return None
    # Evenly over the clients, which lie one after the other.
    chosen_S = finite[torch.linspace(0, len(finite) - 1, min(POINTS, len(finite)), dtype=torch.float64).round().long()]
    place_S2, explained = two_dimensions(tested.output[chosen_S])
    width = examples.output.shape[1]
    names = [str(name) for name in class_names] if len(class_names) == width else [str(c) for c in range(width)]
    return {
        "classes": names,
        "clients": list(examples.ids),
        "x": [round(value, DIGITS) for value in place_S2[:, 0].tolist()],
        "y": [round(value, DIGITS) for value in place_S2[:, 1].tolist()],
        "label": tested.label[chosen_S].tolist(),
        "said": tested.output[chosen_S].argmax(1).tolist(),
        "client": tested.client[chosen_S].tolist(),
        "explained": round(explained, DIGITS),
    }


def two_dimensions(output_SC: Tensor) -> tuple[Tensor, float]:
    """Principal components [S, 2] and the share of variance they hold; signs are fixed, so one cloud has one picture."""
    centred = output_SC.double() - output_SC.double().mean(0)
    _, lengths, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    place = centred @ (axes * torch.sign(largest)).T
    if place.shape[1] < 2:
        place = torch.nn.functional.pad(place, (0, 2 - place.shape[1]))
    total = float((lengths**2).sum())
    return place, float((lengths[:2] ** 2).sum()) / total if total else 1.0

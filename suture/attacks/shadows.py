"""Shadows: what an owner with a public graph would have answered to the same request.

A step is a pure function of clients and a message, and everybody has the code: an attacker lets it run on a graph it knows,
and learns from pairs of (features, answer) how to read a victim's answers (Shokri et al., Membership inference attacks
against machine learning models, S&P 2017; for graphs: He et al., Stealing links from graph neural networks, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.attacks.attack import NotTried
from suture.attacks.hearing import Heard
from suture.attacks.scenes import Scene
from suture.core.message import Kind, Message, Rows
from suture.core.streams import Streams
from suture.graph.batch import GraphBatch
from suture.method import Clients

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NodeVectors:
    """Vectors that a victim sent of its nodes, [N, P], and which message of which step they were."""

    step: str
    ask: int
    field: str
    values: Floats


def node_vectors(heard: Heard) -> NodeVectors | None:
    """The first vectors of single nodes that a victim sent, if it did and they were heard.

    Later ones are of a network that was trained to say classes, and forgets the rest.
    """
    found = None
    for step, way in heard.steps:
        frames = heard.frames(step, way).get(heard.victim, []) if way == "up" else []
        if not frames:
            continue
        message = heard.recorded.peek(frames[0])
        for name, value in message.contents():
            if isinstance(value, Rows) and message.kind_of(name) is Kind.EMBEDDINGS and value.values.dim() == 2:
                heard.recorded.use(frames[0])
                numbers = value.values.double().nan_to_num(0).numpy()
                found = NodeVectors(step, frames[0].ask, name, numbers) if len(numbers) else found
    return found


def shadow_vectors(heard: Heard, scene: Scene, sent: NodeVectors, public: GraphBatch) -> Floats:
    """What the owner of `public` would have sent to the same request."""
    frames = [frame for frame in heard.frames(sent.step, "down").get(heard.victim, []) if frame.ask == sent.ask]
    if not frames:
        raise NotTried(f"what {scene.method.name} asks its clients with was not heard")
    asked: Message = heard.recorded.read(frames[0])
    message = asked.take([0], public.ids)
    rng = Streams.of(scene.task.seed, public.ids, "shadow")
    empty = scene.clients(public)
    state: Any = scene.method.init_clients(empty)
    _, reply = getattr(scene.method, sent.step)(Clients(public, state, rng, scene.task, 1), message)
    rows: Rows = getattr(reply, sent.field)
    return np.asarray(rows.values.double().nan_to_num(0).numpy(), float)


def ridge(inputs: Floats, outputs: Floats, strength: float = 1e-2) -> tuple[Floats, Floats, Floats]:
    """(mean input, weights, mean output) of a linear map by least squares, lightly held back."""
    middle, centre = inputs.mean(0), outputs.mean(0)
    inside = inputs - middle
    gram = inside.T @ inside
    gram[np.diag_indices_from(gram)] += strength * max(float(np.trace(gram)) / len(gram), 1e-12)
    return middle, np.asarray(np.linalg.solve(gram, inside.T @ (outputs - centre)), float), centre


def decoded(values: Floats, fitted: tuple[Floats, Floats, Floats]) -> Floats:
    """The map of `ridge` applied; features that cannot be negative are not."""
    middle, weights, centre = fitted
    return np.asarray((values - middle) @ weights + centre, float)

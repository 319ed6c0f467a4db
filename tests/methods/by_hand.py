"""Rounds of linear networks in numpy, for tests that work a method out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from harness import small, small_world

from suture.core.message import Record
from suture.method import Method

SGD = {"optimizer": "sgd", "lr": 0.5}
CLASSES = 3
Parts = list[np.ndarray]
"""A weight [F, C] and a bias [C]."""


def linear(kind: type[Method[Any, Any]], values: dict[str, Any] | None = None, **training: object) -> Method[Any, Any]:
    """The method on a linear network without dropout; one round of one epoch unless `training` says otherwise."""
    method = small(kind, training={"rounds": 1, "local_epochs": 1, **training}, **(values or {}))
    return dataclasses.replace(
        method, model=dataclasses.replace(method.model, kind="mlp", layers=1, head=False, dropout=0.0)
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of each row."""
    power = np.exp(scores - scores.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def piece(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A client's features, labels, training rows and adjacency."""
    graph = small_world().clients.select([name])
    adjacency = np.zeros((graph.num_nodes, graph.num_nodes))
    adjacency[graph.edge_index[0], graph.edge_index[1]] = 1
    return graph.x.dense().double().numpy(), graph.y.numpy(), graph.train.nodes.numpy(), adjacency


def slope(name: str, at: Parts) -> Parts:
    """Gradient of a client's mean cross-entropy over its training nodes."""
    features, labels, rows, _ = piece(name)
    error = softmax(features[rows] @ at[0] + at[1]) - np.eye(CLASSES)[labels[rows]]
    return [features[rows].T @ error / len(rows), error.mean(0)]


def array(record: Record, path: str) -> np.ndarray:
    """One tensor of a record, in double precision."""
    return record.tensors()[path].double().numpy()


def parts_of(record: Record, of: str = "params") -> Parts:
    """The linear network of a record with one row."""
    return [array(record, f"{of}.layer1.{part}")[0] for part in ("weight", "bias")]


def first_parts(method: Method[Any, Any]) -> Parts:
    """The linear network everybody starts from."""
    start = method.initial_params(small_world().task)
    return [start[f"layer1.{part}"][0].double().numpy() for part in ("weight", "bias")]


def mean_parts(models: list[Parts], weights: list[float]) -> Parts:
    """The weighted mean."""
    share = np.array(weights) / np.sum(weights)
    return [np.tensordot(share, np.stack([model[i] for model in models]), 1) for i in range(2)]


def sizes() -> list[float]:
    """Training nodes of each client, in the order of ids."""
    return [float(len(piece(name)[2])) for name in small_world().clients.ids]

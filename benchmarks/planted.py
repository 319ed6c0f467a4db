"""The graph that the benchmarks of size share: a community for each owner, classes that are half visible in the features."""

from __future__ import annotations

import numpy as np


def planted_graph(nodes: int, edges: int, owners: int, features: int, classes: int = 2) -> dict[str, np.ndarray]:
    """x [N, F], edge_index [2, E], y [N] and client [N]; owners are about equally large, most edges inside one."""
    rng = np.random.default_rng(0)
    owner = rng.integers(0, owners, nodes)
    owner[:owners] = np.arange(owners)  # nobody is without a node
    order = np.argsort(owner, kind="stable")
    start = np.searchsorted(owner[order], np.arange(owners + 1))
    source = rng.integers(0, nodes, edges)
    held = owner[source]
    inside = order[start[held] + (rng.random(edges) * (start[held + 1] - start[held])).astype(np.int64)]
    target = np.where(rng.random(edges) < 0.9, inside, rng.integers(0, nodes, edges))
    y = rng.integers(0, classes, nodes)
    x = rng.standard_normal((nodes, features), dtype=np.float32)
    x[np.arange(nodes), y] += 1
    return {"x": x, "edge_index": np.stack([source, target]), "y": y, "client": owner}

"""Where nodes of a small graph are drawn: a force-directed layout that is the same wherever it is computed.

Forces of Fruchterman and Reingold (1991), all pairs at once, from a start that puts each owner's nodes in its own place on a
circle; no random numbers, and no library whose next version would draw the same graph otherwise.
Legend: S nodes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STEPS = 120
GRAVITY = 2.5
"""Of the middle, as a linear force. All nodes together push one at distance d away by 1/d, so what has no links to the rest
stays at about 1/sqrt(GRAVITY), beside the others instead of where it makes them small."""
Floats = NDArray[np.float64]


@lru_cache(maxsize=16)
def placed(owner_S: tuple[int, ...], edges: tuple[tuple[int, int], ...], steps: int = STEPS) -> Floats:
    """Places [S, 2] in the unit square; not to be written to."""
    nodes = len(owner_S)
    if nodes == 0:
        return np.zeros((0, 2))
    place = _start(np.asarray(owner_S)).astype(np.float32)
    ends = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    pull = np.zeros((nodes, nodes), dtype=np.float32)
    pull[ends[:, 0], ends[:, 1]] = pull[ends[:, 1], ends[:, 0]] = 1
    ideal = np.float32(1 / np.sqrt(nodes))
    for step in range(steps):
        across, along = (place[:, None, axis] - place[None, :, axis] for axis in (0, 1))
        squared = across**2 + along**2 + np.float32(1e-9)
        force = ideal**2 / squared - pull * np.sqrt(squared) / ideal
        moved = np.stack([(across * force).sum(1), (along * force).sum(1)], 1) - GRAVITY * (place - 0.5)
        length = np.sqrt((moved**2).sum(1, keepdims=True)) + 1e-9
        place = place + moved / length * np.minimum(length, 0.1 * (1 - step / steps))
    low, high = np.quantile(place, 0.005, axis=0), np.quantile(place, 0.995, axis=0)
    unit: Floats = ((place - low) / np.maximum(high - low, 1e-9)).clip(-0.02, 1.02).astype(np.float64)
    unit.flags.writeable = False
    return unit


def _start(owner_S: NDArray[np.int64]) -> Floats:
    """Each owner on a circle, its nodes on a spiral around that place."""
    owners = max(int(owner_S.max()) + 1, 1)
    angle = 2 * np.pi * owner_S / owners
    rank = np.zeros(len(owner_S))
    for number in range(owners):
        mine = owner_S == number
        rank[mine] = np.arange(mine.sum())
    turn, reach = rank * 2.399963, 0.02 * np.sqrt(rank)
    start: Floats = np.stack([np.cos(angle), np.sin(angle)], 1) * 0.35 + 0.5
    start += np.stack([np.cos(turn), np.sin(turn)], 1) * reach[:, None]
    return start

"""Graphs made from a few numbers, for trying things out, for tests and for sizes no public graph has.

`block_communities` is the synthetic setting of FED-PUB: dense communities of small, given clients.
`contextual_block_model` is a sparse graph with bag-of-words features, as large as asked for.
Both are the same graph for the same arguments and seed. Legend: N nodes, B blocks, W words per node.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from suture.errors import ConfigError
from suture.graph.checks import validate
from suture.graph.data import csr_tensor

ROWS_AT_ONCE = 256
WITHIN_COMMUNITY = 0.9
"""Share of the edges inside a class that stay inside a community of it."""
FULLEST = 0.5
"""Above this share of all possible edges of a kind, drawing distinct ones becomes slow and the graph a clique."""


def block_communities(
    clients: tuple[int, ...] = (5, 5, 40),
    nodes_per_client: int = 30,
    p_in: float = 0.5,
    p_out: float = 0.1,
    purity: float = 0.8,
    features: int = 16,
    separation: float = 3.0,
    seed: int = 0,
) -> Data:
    """Communities of clients, as in Baek et al. (FED-PUB, ICML 2023), appendix B.3.

    Any two nodes are linked with probability `p_in` in the same community and `p_out` otherwise. The paper leaves open
    what a community's labels and features are; here community c has class c with probability `purity` and each other
    class alike, and features are normal around class means that lie `separation` apart. `data.client` is the client of
    each node, `data.community` its community.
    """
    _require(len(clients) > 1 and min(clients) > 0, "clients", clients, "two or more communities of one client or more")
    _require(nodes_per_client > 0, "nodes_per_client", nodes_per_client, "at least 1")
    _require(0 <= p_out <= 1, "p_out", p_out, "a probability from 0 to 1")
    _require(0 <= p_in <= 1, "p_in", p_in, "a probability from 0 to 1")
    _require(0 <= purity <= 1, "purity", purity, "a share from 0 to 1")
    _require(features >= len(clients), "features", features, f"at least {len(clients)}, one for each community")
    _require(0 <= separation < np.inf, "separation", separation, "0 or larger")
    rng = np.random.default_rng(seed)
    client = np.arange(sum(clients)).repeat(nodes_per_client)
    community = np.arange(len(clients)).repeat(clients)[client]
    other_class = (community + rng.integers(1, len(clients), client.size)) % len(clients)
    y = np.where(rng.random(client.size) < purity, community, other_class)
    x = rng.standard_normal((client.size, features), dtype=np.float32)
    # Corners of a scaled simplex: every two of them are sqrt(2) times their length apart.
    x[np.arange(client.size), y] += separation / np.sqrt(2)
    edge_index = _bernoulli_edges(community, p_in, p_out, rng)
    return validate(
        Data(
            x=torch.from_numpy(x),
            edge_index=torch.from_numpy(edge_index),
            y=torch.from_numpy(y),
            client=torch.from_numpy(client),
            community=torch.from_numpy(community),
        )
    )


def contextual_block_model(
    nodes: int = 2000,
    classes: int = 5,
    features: int = 500,
    degree: float = 6.0,
    homophily: float = 0.7,
    words_per_node: int = 20,
    topic_strength: float = 0.2,
    communities: int = 4,
    seed: int = 0,
) -> Data:
    """Contextual stochastic block model with bag-of-words features (after Deshpande et al., NeurIPS 2018).

    Classes are of equal size, each made of equally large `communities` that a partitioner can find. Exactly
    `nodes * degree / 2` edges are drawn, the share `homophily` of them inside a class. Each node draws
    `words_per_node` words: with probability `topic_strength` from the words of its class, else from all.
    Time and memory grow with nodes and edges, never with nodes squared. `data.community` is the planted block.
    """
    _require(classes > 1, "classes", classes, "at least 2")
    _require(communities > 0, "communities", communities, "at least 1 for each class")
    blocks = classes * communities
    _require(nodes >= blocks, "nodes", nodes, f"at least {blocks}, one for each of {classes} x {communities} communities")
    _require(features >= classes, "features", features, f"at least {classes}, one word for each class")
    _require(0 <= degree < nodes, "degree", degree, f"from 0 to below {nodes}, the number of nodes")
    _require(0 <= homophily <= 1, "homophily", homophily, "a share from 0 to 1")
    _require(words_per_node > 0, "words_per_node", words_per_node, "at least 1")
    _require(0 <= topic_strength <= 1, "topic_strength", topic_strength, "a share from 0 to 1")
    rng = np.random.default_rng(seed)
    block = rng.permutation(np.arange(nodes) % blocks)
    y = block % classes
    edge_index = _planted_edges(block, classes, communities, degree, homophily, rng)
    return validate(
        Data(
            x=csr_tensor(_bags_of_words(y, classes, features, words_per_node, topic_strength, rng)),
            edge_index=torch.from_numpy(edge_index),
            y=torch.from_numpy(y),
            community=torch.from_numpy(block),
        )
    )


def _bernoulli_edges(group: np.ndarray, p_in: float, p_out: float, rng: np.random.Generator) -> np.ndarray:
    """Every pair once: linked with p_in in the same group, else with p_out. A band of rows at a time."""
    bands = []
    for start in range(0, group.size, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, group.size))
        chance = np.where(group[rows, None] == group[None, :], p_in, p_out)
        linked = (rng.random(chance.shape) < chance) & (rows[:, None] < np.arange(group.size)[None, :])
        source, target = np.nonzero(linked)
        bands.append(np.stack([source + start, target]))
    return np.concatenate(bands, axis=1)


def _planted_edges(
    block: np.ndarray, classes: int, communities: int, degree: float, homophily: float, rng: np.random.Generator
) -> np.ndarray:
    """Distinct edges, three kinds in fixed numbers: inside a community, between those of a class, between classes."""
    nodes, blocks = block.size, classes * communities
    by_block = np.argsort(block, kind="stable")
    first = np.searchsorted(block[by_block], np.arange(blocks + 1))
    size = np.diff(first)
    per_class = size.reshape(communities, classes).sum(axis=0)
    pairs_in_block = int((size * (size - 1) // 2).sum())
    pairs_in_class = int((per_class * (per_class - 1) // 2).sum())

    total = round(nodes * degree / 2)
    in_class = round(total * homophily)
    in_block = round(in_class * WITHIN_COMMUNITY) if communities > 1 else in_class
    kinds = (
        (in_block, pairs_in_block, np.zeros(1, dtype=np.int64)),
        (in_class - in_block, pairs_in_class - pairs_in_block, np.arange(1, communities) * classes),
        (
            total - in_class,
            nodes * (nodes - 1) // 2 - pairs_in_class,
            np.setdiff1d(np.arange(blocks), np.arange(communities) * classes),
        ),
    )

    def draw(count: int, steps: np.ndarray) -> np.ndarray:
        """Pairs as one number; a step is how far, modulo all blocks, the second node's block lies from the first's."""
        one = rng.integers(nodes, size=count)
        other_block = (block[one] + rng.choice(steps, size=count)) % blocks
        other = by_block[first[other_block] + rng.integers(size[other_block])]
        low, high = np.minimum(one, other), np.maximum(one, other)
        keys: np.ndarray = low[low < high] * nodes + high[low < high]
        return keys

    chosen = []
    for wanted, possible, steps in kinds:
        if wanted > FULLEST * possible:
            raise ConfigError(
                f"degree={degree:g} with homophily={homophily:g} needs {wanted} edges of a kind of which there can be "
                f"{possible}; use a smaller degree, fewer communities or more nodes"
            )
        pairs = np.empty(0, dtype=np.int64)
        while pairs.size < wanted:
            pairs = np.union1d(pairs, draw(2 * (wanted - pairs.size) + 16, steps))
        chosen.append(rng.choice(pairs, size=wanted, replace=False, shuffle=False))
    keys = np.concatenate(chosen)
    return np.stack([keys // nodes, keys % nodes])


def _bags_of_words(
    y: np.ndarray, classes: int, features: int, words_per_node: int, topic_strength: float, rng: np.random.Generator
) -> sp.csr_matrix:
    """Binary; word w belongs to the class w % classes."""
    words = rng.integers(features, size=(y.size, words_per_node))
    words_of_class = (features - 1 - y) // classes + 1
    of_class = rng.integers(words_of_class[:, None], size=words.shape) * classes + y[:, None]
    words = np.where(rng.random(words.shape, dtype=np.float32) < topic_strength, of_class, words)
    rows = np.arange(y.size).repeat(words_per_node)
    bag = sp.csr_matrix((np.ones(words.size, dtype=np.float32), (rows, words.ravel())), shape=(y.size, features))
    bag.data[:] = 1
    return bag


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {expected}, got {value}")

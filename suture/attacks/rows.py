"""Feature rows from mixtures of them that owners send: subspace, linear programs, least squares.

FedSage+'s owners answer others' offers with gradients.

A gradient of fGen's output layer is H^T S with H [E, width + 1] the hidden activations of the rows that were offered (and
ones, for the bias) and S = 2 w (x~ - P X): P [E, N] the shares of the victim's nodes, X [N, F] their features. Whoever
knows fGen and the rows, as the server does, knows all but P X, so an answer gives width + 1 mixtures of the victim's rows:

    D = 2 H^T w x~ - gradient = (2 H^T w P) X

- With no more rows than width + 1, least squares returns P X, which with hard matching are rows of X.
- Otherwise mixtures of many iterations span the row space of X: their singular values fall off at rank(X). Features are
  non-negative and sparse, and linear programs  min sum(x)  over x >= 0 in that space with x_f = 1  return single rows
  (Chen, Donoho and Saunders, Atomic decomposition by basis pursuit, 1998; sparse vectors in a subspace: Spielman, Wang and
  Wright, Exact recovery of sparsely-used dictionaries, COLT 2012).

One owner hears the sum of all others' answers to its own offers; all others together subtract what they know of it.

FedGram's owners send T^T T Q with public directions Q, where T are their rows, weighed by word and of length one: each
column is a mixture of rows, too. Whoever sees one owner's sums, as the server does without secure ones, goes on as above.
Legend: E rows of an offer, Z their width, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from suture.attacks.attack import Attack, Clock, Measured, NotTried
from suture.attacks.hearing import Heard
from suture.attacks.judging import mean_bounds
from suture.attacks.scenes import Scene, mean_row, nodes_with, some_rows
from suture.core.message import Kind
from suture.methods.census import MOSTLY_ZERO
from suture.privacy.tape import Frame

Floats = NDArray[np.float64]
W1, B1, W2, B2 = "feature1.weight", "feature1.bias", "feature2.weight", "feature2.bias"
ANSWERING = ("feed_forward", "answer")
"""The steps whose replies are gradients of others' fGen."""
MULTIPLYING = ("multiply", "relate")
"""FedGram's steps whose replies are sums of products with rows; the second where there are as many directions as words."""
MOST_MIXTURES = 4000
"""Mixtures that are decomposed; far more than an owner has nodes brings nothing."""
PROGRAMS = 40
"""Linear programs, shared among the victims."""
EXACT = 0.02
"""A reconstructed row is right if no entry is off by more than this share of its largest."""
SILENT = 1e-7
"""Words whose entries in all mixtures are below this share of the largest are not at the victim."""
TRIES = 3
"""Linear programs for one word, until one finds a row that can be one."""
MOST_STEPS = 30_000
"""Of the simplex method, for one linear program."""
OUT_OF_TIME = 1
"""What linprog calls a program that met one of its limits."""
ROUNDING = 1e-6
"""How far below zero a program may let an entry be."""


@dataclass(frozen=True)
class Answer:
    """What an answer to a known offer tells, in double precision."""

    mixing: Floats | None
    """2 H^T w, [width + 1, E], of rows that are no padding; None where nobody but the victim knows how rows are mixed."""
    mixtures: Floats
    """D, [width + 1, F]: each is a mixture of the victim's rows."""


def answers(heard: Heard, ids: tuple[str, ...]) -> Iterator[Answer]:
    """All answers about a victim's nodes, iteration after iteration; sums over owners where a listener hears no more."""
    offers, told = heard.frames("offer", "up"), _told(heard)
    alone = heard.by_server and heard.victim in told
    back = {} if alone else heard.frames("update_generator", "down")
    senders = [name for name in ids if name in offers and name != heard.victim]
    tellers = [heard.victim] if alone else [] if heard.by_server else senders
    # Those whose answers a listener cannot tell apart.
    strangers = 1 if alone else len(ids) - max(1, len(tellers))
    for place in range(max(map(len, offers.values()), default=0)):
        pairs = {name: _gradient(heard, told, name, place) for name in tellers}
        for sender in senders:
            number = ids.index(sender)
            known = {name: value[number] for name, value in pairs.items() if value is not None and value.ndim == 3}
            whole = known.get(heard.victim) if alone else _gradient(heard, back, sender, place)
            if whole is None or whole.ndim != 2 or not whole.any() or place >= len(offers[sender]):
                continue
            left = whole if alone else np.asarray(whole - sum(known.values()), float)
            yield _answer(heard.recorded.read(offers[sender][place]), left, strangers)


def products(heard: Heard) -> Iterator[Answer]:
    """What FedGram's victim multiplied with its rows, exchange after exchange."""
    for step in MULTIPLYING:
        asked = {frame.ask: frame for frame in heard.frames(step, "down").get(heard.victim, [])}
        for frame in heard.frames(step, "up").get(heard.victim, []):
            down: Any = heard.recorded.read(asked[frame.ask])
            basis, scale = down.basis[0].double().numpy(), down.scale[0].double().numpy()
            if step == MULTIPLYING[0]:
                up: Any = heard.recorded.read(frame)
                sums = up.products[0].double().numpy()
            elif basis.shape[0] == basis.shape[1]:
                # Directions in all of space hide nothing: Q (Q^T T^T T Q) Q^T.
                up = heard.recorded.read(frame)
                sums = basis @ up.own[0].double().numpy() @ basis.T
            else:
                continue
            yield Answer(None, np.asarray((sums / np.where(scale != 0, scale, np.inf)[:, None]).T, float))


def _told(heard: Heard) -> dict[str, list[Frame]]:
    """Answers, by the client that gave them."""
    return next((frames for step in ANSWERING if (frames := heard.frames(step, "up"))), {})


def _gradient(heard: Heard, frames: dict[str, list[Frame]], client: str, place: int) -> Floats | None:
    """Of output weights and bias in a client's message of an iteration, [width + 1, F], or [M, width + 1, F] of pairs."""
    if client not in frames or place >= len(frames[client]):
        return None
    fgen = getattr(heard.recorded.read(frames[client][place]), "fgen", {})
    if W2 not in fgen or B2 not in fgen:
        return None
    return torch.cat([fgen[W2][0], fgen[B2][0].unsqueeze(-2)], -2).double().numpy()


def _answer(offer: Any, gradient: Floats, answerers: int) -> Answer:
    """Line 2 of FedSage+, done again by whoever knows the offer."""
    fgen = {name: value[0].double().numpy() for name, value in offer.fgen.items()}
    rows, weight = offer.rows[0].double().numpy(), offer.weight[0].double().numpy()
    real = weight > 0
    hidden = np.tanh(rows[real] @ fgen[W1] + fgen[B1])
    made = hidden @ fgen[W2] + fgen[B2]
    mixing = np.asarray((2 * weight[real][:, None] * np.hstack([hidden, np.ones((hidden.shape[0], 1))])).T, float)
    return Answer(mixing, answerers * (mixing @ made) - gradient)


def solved(answer: Answer) -> Floats | None:
    """P X [E, F] by least squares, where the system has one solution."""
    mixing = answer.mixing
    if mixing is None or mixing.shape[1] > mixing.shape[0] or np.linalg.matrix_rank(mixing) < mixing.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(mixing, answer.mixtures, rcond=None)[0], float)


@dataclass(frozen=True)
class Space:
    """A row space: `basis` [r, W] over the words that are there, and how far singular values fall behind it."""

    basis: Floats
    words: NDArray[np.int64]
    gap: float
    rank: int


def row_space(mixtures: Floats, least: int = 3, silent: float = SILENT, faint: float = 1e-12) -> Space:
    """The space of all mixtures, cut where singular values fall most behind the first `least` of them.

    Words below a share of `silent` of the largest are not there, mixtures below `faint` of the longest stay faint.
    """
    size = np.abs(mixtures).max(0)
    words = np.flatnonzero(size > silent * size.max())
    rows = mixtures[:, words]
    # Gradients are sums in single precision: what is lost of a row grows with its size, so all get the same.
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(faint * np.linalg.norm(rows, axis=1).max())
    _, values, basis = np.linalg.svd(rows, full_matrices=False)
    values = values.clip(values[0] * 1e-15)
    falls = values[:-1] / values[1:]
    rank = int(falls[least - 1 :].argmax()) + least if falls.size >= least else values.size
    gap = float(falls[rank - 1]) if rank <= falls.size else 1.0
    return Space(basis[:rank], words, gap, rank)


def programmed(space: Space, features: int, programs: int, clock: Clock, seed: int = 0) -> Iterator[Floats]:
    """Rows [F] that the linear programs find, each for another word of those there.

    A row of words is flat: it has one value wherever it is not zero. One that is not is looked for again, with other prices.
    What no program was done with in its time is left out.
    """
    rng = np.random.default_rng(seed)
    for word in rng.permutation(space.words.size)[:programs]:
        best, finished = np.zeros(space.words.size), False
        for attempt in range(TRIES):
            if clock.over:
                return
            prices = np.ones(space.words.size) if attempt == 0 else rng.uniform(0.2, 1.8, space.words.size)
            found, in_time = _program(space, int(word), prices, clock)
            finished |= in_time
            if found is not None and (attempt == 0 or _unevenness(found) < _unevenness(best)):
                best = found
            if _unevenness(best) < EXACT:
                break
        if finished:
            row = np.zeros(features)
            row[space.words] = best
            yield row


def _program(space: Space, word: int, prices: Floats, clock: Clock) -> tuple[Floats | None, bool]:
    """(what a program found, whether it came to its end)."""
    found = scipy.optimize.linprog(
        space.basis @ prices,
        A_ub=-space.basis.T,
        b_ub=np.full(space.words.size, ROUNDING),
        A_eq=space.basis[:, [word]].T,
        b_eq=[1.0],
        bounds=(None, None),
        method="highs",
        options={"maxiter": MOST_STEPS, "time_limit": clock.seconds_on_the_wall},
    )
    row = None if found.x is None else np.asarray((space.basis.T @ found.x).clip(0), float)
    return row, found.status != OUT_OF_TIME


def _unevenness(row: Floats) -> float:
    """How far entries are from both 0 and the largest; 1 for a row of zeros."""
    largest = row.max()
    return float(np.minimum(row, largest - row).max() / largest) if largest > 0 else 1.0


def right(rows: Floats, truth: Floats) -> tuple[NDArray[np.bool_], Floats]:
    """Of each row: whether it is one of the true ones, whatever its scale, and its cosine with the nearest of them."""
    length = np.linalg.norm(truth, axis=1, keepdims=True)
    units = truth[length[:, 0] > 0] / length[length[:, 0] > 0]
    cosine = rows @ units.T / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-300)
    nearest = cosine.argmax(1)
    best = cosine[np.arange(len(rows)), nearest]
    like = units[nearest] / units[nearest].max(1, keepdims=True)
    scale = rows.max(1, keepdims=True).clip(1e-300)
    return np.abs(rows / scale - like).max(1) < EXACT, np.asarray(best, float)


class Rows(Attack):
    """See the module docstring."""

    name = "rows"
    target = "feature rows of single nodes, from mixtures of them"
    paper = "Chen, Donoho and Saunders 1998; Spielman, Wang and Wright 2012"
    uses = frozenset({Kind.GRADIENTS, Kind.STATISTICS})
    knows = ("that features are not negative and mostly zero",)
    guess = "a row of a public graph of the same kind, or their mean"
    long = 2

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Least squares where it can be done, else linear programs."""
        steps = next(iter(heard.values())).steps
        if not any((step, "up") in steps for step in ("offer", *MULTIPLYING)):
            raise NotTried(f"no owner of {scene.method.name} sends mixtures of its rows")
        if float(nodes_with(scene.graph).sum()) >= MOSTLY_ZERO * scene.graph.num_nodes * scene.task.features:
            raise NotTried("features are seldom zero, as numbers are, and linear programs look for rows of few words")
        exact, cosines, guessed = [], [], []
        details: dict[str, float] = {}
        each = -(-PROGRAMS // len(heard))
        clock.plan(each * len(heard), "rows")
        for number, (victim, ears) in enumerate(heard.items()):
            truth = scene.own(victim).x.dense().double().numpy()
            told = [*answers(ears, scene.graph.ids), *products(ears)]
            if len(ears.attackers or ()) == 1 or not (_told(ears) or (MULTIPLYING[1], "up") in ears.steps):
                # Who hears a sum over several owners takes any of their rows.
                names = [name for name in scene.graph.ids if name not in (ears.attackers or ())]
                truth = scene.graph.select(names).x.dense().double().numpy()
            if not told:
                clock.did(each)
                continue
            rows, gap, rank = _reconstructed(told, truth.shape[1], each, clock)
            if number == 0:
                details = {"gap": gap, "rank": rank, "true_rank": float(np.linalg.matrix_rank(truth))}
                details["answers"] = len(told)
            if not len(rows):
                continue
            hits, cosine = right(rows, truth)
            exact += hits.tolist()
            cosines += cosine.tolist()
            guessed += guessed_rows(scene, ears, truth, len(rows)).tolist()
        if not exact and clock.cut and clock.over:
            raise NotTried(f"the time ran out before the first of {clock.planned} rows was found")
        if not exact:
            raise NotTried("no gradient, and no product with rows, tells of a single owner's")
        gains = np.array(cosines) - np.array(guessed)
        success, guess = float(np.mean(cosines)), float(np.mean(guessed))
        shares = (sum(exact), len(exact))
        return Measured("cosine", success, guess, *mean_bounds(gains), len(exact), shares, details)


def _reconstructed(found: list[Answer], features: int, programs: int, clock: Clock) -> tuple[Floats, float, float]:
    """(rows, the gap of singular values, the rank they tell)."""
    direct = [solution for answer in found[:200] if (solution := solved(answer)) is not None]
    if direct:
        clock.did(programs)
        return np.vstack(direct), 0.0, 0.0
    step = max(1, sum(answer.mixtures.shape[0] for answer in found) // MOST_MIXTURES)
    space = row_space(np.vstack([answer.mixtures for answer in found[::step]]))
    rows = []
    for row in programmed(space, features, programs, clock):
        rows.append(row)
        clock.did()
    # There may be fewer words to look for.
    clock.did(programs - min(programs, space.words.size))
    return np.array(rows).reshape(-1, features), space.gap, float(space.rank)


def guessed_rows(scene: Scene, heard: Heard, truth: Floats, count: int) -> Floats:
    """The cosine of public rows, or of their mean if that is nearer, with the nearest true row."""
    public = scene.public(heard)
    drawn = some_rows(public, np.random.default_rng(0).integers(0, public.num_nodes, count))
    by_row, by_mean = right(drawn, truth)[1], right(mean_row(public)[None], truth)[1]
    return by_row if by_row.mean() > by_mean.mean() else np.repeat(by_mean, count)

"""Features of single nodes, from what owners tell over links that they know: FedGCN's sums, and stitched predictions.

FedGCN's sum of one neighbour is that neighbour's row, but for its length: whoever sees it has the row. Of sums of several
the sum itself stands for each. Noise is taken off as far as features let it: they are not negative, and entries below three
deviations of the noise, which is public, are taken for zero. Owners together subtract what they have contributed.

A told prediction is C numbers of a node. Whoever has the model learns on a public graph, by least squares, to go from
log-probabilities back to features, and applies that; after Fredrikson, Jha and Ristenpart, Model inversion attacks that
exploit confidence information, CCS 2015.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from suture.attacks.attack import OWNERS, Attack, Clock, Measured, NotTried
from suture.attacks.codes import MOST_FEATURES, cosines
from suture.attacks.hearing import Heard
from suture.attacks.judging import mean_bounds
from suture.attacks.rows import guessed_rows, right
from suture.attacks.scenes import Scene
from suture.attacks.shadows import decoded, ridge
from suture.core.message import Kind, Model
from suture.graph.batch import GraphBatch
from suture.methods.links import wanted_by
from suture.methods.stitching import SMALLEST, probabilities

Floats = NDArray[np.float64]
MOST_ROWS = 400
"""Sums of one owner that are looked at."""
DEVIATIONS = 3.0
"""Entries below so many deviations of the noise are taken for zero."""


def sums_of(heard: Heard) -> tuple[Floats, Floats]:
    """(rows [B, F] of sums, of how many nodes each is [B]) that a victim has contributed to; single ones first."""
    if heard.by_server and ("post_sums", "up") in heard.steps:
        told = heard.says("post_sums", "up", heard.victim, most=1)
        found = [(said.message.rows.values, said.message.counts.values) for said in told]
    else:
        known = _contributed(heard)
        found = [_less(said.message, known) for said in heard.says("take_sums", "down")]
    rows = torch.cat([one for one, _ in found]) if found else torch.zeros(0, 0)
    counts = torch.cat([one for _, one in found]).round() if found else torch.zeros(0)
    order = torch.argsort(torch.where(counts > 0, counts, torch.inf), stable=True)
    order = order[(counts > 0)[order]][:MOST_ROWS]
    return rows[order].double().numpy(), counts[order].double().numpy()


def _contributed(heard: Heard) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Rows and counts that the attackers have sent themselves, by address."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for said in heard.says("post_sums", "up") if not heard.by_server else ():
        message = said.message
        for k, address in enumerate(message.addresses.values.tolist()):
            row, count = known.get(address, (0 * message.rows.values[k], 0 * message.counts.values[k]))
            known[address] = (row + message.rows.values[k], count + message.counts.values[k])
    return known


def _less(message: Any, known: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """What others contributed to sums that came down."""
    rows, counts = message.rows.values.clone(), message.counts.values.clone()
    for k, address in enumerate(message.addresses.values.tolist()):
        if address in known:
            rows[k] -= known[address][0]
            counts[k] -= known[address][1]
    return rows, counts


def told_predictions(heard: Heard, scene: Scene) -> Iterator[tuple[list[int], Floats]]:
    """(addresses, rows [B, C]) of the first step of stitching, as far as they passed the listener."""
    if heard.by_server:
        for said in heard.says("stitch_offer", "up", heard.victim, most=1):
            yield said.message.addresses.values.tolist(), said.message.rows.values.double().numpy()
        return
    for attacker in sorted(heard.attackers or ()):
        for said in heard.says("stitch_hear", "down", attacker, most=1):
            addresses = wanted_by(scene.own(attacker)).values.tolist()
            there = said.message.offered.values > 0
            if len(addresses) == there.numel():
                kept = [one for one, told in zip(addresses, there.tolist(), strict=True) if told]
                yield kept, said.message.rows.values[there].double().numpy()


class Sums(Attack):
    """See the module docstring."""

    name = "sums"
    target = "features of single nodes, from sums of features or predictions told over links"
    paper = "Fredrikson, Jha and Ristenpart 2015, for predictions"
    uses = frozenset({Kind.FEATURES, Kind.PREDICTIONS, Kind.ADDRESSES})
    knows = ("that features are not negative", "a public graph of the same kind")
    guess = "a row of a public graph of the same kind, or their mean"

    def attempt(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        """Of every victim."""
        steps = {step for step, _ in next(iter(heard.values())).steps}
        if {"post_sums", "take_sums"} & steps:
            return self._features(heard, scene, clock)
        if {"stitch_offer", "stitch_hear"} & steps:
            return self._predictions(heard, scene, clock)
        raise NotTried(f"owners of {scene.method.name} tell each other nothing over links that they know")

    def _features(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        method: Any = scene.method
        noise = DEVIATIONS * method.sigma * method.clip
        success, guess, exact, single = [], [], [], 0
        for victim, ears in clock.each(heard.items(), OWNERS):
            rows, counts = sums_of(ears)
            if not len(rows):
                continue
            alone = (ears.by_server and ("post_sums", "up") in ears.steps) or len(ears.attackers or ()) > 1
            # Who hears a sum over several owners takes any of their rows.
            names = [victim] if alone else [name for name in scene.graph.ids if name not in (ears.attackers or ())]
            truth = scene.graph.select(names).x.dense().double().numpy()
            rows = np.where(rows > noise, rows, 0.0)
            hits, cosine = right(rows, truth)
            success += cosine.tolist()
            exact += (hits & (counts == 1)).tolist()
            guess += guessed_rows(scene, ears, truth, len(rows)).tolist()
            single += int((counts == 1).sum())
        return _measured(success, guess, exact, {"single": float(single)}, "no sum of features left anybody")

    def _predictions(self, heard: dict[str, Heard], scene: Scene, clock: Clock) -> Measured:
        success, guess, exact = [], [], []
        for victim, ears in clock.each(heard.items(), OWNERS):
            own = scene.own(victim)
            place = {} if own.boundary is None else {a: k for k, a in enumerate(own.boundary.address.tolist())}
            truth, public = own.x.dense().double().numpy(), scene.public(ears)
            known = public.x.dense().double().numpy()
            if known.size > MOST_FEATURES:
                raise NotTried("the features are too many for a decoder by least squares")
            fitted = ridge(_logs(said_of(public, ears, scene)), known)
            for addresses, rows in told_predictions(ears, scene):
                mine = [(place[a], k) for k, a in enumerate(addresses) if a in place]
                if not mine:
                    continue
                nodes, chosen = (np.array(one) for one in zip(*mine, strict=True))
                found = decoded(_logs(rows[chosen]), fitted).clip(0)
                success += cosines(found, truth[nodes]).tolist()
                guess += cosines(np.repeat(known.mean(0, keepdims=True), len(nodes), 0), truth[nodes]).tolist()
                exact += right(found, truth)[0].tolist()
        return _measured(success, guess, exact, {}, "no prediction of a victim's node was told")


def said_of(public: GraphBatch, heard: Heard, scene: Scene) -> Floats:
    """What the model that is stitched says of a public graph, as probabilities."""
    method: Any = scene.method
    said = heard.says("stitch_offer", "down", None, most=1)
    if not said or not isinstance(said[0].message, Model):
        raise NotTried(f"the model whose predictions {method.name} stitches did not pass the listener")
    with torch.no_grad():
        out = method.predict(public, Model(public.ids, said[0].message.params), scene.task)
    return probabilities(public, out, method.training.stitch_temperature).double().numpy()


def _logs(rows: Floats) -> Floats:
    """Log-probabilities; noise may have made of a probability none."""
    return np.asarray(np.log(rows.clip(max(SMALLEST, 1e-4), 1.0)), float)


def _measured(
    success: list[float], guess: list[float], exact: list[bool], details: dict[str, float], otherwise: str
) -> Measured:
    if not success:
        raise NotTried(otherwise)
    bounds = mean_bounds(np.array(success) - np.array(guess))
    shares = (sum(exact), len(exact))
    return Measured("cosine", float(np.mean(success)), float(np.mean(guess)), *bounds, len(success), shares, details)

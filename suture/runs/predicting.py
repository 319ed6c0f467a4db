"""Predictions for the nodes of a graph, by a run that has ended: the graph it was trained on, or any other of its kind.

The graph is prepared exactly as the run prepared its own: the protocol's `preprocess`, and the numbers of the run's census.
Every owner predicts on its own piece with its own model, or with the one for everybody; nothing is counted, drawn or
trained anew. Legend: N nodes, C outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import ConfigError, DataError, some_of
from suture.graph.batch import batch_of
from suture.graph.data import fingerprint
from suture.graph.partition import Partition
from suture.graph.scaling import scaled
from suture.graph.splits import Role
from suture.graph.target import Target
from suture.method import Method
from suture.methods.stitching import taken
from suture.nn.backbones import GAP
from suture.runs import origin
from suture.runs.counting import kind_of
from suture.runs.preprocess import preprocess
from suture.runs.trained import WHOLE, Trained

ACTIVATIONS_AT_A_TIME = 1 << 26
"""Hidden values of the owners that are computed together: 256 MB, and as much again for their features."""


@dataclass(frozen=True)
class Predictions:
    """What a run says of every node. Shapes: score and probability [N, C], owner [N] a place in `owners` or -1."""

    data: Data
    """The graph, prepared as the run prepared its own."""
    owners: tuple[str, ...]
    owner: Tensor
    score: Tensor
    role: Tensor | None
    """int8 [N] of the run's own split (0 none, 1 train, 2 validation, 3 test); None of a graph it did not train on."""
    target: Target
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    """Whose models were used on what, and all that was dropped or assumed."""

    @property
    def whole(self) -> bool:
        """Whether the graph has no owners that could be named."""
        return self.owners == (WHOLE,)

    @property
    def probability(self) -> Tensor:
        """Of each class or label, or the predicted numbers themselves."""
        return self.target.probabilities(self.score)

    @property
    def prediction(self) -> Tensor:
        """The predicted class [N], labels or numbers [N, C]; -1 or NaN for nobody's nodes."""
        decided = self.target.decided(self.score)
        decided[self.score.isnan().any(1)] = torch.nan if self.target.kind == "value" else -1
        return decided

    def to_data(self) -> Data:
        """The graph with what was predicted, as `Result.data` has it."""
        made = copy.copy(self.data)
        made.client, made.score = self.owner, self.score
        made.probability, made.prediction, made.notes = self.probability, self.prediction, list(self.notes)
        return made


def graph_for(trained: Trained, name: str | None, data_root: Path | None = None) -> Data:
    """A graph by its name, checked against the run's schema; None: the one that was trained on."""
    asked = trained.card.dataset if name is None else name
    if asked == origin.IN_MEMORY:
        raise DataError(f"the graph of {trained.name} was given in memory; give the graph to predict, as --data FOLDER")
    if asked == origin.FEDERATION:
        raise DataError(f"the graph of {trained.name} is in pieces at its owners; give the graph to predict: --data FOLDER")
    if trained.schema is not None and origin.is_folder(asked):
        from suture.tables.schema import difference, read_schema

        differs = difference(read_schema(Path(asked) / origin.SCHEMA), read_schema(trained.schema))
        if differs:
            raise DataError(
                f"{asked} has another schema than {trained.name}: {differs}; "
                f"import the tables with --schema {trained.schema}"
            )
    return origin.load(asked, data_root)


def predict(trained: Trained, data: Data, *, mend: bool | None = None, uncut: bool = False) -> Predictions:
    """What a run says of every node of a checked graph.

    Args:
        trained: The run.
        data: A checked graph with the features of the one that was trained on.
        mend: Mend the owners' pieces as the method does for tests; None: where that can be done.
        uncut: Predict on the whole graph, edges between owners included.
    """
    graph, known = prepared(trained, data)
    parts = _pieces(trained, graph, known, uncut)
    trained.check_known(parts.ids)
    mended = _mended(trained, parts.ids, known and not uncut, mend, uncut)
    taught = _taught(trained, parts, known, uncut)
    stitch = _unstitched(trained, parts, known, uncut) is None
    nodes = int(graph.num_nodes)
    score = torch.full((nodes, trained.task.classes), torch.nan)
    owner = torch.full((nodes,), -1)
    numbers = {name: number for number, name in enumerate(parts.ids)}
    # Where clients overlap, the first owner speaks: it is written last.
    for some in reversed(list(_together(trained, parts))):
        blank = [torch.zeros(len(members), dtype=torch.int8) for members in some.members]
        roles = [taught.get(name, none) for name, none in zip(some.ids, blank, strict=True)]
        batch = batch_of(graph, some.ids, some.members, roles, some.graphless, trained.protocol.partition.boundary)
        batch = replace(batch, target=trained.target)
        found = trained.scores(batch, [name for name in some.ids if name in mended], stitch)
        for k in reversed(range(len(some.ids))):
            first, last = batch.segments.bounds[k : k + 2]
            score[some.members[k]] = found[first:last]
            owner[some.members[k]] = numbers[some.ids[k]]
    notes = (*graph.notes, *parts.notes, *_told(trained, parts, mended, known, uncut), *_left_out(graph, owner))
    if uncut and graph.get("client") is not None:
        parts, owner = replace(parts, ids=tuple(graph.owners)), graph.client
    role = trained.cut.split.roles if known and trained.cut is not None else None
    return Predictions(graph, parts.ids, owner, score, role, trained.target, trained.card.class_names, notes)


def prepared(trained: Trained, data: Data) -> tuple[Data, bool]:
    """The graph as the run prepared its own, and whether it is the same."""
    card, settings = trained.card, trained.protocol.preprocess
    _check_kind(trained, data)
    graph = preprocess(data, settings)
    known = fingerprint(graph) == card.fingerprint
    if not known and settings.largest_component:
        # A choice of what to train on; whoever asks for predictions wants all of them.
        graph = preprocess(data, replace(settings, largest_component=False))
    graph = _with_weights(trained, graph)
    return (graph if card.statistics is None else scaled(graph, card.statistics)), known


def _check_kind(trained: Trained, data: Data) -> None:
    card = trained.card
    if int(data.x.shape[1]) != card.features:
        raise DataError(f"the graph has {int(data.x.shape[1]):,} features, {trained.name} was trained on {card.features:,}")
    names = tuple(data.get("feature_names") or ())
    if names and card.feature_names and names != card.feature_names:
        first = next(k for k, (one, other) in enumerate(zip(names, card.feature_names, strict=True)) if one != other)
        raise DataError(
            f"feature {first} of the graph is {names[first]!r}, in {trained.name} it was {card.feature_names[first]!r}; "
            "import the tables with the schema of the run"
        )
    unlabelled = bool((torch.isnan(data.y.float()) | (data.y == -1)).all())
    if kind_of(data) != card.kind and not unlabelled:
        raise DataError(f"{trained.name} predicts a {card.kind}, the labels of the graph are another kind of thing")
    kept = trained.protocol.preprocess.direction == "keep"
    if kept and data.edge_index.numel() and bool(data.get("directed")) != card.directed:
        had = "with" if card.directed else "without"
        raise DataError(f"{trained.name} was trained on edges {had} a direction, those of this graph are otherwise")


def _with_weights(trained: Trained, graph: Data) -> Data:
    """The graph with edge weights if and only if the run heard them."""
    weighted = graph.get("edge_weight") is not None
    if trained.card.weighted and not weighted and graph.edge_index.numel():
        raise DataError(f"{trained.name} was trained on edges with weights, these have none; import them with --weight")
    if weighted and not trained.card.weighted:
        graph.edge_weight = None
        graph.notes.append("edge weights are not used: the graph that was trained on had none")
    return graph


def _pieces(trained: Trained, graph: Data, known: bool, uncut: bool) -> Partition:
    """Who predicts which nodes."""
    everything = torch.arange(int(graph.num_nodes))
    if uncut:
        return Partition((WHOLE,), (everything,), (False,))
    if known and trained.cut is not None and not _owned_otherwise(trained, graph):
        parts = trained.cut.partition
        hidden = (False,) * len(parts.ids) if trained.method.sees_hidden_edges else parts.graphless
        return Partition(parts.ids, parts.members, tuple(hidden))
    if graph.get("client") is None:
        note = "the graph names no owners, so that it is predicted as one piece, by the model for everybody"
        return Partition((WHOLE,), (everything,), (False,), notes=(note,))
    present = torch.bincount(graph.client, minlength=len(graph.owners)).nonzero().squeeze(1).tolist()
    members = tuple(torch.nonzero(graph.client == number).squeeze(1) for number in present)
    return Partition(tuple(str(graph.owners[number]) for number in present), members, (False,) * len(members))


def _owned_otherwise(trained: Trained, graph: Data) -> bool:
    """Whether a graph that was trained on has come back with other owners."""
    if trained.cut is None or graph.get("client") is None or not set(graph.owners) & set(trained.card.owners):
        return False
    parts = trained.cut.partition
    number = {str(name): place for place, name in enumerate(graph.owners)}
    return not all(
        name in number and torch.equal(torch.nonzero(graph.client == number[name]).squeeze(1), members)
        for name, members in zip(parts.ids, parts.members, strict=True)
    )


def _taught(trained: Trained, parts: Partition, known: bool, uncut: bool) -> dict[str, Tensor]:
    """The roles of nodes, where a network has learnt from an owner's labels what its nodes say of themselves."""
    model, cut = trained.method.model, trained.cut
    if model.kind != GAP or model.gap_level == "node":
        return {}
    if known and cut is not None and uncut:
        return {WHOLE: cut.split.roles}
    if known and cut is not None and parts.members == cut.partition.members:
        return dict(zip(cut.partition.ids, cut.split.client_roles, strict=True))
    raise ConfigError(
        f"{trained.name} predicts with model.kind gap, in which nodes say what their owner's training nodes taught them, "
        "and so the graph that was trained on alone; for other graphs train another model.kind"
    )


def _mended(trained: Trained, ids: Sequence[str], known: bool, wish: bool | None, uncut: bool) -> tuple[str, ...]:
    """Owners whose pieces are mended."""
    method = trained.method
    if wish is False or (uncut and wish is None):
        return ()
    if wish and method.mending == "nothing":
        raise ConfigError(f"{method.name} does not mend graphs; leave --mend away")
    if wish and uncut:
        raise ConfigError("nothing is missing in the uncut graph; choose --mend or --uncut")
    found = trained.can_mend(ids, known)
    if wish and not found:
        raise ConfigError(_why_not(trained, known))
    return found


def _why_not(trained: Trained, known: bool) -> str:
    method = trained.method
    if method.mending == "known" and not known:
        return (
            f"{method.name} can mend only the nodes it was trained on, because what it adds to a node came from the others "
            "during training; new nodes are predicted without, see --no-mend"
        )
    if trained.in_federation:
        return f"the owners of {trained.name} keep what {method.name} mends with; here it is without, see --no-mend"
    return f"none of these owners took part in {trained.name}, and {method.name} mends with what each learnt for itself"


def _together(trained: Trained, parts: Partition) -> Iterator[Partition]:
    """The owners, as many at a time as fit into memory."""
    model = trained.method.model
    most = max(1, ACTIVATIONS_AT_A_TIME // max(1, model.hidden * model.layers + trained.task.features // 4))
    start, nodes = 0, 0
    for k, members in enumerate(parts.members):
        if k > start and nodes + len(members) > most:
            yield Partition(parts.ids[start:k], parts.members[start:k], parts.graphless[start:k])
            start, nodes = k, 0
        nodes += len(members)
    yield Partition(parts.ids[start:], parts.members[start:], parts.graphless[start:])


def _told(trained: Trained, parts: Partition, mended: Sequence[str], known: bool, uncut: bool) -> Iterator[str]:
    """What must be said about whose model was used on what."""
    method = trained.method
    links_known = trained.stitched is not None or trained.in_federation or trained.protocol.partition.boundary != "none"
    if method.training.stitch and links_known and not method.sees_uncut_graph:
        why = _unstitched(trained, parts, known, uncut)
        heard = "stitched: predictions are smoothed over links that owners know, by what each heard of the others in the run"
        yield heard if why is None else f"not stitched (training.stitch): {why}"
    if uncut:
        yield (
            "predicted on the whole graph (--uncut): nodes hear neighbours at other owners, which training did not show, "
            "and the run's scores are not about that"
        )
        return
    strangers = [name for name in parts.ids if name not in trained.card.owners and name != WHOLE]
    if strangers:
        yield f"{some_of(strangers)} did not take part in the run; the model for everybody predicts for them"
    untaught = [name for name in _untaught(trained) if name in parts.ids and name in trained.models]
    if untaught and not method.serves_untaught:
        yield (
            f"{some_of(untaught)} had no training node, and {method.name} gives each owner a model of its own: it learnt "
            "from no label there, and what it predicts may be chance; a method with one model for everybody, such as "
            "fedavg, serves them"
        )
    if method.mending == "nothing":
        if _forgets(method):
            yield f"{method.name} trained on graphs that it had completed, and does not say how to complete these (recalled)"
        return
    if mended:
        yield f"{method.name} has mended the pieces of {some_of(mended)} before predicting (--no-mend: without)"
    if len(mended) < len(parts.ids):
        without = [name for name in parts.ids if name not in mended]
        why = "" if trained.can_mend(without, known) else f": {_why_not(trained, known)}" if not mended else ""
        yield f"not mended: {some_of(without)}{why}"


def _unstitched(trained: Trained, parts: Partition, known: bool, uncut: bool) -> str | None:
    """Why predictions are not smoothed over known links; None: they are."""
    if uncut:
        return "on the whole graph (--uncut) no link is missing"
    if trained.stitched is None:
        return "what owners heard of each other was not kept with this run, or is at its owners; each predicts alone"
    if not known or not set(parts.ids) <= set(trained.stitched.ids):
        return "what owners heard of each other is of the nodes of the run, and these are others; each owner predicts alone"
    if not bool(taken(trained.stitched.select(parts.ids).heard).any()):
        return "the round that is reported is one before the stitching"
    return None


def _untaught(trained: Trained) -> list[str]:
    """Clients of the run that had nothing to learn from."""
    if trained.cut is None:
        return []
    pairs = zip(trained.cut.partition.ids, trained.cut.split.client_roles, strict=True)
    return [name for name, roles in pairs if not bool((roles == Role.TRAIN).any())]


def _forgets(method: Method[Any, Any]) -> bool:
    """Whether a method shows its clients other graphs than their own, and can do so only while it runs."""
    kind = type(method)
    return kind.seen is not Method.seen and kind.recalled is Method.recalled and kind.predict is Method.predict


def _left_out(graph: Data, owner_N: Tensor) -> Iterator[str]:
    """What of the graph nobody has seen."""
    crossing = int((owner_N[graph.edge_index[0]] != owner_N[graph.edge_index[1]]).sum())
    if crossing:
        yield (
            f"{crossing if graph.get('directed') else crossing // 2:,} edges between owners were left out, as in training: "
            "each owner predicts on its own piece (--uncut takes them in)"
        )
    if graph.get("boundary_node") is not None and graph.boundary_node.numel():
        yield f"{graph.boundary_node.numel():,} boundary edges lead to nodes that are not in the graph, and are not heard"
    nobodys = int((owner_N < 0).sum())
    if nobodys:
        yield f"{nobodys:,} nodes belong to no client of the run's cut, and nobody predicts them"

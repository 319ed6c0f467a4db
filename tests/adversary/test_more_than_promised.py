"""A hostile coordinator asks within the plan, and for more than a method tells of itself: by the names it writes into its
messages, by settings under which noise does not reach all that leaves, by scores and sums that go by another name.

Each of these was answered before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_owner import CLASSES, DATASET, FEATURES, NAME, Hostile

from suture import api
from suture.core.message import Message, Model, Nothing
from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.errors import ConfigError
from suture.federation.wire.description import Description
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Code
from suture.federation.wire.terms import terms_before, terms_of
from suture.graph.shard import load_shard
from suture.method import Clients, Task
from suture.methods.census import Census
from suture.methods.fedgram.messages import Directions
from suture.methods.suture.settling import MIXTURE, Validated

TASK = Task(FEATURES, CLASSES, 0)
BUDGET = "[privacy]\nepsilon = 50.0\n"
NOISE = ("training.dp_sigma=5.0", "optimizer=sgd", "local_epochs=1")


def planned(method: str, *more: str) -> api.Plan:
    overrides = ["rounds=2", "model.hidden=8", "partition.matching=open", *more]
    return api.plan(DATASET, [method], clients=3, seeds=[0], overrides=overrides)


def asked(hostile: Hostile, step: str, message: Message, number: int = 1) -> Frame:
    about = {"verb": "ask", "run": "run", "step": step, "number": number, "base": 0, "round": 1}
    return hostile.send(about, message.pack())  # type: ignore[arg-type]


def kept_at(hostile: Hostile, made: api.Plan) -> Tree:
    """All parameters that an owner has in this run, whoever knows the code can say their names and shapes."""
    agreed = hostile.owner.agree("looked at", terms_of(made, Description(FEATURES, CLASSES)).as_json())
    graph, method = agreed.graph, agreed.method
    state = method.init_clients(Clients(graph, Nothing(graph.ids), Streams.of(0, graph.ids, "init"), agreed.task))
    return dict(getattr(state, "generator", None) or state.params)


STAYING: list[tuple[str, tuple[str, ...], str]] = [
    ("local", (), "local_update"),
    ("fedper", (), "local_update"),
    ("locsage", (), "local_update"),
    ("locsage_plus", (), "train_alone"),
    ("suture", (), "local_update"),
]


@pytest.mark.parametrize(("method", "settings", "step"), STAYING, ids=[one[0] for one in STAYING])
def test_what_stays_at_an_owner_is_not_told_because_it_was_named(
    method: str, settings: tuple[str, ...], step: str, pieces: Path, tmp_path: Path
) -> None:
    """Personal layers, own models and own generators: whatever the message named came back trained on the owner's data."""
    hostile, made = Hostile(tmp_path, pieces), planned(method, *settings)
    assert hostile.open(made).refused is None
    named = kept_at(hostile, made)
    travels = made.methods[0].init_server(TASK)
    mine = [name for name in named if name not in (travels.generator if step == "train_alone" else travels.params)]
    assert mine, "there is something that stays"
    answer = asked(hostile, step, Model((NAME,), named))
    assert answer.header.get("code") == Code.UNDECLARED and not answer.body, answer.header
    assert any(name in str(answer.refused) for name in mine)


WITHOUT_NOISE = ["fedsage_plus", "locsage_plus", "fedgls", "feddep"]


@pytest.mark.parametrize("method", WITHOUT_NOISE)
def test_what_is_learnt_without_noise_is_no_dp_sgd(method: str, pieces: Path, tmp_path: Path) -> None:
    """Generators and second networks learn from the same nodes, are sent or shape what is sent, and had no noise."""
    with pytest.raises(ConfigError, match="DP-SGD"):
        planned(method, *NOISE)
    hostile = Hostile(tmp_path, pieces, BUDGET)
    content = terms_of(planned(method), Description(FEATURES, CLASSES)).as_json()
    training = {**content["training"], "dp_sigma": 5.0}  # type: ignore[dict-item]
    answer = hostile.send({"verb": "open", "run": "run", "number": 0, "terms": {**content, "training": training}})
    assert answer.header.get("code") == Code.TERMS and "DP-SGD" in str(answer.refused)


def test_feddeps_own_noise_is_no_budget_for_nodes(pieces: Path, tmp_path: Path) -> None:
    """Its published form with DP-SGD has noise on two networks of three."""
    answer = Hostile(tmp_path, pieces, BUDGET).open(planned("feddep", "feddep.nfdp=false", "feddep.sigma=50.0"))
    assert answer.header.get("code") == Code.POLICY and "without noise" in str(answer.refused)


@pytest.mark.parametrize("policy", [BUDGET, "statistics = false\n"], ids=["budget", "forbidden"])
def test_sums_over_nodes_are_statistics_whoever_asks_for_them(policy: str, pieces: Path, tmp_path: Path) -> None:
    """A census is refused under a budget; FedGram's sums, along directions that the coordinator chooses, were not."""
    hostile, made = Hostile(tmp_path, pieces, policy), planned("fedgram", "fedgram.stages=0", *NOISE)
    assert hostile.open(made).refused is None
    ones, zeros = torch.ones(1, FEATURES, dtype=torch.float64), torch.zeros(1, FEATURES, dtype=torch.float64)
    chosen = Directions((NAME,), zeros, ones, torch.eye(FEATURES, dtype=torch.float64).unsqueeze(0))
    for step in ("multiply", "relate"):
        answer = asked(hostile, step, chosen)
        assert answer.header.get("code") == Code.POLICY and not answer.body
    allowed = Hostile(tmp_path / "allowed", pieces, "statistics = true\n" + policy.replace("statistics = false\n", ""))
    assert allowed.open(made).refused is None
    assert asked(allowed, "multiply", chosen).refused is None


def mixing(made: api.Plan) -> Tree:
    """Experts that always answer with a class of their own, all believed alike."""
    params = dict(made.methods[0].init_server(TASK).params)
    told = {name: torch.zeros_like(value) for name, value in params.items()}
    for number, bias in enumerate(name for name in params if name.endswith("head.bias")):
        told[bias][..., number] = 50.0
    told["common.gprgnn.hops.gamma"][..., 0] = 1.0
    return told | {MIXTURE: params[MIXTURE]}


def validation_nodes(pieces: Path) -> list[int]:
    shard = load_shard(pieces / f"{NAME}.safetensors")
    return [int(((shard.roles == 2) & (shard.data.y == c)).sum()) for c in range(CLASSES)]


SILENT = ("optimizer=sgd", "lr=1e-12", "local_epochs=1", "suture.own=false", "suture.rank=0", "suture.seams=0")


def test_suture_counts_the_classes_of_validation_nodes(pieces: Path, tmp_path: Path) -> None:
    """The attack works where an owner tells exact scores: each expert stands for the nodes of its class."""
    hostile, made = Hostile(tmp_path, pieces), planned("suture", *SILENT)
    assert hostile.open(made).refused is None
    answer = asked(hostile, "local_update", Model((NAME,), mixing(made)))
    assert answer.refused is None, answer.header
    shares, real = Validated.unpack(answer.body).params[MIXTURE][0], validation_nodes(pieces)
    experts = min(CLASSES, shares.numel())
    left = sum(real[experts:]) / shares.numel()  # of classes for which nobody stands everybody takes a part
    assert (shares[:experts] * sum(real)).tolist() == pytest.approx([n + left for n in real[:experts]], abs=0.05)


@pytest.mark.parametrize("policy", ['evaluations = "off"\n', 'evaluations = "rounded"\n', "max_evaluations = 1\n"])
def test_shares_of_validation_nodes_are_scores(policy: str, pieces: Path, tmp_path: Path) -> None:
    answer = Hostile(tmp_path, pieces, policy).open(planned("suture", *SILENT))
    assert answer.header.get("code") == Code.POLICY and "validation nodes" in str(answer.refused)


def test_what_comes_before_runs_counts_as_rounds(pieces: Path, tmp_path: Path) -> None:
    """Each census under another seed counts the classes of other training nodes: as many of them as there are nodes tell
    everybody's class."""
    hostile, told = Hostile(tmp_path, pieces, "total_rounds = 5"), 0
    made = planned("fedavg")
    for seed in range(10):
        content = replace(terms_before(Census(), made, Description(FEATURES, CLASSES)), seed=seed).as_json()
        name = f"run-{seed}.census"
        told += hostile.send({"verb": "open", "run": name, "number": 0, "terms": content}).refused is None
    assert told == 2
    assert hostile.open(planned("fedavg")).header.get("code") == Code.BUDGET
    assert hostile.open(planned("fedavg", "rounds=1")).refused is None

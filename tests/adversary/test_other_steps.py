"""A hostile coordinator asks for steps that a method has, but does not ask for under the terms that were agreed on.

Before owners looked at that, each of these was answered: exact scores under a privacy budget, an owner's own update in a run
that promised sums, rows whose noise followed from the public seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hostile import OWNERS, Hostile, desks_in, write_shards
from one_owner import CLASSES, DATASET, NAME, NOISY, always, planned
from one_owner import Hostile as AtOneDesk

from suture import api
from suture.core.message import Message, Model, Nothing, Rows
from suture.errors import ConfigError
from suture.federation.wire.description import Description
from suture.federation.wire.orders import FaultSettings, order_of
from suture.federation.wire.reasons import Code
from suture.federation.wire.terms import terms_of
from suture.method import Task
from suture.methods.fedggr.messages import Down

QUIET = ("rounds=2", "model.hidden=8", "partition.matching=open")


@pytest.mark.parametrize(
    "policy", ["[privacy]\nepsilon = 8.0\n", 'evaluations = "off"\n', "max_evaluations = 1\n", 'evaluations = "rounded"\n']
)
def test_scores_are_not_told_as_a_step(policy: str, pieces: Path, tmp_path: Path) -> None:
    """Seven crafted models would give the class histogram, whatever the policy says of tests."""
    hostile, made = AtOneDesk(tmp_path, pieces, policy), planned(4, *NOISY)
    assert hostile.open(made).refused is None
    for kind in range(CLASSES):
        header = {"verb": "ask", "run": "run", "step": "evaluate", "number": kind + 1, "base": 0, "round": 1}
        answer = hostile.send(header, Model((NAME,), always(made, kind)).pack())  # type: ignore[arg-type]
        assert answer.header.get("code") == Code.UNDECLARED and not answer.body


OTHERS: list[tuple[str, tuple[str, ...], str, Message]] = [
    ("fedavg", (), "stitch_wants", Nothing((NAME,))),
    ("fedgcn", ("fedgcn.together=true",), "post_sums", Nothing((NAME,))),
    ("fedgcn", ("fedgcn.hops=1",), "foreign_ends", Nothing((NAME,))),
    ("fedsage_plus", (), "train_alone", Model((NAME,), {})),
    ("fedsage_plus", ("fedsage_plus.alpha=0",), "offer", Nothing((NAME,))),
    ("feddep", (), "embed_nodes", Nothing((NAME,))),
    ("feddep", (), "offer", Nothing((NAME,))),
    ("fedggr", (), "send_codes", Model((NAME,), {})),
    ("fedggr", ("fedggr.codes=groups",), "send_codes", Model((NAME,), {})),
]


@pytest.mark.parametrize(("method", "settings", "step", "message"), OTHERS, ids=[f"{one[0]}-{one[2]}" for one in OTHERS])
def test_what_another_setting_tells_is_not_told(
    method: str, settings: tuple[str, ...], step: str, message: Message, pieces: Path, tmp_path: Path
) -> None:
    hostile = AtOneDesk(tmp_path, pieces)
    made = api.plan(DATASET, [method], clients=3, seeds=[0], overrides=[*QUIET, *settings])
    assert hostile.open(made).refused is None
    answer = hostile.send({"verb": "ask", "run": "run", "step": step, "number": 1, "base": 0, "round": 1}, message.pack())
    assert answer.header.get("code") == Code.UNDECLARED, answer.header


def test_a_run_that_promises_sums_does_not_train_openly(tmp_path: Path) -> None:
    """FedGGR has two forms of a round: the sealed one is agreed on, the other one would tell the update of one owner."""
    parties = desks_in(tmp_path / "owners", write_shards(tmp_path / "shards"))
    victim, made = OWNERS[0], api.plan(DATASET, ["fedggr"], clients=5, seeds=[0], overrides=[*QUIET])
    hostile = Hostile(parties)
    terms = terms_of(made, Description.read(parties.owned[victim].describe()), True, None, OWNERS)
    hostile.terms = terms
    assert all(frame.refused is None for frame in hostile.open_run().values())
    server = made.methods[0].init_server(Task(terms.features, terms.classes, terms.seed))
    nothing = Rows(torch.zeros(0, 0), torch.tensor([0, 0]))
    body = Down((victim,), server.params, nothing, 0).pack()
    answer = hostile.tell(victim, "ask", body, step="local_update", base=0, round=1)
    assert answer.header.get("code") == Code.UNDECLARED and not answer.body


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedggr", ("fedggr.codes=groups",)), ("fedggr", ("fedggr.gsl=false",)), ("fedgcn", ("fedgcn.together=false",))],
)
def test_a_setting_that_tells_more_than_sums_is_no_secure_run(
    method: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither to order nor, by a coordinator that orders nothing, at an owner."""
    made = api.plan(DATASET, [method], clients=5, seeds=[0], overrides=[*QUIET, *settings])
    with pytest.raises(ConfigError, match="secure aggregation is not for it"):
        order_of(made, "run", FaultSettings(), secure=True)
    parties = desks_in(tmp_path / "owners", write_shards(tmp_path / "shards"))
    hostile = Hostile(parties)
    hostile.terms = terms_of(made, Description.read(parties.owned[OWNERS[0]].describe()), True, None, OWNERS)
    (answer,) = hostile.open_run(OWNERS[:1]).values()
    assert "so secure aggregation cannot hide this owner's updates" in str(answer.refused)

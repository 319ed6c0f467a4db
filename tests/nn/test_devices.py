"""Nothing is computed on another device than the graph's: what can be tested of that without a GPU, and a run on one.

While the default device is `meta`, a tensor that is made without saying where becomes one without content, and an operation
that mixes it with a real one fails. So a round that passes here makes all its tensors where the graph is.
"""

from __future__ import annotations

import pytest
import torch

import suture
from suture.engines.embedded import EmbeddedCohort
from suture.methods import METHODS
from suture.testing.world import run_to_end, small, small_world

QUICK = ("local", "fedavg", "fedprox", "scaffold", "fedsage", "fedproto", "fedgta", "fedgls")
OTHERS = (
    *("global", "fedper", "ditto", "moon", "fedala", "fedsage_plus", "locsage", "locsage_plus", "globsage", "fedgnn"),
    *(
        "adafgl",
        "fggp",
        "fedtad",
        "fgssl",
        "fedgraph",
        "fedgsl",
        "fedgram",
        "fed_mlp",
        "fed_gnnmlp",
        "local_gnnk",
        "fed_gnnk",
        "fed_gnn",
    ),
)
"""Left out: fedpub, gcfl, gcfl_plus, feddep, fedgcn and fedggr, which make tables on no named device; untested on a GPU."""


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_round_makes_its_tensors_where_the_graph_is(name: str) -> None:
    world, method = small_world(), small(METHODS[name])
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    with torch.device("meta"):
        for phase in method.plan():
            server = phase.body(server, cohort)
        scores = cohort.evaluate(method.deploy(server, cohort.ids))
    assert scores.value.device.type == "cpu" and bool(scores.value.isfinite().all())
    for where, tensor in server.tensors().items():
        assert tensor.device.type == "cpu", where


def test_a_tensor_made_elsewhere_is_found() -> None:
    """The test above can fail: what it looks for is refused by torch."""
    with torch.device("meta"), pytest.raises((RuntimeError, NotImplementedError)):
        (small_world().clients.x.dense() + torch.ones(1, 40)).sum().item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_run_on_a_gpu_is_the_run_on_the_cpu() -> None:
    world, method = small_world(), small(METHODS["fedavg"], model={"dropout": 0.0})
    here = run_to_end(method, world.clients, world.task)
    there = run_to_end(method, world.clients.to(torch.device("cuda")), world.task)
    for (where, one), other in zip(here.tensors().items(), there.tensors().values(), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-3, atol=1e-4, msg=where)
    options = suture.Options(device="cuda")
    suture.run("csbm:nodes=300", "fedavg", clients=3, overrides=["rounds=2"], options=options)

"""What is tried is made to fit the time: counted in rounds, seeds and nodes, not measured in seconds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from suture.assessment.budget import ENOUGH_NODES, PILOT_ROUNDS, Limits, Pace, Trial, fit, measure
from suture.assessment.candidates import Candidate
from suture.assessment.sampling import sampled
from suture.runs.outcome import Tick
from suture.runs.plan import plan
from suture.runs.prepare import Source

GRAPH = "csbm:nodes=240,features=40,words_per_node=8,classes=3"
TRIED = (
    Candidate("local", "", wanted=True),
    Candidate("fedavg", "", wanted=True),
    Candidate("slow", ""),
    Candidate("quick", ""),
)
PACES = (Pace("local", 0, 0.1), Pace("fedavg", 0, 0.1), Pace("slow", 50, 1.0), Pace("quick", 0, 0.2))
"""A run of 100 rounds: 10, 10, 150 and 20 seconds."""


def fitted(seconds: float, nodes: int = 1000, **limits: int) -> Trial:
    return fit(PACES, TRIED, Limits(seconds, rounds=100, nodes=nodes, **limits))


def test_everything_if_there_is_time() -> None:
    trial = fitted(10 * 190)
    assert (trial.methods, trial.seeds, trial.rounds, trial.share) == (("local", "fedavg", "slow", "quick"), 10, 100, 1.0)
    assert trial.seconds == pytest.approx(1900) and trial.reduced == ()


def test_first_fewer_seeds_then_fewer_rounds_then_very_few_seeds() -> None:
    trial = fitted(5 * 190)
    assert (len(trial.methods), trial.seeds, trial.rounds) == (4, 5, 100)
    assert trial.reduced == ("5 seeds instead of 10",)
    trial = fitted(5 * (5 + 5 + 100 + 10))
    assert (len(trial.methods), trial.seeds, trial.rounds) == (4, 5, 50)
    assert trial.reduced == ("5 seeds instead of 10", "50 rounds instead of 100")
    trial = fitted(3 * (5 + 5 + 100 + 10))
    assert (len(trial.methods), trial.seeds, trial.rounds) == (4, 3, 50)


def test_then_the_slowest_is_left_out_and_the_rest_has_all_seeds() -> None:
    trial = fitted(5 * 40)
    assert (trial.methods, trial.seeds, trial.rounds) == (("local", "fedavg", "quick"), 5, 100)
    assert trial.reduced[0] == "not tried: slow, which would take about 2 minutes a run"
    assert fitted(10 * 40 - 1).seeds == 3  # the slow one still fits, hardly
    assert fitted(10 * 40 - 1).methods == ("local", "fedavg", "slow", "quick")


def test_local_and_fedavg_remain_whatever_it_takes() -> None:
    trial = fitted(1)
    assert (trial.methods, trial.seeds, trial.rounds) == (("local", "fedavg"), 3, 50)
    assert trial.reduced[-1] == "still it takes about 30 seconds, more than there was"


def test_a_large_graph_is_sampled_before_methods_are_left_out() -> None:
    trial = fitted(180, nodes=100 * ENOUGH_NODES)
    assert len(trial.methods) == 4 and trial.share == pytest.approx(0.5) and trial.seconds == pytest.approx(180)
    assert "50 % of every owner's nodes, picked as neighbourhoods" in trial.reduced
    assert fitted(1e-3, nodes=2 * ENOUGH_NODES).share == pytest.approx(0.5)


def test_patience_ends_runs_early() -> None:
    assert fitted(10 * (5 + 5 + 100 + 10)).seeds == 5
    trial = fitted(10 * (5 + 5 + 100 + 10), patience=25)
    assert (trial.seeds, trial.rounds, trial.reduced) == (10, 100, ())


def test_what_the_user_asked_for_stays() -> None:
    trial = fitted(1, seeds=7, fewest_seeds=7, fewest_rounds=100)
    assert (trial.seeds, trial.rounds) == (7, 100)


def tried_out(name: str, seconds: float) -> tuple[Pace, list[Tick], dict[str, int]]:
    """The pace of a method, its ticks, and the length of its phases."""
    overrides = ["rounds=40", "hidden=8", "model.kind=sage", "fedsage_plus.generator_epochs=30"]
    made = plan(GRAPH, [name], clients=3, seeds=[0], overrides=overrides)
    ticks: list[Tick] = []
    pace = measure(Source(made).prepared(0), made.methods[0], made.protocol, seconds, lambda: False, ticks.append)
    return pace, ticks, {phase.name: phase.times for phase in made.methods[0].plan()}


@pytest.mark.parametrize("name", ["fedavg", "fedsage_plus"])
def test_a_pilot_tries_three_iterations_of_every_phase_and_no_more(name: str) -> None:
    pace, ticks, phases = tried_out(name, 1e9)
    assert Counter(tick.phase for tick in ticks) == {phase: min(times, PILOT_ROUNDS) for phase, times in phases.items()}
    rounds = [tick.seconds for tick in ticks if tick.phase == "round"]
    assert pace.per_round == pytest.approx((rounds[2] - rounds[0]) / 2)
    made_up = [tick.seconds for tick in ticks if tick.phase == "generator"]
    least = 30 * (made_up[2] - made_up[0]) / 2 if made_up else 0.0
    assert least <= pace.before <= least + ticks[-1].seconds


def test_a_pilot_ends_when_its_time_does_and_takes_the_rest_to_be_as_slow() -> None:
    pace, ticks, phases = tried_out("fedsage_plus", 0.0)
    assert len(ticks) == 1
    assert pace.per_round == pytest.approx(ticks[0].seconds)
    assert pace.before == pytest.approx(ticks[0].seconds * sum(times for name, times in phases.items() if name != "round"))


def ring(nodes: int, owners: int) -> Data:
    """Each owner a ring."""
    size = nodes // owners
    client = np.repeat(np.arange(owners), size)
    place = np.arange(nodes)
    following = client * size + (place % size + 1) % size
    edges = np.concatenate([np.stack([place, following]), np.stack([following, place])], axis=1)
    return Data(
        x=torch.randn(nodes, 2),
        edge_index=torch.from_numpy(edges),
        y=torch.zeros(nodes, dtype=torch.long),
        client=torch.from_numpy(client),
    )


def test_a_sample_has_its_share_of_every_owner_and_most_of_its_edges() -> None:
    data = ring(9000, 3)
    part = sampled(data, 0.2, seed=0)
    assert torch.bincount(part.client).tolist() == [600, 600, 600]
    # Nodes drawn one by one would keep a fifth of each other's edges: 0.4 neighbours a node, not nearly 2.
    assert part.edge_index.shape[1] / part.num_nodes > 1.7
    assert torch.equal(part.x, data.x[part.node_id])
    assert torch.equal(sampled(data, 0.2, seed=0).node_id, part.node_id)
    assert not torch.equal(sampled(data, 0.2, seed=1).node_id, part.node_id)

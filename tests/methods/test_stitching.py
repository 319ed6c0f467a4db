"""Predictions smoothed over known links: against the uncut graph, by hand, in every engine, and what is told of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import run_to_end, small, small_world
from numpy.testing import assert_allclose

import suture
from suture import api
from suture.core.message import Model, Rows
from suture.core.streams import Streams
from suture.core.tree import tile
from suture.engines.embedded import EmbeddedCohort
from suture.errors import ConfigError, IntegrityError
from suture.graph.batch import GraphBatch
from suture.graph.boundary import Boundary
from suture.method import Clients
from suture.methods import METHODS
from suture.methods.fedavg import FedAvg
from suture.methods.links import Offered, Wanted, routed
from suture.methods.stitching import longest_heard, shortened, smoothed, told_rows
from suture.privacy.gdp import gaussian_epsilon
from suture.privacy.mechanisms import NoisyRows
from suture.report.history import read_curve
from suture.report.privacy import read_privacy
from suture.runs.prepare import Source
from suture.testing.properties import PROPERTIES

SHARE, STEPS, TEMPERATURE = 0.7, 2, 1.5


def stitching(kind: type[Any] = FedAvg, **training: Any) -> Any:
    """A method on a perceptron, whose predictions are the same on pieces and on the whole."""
    method = small(kind, training={"stitch": STEPS, "stitch_share": SHARE, "stitch_temperature": TEMPERATURE, **training})
    return dataclasses.replace(method, model=dataclasses.replace(method.model, kind="mlp", dropout=0.0))


def stitched(method: Any, clients: GraphBatch) -> tuple[Any, EmbeddedCohort[Any]]:
    """(the server, the clients) after everything."""
    world = small_world()
    cohort, server = EmbeddedCohort.start(method, clients, world.task), method.init_server(world.task)
    for phase in method.plan():
        for _ in range(phase.times):
            server = phase.body(server, cohort)
    return server, cohort


def outputs(method: Any, server: Any, cohort: EmbeddedCohort[Any]) -> torch.Tensor:
    """What clients say of their nodes in the end, as probabilities."""
    found: list[torch.Tensor] = []

    def look(clients: Clients[Any]) -> Model:
        model = method.assemble(clients, method.deploy(server, clients.ids))
        found.append(method.outputs(clients, model)[1].softmax(1))
        return Model(clients.ids, {})

    cohort.peek(look)
    return torch.cat(found)


def on_the_whole(method: Any, server: Any) -> np.ndarray:
    """The same smoothing of the same model's predictions, on the uncut graph, with a dense adjacency."""
    world = small_world()
    model = Model(world.whole.ids, tile(server.params, 1))
    with torch.no_grad():
        start = (method.predict(world.whole, model, world.task) / TEMPERATURE).softmax(1).double().numpy()
    nodes = world.whole.num_nodes
    adjacency = np.eye(nodes)
    adjacency[world.whole.edge_index[1], world.whole.edge_index[0]] = 1
    now = start
    for _ in range(STEPS):
        now = SHARE * adjacency @ now / adjacency.sum(1, keepdims=True) + (1 - SHARE) * start
    return now


def test_with_all_links_known_pieces_say_what_the_whole_says() -> None:
    method, world = stitching(), small_world()
    server, cohort = stitched(method, world.clients)
    assert_allclose(outputs(method, server, cohort), on_the_whole(method, server)[world.clients.node_id], atol=1e-6)


def test_without_known_links_only_own_neighbours_are_heard() -> None:
    method, world = stitching(), small_world()
    nothing = torch.empty(0, dtype=torch.int64)
    assert world.clients.boundary is not None
    blind = dataclasses.replace(world.clients, boundary=Boundary(nothing, nothing, world.clients.boundary.address))
    server, cohort = stitched(method, blind)
    away = np.abs(outputs(method, server, cohort).numpy() - on_the_whole(method, server)[world.clients.node_id]).max()
    assert away > 0.01


def test_who_knows_nothing_is_told_what_to_do() -> None:
    world = small_world()
    with pytest.raises(ConfigError, match=r"set partition\.boundary=both"):
        stitched(stitching(), dataclasses.replace(world.clients, boundary=None))


def test_one_side_hears_half_of_it() -> None:
    """Every lost link is known to exactly one of its two owners."""
    found = {}
    for how in ("both", "one-side"):
        plan = api.plan("csbm:nodes=240", ["fedavg"], clients=4, seeds=[0], overrides=[f"partition.boundary={how}"])
        clients = Source(plan).prepared(0).clients
        known = clients.boundary
        assert known is not None
        found[how] = set(zip(known.address[known.node].tolist(), known.foreign.tolist(), strict=True))
    assert {(b, a) for a, b in found["both"]} == found["both"], "both owners know every link"
    one = found["one-side"]
    assert one < found["both"] and one | {(b, a) for a, b in one} == found["both"]
    assert not one & {(b, a) for a, b in one}
    assert 0.3 < sum(a < b for a, b in one) / len(one) < 0.7, "the coin is fair"


def test_rows_of_a_node_with_two_holders_are_averaged_and_missing_ones_are_said() -> None:
    def rows(*values: list[Any]) -> Rows:
        flat = [item for part in values for item in part]
        lengths = torch.tensor([0, *np.cumsum([len(part) for part in values]).tolist()])
        return Rows(torch.tensor(flat), lengths)

    wanted = Wanted(("a", "b", "c"), rows([7, 9], [5], []))
    offered = Offered(("a", "b", "c"), rows([5], [7], [7]), rows([[0.2, 0.8]], [[1.0, 0.0]], [[0.0, 1.0]]))
    heard = routed(wanted, offered)
    assert heard.rows.values.tolist() == [[0.5, 0.5], [0.0, 0.0], pytest.approx([0.2, 0.8])]
    assert heard.offered.values.tolist() == [1.0, 0.0, 1.0]
    assert heard.rows.ptr.tolist() == [0, 2, 3, 3]


@pytest.mark.parametrize("holds", ["separable", "order_of_clients_does_not_matter", "resumes_after_any_iteration"])
@pytest.mark.parametrize("name", ["fedavg", "local", "fedpub", "fedsage_plus", "gcfl", "fedproto"])
def test_any_method_can_be_stitched(name: str, holds: str) -> None:
    brief = {"generator_epochs": 3} if name == "fedsage_plus" else {}
    PROPERTIES[holds](METHODS[name], {"training": {"stitch": 2, "stitch_sigma": 0.1}, **brief})


@pytest.mark.parametrize(
    "holds",
    [
        *("messages_are_closed", "owners_understand_every_message", "no_message_carries_private_data"),
        *("graphless_clients_can_take_part", "odd_clients_can_take_part", "evaluating_more_often_changes_nothing"),
    ],
)
def test_free_tests_hold(holds: str) -> None:
    PROPERTIES[holds](FedAvg, {"training": {"stitch": 2, "stitch_sigma": 0.1}})


def test_who_cannot_stitch_says_so() -> None:
    with pytest.raises(ConfigError, match=r"fedggr does not stitch .* set fedggr\.training\.stitch=0"):
        small(METHODS["fedggr"], training={"stitch": 1})


def test_the_uncut_graph_has_nothing_to_stitch() -> None:
    assert [phase.name for phase in stitching(METHODS["global"]).plan()] == ["round"]


def test_noise_is_as_large_as_it_says_and_another_in_every_step() -> None:
    world = small_world()
    rows = torch.full((world.clients.num_nodes, 3), 1 / 3)
    nodes = torch.arange(world.clients.num_nodes)
    drawn = [
        told_rows(world.clients, rows, nodes, 0.2, Streams.of(0, world.clients.ids, step)).values - rows for step in (1, 2)
    ]
    assert float(drawn[0].std()) == pytest.approx(0.2, rel=0.15)
    assert abs(float(torch.corrcoef(torch.stack([d.flatten() for d in drawn]))[0, 1])) < 0.2


def test_what_left_is_told_and_accounted(tmp_path: Path) -> None:
    sigma = 2.0
    settings = ["partition.boundary=both", "training.stitch=2", f"training.stitch_sigma={sigma}", "rounds=2"]
    suture.run("csbm:nodes=240", "fedavg", clients=4, overrides=settings, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    offers = [line for line in lines if line["step"] == "stitch_offer" and line["direction"] == "up"]
    assert [line["clients"] for line in offers] == 2 * [[f"client-{k:02d}"] for k in range(4)]
    assert set(offers[0]["kinds"]) == {"addresses", "predictions"}
    (run,) = read_privacy(tmp_path / "run", 1e-5)
    rows = [one for one in run.guarantees if one.mechanism == "Gaussian rows"]
    # Two rows of probabilities are sqrt(2) apart at most; two of length one, as later steps tell, 2.
    assert rows[0].bound.epsilon == pytest.approx(gaussian_epsilon(np.sqrt(2 + 4) / sigma, 1e-5))
    links = [one for one in run.guarantees if one.mechanism == "Gaussian rows, link"]
    # One row is told otherwise, in the second step only, and it has length one at most.
    assert links[0].bound.epsilon == pytest.approx(gaussian_epsilon(2 / sigma, 1e-5))
    assert "addresses" in rows[0].uncovered and rows[0].vacuous, "who is linked to whom is told without noise"


def test_all_engines_say_the_same() -> None:
    settings = ["partition.boundary=both", "training.stitch=2", "training.stitch_sigma=0.1", "rounds=2"]
    ends = [
        suture.run("csbm:nodes=240", "fedavg", clients=3, overrides=settings, options=suture.Options(engine=engine))
        for engine in ("embedded", "sealed", "debug")
    ]
    first = ends[0].outcome
    for other in (end.outcome for end in ends[1:]):
        assert other.accuracy_weighted == pytest.approx(first.accuracy_weighted, abs=0.02)


def test_link_prediction_is_refused() -> None:
    settings = ["partition.boundary=both", "training.stitch=1", "rounds=1"]
    with pytest.raises(ConfigError, match=r"set training\.stitch=0"):
        suture.run("csbm:nodes=240", "fedavg", protocol="fedpub-link", clients=3, overrides=settings)


def test_an_earlier_state_is_read_without_what_was_heard() -> None:
    world = small_world()
    end = run_to_end(small(FedAvg), world.clients, world.task)
    assert end.states[0].stitch_heard is None and not [path for path in end.states[0].tensors() if "heard" in path]


def test_a_saved_run_predicts_as_it_was_tested(tmp_path: Path) -> None:
    settings = ["partition.boundary=both", "training.stitch=2", "training.stitch_sigma=0.1", "rounds=3"]
    settings.append("evaluation.select=last")
    for method in ("fedavg", "fedpub", "fedgcn"):
        result = suture.run("csbm:nodes=240", method, clients=3, overrides=settings, out=tmp_path / method)
        found = suture.predict(tmp_path / method)
        torch.testing.assert_close(found.probability, result.data.probability, atol=1e-5, rtol=0)
        assert any(note.startswith("stitched: predictions are smoothed") for note in found.notes)
        for k, name in enumerate(result.client_ids):
            mask = result.data.test_mask & (found.client == k)
            right = float((found.prediction[mask] == found.y[mask]).double().mean())
            assert right == pytest.approx(result.evaluation["clients"][name]["test"]["accuracy"], abs=1e-9)
    plain = suture.run("csbm:nodes=240", "fedavg", clients=3, overrides=[*settings, "training.stitch=0"])
    assert not torch.allclose(plain.data.probability, suture.predict(tmp_path / "fedavg").probability, atol=0.01)


@pytest.mark.parametrize("select", ["best-validation", "best-validation-per-client", "last"])
@pytest.mark.parametrize("sigma", [0.0, 20.0])
def test_the_reported_round_is_what_is_told_everywhere(sigma: float, select: str, tmp_path: Path) -> None:
    """Noise of 20 makes every step worse, so that rounds before them are reported, at some owners or at all."""
    settings = ["partition.boundary=both", "training.stitch=2", f"training.stitch_sigma={sigma}", "rounds=4"]
    settings += ["partition.kind=random", "model.kind=mlp"]
    run = suture.run(
        "csbm:nodes=600", "fedavg", clients=3, overrides=[*settings, f"evaluation.select={select}"], out=tmp_path / "run"
    )
    assert [line["round"] for line in run.history] == [1, 2, 3, 4, 5, 6], "tested iterations are counted on"
    reported = run.outcome.best_rounds
    if select == "last":
        assert set(reported) == {6}
    elif sigma:
        assert min(reported) <= 4, "noise like that helps nobody"
    else:
        assert max(reported) > 4, "neighbours help"
    curve, found = read_curve(tmp_path / "run"), suture.predict(tmp_path / "run")
    assert any(note.startswith("not stitched") and "one before" in note for note in found.notes) == (max(reported) <= 4)
    for k, name in enumerate(run.client_ids):
        tested = run.history[reported[k] - 1]["client_test"][k]
        assert curve.reported(reported)[k] == tested
        assert run.evaluation["clients"][name]["test"]["accuracy"] == pytest.approx(tested, abs=1e-6)
        mask = run.data.test_mask & (found.client == k)
        for predicted in (found, run.data):
            right = float((predicted.prediction[mask] == found.y[mask]).double().mean())
            assert right == pytest.approx(tested, abs=1e-6)


@pytest.mark.parametrize(
    ("graph", "how", "why"),
    [
        (None, {"uncut": True}, "no link is missing"),
        ("csbm:nodes=300", {}, "of the nodes of the run, and these are others"),
    ],
)
def test_where_it_cannot_be_stitched_that_is_said(graph: str | None, how: dict[str, bool], why: str, tmp_path: Path) -> None:
    settings = ["partition.boundary=both", "training.stitch=1", "rounds=1"]
    suture.run("csbm:nodes=240", "fedavg", clients=3, overrides=settings, out=tmp_path / "run")
    notes = suture.predict(tmp_path / "run", graph, **how).notes
    assert [note for note in notes if note.startswith("not stitched") and why in note]


def test_what_was_heard_is_of_these_nodes_or_refused(tmp_path: Path) -> None:
    settings = ["partition.boundary=both", "training.stitch=1", "rounds=1", "evaluation.select=last"]
    for nodes in (240, 260):
        suture.run(f"csbm:nodes={nodes}", "fedavg", clients=3, overrides=settings, out=tmp_path / str(nodes))
    (tmp_path / "240" / "stitched.safetensors").write_bytes((tmp_path / "260" / "stitched.safetensors").read_bytes())
    with pytest.raises(IntegrityError, match="is of other nodes: one of its files was changed"):
        suture.predict(tmp_path / "240")


def test_no_link_moves_more_than_the_account_says() -> None:
    """Three steps of smoothing with and without one known link, what was heard being given."""
    world, sigma, share, steps = small_world(), 0.1, 0.95, 3
    graph, known = world.clients, world.clients.boundary
    assert known is not None
    used = NoisyRows("stitch_offer", sigma, steps, share, longest_heard(sigma))
    degree = int(graph.degree.max())
    generator = torch.Generator().manual_seed(0)
    start = torch.softmax(3 * torch.randn(graph.num_nodes, 5, generator=generator), 1)
    rows = shortened(start[torch.randint(graph.num_nodes, (known.node.numel(),), generator=generator)] * 3, used.longest)
    largest = 0.0
    for link in range(0, known.node.numel(), 2):
        told = []
        for kept in (torch.ones(known.node.numel(), dtype=torch.bool), torch.arange(known.node.numel()) != link):
            row = torch.cat([rows, torch.ones(len(rows), 1)], 1)[kept]
            heard = torch.zeros(graph.num_nodes, 6).index_add_(0, known.node[kept], row)
            every = heard.unsqueeze(1).repeat(1, steps, 1)
            told.append(
                [
                    shortened(smoothed(graph, start, Rows(every[:, :step], graph.segments.ptr), share), 1.0)
                    for step in range(steps)
                ]
            )
        moved = float(torch.stack([(a - b).norm() for a, b in zip(*told, strict=True)]).norm())
        largest = max(largest, moved)
    assert 0 < largest / sigma <= used.link_mu(steps, degree)
    assert used.link_mu(1, degree) == 0, "what models say does not depend on known links"

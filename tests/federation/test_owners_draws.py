"""What a real owner draws once for its graph, and noise on means: whose key it comes from, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars
import pytest
import torch
from test_faults import OWNERS, InProcess, coordinator, ordered, planned, shards  # noqa: F401
from test_gap_owner import carried_out, gap
from torch import Tensor

from suture import api
from suture.core.message import Model, Nothing
from suture.core.streams import Streams
from suture.federation.owner.account import ACCOUNT
from suture.federation.owner.cost import Cost, edges_shown
from suture.federation.owner.keys import EARLIER_NAME, LASTING_KEY, lasting_key
from suture.federation.owner.run import Agreement
from suture.federation.wire.description import Description
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Refused
from suture.federation.wire.terms import terms_of
from suture.graph.drawn import drawn_graph
from suture.graph.shard import load_shard, save_shard
from suture.graph.splits import Role
from suture.method import Clients
from suture.methods.averaging import Up
from suture.methods.feddep.prototypes import Prototypes
from suture.methods.fedggr.grouped import code_groups
from suture.methods.fedsage_plus.answering import Answering
from suture.privacy.keystream import Keystream
from suture.runs.checkpoint import load_models
from suture.runs.execute import execute
from suture.runs.prepare import Source

SHORT = ("feddep.generator_epochs=2", "feddep.pretrain_epochs=2", "feddep.clusters=4", "feddep.d_z=8")
QUICK = (*SHORT, "feddep.prototype_sigma=0.0")
"""Without noise on prototypes, which is another in every run."""
NOISED = (*SHORT, "feddep.prototype_sigma=3.0")
ALLOWED = "[privacy]\nedge_epsilon = 1.0\nedge_delta = 0.5"
FEATURES, CLASSES = 30, 5


def dep(*more: str, rounds: int = 2, seed: int = 0) -> api.Plan:
    return replace(planned("feddep", rounds, *QUICK, *more), seeds=(seed,))


def agreed(transport: InProcess, owner: str, made: api.Plan, run: str = "run") -> Agreement:
    return transport.owned[owner].agree(run, terms_of(made, Description(FEATURES, CLASSES)).as_json())


def drawn(found: Agreement) -> set[tuple[int, ...]]:
    """The edges that may be seen in what an owner sends, as pairs of its own numbers of nodes."""
    graph, method = found.graph, found.method
    state = method.init_clients(
        Clients(graph, Nothing(graph.ids), Streams.of(found.task.seed, graph.ids, "init"), found.task)
    )
    clients = Clients(graph, state, Streams.of(found.task.seed, graph.ids, "ask", 1), found.task, 1)
    return pairs(method.telling(clients).graph.edge_index, graph.node_id)


def pairs(edge_index: Tensor, number: Tensor) -> set[tuple[int, ...]]:
    return {tuple(sorted(pair)) for pair in number[edge_index].t().tolist()}


def test_who_knows_the_seed_does_not_know_which_edges_are_drawn(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """The attack: draw again what the public seed draws. In a simulation every edge is told right, at owners every other."""
    transport, right, total = InProcess(tmp_path, shards), 0, 0
    for owner in OWNERS:
        found = agreed(transport, owner, dep())
        public = replace(found, graph=replace(found.graph, secret=None))
        guess = drawn_graph(public.graph, 0.5, Streams.of(0, [owner], "init").fork("edges"))
        guessed, whole = pairs(guess.edge_index, guess.node_id), pairs(found.graph.edge_index, found.graph.node_id)
        assert drawn(public) == guessed, "without a key of its own the attack succeeds"
        right += len(whole) - len(drawn(found) ^ guessed)
        total += len(whole)
    assert total > 300
    assert abs(right / total - 0.5) < 5 * 0.5 / total**0.5


def test_all_runs_of_an_owner_see_the_same_edges_and_other_owners_others(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """So that runs do not add up: of a larger share the edges of a smaller one are drawn, and more."""
    transport, other = InProcess(tmp_path / "one", shards), InProcess(tmp_path / "other", shards)
    plans = {"run": dep(), "seed": dep(seed=7), "more": dep("feddep.edge_share=0.8"), "rounds": dep(rounds=5)}
    found = {run: drawn(agreed(transport, "client-00", made, run)) for run, made in plans.items()}
    assert found["run"] == found["seed"] == found["rounds"] < found["more"]
    assert drawn(agreed(other, "client-00", dep())) != found["run"]


def replies(transport: InProcess, folder: Path, made: api.Plan) -> list[tuple[str, int, str, bytes]]:
    """All that leaves in answer to steps; owners answer in any order."""
    heard = []

    def listen(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        reply = answer()
        if frame.header["verb"] == "ask":
            heard.append((owner, frame.number("number"), str(frame.header["step"]), Frame.unpack(reply).body))
        return reply

    transport.meddle = listen
    carried_out(made, folder, transport)
    return sorted(heard)


def test_an_edge_that_was_not_drawn_changes_nothing_that_leaves(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """Not a bit of any reply, though the owner's file is another one; one that was drawn does."""
    key, world = bytes(range(32)), Source(planned()).prepared(0).clients

    def told(name: str, without: tuple[int, ...] | None) -> list[tuple[str, int, str, bytes]]:
        folder = tmp_path / name
        folder.mkdir()
        for owner in OWNERS:
            graph = world.select([owner])
            if without is not None and owner == "client-00":
                ends = graph.node_id[graph.edge_index].sort(0).values
                kept = ~((ends[0] == without[0]) & (ends[1] == without[1]))
                assert int((~kept).sum()) == 2
                graph = replace(graph, edge_index=graph.edge_index[:, kept])
            save_shard(graph, owner, folder / f"{owner}.safetensors", classes=CLASSES, row_normalised=False)
        transport = InProcess(folder / "owners", folder)
        for owner in OWNERS:
            (folder / "owners" / owner / LASTING_KEY).write_bytes(key)
        if without is None:
            found = agreed(transport, "client-00", dep(), "look")
            seen = drawn(found)
            shown.append(min(seen))
            hidden.append(min(pairs(found.graph.edge_index, found.graph.node_id) - seen))
        return replies(transport, folder, dep())

    shown: list[tuple[int, ...]] = []
    hidden: list[tuple[int, ...]] = []
    whole = told("whole", None)
    assert {step for _, _, step, _ in whole} == {"prototype", "remember", "train_generator", "local_update"}
    assert told("without hidden", hidden[0]) == whole
    assert told("without shown", shown[0]) != whole


def asked(transport: InProcess, number: int, run: str = "run") -> Frame:
    """The step that tells prototypes."""
    header = {"verb": "ask", "run": run, "step": "prototype", "number": number, "base": 0, "round": 1}
    return Frame.unpack(transport.desks["client-00"].answer(Frame(header, Nothing(("client-00",)).pack()).pack()))


def opened(transport: InProcess, made: api.Plan, run: str = "run") -> None:
    terms = terms_of(made, Description(FEATURES, CLASSES)).as_json()
    frame = Frame({"verb": "open", "run": run, "number": 0, "terms": terms})
    assert Frame.unpack(transport.desks["client-00"].answer(frame.pack())).refused is None


def told_centres(answer: Frame) -> Tensor:
    assert answer.refused is None, answer.header
    return Prototypes.unpack(answer.body).centres


def test_noise_on_prototypes_is_the_owners_secret(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """The attack: subtract the noise that the public seed draws. In a simulation nothing is left, at an owner all of it."""
    made, transport = dep(*NOISED), InProcess(tmp_path, shards)
    opened(transport, made)
    told, found = told_centres(asked(transport, 1)), agreed(transport, "client-00", made)
    method = found.method
    silent, rng = replace(method, prototype_sigma=0.0), Streams.of(0, found.graph.ids, "ask", 1)
    state = method.init_clients(
        Clients(found.graph, Nothing(found.graph.ids), Streams.of(0, found.graph.ids, "init"), found.task)
    )
    clients = Clients(found.graph, state, rng, found.task, 1)
    means, public = (one.prototype(clients, Nothing(clients.ids))[1].centres for one in (silent, method))
    noise, guess = (told - means).flatten(), (public - means).flatten()
    deviation = 3.0 * 2 / method.smallest
    assert guess.std() > deviation / 2, "what follows from the seed is noise too"
    # 32 numbers: a deviation is right to an eighth, a correlation of independent ones is 0.18.
    assert deviation / 2 < noise.std() < 2 * deviation
    assert torch.corrcoef(torch.stack([noise, guess]))[0, 1].abs() < 0.75


def test_prototypes_are_told_once_in_a_run_and_anew_in_another(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path, shards)
    opened(transport, dep(*NOISED))
    first = asked(transport, 1)
    for again in range(2):
        if again:
            transport.reborn("client-00")
            opened(transport, dep(*NOISED))
        assert asked(transport, 1).pack() == first.pack(), "a repeated delivery gets the same bytes"
    assert "prototype was accounted for 1 times in this run" in str(asked(transport, 2).header["refused"])
    opened(transport, dep(*NOISED), "another")
    assert not torch.equal(told_centres(asked(transport, 1, "another")), told_centres(first))
    opened(transport, dep(), "without-noise")
    assert asked(transport, 1, "without-noise").refused is None and asked(transport, 2, "without-noise").refused is None


def test_a_budget_for_edges_counts_those_that_were_drawn(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    def attempt(name: str, policy: str, *plans: api.Plan) -> None:
        transport = InProcess(tmp_path / name, shards, {"client-01": policy})
        for number, made in enumerate(plans):
            carried_out(made, tmp_path / name / "coordinator", transport, f"run-{number}")

    with pytest.raises(
        Refused, match=r"client-01 refuses: .*drawn, and seen, with probability 0.5; allowed is a delta of 1e-05"
    ):
        attempt("no delta", "[privacy]\nedge_epsilon = 1.0", dep())
    attempt("delta", ALLOWED, dep(), dep(seed=3), dep("feddep.edge_share=0.3"))
    with pytest.raises(Refused, match=r"with probability 0.6 with 1 earlier runs; allowed is a delta of 0.5"):
        attempt("more", ALLOWED, dep(), dep("feddep.edge_share=0.6"))
    with pytest.raises(Refused, match="budget for edges, and this run hides none"):
        attempt("published", ALLOWED, dep("feddep.as_published=true"))
    # With noised sums: what is drawn takes its part of delta, and leaves 1e-5 to noise of mu = 1, which is epsilon 4.377.
    attempt("both", "[privacy]\nedge_epsilon = 4.4\nedge_delta = 0.50001", dep(), gap())
    with pytest.raises(Refused, match="2 noised sums with 1 earlier runs cost epsilon"):
        attempt("too little", "[privacy]\nedge_epsilon = 4.3\nedge_delta = 0.50001", dep(), gap())
    line = json.loads((tmp_path / "delta" / "client-01" / ACCOUNT).read_text().splitlines()[0])
    assert [share for share, _ in line["drawn"]] == [0.5] and line["edges"] == []


def test_other_data_are_drawn_from_anew() -> None:
    """By hand: of the same data the largest share counts, of other data the chances of not being drawn multiply."""
    costs = [Cost(1, drawn=((share, data),)) for share, data in ((0.2, "a"), (0.5, "a"), (0.1, "b"), (0.0, "c"))]
    assert edges_shown(costs) == pytest.approx(1 - 0.5 * 0.9)
    assert [Cost.from_json(json.loads(json.dumps(cost.as_json()))) for cost in costs] == costs
    assert edges_shown([Cost(1)]) == 0


def test_groups_are_the_same_in_every_run_of_an_owner(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """Means of other groups in every run are equations for the nodes' features; of the same ones nothing is new."""
    answering = Answering("means", 5, 1.0)
    graph = agreed(InProcess(tmp_path, shards), "client-00", dep()).graph
    public = replace(graph, secret=None)
    for groups in (
        lambda g, seed: answering.matched(g, seed).dense(),
        lambda g, seed: code_groups(g, 5, seed).of,
    ):
        assert torch.equal(groups(graph, 0), groups(graph, 1))
        assert not torch.equal(groups(public, 0), groups(public, 1)), "in a simulation another seed has other groups"
    stacked = torch.cat([answering.matched(public, seed).dense() for seed in range(8)])
    alone = torch.cat([answering.matched(graph, seed).dense() for seed in range(8)])
    ranks = [int(torch.linalg.matrix_rank(rows.double())) for rows in (stacked, alone)]
    assert ranks[0] > 1.5 * ranks[1] and ranks[1] <= graph.num_nodes // 5


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("feddep", QUICK),
        ("fedsage_plus", ("fedsage_plus.generator_epochs=2", "fedsage_plus.smallest=3")),
        ("fedggr", ("fedggr.pretrain_rounds=2", "fedggr.code_width=4", "fedggr.codes=groups")),
        ("fedggr", ("fedggr.pretrain_rounds=2", "fedggr.code_width=4", "fedggr.anchors=8", "fedggr.anchor_rounds=3")),
    ],
)
def test_owners_with_one_key_end_as_one_process_with_it(
    method: str,
    more: tuple[str, ...],
    shards: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """All that differs from a simulation is the key."""
    key, made = bytes(range(32)), planned(method, 2, *more)
    transport = InProcess(tmp_path / "owners", shards)
    for owner in OWNERS:
        (tmp_path / "owners" / owner / LASTING_KEY).write_bytes(key)
    carried_out(made, tmp_path, transport)
    world = Source(made).prepared(0)
    secretly = replace(world, clients=replace(world.clients, secret=Keystream(key)))
    ends = [execute(one, made.methods[0], made.protocol) for one in (secretly, world)]
    for owner in OWNERS:
        mine = load_models(tmp_path / "owners" / owner / "runs" / "run" / "model.safetensors")[0][owner]
        same, other = ((end.personal or end.shared or Model((), {})) for end in ends)
        chosen = owner if owner in same.ids else same.ids[0]
        expected, public = same.select([chosen]).params, other.select([chosen]).params
        assert all(torch.allclose(mine[name], value, atol=1e-4) for name, value in expected.items())
        assert not all(torch.allclose(mine[name], value, atol=1e-4) for name, value in public.items())


def test_predictions_of_an_owner_hear_the_noise_of_its_own_key(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """What `suture owner predict` prints is of the sums that were trained on, not of those that the seed would draw."""
    transport = InProcess(tmp_path / "owners", shards)
    carried_out(gap(), tmp_path, transport)
    for owner in OWNERS:
        folder = tmp_path / "owners" / owner / "runs" / "run"
        table = polars.read_csv(folder / "predictions.csv")
        printed = torch.tensor([table[f"probability {c}"].to_list() for c in range(CLASSES)]).t().float()
        found = agreed(transport, owner, gap())
        model = Model((owner,), load_models(folder / "model.safetensors")[0][owner])
        own, public = (
            found.method.predict(graph, model, found.task).softmax(1)
            for graph in (found.graph, replace(found.graph, secret=None))
        )
        assert torch.allclose(printed, own, atol=1e-4)
        assert (printed - public).abs().max() > 0.01


def test_the_key_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    (tmp_path / EARLIER_NAME).write_bytes(bytes(range(32)))
    assert lasting_key(tmp_path) == bytes(range(32))
    (tmp_path / EARLIER_NAME).unlink()
    assert lasting_key(tmp_path) == bytes(range(32)) and (tmp_path / LASTING_KEY).stat().st_mode & 0o777 == 0o600


def test_an_owner_may_keep_its_losses_and_its_size(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    policy = 'losses = false\nweighting = ["uniform", "rounded"]'
    transport = InProcess(tmp_path / "owners", shards, {"client-00": policy})
    with pytest.raises(Refused, match=r"allows training.weighting uniform or rounded, this run has train-nodes"):
        carried_out(planned("fedavg", 1), tmp_path, transport, "exact")
    left = replies(transport, tmp_path, planned("fedavg", 1, "weighting=rounded"))
    told = {owner: Up.unpack(body) for owner, _, _, body in left}
    assert float(told["client-00"].loss) == 0 and float(told["client-01"].loss) > 0
    for owner in OWNERS:
        train = int((load_shard(shards / f"{owner}.safetensors").roles == Role.TRAIN).sum())
        weight = float(told[owner].weight)
        assert weight in {2.0**power for power in range(12)} and 2**-0.5 <= weight / train <= 2**0.5

"""GCFL and GCFL+: cuts against brute force, reductions to FedAvg and Local, routing when clients come and go."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from harness import World, assert_close, assert_same, assert_separable, run_to_end, small, small_world

from suture.core.message import Record
from suture.engines.embedded import EmbeddedCohort
from suture.methods.fedavg import FedAvg
from suture.methods.gcfl import Clusters, Gcfl, inner_products, lengths, minimum_cut
from suture.methods.gcfl_plus import GcflPlus, warping_distances
from suture.methods.local import Local

ALWAYS_CUT = {"eps1": 10.0, "eps2": 0.0, "warm_up": 0}
BOTH = pytest.mark.parametrize("kind", [Gcfl, GcflPlus])


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def _cutting(kind: type[Gcfl], **fields: object) -> Gcfl:
    more = {"seq_length": 2} if kind is GcflPlus else {}
    return small(kind, **ALWAYS_CUT, **more, **fields)  # type: ignore[return-value]


def _rounds(method: Gcfl, cohort: EmbeddedCohort, server: Clusters, times: int) -> Clusters:  # type: ignore[type-arg]
    for _ in range(times):
        server = method.round(server, cohort)
    return server


@BOTH
def test_without_a_cut_it_is_fedavg(kind: type[Gcfl], world: World) -> None:
    clustered = run_to_end(small(kind, eps1=0.0, warm_up=0), world.clients, world.task)
    plain = run_to_end(small(FedAvg), world.clients, world.task)
    assert_same(replace(clustered, server=plain.server), plain, tolerance=0.0)
    for k in range(4):
        for name, value in plain.server.tensors().items():
            assert torch.equal(clustered.server.tensors()[name][k], value[0])


def test_after_a_cut_each_part_is_a_federation_of_its_own(world: World) -> None:
    """Three clients are cut in the first round, before anything is averaged, and never again."""
    three = world.clients.select(world.clients.ids[:3])
    end = run_to_end(_cutting(Gcfl), three, world.task)
    assert isinstance(end.server, Clusters)
    sizes = torch.bincount(end.server.cluster)
    assert sorted(sizes.tolist()) == [1, 2]
    alone = [name for name, c in zip(end.server.ids, end.server.cluster, strict=True) if sizes[c] == 1]
    pair = [name for name in three.ids if name not in alone]
    states: dict[str, Record] = {state.ids[0]: state for state in end.states}
    expected = run_to_end(small(Local), three.select(alone), world.task).states
    expected += run_to_end(small(FedAvg), three.select(pair), world.task).states
    for state in expected:
        assert_close(states[state.ids[0]], state, 2e-5)


def test_a_cluster_gets_the_weighted_mean_of_its_members(world: World) -> None:
    method = _cutting(Gcfl)
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = _rounds(method, cohort, method.init_server(world.task), 2)
    assert int(server.cluster.max()) == 2
    trained = cohort.states()[0].select(server.ids).params
    weight = world.clients.select(server.ids).num_train.double()
    for name, value in trained.items():
        for number in range(3):
            members = server.cluster == number
            share = (weight * members / weight[members].sum()).view(-1, *[1] * (value.dim() - 1))
            mean = (share * value).sum(0).float()
            for row in server.params[name][members]:
                torch.testing.assert_close(row, mean, rtol=1e-5, atol=1e-6)


@BOTH
def test_cutting_runs_are_separable_and_independent_of_order(kind: type[Gcfl], world: World) -> None:
    for participation in (1.0, 0.75):
        method = _cutting(kind, training={"participation": participation})
        assert_separable(method, world)
        first = run_to_end(method, world.clients, world.task)
        assert_same(first, run_to_end(method, world.permuted([2, 0, 3, 1]).clients, world.task))
    assert int(run_to_end(_cutting(kind), world.clients, world.task).server.tensors()["cluster"].max()) > 0


@BOTH
def test_a_server_restored_between_cuts_goes_on_alike(kind: type[Gcfl], world: World) -> None:
    method = _cutting(kind)
    servers = []
    for restored in (False, True):
        cohort = EmbeddedCohort.start(method, world.clients, world.task)
        server = _rounds(method, cohort, method.init_server(world.task), 2)
        servers.append(_rounds(method, cohort, Clusters.unpack(server.pack()) if restored else server, 2))
    assert_close(servers[0], servers[1], 0.0)


def test_models_are_routed_by_name_when_clients_leave_and_return(world: World) -> None:
    method = _cutting(Gcfl, training={"participation": 0.5})
    cohort = EmbeddedCohort.start(method, world.clients, world.task)
    server = method.init_server(world.task)
    for _ in range(6):
        before = server
        server = method.round(server, cohort)
        assert server.ids == tuple(sorted(world.clients.ids))
        unheard = [k for k in range(4) if before.rounds and not _moved(before, server, k)]
        for k in unheard:
            assert server.cluster[k] not in {server.cluster[j] for j in range(4) if j not in unheard}
    for ids in (("owner-dogwood", "owner-ash"), ("owner-cedar",)):
        sent = method.deploy(server, ids)
        for k, name in enumerate(ids):
            own = server.ids.index(name)
            assert all(torch.equal(value[k], server.params[path][own]) for path, value in sent.params.items())
    distinct = {float(server.params["layer1.weight"][k].sum()) for k in range(4)}
    assert len(distinct) == int(server.cluster.max()) + 1 > 1


def _moved(before: Clusters, after: Clusters, k: int) -> bool:
    return not torch.equal(before.params["layer1.weight"][k], after.params["layer1.weight"][k])


def test_conditions_of_a_cut_by_hand() -> None:
    """Updates (3, 0) and (-3, 0) weigh 2 and 1: their mean is (1, 0), a third of the longest; the others agree fully."""
    gram = inner_products({"w": torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 2.0], [0.0, 2.0]])})
    cluster, weight = torch.tensor([0, 0, 1, 1]), torch.tensor([2.0, 1.0, 1.0, 1.0])
    length = torch.tensor([30.0, 30.0, 30.0, 30.0])
    assert Gcfl(eps1=0.34, eps2=0.05).settled(cluster, gram, weight, length) == [0]
    assert Gcfl(eps1=0.33, eps2=0.05).settled(cluster, gram, weight, length) == []
    assert Gcfl(eps1=0.34, eps2=0.11).settled(cluster, gram, weight, length) == []
    assert Gcfl(eps1=1.01, eps2=0.05).settled(cluster, gram, weight, length) == [0, 1]
    # Free of scale: all lengths ten times as large change nothing.
    assert Gcfl(eps1=0.34, eps2=0.05).settled(cluster, 100 * gram, weight, 10 * length) == [0]


def test_inner_products_and_lengths_span_all_tensors() -> None:
    tree = {"a": torch.randn(3, 4, 2), "b": torch.randn(3, 5)}
    flat = torch.cat([tree["a"].flatten(1), tree["b"]], 1)
    torch.testing.assert_close(inner_products(tree), flat @ flat.T)
    torch.testing.assert_close(lengths(tree), flat.norm(dim=1))


def test_cosines_are_remembered_from_the_last_common_round() -> None:
    method = Gcfl()
    memory = method.remember(method.blank(3), torch.tensor([0, 2]), torch.tensor([[4.0, -2.0], [-2.0, 1.0]]))
    memory = method.remember(memory, torch.tensor([1, 0]), torch.tensor([[1.0, 1.0], [1.0, 4.0]]))
    expected = torch.tensor([[1.0, 0.5, -1.0], [0.5, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    torch.testing.assert_close(memory["cosine"], expected)
    likeness = method.likeness(memory, torch.tensor([0, 2]))
    torch.testing.assert_close(likeness, torch.tensor([[2.0, 0.0], [0.0, 2.0]]))


def test_planted_groups_are_found() -> None:
    group = torch.tensor([0, 1, 0, 1, 1, 0])
    cosine = torch.where(group.unsqueeze(1) == group, 0.9, -0.5)
    server = Clusters(tuple("abcdef"), {}, torch.zeros(6, dtype=torch.int64), {"cosine": cosine}, 30)
    assert torch.equal(Gcfl().cut(server, [0]).cluster, group)
    assert torch.equal(Gcfl().cut(server, []).cluster, torch.zeros(6, dtype=torch.int64))


def test_two_clients_are_never_cut() -> None:
    server = Clusters(("a", "b", "c"), {}, torch.tensor([0, 1, 0]), Gcfl().blank(3), 30)
    assert torch.equal(Gcfl().cut(server, [0, 1]).cluster, server.cluster)


def test_minimum_cut_against_all_bipartitions() -> None:
    rng = np.random.default_rng(0)
    for size in (2, 3, 4, 5, 6, 7) * 5:
        weight = rng.uniform(0, 2, (size, size))
        weight = (weight + weight.T) / 2

        def cost(side: tuple[int, ...], weight: np.ndarray = weight, size: int = size) -> float:
            others = [v for v in range(size) if v not in side]
            return float(weight[np.ix_(list(side), others)].sum())

        sides = [s for r in range(1, size) for s in itertools.combinations(range(size), r) if 0 not in s]
        found = tuple(minimum_cut(torch.from_numpy(weight)).tolist())
        assert 0 not in found
        assert 0 < len(found) < size
        assert cost(found) == pytest.approx(min(map(cost, sides)), abs=1e-12)


def _warped_by_recursion(left: np.ndarray, right: np.ndarray) -> float:
    @cache
    def cost(a: int, b: int) -> float:
        here = float((left[a] - right[b]) ** 2)
        before = [(a - 1, b), (a, b - 1), (a - 1, b - 1)]
        return here + min((cost(i, j) for i, j in before if i >= 0 and j >= 0), default=0.0)

    return cost(len(left) - 1, len(right) - 1) ** 0.5


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_warping_distances_against_the_recursive_definition(length: int) -> None:
    sequences = np.random.default_rng(length).normal(size=(6, length))
    expected = [[_warped_by_recursion(left, right) for right in sequences] for left in sequences]
    got = warping_distances(torch.from_numpy(sequences))
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


def test_warping_forgives_a_delay() -> None:
    early, late, other = [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]
    distance = warping_distances(torch.tensor([early, late, other]))
    assert float(distance[0, 1]) == 0.0
    assert float(distance[0, 2]) == 1.0


def test_sequences_slide_and_begin_anew_after_a_cut() -> None:
    method = GcflPlus(seq_length=2)
    everyone = torch.arange(3)
    memory = method.blank(3)
    for length in (1.0, 2.0):
        assert method.likeness(memory, everyone) is None
        memory = method.remember(memory, everyone, torch.diag(torch.tensor([length, 1.0, 5.0]).square()))
    memory = method.remember(memory, torch.tensor([0]), torch.tensor([[9.0]]))
    torch.testing.assert_close(memory["lengths"], torch.tensor([[2.0, 3.0], [1.0, 1.0], [5.0, 5.0]]))
    likeness = method.likeness(memory, everyone)
    distance = torch.tensor([[0.0, 5.0, 13.0], [5.0, 0.0, 32.0], [13.0, 32.0, 0.0]]).sqrt()
    torch.testing.assert_close(likeness, distance.max() - distance)
    forgotten = method.forget(memory, torch.tensor([0, 2]))
    assert method.likeness(forgotten, torch.tensor([0, 1])) is None
    assert forgotten["known"].tolist() == [0, 2, 0]


def test_standardised_sequences_compare_shapes() -> None:
    method = GcflPlus(seq_length=3, standardise=True)
    memory = {"lengths": torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [3.0, 2.0, 1.0]]), "known": torch.full((3,), 3)}
    likeness = method.likeness(memory, torch.arange(3))
    assert likeness is not None
    assert float(likeness[0, 1]) == pytest.approx(float(likeness[0, 0]), abs=1e-5)
    assert float(likeness[0, 2]) == pytest.approx(0.0, abs=1e-5)

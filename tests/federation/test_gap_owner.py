"""Noise on sums over neighbours at real owners: whose key it comes from, how long it stays, and what it costs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from opacus.accountants import PRVAccountant
from scipy.stats import norm
from test_faults import OWNERS, InProcess, assert_same_end, coordinator, metrics, ordered, planned, shards  # noqa: F401

from suture import api
from suture.errors import ConfigError, IntegrityError
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.account import ACCOUNT
from suture.federation.owner.keys import LASTING_KEY, lasting_key
from suture.federation.owner.policy import load_policy
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Refused
from suture.graph.shard import load_shard
from suture.graph.splits import Role
from suture.nn.aggregates import noised_hops

EDGES = ("model.kind=gap", "gap_sigma=2.0", "gap_hops=2")


def gap(*more: str, rounds: int = 2) -> api.Plan:
    return planned("fedavg", rounds, *EDGES, *more)


def carried_out(made: api.Plan, folder: Path, transport: InProcess, run: str = "run") -> None:
    order = ordered(made, run=run)
    assert Coordinator(order, folder / run, transport, AuditLog(folder / AUDIT, "coordinator")).carry_on() is not None


def keys(folder: Path) -> list[Path]:
    return [folder / "owners" / owner / LASTING_KEY for owner in OWNERS]


def test_noise_is_the_same_after_a_kill_and_another_one_for_another_key(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    whole, killed, other = (tmp_path / name for name in ("whole", "killed", "other"))
    for folder in (whole, other):
        carried_out(gap(rounds=4), folder, InProcess(folder / "owners", shards))
    assert metrics(whole) != metrics(other), "owners with keys of their own have noise of their own"
    transport = InProcess(killed / "owners", shards)
    for mine, theirs in zip(keys(killed), keys(whole), strict=True):
        mine.write_bytes(theirs.read_bytes())

    def kill(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if frame.header["verb"] == "ask" and frame.number("number") == 3:
            terms = json.loads((killed / "owners" / owner / "runs" / "run" / "terms.json").read_text())
            transport.reborn(owner)
            opened = Frame({"verb": "open", "run": "run", "number": 2, "terms": terms})
            assert Frame.unpack(transport.desks[owner].answer(opened.pack())).refused is None
        return answer()

    transport.meddle = kill
    carried_out(gap(rounds=4), killed, transport)
    assert_same_end(whole, killed)


def test_a_graph_has_one_noise_at_an_owner_and_another_graph_another(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    carried_out(gap(), tmp_path, transport)
    owner = transport.owned["client-00"]
    terms = json.loads((owner.home / "runs" / "run" / "terms.json").read_text())
    agreed, again = (owner.agree(run, terms) for run in ("run", "again"))
    settings, classes, seed = agreed.method.model, agreed.task.classes, agreed.task.seed
    once = noised_hops(agreed.graph, settings, classes, seed)
    assert torch.equal(noised_hops(again.graph, settings, classes, seed), once)
    s, t = agreed.graph.edge_index[:, 0].tolist()
    ends = agreed.graph.edge_index
    less = replace(
        agreed.graph, edge_index=ends[:, ~(((ends[0] == s) & (ends[1] == t)) | ((ends[0] == t) & (ends[1] == s)))]
    )
    changed = (noised_hops(less, settings, classes, seed) - once).abs().amax(1) > 1e-6
    assert changed.all(), "nodes far from the edge would show the same noise"


def test_the_key_stays_at_its_owner(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport, passed = InProcess(tmp_path / "owners", shards), bytearray()

    def listen(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        reply = answer()
        passed.extend(frame.pack() + reply)
        return reply

    transport.meddle = listen
    carried_out(gap(), tmp_path, transport)
    assert len(passed) > 1000
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    found = [path.read_bytes() for path in keys(tmp_path)]
    assert len(set(found)) == len(OWNERS) and all(len(key) == 32 for key in found)
    for path, key in zip(keys(tmp_path), found, strict=True):
        assert path.stat().st_mode & 0o777 == 0o600
        assert not any(form in where for form in (key, key.hex().encode()) for where in (bytes(passed), kept))
        assert [other.name for other in path.parent.glob(f".{LASTING_KEY}*")] == []
    keys(tmp_path)[0].write_bytes(found[0][:5])
    with pytest.raises(IntegrityError, match=r"lasting.key is damaged"):
        lasting_key(transport.owned["client-00"].home)


def test_a_budget_for_edges_counts_all_runs(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """By the formula of Balle and Wang: r runs of 2 sums, each changed by sqrt(2), with noise 2 are sqrt(r)-GDP."""

    def cost(runs: int) -> float:
        mu, low, high = math.sqrt(runs * 2 * 2) / 2.0, 0.0, 50.0
        for _ in range(60):
            middle = (low + high) / 2
            delta = norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * norm.cdf(-mu / 2 - middle / mu)
            low, high = (middle, high) if delta > 1e-5 else (low, middle)
        return high

    def attempt(name: str, epsilon: float, runs: int) -> None:
        transport = InProcess(tmp_path / name, shards, {"client-01": f"[privacy]\nedge_epsilon = {epsilon}"})
        for run in range(runs):
            carried_out(gap(), tmp_path / name / "coordinator", transport, f"run-{run}")

    with pytest.raises(Refused, match="client-01 refuses: the privacy budget for edges is exceeded: 2 noised sums cost"):
        attempt("too little", cost(1) - 0.01, 1)
    attempt("enough", cost(1) + 0.01, 1)
    with pytest.raises(Refused, match="2 noised sums with 1 earlier runs cost"):
        attempt("too little for two", cost(2) - 0.01, 2)
    attempt("enough for two", cost(2) + 0.01, 2)
    line = json.loads((tmp_path / "enough" / "client-01" / ACCOUNT).read_text().splitlines()[0])
    assert line["edges"] == [[pytest.approx(math.sqrt(2)), 1.0, 2]] and line["noise"] == []


def test_what_hides_no_edge_is_refused_under_a_budget_for_edges(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    for name, made in (("gcn", planned("fedavg", 2)), ("no noise", gap("gap_sigma=0"))):
        transport = InProcess(tmp_path / name, shards, {"client-01": "[privacy]\nedge_epsilon = 100.0"})
        with pytest.raises(Refused, match=r"client-01 refuses: .* budget for edges, and this run hides none"):
            coordinator(ordered(made), tmp_path / name, transport).carry_on()
    transport = InProcess(tmp_path / "nodes", shards, {"client-01": "[privacy]\nepsilon = 100.0"})
    with pytest.raises(Refused, match="this run has no DP-SGD"):
        coordinator(ordered(gap()), tmp_path / "nodes", transport).carry_on()


def test_a_node_pays_for_its_loss_and_for_whom_it_tells(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """DP-SGD and two sums of which a node changes four each, by Opacus's numerical accountant."""
    made = gap("model.gap_level=node", "gap_max_degree=4", "gap_sigma=8.0", "training.dp_sigma=2.0", "batch_size=5")
    train = int((load_shard(shards / "client-01.safetensors").roles == Role.TRAIN).sum())
    accountant = PRVAccountant()
    accountant.history = [(2.0, 5 / train, 2 * -(-train // 5)), (8.0 / 2, 1.0, 2)]
    exact = float(accountant.get_epsilon(delta=1e-5))
    for name, epsilon, enough in (("little", exact - 0.01, False), ("enough", exact + 0.01, True)):
        transport = InProcess(tmp_path / name, shards, {"client-01": f"[privacy]\nepsilon = {epsilon}"})
        if enough:
            carried_out(made, tmp_path / name / "coordinator", transport)
        else:
            with pytest.raises(Refused, match="the privacy budget is exceeded"):
                carried_out(made, tmp_path / name / "coordinator", transport)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[privacy]\ndelta = 1e-6", "without a number: give epsilon, edge_epsilon or both"),
        ('evaluations = "noised"\nmax_evaluations = 3\n[privacy]\nedge_epsilon = 1.0', "budget with epsilon"),
    ],
)
def test_a_budget_that_counts_nothing_is_a_mistake(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_policy(path)

"""A hostile coordinator tries to get more out of an owner than its budgets allow: rounds, epsilon, scores, bytes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from one_owner import CLASSES, NAME, NOISY, Hostile, always, planned, shifted, update, zeroed
from opacus.accountants import RDPAccountant

from suture.core.chained import ChainedFile
from suture.errors import ConfigError, IntegrityError
from suture.federation.audit import AuditLog, read_audit
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.account import ACCOUNT, SPENT, Account, Caps, RunAccount
from suture.federation.owner.cost import Cost
from suture.federation.owner.owner import Owner
from suture.federation.owner.policy import load_policy
from suture.federation.wire.orders import FaultSettings, order_of
from suture.federation.wire.reasons import Code, Refused
from suture.graph.shard import load_shard
from suture.methods.averaging import Up

BUDGET = "[privacy]\nepsilon = 8.0\n"


def spent(hostile: Hostile) -> list[dict[str, object]]:
    return ChainedFile(hostile.owner.home / ACCOUNT, "account").verified()  # type: ignore[return-value]


def test_a_run_cannot_be_opened_again_under_other_terms(pieces: Path, tmp_path: Path) -> None:
    """With more noise the same name would cost less, and what it had cost would be forgotten."""
    hostile = Hostile(tmp_path, pieces, BUDGET)
    assert hostile.open(planned(4, *NOISY)).refused is None
    before = spent(hostile)
    for number in (0, 1, 4):
        for sigma in (4, 6, 1000):
            answer = hostile.open(planned(4, *NOISY, f"training.dp_sigma={sigma}.0"), number=number)
            assert answer.header["code"] == Code.TERMS and "under other terms" in str(answer.header["refused"])
    hostile.reborn()
    assert hostile.open(planned(4, *NOISY), number=2).refused is None
    assert spent(hostile) == before and len(before) == 1


def test_what_was_spent_stays_spent(pieces: Path, tmp_path: Path) -> None:
    """Names are free: runs are opened until the budget is spent, in whatever order, and never one more."""
    hostile, opened = Hostile(tmp_path, pieces, BUDGET), 0
    plans = {sigma: planned(4, *NOISY, f"training.dp_sigma={sigma}.0") for sigma in (3, 5, 20)}
    for attempt, sigma in enumerate((3, 5, 20, 3, 5, 3, 3, 5, 3) * 3):
        opened += hostile.open(plans[sigma], f"run-{attempt % 23}").refused is None
    costs = [Cost.from_json(line) for line in spent(hostile)]
    assert 7 < len(costs) <= opened < 20, "all of them would cost an epsilon of more than ten"
    accountant = RDPAccountant()
    accountant.history = [entry for cost in costs for entry in cost.noise]
    # Renyi's bound is the looser of the two that an owner asks, and whole batches leave no room between them.
    assert accountant.get_epsilon(delta=1e-5) <= 8.0 * 1.1


def spend(home: Path, first: int) -> None:
    """Six runs of a round each, for an owner that allows ten rounds."""

    def check(earlier: Sequence[Cost]) -> None:
        time.sleep(0.01)  # so that others would decide meanwhile, could they
        if sum(cost.rounds for cost in earlier) >= 10:
            raise Refused("spent", Code.BUDGET)

    for run in range(first, first + 6):
        with contextlib.suppress(Refused):
            Account(home).open(f"run-{run}", {}, Cost(1), check)
            with (home / f"granted-{first}").open("ab") as granted:
                granted.write(b".")


def test_processes_that_open_at_once_do_not_spend_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=spend, args=(tmp_path, 10 * k)) for k in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(ChainedFile(tmp_path / ACCOUNT, "account").verified()) == 10
    assert sum(path.stat().st_size for path in tmp_path.glob("granted-*")) == 10, "nobody's line was written over"


def charge_on(path: Path, answered: Path) -> None:
    account = RunAccount(path, Caps(asks=10**6, spare=0, tests=0))
    with answered.open("ab", buffering=0) as file:
        while True:
            account.run("local_update", os.urandom(32))
            account.send(100)
            file.write(b".")


def test_a_kill_while_charging_never_counts_too_little(tmp_path: Path) -> None:
    context, chance = multiprocessing.get_context("fork"), random.Random(0)
    path, answered = tmp_path / "run.jsonl", tmp_path / "answered"
    for _ in range(8):
        before = answered.stat().st_size if answered.exists() else 0
        worker = context.Process(target=charge_on, args=(path, answered))
        worker.start()
        while not answered.exists() or answered.stat().st_size < before + chance.randrange(1, 15):
            time.sleep(0.001)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        lines = ChainedFile(path, "account").verified()
        assert sum(line["event"] == "ran" for line in lines) >= answered.stat().st_size
        assert sum(line["event"] == "sent" for line in lines) >= answered.stat().st_size


def test_a_changed_account_is_noticed(tmp_path: Path) -> None:
    account = Account(tmp_path)
    account.open("first", {}, Cost(5), lambda earlier: None)
    account.open("second", {}, Cost(5), lambda earlier: None)
    path = tmp_path / ACCOUNT
    path.write_text(path.read_text().replace('"rounds":5', '"rounds":1', 1))
    with pytest.raises(IntegrityError, match="line 1"):
        Account(tmp_path).open("third", {}, Cost(5), lambda earlier: None)


@pytest.mark.parametrize(("more", "answers"), [((), 5), (NOISY, 2)], ids=["plain", "noisy"])
def test_two_rounds_are_not_fifty_asks(more: tuple[str, ...], answers: int, pieces: Path, tmp_path: Path) -> None:
    """New numbers, old ones with another content, another process, the run from its start: two rounds, and the spare."""
    hostile, made = Hostile(tmp_path, pieces, "max_rounds = 2\nspare_asks = 3"), planned(2, *more)
    start, answered = zeroed(made), 0
    assert hostile.open(made).refused is None
    for k in range(50):
        if k % 10 == 9:
            hostile.reborn()
            assert hostile.open(made, number=0 if k % 20 == 9 else 2).refused is None
        answer = hostile.ask(shifted(start, k / 100), 1 + k % 7)
        answered += answer.refused is None
        if answer.refused is not None:
            assert answer.header["code"] == Code.BUDGET and "accounted for 2 times" in str(answer.header["refused"])
    assert answered == answers


def test_rounds_of_all_runs_together(pieces: Path, tmp_path: Path) -> None:
    hostile, made = Hostile(tmp_path, pieces, "total_rounds = 5"), planned(2)
    opened = [hostile.open(made, name).refused is None for name in ("a", "b", "a", "c", "b")]
    assert opened == [True, True, True, False, True]


def test_bytes_of_all_runs_together(pieces: Path, tmp_path: Path) -> None:
    """Repeats count: what leaves, leaves."""
    made = planned(2)
    size = sum(Up.unpack(_one_answer(tmp_path / "size", pieces)).nbytes())
    hostile = Hostile(tmp_path / "owner", pieces, f"total_bytes = {3 * size + 10}")
    for run in ("a", "b"):
        assert hostile.open(made, run).refused is None
    answers = [hostile.ask(zeroed(made), run=run) for run in ("a", "b", "a", "b", "a")]
    assert [answer.refused is None for answer in answers] == [True, True, True, False, False]
    assert "bytes to leave in all runs together" in str(answers[-1].header["refused"])


def _one_answer(folder: Path, pieces: Path) -> bytes:
    hostile, made = Hostile(folder, pieces), planned(2)
    assert hostile.open(made).refused is None
    return hostile.ask(zeroed(made)).body


def histogram(hostile: Hostile) -> list[list[float]]:
    """Nodes of each class in training, validation and test, as models that always answer the same tell it."""
    made, rows = planned(4, *NOISY), []
    assert hostile.open(made).refused is None
    for answer in range(CLASSES):
        scores = hostile.test(always(made, answer))
        rows.append((scores.value[0] * scores.total[0]).tolist())
    return rows


def truth(pieces: Path) -> list[list[float]]:
    shard = load_shard(pieces / f"{NAME}.safetensors")
    return [[float(((shard.roles == role) & (shard.data.y == c)).sum()) for role in (1, 2, 3)] for c in range(CLASSES)]


def test_models_that_always_answer_the_same_count_the_classes_of_exact_scores(pieces: Path, tmp_path: Path) -> None:
    """The attack itself works where an owner tells exact scores."""
    found, real = torch.tensor(histogram(Hostile(tmp_path, pieces))), torch.tensor(truth(pieces))
    assert torch.allclose(found, real, atol=1e-5)


def test_an_owner_with_a_privacy_budget_tells_no_scores(pieces: Path, tmp_path: Path) -> None:
    hostile = Hostile(tmp_path, pieces, "[privacy]\nepsilon = 50.0")
    assert histogram(hostile) == [[0.0] * 3] * CLASSES
    losses = [Up.unpack(hostile.ask(always(planned(4, *NOISY), c), 1 + c).body).loss for c in range(4)]
    assert all(float(loss) == 0 for loss in losses), "a loss tells what a score does"


def test_scores_with_noise_are_accounted_for_and_counted(pieces: Path, tmp_path: Path) -> None:
    noised = 'evaluations = "noised"\nmax_evaluations = 5\n[privacy]\nepsilon = 50.0\nevaluation_sigma = 30.0'
    hostile = Hostile(tmp_path, pieces, noised)
    found, real = torch.tensor(histogram(hostile)), torch.tensor(truth(pieces))
    guess = real.sum(0, keepdim=True) / CLASSES
    assert (found - real).square().mean() > (guess - real).square().mean(), "no better than to guess that classes are alike"
    assert spent(hostile)[0]["tests"] == [[30.0, 1.0, 5]]
    made = planned(4, *NOISY)
    again = hostile.test(always(made, 0))
    hostile.reborn()
    assert hostile.open(made).refused is None
    assert torch.equal(hostile.test(always(made, 0)).value, again.value), "noise that is drawn again can be averaged away"
    assert hostile.test(shifted(always(made, 0), 0.1)).total.sum() == 0, "five were accounted for"


def test_rounded_scores_hide_single_nodes(pieces: Path, tmp_path: Path) -> None:
    told = torch.tensor(histogram(Hostile(tmp_path, pieces, 'evaluations = "rounded"')))
    assert torch.equal(told, (told / 10).round() * 10)


def test_evaluations_of_a_run_are_counted(pieces: Path, tmp_path: Path) -> None:
    """Without a word in the policy: twice as many as iterations, and what is spared."""
    hostile, made = Hostile(tmp_path, pieces), planned(2)
    assert hostile.open(made).refused is None
    told = [bool(hostile.test(shifted(zeroed(made), k / 10)).total.sum()) for k in range(20)]
    assert told == [True] * 12 + [False] * 8
    assert hostile.test(zeroed(made)).total.sum() > 0, "what was told once is told again"


def test_a_test_after_a_step_is_told_again_by_the_next_process(pieces: Path, tmp_path: Path) -> None:
    noised = 'evaluations = "noised"\nmax_evaluations = 9\n[privacy]\nepsilon = 50.0\nevaluation_sigma = 30.0'
    hostile, made = Hostile(tmp_path, pieces, noised), planned(4, *NOISY)
    assert hostile.open(made).refused is None
    update(hostile.ask(zeroed(made)))
    first = hostile.test(always(made, 0), 1)
    hostile.reborn()
    assert hostile.open(made, number=1).refused is None
    again = hostile.test(always(made, 0), 1)
    assert torch.equal(again.value, first.value) and torch.equal(again.total, first.total)


def test_noised_scores_need_an_account(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('evaluations = "noised"\nmax_evaluations = 5')
    with pytest.raises(ConfigError, match=r"needs max_evaluations and a \[privacy\] budget"):
        load_policy(path)


def test_what_an_earlier_version_wrote_down_is_carried_over_once(pieces: Path, tmp_path: Path) -> None:
    hostile = Hostile(tmp_path, pieces, "total_rounds = 5")
    (hostile.owner.home / SPENT).write_text(json.dumps({"old": {"rounds": 4, "noise": []}}))
    assert "4 are spent" in str(hostile.open(planned(2)).header["refused"])
    assert hostile.open(planned(1)).refused is None
    (hostile.owner.home / SPENT).unlink()
    assert "5 are spent" in str(hostile.open(planned(1), "more").header["refused"])
    carried = [line for line in hostile.audit() if line["event"] == "account carried over"]
    assert [line["runs"] for line in carried] == [["old"]]


class Desks:
    """Owners in this process."""

    def __init__(self, folder: Path, pieces: Path, policies: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.owners = ("client-00", "client-01", "client-02")
        self.desks = {}
        for owner in self.owners:
            policy = folder / f"{owner}.toml"
            policy.write_text(policies.get(owner, ""))
            self.desks[owner] = Owner.set_up(owner, pieces / f"{owner}.safetensors", policy, folder / owner).desk()

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        return self.desks[owner].answer(request)


@pytest.mark.parametrize("silent", [1, 3])
def test_a_run_goes_on_with_owners_that_tell_no_scores(silent: int, pieces: Path, tmp_path: Path) -> None:
    owners = ("client-00", "client-01", "client-02")
    transport = Desks(tmp_path / "owners", pieces, dict.fromkeys(owners[:silent], 'evaluations = "off"'))
    order = order_of(planned(3), "run", FaultSettings(patience=0.2))
    audit = tmp_path / "audit.jsonl"
    outcome = Coordinator(order, tmp_path / "run", transport, AuditLog(audit, "coordinator")).carry_on()
    assert outcome is not None and outcome.rounds == 3
    assert sum("does not tell scores" in warning for warning in outcome.warnings) == silent
    assert sum(line["event"] == "owner holds back" for line in read_audit(audit)) == silent
    if silent == 3:
        assert outcome.best_round == 3, "nobody says which round is best, so it is the last"


def test_under_a_budget_a_run_trains_to_its_end(pieces: Path, tmp_path: Path) -> None:
    """A coordinator that was killed and goes on from the start pays nothing twice."""
    hostile, made = Hostile(tmp_path, pieces, BUDGET), planned(3, *NOISY)
    params = zeroed(made)
    told = []
    for _ in range(2):
        assert hostile.open(made).refused is None
        sent = params
        for number in (1, 2, 3):
            sent = update(hostile.ask(sent, number))
            told.append(sent)
        hostile.reborn()
    assert all(torch.equal(told[k][name], told[k + 3][name]) for k in range(3) for name in params)


def test_a_damaged_ledger_at_an_owner_is_one_sentence(pieces: Path, tmp_path: Path) -> None:
    """The fuzzer's: a line without sizes ended as an error of the owner's own, with a traceback in its log."""
    hostile, made = Hostile(tmp_path, pieces), planned(2)
    assert hostile.open(made).refused is None
    update(hostile.ask(zeroed(made)))
    ledger = hostile.owner.home / "runs" / "run" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"bytes"', '"bites"'))
    hostile.reborn()
    answer = hostile.open(made, number=1)
    assert answer.header["code"] == Code.MALFORMED and "ledger.jsonl" in str(answer.refused)

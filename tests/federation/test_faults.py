"""What can go wrong between a coordinator and its owners, on transports without a network."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pipes import Piped

import pytest
import torch
from identities import kit_of
from opacus.accountants import PRVAccountant

from suture import api
from suture.core.message import Message, Model, Nothing
from suture.core.storage import Json
from suture.core.tree import tile
from suture.errors import DataError, IntegrityError
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.account import ACCOUNTS
from suture.federation.owner.owner import Owner
from suture.federation.wire.description import Description
from suture.federation.wire.frames import SEVERAL, Frame
from suture.federation.wire.orders import FaultSettings, Order, order_of
from suture.federation.wire.reasons import Code, Reason, Refused, Unreachable
from suture.federation.wire.status import State, Status
from suture.federation.wire.terms import terms_of
from suture.graph.shard import load_shard, save_shard
from suture.graph.splits import Role
from suture.method import Cohort, Task
from suture.methods.averaging import Server, Up
from suture.runs.checkpoint import load_models
from suture.runs.outcome import Tick
from suture.runs.prepare import Source

DATASET = "csbm:nodes=200,features=30,words_per_node=6"
OWNERS = ("client-00", "client-01", "client-02")
QUICK = FaultSettings(patience=0.2, step_timeout=30)
STEPS = ("ask", "seal-ask", "seal-agree", "seal-open")
"""What other requests travel along with."""


def planned(method: str = "fedavg", rounds: int = 4, *more: str) -> api.Plan:
    overrides = [f"rounds={rounds}", "model.hidden=8", *more]
    return api.plan(DATASET, [method], clients=3, seeds=[0], overrides=overrides)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = planned()
    world = Source(made).prepared(0)
    assert world.clients.ids == OWNERS
    folder = tmp_path_factory.mktemp("shards")
    normalised = made.protocol.preprocess.row_normalise
    for owner in OWNERS:
        path = folder / f"{owner}.safetensors"
        save_shard(world.clients, owner, path, classes=world.task.classes, row_normalised=normalised)
    return folder


class InProcess:
    """Desks called directly; `meddle` may raise, repeat or change what passes: of several requests in one call the step."""

    def __init__(self, folder: Path, shards: Path, policies: dict[str, str] | None = None) -> None:
        self.owned = {}
        for owner in OWNERS:
            policy = None
            if policies and owner in policies:
                policy = folder / f"{owner}.toml"
                policy.parent.mkdir(parents=True, exist_ok=True)
                policy.write_text(policies[owner])
            self.owned[owner] = Owner.set_up(
                owner, shards / f"{owner}.safetensors", policy, folder / owner, kit=kit_of(owner)
            )
        self.desks = {owner: one.desk() for owner, one in self.owned.items()}
        self.meddle: Callable[[str, Frame, Callable[[], bytes]], bytes] = lambda owner, frame, answer: answer()

    @property
    def owners(self) -> tuple[str, ...]:
        return OWNERS

    def call(self, owner: str, request: bytes, timeout: float) -> bytes:
        requests = Frame.unpack(request).parts()
        steps = [k for k, frame in enumerate(requests) if frame.header["verb"] in STEPS]
        place = steps[0] if steps else len(requests) - 1
        around: list[Frame] = []

        def answer() -> bytes:
            around[:] = Frame.unpack(self.desks[owner].answer(request)).parts()
            return around[min(place, len(around) - 1)].pack()

        reply = self.meddle(owner, requests[place], answer)
        if len(around) < 2:
            return reply
        answers = [frame.pack() for frame in around]
        answers[place] = reply
        return Frame({"verb": SEVERAL, "sizes": [len(one) for one in answers]}, b"".join(answers)).pack()

    def reborn(self, owner: str) -> None:
        """The owner's process was killed and started again."""
        self.desks[owner] = self.owned[owner].desk()

    def audit(self, owner: str) -> list[dict[str, object]]:
        return read_audit(self.owned[owner].home / AUDIT)  # type: ignore[return-value]


def ordered(made: api.Plan, faults: FaultSettings = QUICK, run: str = "run") -> Order:
    return order_of(made, run, faults)


def coordinator(order: Order, folder: Path, transport: object) -> Coordinator:
    return Coordinator(order, folder / "run", transport, AuditLog(folder / AUDIT, "coordinator"))  # type: ignore[arg-type]


def metrics(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def undisturbed(made: api.Plan, folder: Path, shards: Path) -> Path:
    assert coordinator(ordered(made), folder, InProcess(folder / "owners", shards)).carry_on() is not None
    return folder


def assert_same_end(left: Path, right: Path) -> None:
    """The same numbers in every round, each round once, and the same models everywhere, to the last bit."""
    assert metrics(left) == metrics(right)
    paths = ["run/model.safetensors", *(f"owners/{owner}/runs/run/model.safetensors" for owner in OWNERS)]
    for path in paths:
        mine, theirs = load_models(left / path)[0], load_models(right / path)[0]
        assert mine.keys() == theirs.keys()
        for client, tree in mine.items():
            assert all(torch.equal(value, theirs[client][name]) for name, value in tree.items()), (path, client)


@pytest.fixture(scope="module")
def reference(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(planned("fedper"), tmp_path_factory.mktemp("reference"), shards)


@pytest.mark.parametrize("more", [(), ("evaluation.model=local",), ("evaluation.every=2",)], ids=["plain", "local", "every"])
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_patience_runs_out_between_owners_as_in_one_process(
    method: str, more: tuple[str, ...], shards: Path, tmp_path: Path
) -> None:
    made = planned(method, 40, "lr=0.05", "patience=3", *more)
    alone = api.run_plan(made, out=tmp_path / "alone", options=api.Options(chunk=1))
    assert alone.outcome.rounds < 40
    whole = undisturbed(made, tmp_path / "whole", shards)
    assert [line["round"] for line in metrics(whole)] == [line["round"] for line in alone.history]
    for mine, theirs in zip(metrics(whole), alone.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    transport = InProcess(tmp_path / "legs" / "owners", shards)
    legs, outcome = 0, None
    while outcome is None:
        one = coordinator(ordered(made), tmp_path / "legs", transport)
        one.stop = lambda one=one: one.tick is not None  # after its first round
        outcome, legs = one.carry_on(), legs + 1
    # The leg after the last round finishes the run.
    assert legs == alone.outcome.rounds + 1
    assert outcome.rounds == alone.outcome.rounds and outcome.validation == pytest.approx(alone.outcome.validation)
    assert_same_end(tmp_path / "legs", whole)


def test_the_status_tells_the_whole_line_of_a_round(shards: Path, tmp_path: Path) -> None:
    one = coordinator(ordered(planned(rounds=2)), tmp_path, InProcess(tmp_path / "owners", shards))
    assert one.carry_on() is not None
    told = Status.read(json.loads((tmp_path / "run" / "status.json").read_text()))
    assert told.tick is not None
    assert told.tick.line == metrics(tmp_path)[-1] and (told.tick.done, told.tick.total) == (2, 2)
    assert told.tick.last_validation == told.tick.line["validation"]


class CoordinatorKilled(BaseException):
    """Not an error anybody may handle."""


def test_coordinator_killed_at_any_call(shards: Path, tmp_path: Path) -> None:
    """At one call after the other, before or after the owner got it, the coordinator dies."""
    made = planned("fedper", 2)
    reference = undisturbed(made, tmp_path / "reference", shards)
    for moment in range(1, 60, 2):
        folder = tmp_path / str(moment)
        transport = InProcess(folder / "owners", shards)
        calls = 0

        def meddle(owner: str, frame: Frame, answer: Callable[[], bytes], moment: int = moment) -> bytes:
            nonlocal calls
            calls += 1
            if calls == moment:
                if moment % 4 == 1:
                    answer()
                raise CoordinatorKilled
            return answer()

        transport.meddle = meddle
        try:
            coordinator(ordered(made), folder, transport).carry_on()
        except CoordinatorKilled:
            pass
        else:
            break
        transport.meddle = lambda owner, frame, answer: answer()
        for owner in OWNERS:
            transport.reborn(owner)
        assert coordinator(ordered(made), folder, transport).carry_on() is not None
        assert_same_end(folder, reference)
    assert moment > 15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_owner_killed_at_random_calls(seed: int, reference: Path, shards: Path, tmp_path: Path) -> None:
    """A killed owner loses nothing it has answered; its next process goes on, and the reply that was lost is given again."""
    chance = random.Random(seed)
    transport = InProcess(tmp_path / "owners", shards)

    def meddle(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        kind = chance.random()
        if kind < 0.04:  # killed before the request came
            transport.reborn(owner)
            raise Unreachable("no answer")
        if kind < 0.08:  # killed with the reply on its way
            answer()
            transport.reborn(owner)
            raise Unreachable("no answer")
        return answer()

    transport.meddle = meddle
    order, legs = ordered(planned("fedper"), replace(QUICK, patience=0.0)), 1
    while coordinator(order, tmp_path, transport).carry_on() is None:
        legs += 1
    assert legs > 1
    assert_same_end(tmp_path, reference)


def test_repeated_delivery_is_harmless(reference: Path, shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards)

    def twice(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        first, second = answer(), answer()
        assert first == second or frame.header["verb"] == "open"
        return second

    transport.meddle = twice
    assert coordinator(ordered(planned("fedper")), tmp_path, transport).carry_on() is not None
    assert_same_end(tmp_path, reference)


@pytest.mark.parametrize("method", ["fedavg", "fedpub", "gcfl", "fedproto"])
def test_a_lost_owner_is_named_and_rejoins(method: str, shards: Path, tmp_path: Path) -> None:
    """The round goes on without it; when it is back, it takes part again, and its rows were kept by its name."""
    transport = InProcess(tmp_path / "owners", shards)
    made = planned(method, 6)

    def gone_for_a_while(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        asked = frame.header.get("number", 0)
        if owner == "client-01" and isinstance(asked, int) and 3 <= asked <= 4 and frame.header["verb"] != "finish":
            raise Unreachable("no answer")
        return answer()

    transport.meddle = gone_for_a_while
    faults = replace(QUICK, on_loss="continue", patience=0.0)
    assert coordinator(ordered(made, faults), tmp_path, transport).carry_on() is not None
    events = read_audit(tmp_path / AUDIT)
    lost = next(line for line in events if line["event"] == "owner is lost")
    assert (lost["owner"], lost["code"]) == ("client-01", Code.NO_ANSWER)
    assert any(line["event"] == "owner is back" and line["owner"] == "client-01" for line in events)
    assert len(metrics(tmp_path)) == 6
    sent = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    trained = {line["ask"]: set() for line in sent}
    for line in sent:
        if line["step"] == "local_update" and line["direction"] == "up":
            trained[line["ask"]] |= set(line["clients"])
    assert trained[2] == set(OWNERS)
    assert trained[3] == {"client-00", "client-02"}
    assert trained[6] == set(OWNERS)


def test_waiting_stops_at_the_last_finished_round(reference: Path, shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards)

    def gone(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if owner == "client-02" and frame.header.get("number") == 3:
            raise Unreachable("no answer")
        return answer()

    transport.meddle = gone
    leg = coordinator(ordered(planned("fedper")), tmp_path, transport)
    assert leg.carry_on() is None
    assert leg.status.state == State.WAITING
    assert leg.status.reason is not None and "client-02" in leg.status.reason.text
    transport.meddle = lambda owner, frame, answer: answer()
    assert coordinator(ordered(planned("fedper")), tmp_path, transport).carry_on() is not None
    assert_same_end(tmp_path, reference)


def recorded(transport: InProcess) -> list[tuple[str, list[Frame]]]:
    """(owner, the requests in it) of every call from now on."""
    calls: list[tuple[str, list[Frame]]] = []
    plain = transport.call

    def call(owner: str, request: bytes, timeout: float) -> bytes:
        calls.append((owner, Frame.unpack(request).parts()))
        return plain(owner, request, timeout)

    transport.call = call  # type: ignore[method-assign]
    return calls


def test_what_is_known_together_travels_together(shards: Path, tmp_path: Path) -> None:
    """A round costs one call an owner, and the ledgers say what they say when everything travels alone."""
    transport = InProcess(tmp_path / "owners", shards)
    calls = recorded(transport)
    assert coordinator(ordered(planned("fedavg", 6)), tmp_path, transport).carry_on() is not None
    wanted = [[frame.header["verb"] for frame in frames] for owner, frames in calls if owner == "client-00"]
    assert wanted[:4] == [["describe"], ["open"], ["ask"], ["evaluate"]]
    assert [[verb for verb in verbs if verb != "retain"] for verbs in wanted[4:]] == [["ask", "evaluate"]] * 5 + [["finish"]]
    for path in (tmp_path / "run", tmp_path / "owners" / "client-00" / "runs" / "run"):
        lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
        left = [(line["ask"], line["step"]) for line in lines if line["direction"] == "up"]
        assert left == [(number, step) for number in range(1, 7) for step in ("local_update", "evaluate")]


def test_a_test_that_came_too_early_is_not_taken(shards: Path, tmp_path: Path) -> None:
    """An iteration that asks once more than the one before is tested after its last step, not with what came before it."""
    transport, made = InProcess(tmp_path / "owners", shards), planned()
    method = made.methods[0]
    terms = terms_of(made, Description(30, 5)).as_json()
    task = Task(30, 5, 0)
    cohort = OwnersCohort.start(method, task, "run", transport, terms, AuditLog(tmp_path / AUDIT, "coordinator"))
    times = 1

    def body(server: Server, cohort: Cohort) -> Server:
        for _ in range(times):
            cohort.ask(method.local_update, Model(cohort.ids, tile(server.params, len(cohort.ids))))
        return server

    test = Nothing(cohort.ids)
    for times in (1, 2):  # noqa: B007
        cohort.carry_out(body, method.init_server(task), test)
        calls = recorded(transport)
        scores = cohort.evaluate(test)
        assert [frames[0].header["verb"] for _, frames in calls] == ["evaluate"] * 3
    cohort.carry_out(body, method.init_server(task), test)
    calls = recorded(transport)
    later = cohort.evaluate(test)
    assert not calls, "the third iteration is like the second, so its test travelled with its last step"
    assert not torch.equal(scores.loss, later.loss)
    cohort.close()


def test_models_to_retain_survive_the_coordinator(shards: Path, tmp_path: Path) -> None:
    """Killed after the checkpoint that says which models count, and before any owner was told so."""
    made = planned("fedper", 3)
    transport = InProcess(tmp_path / "owners", shards)

    def killed(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if frame.header.get("number") == 2:
            raise CoordinatorKilled
        return answer()

    transport.meddle = killed
    with pytest.raises(CoordinatorKilled):
        coordinator(ordered(made), tmp_path, transport).carry_on()
    runs = [tmp_path / "owners" / owner / "runs" / "run" for owner in OWNERS]
    assert not any((run / "retained").exists() for run in runs)
    transport.meddle = lambda owner, frame, answer: answer()
    calls = recorded(transport)
    assert coordinator(ordered(made), tmp_path, transport).carry_on() is not None
    told = [(owner, frame.header) for owner, frames in calls for frame in frames]
    retained = [owner for owner, header in told if header["verb"] == "retain" and header["number"] == 1]
    assert sorted(retained) == list(OWNERS)


def test_an_owner_that_is_not_asked_retains_in_the_next_round(shards: Path, tmp_path: Path) -> None:
    """A checkpoint knows what was to be retained in one round only, so nobody may wait for longer."""
    transport = InProcess(tmp_path / "owners", shards)
    calls = recorded(transport)
    made = planned("fedavg", 4, "lr=1e-12", "training.participation=0.3", "evaluation.every=2")
    assert coordinator(ordered(made), tmp_path, transport).carry_on() is not None
    order = [(owner, frame.header["verb"], frame.header.get("number")) for owner, frames in calls for frame in frames]
    fourth = next(k for k, (_, verb, number) in enumerate(order) if verb == "ask" and number == 4)
    retained = [(owner, number) for owner, verb, number in order[:fourth] if verb == "retain"]
    assert sorted(retained) == [(owner, 2) for owner in OWNERS]


def test_several_requests_are_answered_until_one_is_refused(shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards)
    assert coordinator(ordered(planned()), tmp_path, transport).carry_on() is not None
    desk, ledger = transport.desks["client-00"], tmp_path / "owners" / "client-00" / "runs" / "run" / "ledger.jsonl"
    test = Frame({"verb": "evaluate", "run": "run", "number": 4}, Nothing(("client-00",)).pack())
    wrong = Frame({"verb": "ask", "run": "run", "step": "init_server", "number": 5, "base": 4})
    before = len(ledger.read_text().splitlines())
    answers = Frame.unpack(desk.answer(Frame.several([test, wrong, test]).pack())).parts()
    assert [("refused" in answer.header) for answer in answers] == [False, True]
    assert len(ledger.read_text().splitlines()) == before + 1, "what was not answered has not left"
    nested = Frame.several([test, Frame.several([test, test])])
    refused = Frame.unpack(desk.answer(nested.pack())).parts()[1].header["refused"]
    assert "nothing this owner can be asked for" in str(refused)
    for sizes in ([], [5], [-1, 1], "all", [True]):
        broken = Frame({"verb": SEVERAL, "sizes": sizes}, test.pack())  # type: ignore[dict-item]
        assert "does not hold what it says" in str(Frame.unpack(desk.answer(broken.pack())).header["refused"])


def _spoilt(frame: bytes, spoil: Callable[[Up], Message]) -> bytes:
    parsed = Frame.unpack(frame)
    return Frame(parsed.header, spoil(Up.unpack(parsed.body)).pack()).pack()


def _headed(frame: bytes, **changes: Json) -> bytes:
    parsed = Frame.unpack(frame)
    return Frame({**parsed.header, **changes}, parsed.body).pack()


def _scaled(up: Up, factor: float) -> Up:
    return replace(up, params={name: value * factor for name, value in up.params.items()})


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nan": (lambda b: _spoilt(b, lambda up: _scaled(up, float("nan"))), "NaN"),
    "infinite": (lambda b: _spoilt(b, lambda up: _scaled(up, float("inf"))), "NaN or infinity"),
    "another type": (lambda b: _spoilt(b, lambda up: Model(up.ids, up.params)), "expected a Up"),
    "another owner": (lambda b: _spoilt(b, lambda up: replace(up, ids=("client-01",))), "answers for client-01"),
    "another shape": (
        lambda b: _spoilt(b, lambda up: replace(up, params={n: v[..., :-1] for n, v in up.params.items()})),
        "expected float32",
    ),
    "a field less": (
        lambda b: _spoilt(b, lambda up: replace(up, params=dict(list(up.params.items())[1:]))),
        "absent",
    ),
    "cut short": (lambda b: b[:-5], "cut short"),
    "no frame": (lambda b: b"\x80\x04pickle", "malformed"),
    "oversized": (lambda b: b + bytes(2_000_000), "larger than"),
    "another step": (lambda b: _headed(b, number=99), "answers step 99"),
    "another request": (lambda b: _headed(b, answers="0" * 32), "answers another request"),
}


@pytest.mark.parametrize("kind", list(SPOILT))
def test_a_bad_reply_is_refused_named_and_harmless(kind: str, shards: Path, tmp_path: Path) -> None:
    """Refused by name; the model is the one the two others train, as if the third had never come."""
    spoil, reason = SPOILT[kind]
    faults = replace(QUICK, on_loss="continue", patience=0.0, max_reply_bytes=1_000_000)
    ends = []
    for name in ("spoilt", "absent"):
        transport = InProcess(tmp_path / name / "owners", shards)

        def meddle(owner: str, frame: Frame, answer: Callable[[], bytes], name: str = name) -> bytes:
            late = frame.header["verb"] == "ask" and frame.number("number") >= 2
            if owner == "client-00" and late:
                if name == "spoilt":
                    return spoil(answer())
                raise Unreachable("no answer")
            again = frame.header["verb"] in ("evaluate", "open") and frame.number("number") >= 2
            if owner == "client-00" and name == "absent" and again:
                raise Unreachable("no answer")
            return answer()

        transport.meddle = meddle
        assert coordinator(ordered(planned(), faults), tmp_path / name, transport).carry_on() is not None
        ends.append(load_models(tmp_path / name / "run" / "model.safetensors")[0]["shared"])
    refused = [line for line in read_audit(tmp_path / "spoilt" / AUDIT) if line["event"] == "owner is lost"]
    assert refused[0]["owner"] == "client-00"
    assert reason in str(refused[0]["reason"])
    assert refused[0]["code"] == Code.BAD_REPLY
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_owners_as_processes_survive_kill_9(reference: Path, shards: Path, tmp_path: Path) -> None:
    transport = Piped(tmp_path / "owners", OWNERS, shards)
    try:
        plain = transport.call

        def killing(owner: str, request: bytes, timeout: float) -> bytes:
            numbers = {frame.header.get("number") for frame in Frame.unpack(request).parts()}
            if owner == "client-01" and 3 in numbers and "killed" not in vars(transport):
                transport.killed = True  # type: ignore[attr-defined]
                reply = plain(owner, request, timeout)
                transport.kill(owner)
                assert reply
                raise Unreachable("no answer")
            return plain(owner, request, timeout)

        transport.call = killing  # type: ignore[method-assign]
        order = ordered(planned("fedper"), replace(QUICK, patience=0.0))
        assert coordinator(order, tmp_path, transport).carry_on() is None
        transport.start("client-01")
        assert coordinator(order, tmp_path, transport).carry_on() is not None
        assert_same_end(tmp_path, reference)
    finally:
        transport.close()


POLICIES = {
    "a method": ('methods = ["fedprox"]', "the policy allows fedprox, not fedavg"),
    "a field": ('forbid_fields = ["loss"]', "the policy forbids loss to leave"),
    "a part of a field": ('forbid_fields = ["params.layer1"]', "the policy forbids params.layer1 to leave"),
    "rounds": ("max_rounds = 3", "the policy allows 3 iterations a run, asked are 4"),
    "size": ("max_message_bytes = 500", "the policy allows replies of 500 bytes"),
    "no secure aggregation": ("require_secure_aggregation = true", "requires secure aggregation"),
    "no noise": ("[privacy]\nepsilon = 1.0", "no DP-SGD"),
}


@pytest.mark.parametrize("kind", list(POLICIES))
def test_an_owner_refuses_what_its_policy_forbids(kind: str, shards: Path, tmp_path: Path) -> None:
    policy, reason = POLICIES[kind]
    transport = InProcess(tmp_path / "owners", shards, {"client-01": policy})
    leg = coordinator(ordered(planned()), tmp_path, transport)
    with pytest.raises(Refused, match="owner client-01 refuses") as caught:
        leg.carry_on()
    assert caught.value.code == Code.POLICY
    assert leg.status.state == State.REFUSED and leg.status.reason is not None and leg.status.reason.code == Code.POLICY
    assert any(line["event"] == "refused" and reason in str(line["reason"]) for line in transport.audit("client-01"))
    noted = [line for line in read_audit(tmp_path / AUDIT) if line["event"] == "refused by an owner"]
    assert noted and noted[0]["owner"] == "client-01" and reason in str(noted[0]["reason"])
    assert noted[0]["code"] == Code.POLICY
    assert not any(line["event"] == "refused" for line in transport.audit("client-00"))


def test_a_budget_over_several_runs(shards: Path, tmp_path: Path) -> None:
    """Opening the same run again costs nothing; the third run of four rounds is one too many."""
    transport = InProcess(tmp_path / "owners", shards, {"client-00": "total_rounds = 10"})
    for run in ("first", "second"):
        order = ordered(planned(), run=run)
        assert Coordinator(order, tmp_path / run, transport, AuditLog(tmp_path / AUDIT, "c")).carry_on() is not None
    with pytest.raises(Refused, match="budget of 10 iterations is exceeded: 8 are spent"):
        coordinator(ordered(planned(), run="third"), tmp_path, transport).carry_on()


def test_only_declared_steps_of_an_opened_run(shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards)
    assert coordinator(ordered(planned()), tmp_path, transport).carry_on() is not None
    body = Model(("client-00",), {}).pack()
    header = {"verb": "ask", "run": "run", "number": 9, "base": 9, "round": 1}
    for change, reason, code in (
        ({"step": "init_server"}, "not a step that fedavg asks for", Code.UNDECLARED),
        ({"step": "__init__"}, "not a step that fedavg asks for", Code.UNDECLARED),
        ({"step": "local_update", "run": "another"}, "has not been opened", Code.NOT_OPENED),
        ({"step": "local_update", "run": "../../run"}, "has not been opened", Code.NOT_OPENED),
        ({"verb": "eval"}, "nothing this owner can be asked for", Code.UNDECLARED),
        ({"step": "local_update", "number": -1}, "whole number", Code.MALFORMED),
        ({"step": "local_update", "number": 0}, "numbered from 1", Code.MALFORMED),
    ):
        reply = Frame.unpack(transport.desks["client-00"].answer(Frame({**header, **change}, body).pack()))
        assert reason in str(reply.header["refused"])
        assert reason in str(transport.audit("client-00")[-1]["reason"])
        assert reply.header["code"] == transport.audit("client-00")[-1]["code"] == code
    assert sum(line["event"] == "refused" for line in transport.audit("client-00")) == 7


def test_terms_are_checked_by_the_owner(shards: Path, tmp_path: Path) -> None:
    """Whatever a coordinator sends as terms, only installed methods with valid fields are opened."""
    owner = InProcess(tmp_path, shards).owned["client-00"]
    terms: dict[str, object] = {"method": "fedprox", "features": 30, "classes": 5, "seed": 0, "rounds": 100}
    owner.agree("fine", dict(terms))  # type: ignore[arg-type]
    for change, reason in (
        ({"method": "os.system"}, "unknown method"),
        ({"method": "global"}, "uncut graph"),
        ({"fields": {"mu": "1; import os"}}, "mu must be"),
        ({"fields": {"nu": 1.0}}, "unknown"),
        ({"code": "print()"}, "unknown"),
        ({"features": 31}, "31 features"),
        ({"rounds": 1}, "iterations"),
        ({"training": {"rounds": -5}}, "rounds"),
    ):
        with pytest.raises(Refused, match=reason) as caught:
            owner.agree("bad", {**terms, **change})  # type: ignore[dict-item]
        assert caught.value.code == Code.TERMS


def test_owners_must_have_the_same_features(shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards)

    def lie(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if owner == "client-02" and frame.header["verb"] == "describe":
            return _headed(answer(), features=7)
        return answer()

    transport.meddle = lie
    with pytest.raises(DataError, match="client-02 has 7"):
        coordinator(ordered(planned()), tmp_path, transport).carry_on()


def noisy(rounds: int = 4, *more: str) -> api.Plan:
    return planned("fedavg", rounds, "training.dp_sigma=2.0", "batch_size=5", *more)


def exact_epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


def test_a_privacy_budget_is_accounted_for_over_all_runs(shards: Path, tmp_path: Path) -> None:
    """As much as Opacus's numerical accountant says for Poisson-sampled steps, and two runs cost more than one."""
    train = int((load_shard(shards / "client-01.safetensors").roles == Role.TRAIN).sum())
    steps = 4 * -(-train // 5)
    one, two = (exact_epsilon(2.0, 5 / train, times * steps, 1e-5) for times in (1, 2))
    assert one < two

    def attempt(name: str, epsilon: float, runs: int) -> None:
        transport = InProcess(tmp_path / name, shards, {"client-01": f"[privacy]\nepsilon = {epsilon}"})
        for run in range(runs):
            order = ordered(noisy(), run=f"run-{run}")
            path = tmp_path / name / f"run-{run}"
            assert Coordinator(order, path, transport, AuditLog(tmp_path / name / AUDIT, "c")).carry_on() is not None

    with pytest.raises(Refused, match=f"client-01 refuses: the privacy budget is exceeded: {steps} steps with noise 2 cost"):
        attempt("too little", one - 0.01, 1)
    attempt("enough", one + 0.01, 1)
    with pytest.raises(Refused, match="with 1 earlier runs cost"):
        attempt("too little for two", two - 0.01, 2)
    attempt("enough for two", two + 0.01, 2)


def test_a_noisy_step_is_run_as_often_as_was_accounted_for(shards: Path, tmp_path: Path) -> None:
    """A coordinator that asks for more than the terms say gets no more; one that asks twice does not get the same noise."""
    transport = InProcess(tmp_path / "owners", shards, {"client-00": "[privacy]\nepsilon = 100.0"})
    sent: dict[int, bytes] = {}

    def keep(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if owner == "client-00" and frame.header["verb"] == "ask":
            sent[frame.number("number")] = frame.body
        return answer()

    transport.meddle = keep
    assert coordinator(ordered(noisy(2)), tmp_path, transport).carry_on() is not None
    desk = transport.desks["client-00"]

    def ask(number: int, shift: float) -> Frame:
        model = Model.unpack(sent[1])
        body = replace(model, params={name: value + shift for name, value in model.params.items()}).pack()
        header = {"verb": "ask", "run": "run", "step": "local_update", "number": number, "base": 0, "round": 1}
        return Frame.unpack(desk.answer(Frame(header, body).pack()))

    assert "accounted for 2 times" in str(ask(3, 0.1).header["refused"])
    shutil.rmtree(tmp_path / "owners" / "client-00" / ACCOUNTS)
    transport.reborn("client-00")
    desk = transport.desks["client-00"]
    terms = json.loads((tmp_path / "owners" / "client-00" / "runs" / "run" / "terms.json").read_text())
    opened = desk.answer(Frame({"verb": "open", "run": "run", "number": 2, "terms": terms}).pack())
    assert Frame.unpack(opened).refused is None
    first, second = (Up.unpack(ask(1, shift).body).params for shift in (0.0, 1e-6))
    moved = torch.cat([(first[name] - second[name]).flatten() for name in first])
    assert moved.abs().mean() > 1e-4, "the same noise on two contents could be subtracted"


def test_noise_on_weights_does_not_cover_prototypes(shards: Path, tmp_path: Path) -> None:
    transport = InProcess(tmp_path / "owners", shards, {"client-01": "[privacy]\nepsilon = 100.0"})
    with pytest.raises(Refused, match=r"client-01 refuses: .*would leave without noise"):
        coordinator(ordered(planned("fedproto", 2, "training.dp_sigma=50.0")), tmp_path, transport).carry_on()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield


def test_a_status_comes_back_as_it_was_written() -> None:
    """With its codes, through JSON: what an operator decides by."""
    lost = {"client-01": Reason(Code.NO_ANSWER, "no answer"), "client-02": Reason(Code.BAD_REPLY, "its reply is NaN")}
    why, line = Reason(Code.POLICY, "forbidden"), {"loss": 0.5, "client_test": [0.25, None]}
    told = Status("run", "fedavg", State.WAITING, 1.5, Tick("train", 2, 4, 3.0, line, None, False, "mae"), lost, why)
    assert Status.read(json.loads(json.dumps(told.as_json()))) == told
    with pytest.raises(IntegrityError, match="same version"):
        Status.read({**told.as_json(), "state": "resting"})


def test_a_code_nobody_knows_is_a_failure() -> None:
    for code in ("from the future", None, 3, ["policy"], {}):
        refused = Frame({"refused": "no", "code": code}).refused  # type: ignore[dict-item]
        assert refused is not None and refused.code == Code.FAILED
    assert Frame({"refused": "no", "code": "policy"}).refused.code == Code.POLICY  # type: ignore[union-attr]

"""One owner of five is hostile, at every moment and in every way we could think of: the run finishes without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from five_owners import (
    BAD,
    CONTINUE,
    OWNERS,
    WAIT,
    Parties,
    Spoil,
    assert_finished_without,
    at,
    changed,
    coordinator,
    headed,
    joined,
    named,
    planned,
    refuses,
    write_shards,
)

from suture.core.message import Message, Nothing
from suture.core.packing import parse
from suture.errors import DataError, SutureError
from suture.federation.audit import AUDIT, AuditLog, read_audit
from suture.federation.coordinator.attendance import OwnersLost
from suture.federation.coordinator.cohort import OwnersCohort
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import BadReply, Code, Refused, TooFew, Unreachable
from suture.federation.wire.status import State
from suture.method import Cohort, Scores, Task
from suture.methods.averaging import Up
from suture.methods.census import Spread, Totals
from suture.methods.fedggr.messages import Codes
from suture.methods.fedggr.messages import Up as GgrUp
from suture.methods.fedpub.method import Up as PubUp
from suture.runs.checkpoint import load_models


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield


COUNTING = ("preprocess.standardise=true", "class_weights=balanced")
MOMENTS = {
    "describe": ((), at("describe", refuses)),
    "open": ((), at("open", refuses)),
    "census": (COUNTING, at("ask", refuses, step="measure")),
    "ask": ((), at("ask", refuses, 2)),
    "evaluate": ((), at("evaluate", refuses)),
    "retain": ((), at("retain", refuses)),
    "finish": ((), at("finish", refuses)),
}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_refusal_is_the_end_of_who_refuses(moment: str, shards: Path, tmp_path: Path) -> None:
    more, spoil = MOMENTS[moment]
    parties = Parties(tmp_path / "owners", shards, spoil)
    assert coordinator(planned("fedavg", *more), tmp_path, parties).carry_on() is not None
    assert_finished_without(tmp_path, parties, Code.POLICY)
    # Where nobody may be left out it is the run's end, in one sentence.
    parties = Parties(tmp_path / "waiting" / "owners", shards, spoil)
    leg = coordinator(planned("fedavg", *more), tmp_path / "waiting", parties, WAIT)
    with pytest.raises(Refused, match=f"^owner {BAD} refuses: I do not feel like it$"):
        leg.carry_on()
    assert leg.status.state == State.REFUSED


def scaled(factor: float) -> Spoil:
    return changed(Up, lambda was: {path: value * factor for path, value in was.items() if path.startswith("params.")})


def weighing(value: float) -> Spoil:
    return changed(Up, lambda was: {"weight": torch.tensor([value])})


def all_of(value: float) -> Spoil:
    return changed(Up, lambda was: {p: torch.full_like(v, value) for p, v in was.items() if p.startswith("params.")})


def text_header(text: bytes, body: bytes = b"") -> bytes:
    return b"".join([b"SUX1", len(text).to_bytes(4, "little"), text, body])


def message_header(text: str) -> Spoil:
    body = b"".join([b"SUT1", len(text.encode()).to_bytes(4, "little"), text.encode()])
    return lambda asked, told: Frame(told.header, body).pack()


def many_tensors(asked: Frame, told: Frame) -> bytes:
    entries = [[f"params.t{number}", "float32", [1, 0]] for number in range(30_000)]
    text = json.dumps({"type": "Up", "ids": [BAD], "scalars": {}, "tensors": entries})
    return message_header(text)(asked, told)


def with_text(more: bytes) -> Spoil:
    """The honest header, and something in it that a parser should not be given."""

    def spoil(asked: Frame, told: Frame) -> bytes:
        honest = json.dumps(told.header).encode()
        return text_header(honest[:-1] + b',"more":' + more + b"}", told.body)

    return spoil


def empty_and_wide(asked: Frame, told: Frame) -> bytes:
    text = json.dumps({"type": "Up", "ids": [BAD], "scalars": {}, "tensors": [["params.w", "float32", [1, 0, 1 << 40]]]})
    return message_header(text)(asked, told)


class Replays:
    """What was answered first, again and again, under the number that is asked for."""

    def __init__(self) -> None:
        self.first: Frame | None = None

    def __call__(self, asked: Frame, told: Frame) -> bytes:
        if asked.header["verb"] != "ask":
            return told.pack()
        self.first = self.first or told
        return headed(self.first, number=asked.header["number"])


REPLIES: dict[str, tuple[Spoil, str]] = {
    "3e38": (all_of(3e38), "holds 3e.38, expected is -1e.18"),
    "a million times": (scaled(1e9), "that of the others usually 1"),
    "nan": (scaled(float("nan")), "NaN or infinity"),
    "weight -1000": (weighing(-1000.0), "its weight holds -1000"),
    "weight 1e30": (weighing(1e30), "its weight holds 1e\\+30"),
    "weight nan": (weighing(float("nan")), "NaN or infinity"),
    "another's name": (
        lambda asked, told: Frame(told.header, replace(Up.unpack(told.body), ids=(OWNERS[0],)).pack()).pack(),
        f"answers for {OWNERS[0]}",
    ),
    "a vector more": (
        changed(Up, lambda was: {path: torch.cat([v, v], -1) for path, v in was.items() if path.startswith("params.")}),
        "expected float32",
    ),
    "deep": (with_text(b"[" * 500 + b"]" * 500), "nested too deeply"),
    "a huge header": (with_text(b'"' + b"x" * (5 << 20) + b'"'), "larger than|bytes, at most"),
    "many entries": (with_text(b"[" + b"[]," * 250_000 + b"1]"), "too many entries"),
    "a long number": (with_text(b"9" * 4000), "more than 32 digits"),
    "half a character": (with_text(b'"\\ud800"'), "cannot be read"),
    "a key twice": (with_text(b'1,"number":7'), "says a thing twice"),
    "not a number": (with_text(b"NaN"), "holds NaN"),
    "no answer": (lambda asked, told: b"", "malformed"),
    "many tensors": (many_tensors, "tensors, at most|entries|bytes, at most"),
    "empty and wide": (empty_and_wide, "impossible tensor"),
    "too long": (lambda asked, told: told.pack() + bytes(2_000_000), "larger than"),
    "an old answer": (Replays(), "answers another request"),
}


@pytest.fixture(scope="module")
def without(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model that the four others train if the fifth does not answer any more after the first round."""
    folder = tmp_path_factory.mktemp("without")
    parties = Parties(folder / "owners", shards)
    plain = parties.call

    def call(owner: str, request: bytes, timeout: float) -> bytes:
        if owner == BAD and any(
            frame.number("number") >= 2 for frame in Frame.unpack(request).parts()[-1:] if "number" in frame.header
        ):
            raise Unreachable("no answer")
        return plain(owner, request, timeout)

    parties.call = call  # type: ignore[method-assign]
    assert coordinator(planned(), folder, parties).carry_on() is not None
    return load_models(folder / "run" / "model.safetensors")[0]["shared"]


@pytest.mark.parametrize("kind", list(REPLIES))
def test_a_hostile_reply_is_its_senders_end(
    kind: str, shards: Path, without: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    spoil, reason = REPLIES[kind]
    if not isinstance(spoil, Replays):
        spoil = at("ask", spoil, 2)
    parties = Parties(tmp_path / "owners", shards, spoil)
    assert coordinator(planned(), tmp_path, parties).carry_on() is not None
    told = assert_finished_without(tmp_path, parties, Code.BAD_REPLY)
    assert re.search(reason, told), told
    mine = load_models(tmp_path / "run" / "model.safetensors")[0]["shared"]
    assert all(torch.equal(mine[name], value) for name, value in without.items())
    asked = [number for owner, verb, number in parties.heard if owner == BAD and verb == "ask"]
    assert asked == [1, 2], "whose reply was refused is not asked again"


@pytest.mark.parametrize(("many", "reason"), [(3000, "holds 3,000 others"), (2, "it answers 2 of 1 requests")])
def test_answers_to_what_was_not_asked(many: int, reason: str, shards: Path, tmp_path: Path) -> None:
    spoil = at("describe", lambda asked, told: joined([told.pack()] * many))
    parties = Parties(tmp_path / "owners", shards, spoil)
    assert coordinator(planned(rounds=1), tmp_path, parties).carry_on() is not None
    assert reason in assert_finished_without(tmp_path, parties, Code.BAD_REPLY)


@pytest.mark.parametrize("kind", ["3e38", "weight -1000", "an old answer"])
def test_waiting_for_a_hostile_reply_ends_in_a_sentence(kind: str, shards: Path, tmp_path: Path) -> None:
    spoil, _ = REPLIES[kind]
    parties = Parties(tmp_path / "owners", shards, spoil if isinstance(spoil, Replays) else at("ask", spoil, 2))
    leg = coordinator(planned(), tmp_path, parties, WAIT)
    with pytest.raises(BadReply, match=f"owner {BAD} answers to local_update is refused") as caught:
        leg.carry_on()
    assert "\n" not in str(caught.value) and leg.status.state == State.FAILED


def test_robust_aggregation_goes_on_with_everybody(shards: Path, tmp_path: Path) -> None:
    """It leaves such an update out in every round, and names its sender."""
    parties = Parties(tmp_path / "owners", shards, at("ask", all_of(3e38), 1))
    outcome = coordinator(planned("fedavg", "training.aggregation=median"), tmp_path, parties).carry_on()
    assert outcome is not None and outcome.suspects[0] == BAD
    assert not named(tmp_path)


def telling(**values: torch.Tensor) -> Spoil:
    return changed(Scores, lambda was: values)


SCORES = {
    "1e9": telling(value=torch.full((1, 3), 1e9, dtype=torch.float64)),
    "below zero": telling(value=torch.full((1, 3), -0.5, dtype=torch.float64)),
    "nan": telling(value=torch.full((1, 3), torch.nan, dtype=torch.float64)),
    "fewer than none": telling(total=torch.full((1, 3), -5)),
    "more than there are": telling(total=torch.full((1, 3), 1 << 60)),
    "an enormous loss": telling(loss=torch.tensor([1e30])),
}


@pytest.mark.parametrize("kind", list(SCORES))
def test_absurd_scores(kind: str, shards: Path, tmp_path: Path) -> None:
    parties = Parties(tmp_path / "owners", shards, at("evaluate", SCORES[kind]))
    outcome = coordinator(planned(rounds=2), tmp_path, parties).carry_on()
    assert outcome is not None and 0 <= outcome.accuracy_client_mean <= 1
    assert_finished_without(tmp_path, parties, Code.BAD_REPLY)


DESCRIPTIONS: dict[str, dict[str, object]] = {
    "classes": {"classes": 10**9},
    "many classes": {"classes": 2**62},
    "other features": {"features": 7},
    "many features": {"features": 2**40},
    "another kind": {"kind": "value"},
    "weights": {"weighted": True},
    "a schema": {"schema": {"columns": "all"}},
    "a name that is none": {"masks": ["../mask"]},
    "a text": {"features": "twenty"},
}


@pytest.mark.parametrize("kind", list(DESCRIPTIONS))
def test_an_absurd_description(kind: str, shards: Path, tmp_path: Path) -> None:
    """The run is settled with the others, and this owner is not even asked to open it."""
    spoil = at("describe", lambda asked, told: headed(told, **DESCRIPTIONS[kind]))
    parties = Parties(tmp_path / "owners", shards, spoil)
    assert coordinator(planned(rounds=1), tmp_path, parties).carry_on() is not None
    assert_finished_without(tmp_path, parties, Code.BAD_REPLY)
    assert [verb for owner, verb, _ in parties.heard if owner == BAD] == ["describe"]
    waiting = coordinator(planned(rounds=1), tmp_path / "waiting", Parties(tmp_path / "waiting", shards, spoil), WAIT)
    with pytest.raises((BadReply, DataError), match=BAD) as caught:
        waiting.carry_on()
    assert "\n" not in str(caught.value)


COUNTS = {
    "nan": ("count", changed(Totals, lambda was: {"mean": was["mean"] * torch.nan})),
    "1e300": ("count", changed(Totals, lambda was: {"mean": was["mean"] + 1e300})),
    "weight": ("count", changed(Totals, lambda was: {"weight": -was["weight"]})),
    "classes": ("count", changed(Totals, lambda was: {"label": was["label"] - 1e6})),
    "nobody trains": ("count", changed(Totals, lambda was: {"trained": was["trained"] - 1e6})),
    "squares": ("measure", changed(Spread, lambda was: {"square": was["square"] - 1e12})),
    "enormous squares": ("measure", changed(Spread, lambda was: {"square": was["square"] + 1e17})),
}


@pytest.mark.parametrize("kind", list(COUNTS))
def test_absurd_counts(kind: str, shards: Path, tmp_path: Path) -> None:
    """Beyond any bound they are refused as such; otherwise because nobody could train with what follows of them."""
    step, spoil = COUNTS[kind]
    parties = Parties(tmp_path / "owners", shards, at("ask", spoil, step=step.split()[0]))
    assert coordinator(planned("fedavg", *COUNTING, rounds=1), tmp_path, parties).carry_on() is not None
    if kind == "enormous squares":
        # A scale of 1e8 is a possible one. That owners count truly nobody can promise.
        assert not named(tmp_path)
        return
    assert_finished_without(tmp_path, parties, Code.BAD_REPLY)


def test_masks_that_nobody_else_has(shards: Path, tmp_path: Path) -> None:
    """Where anybody has masks nobody draws: one owner that tells of some would leave the others without a training node."""
    spoil = at("describe", lambda asked, told: headed(told, masks=["test_mask"]))
    parties = Parties(tmp_path / "owners", shards, spoil)
    assert coordinator(planned(rounds=1), tmp_path, parties).carry_on() is not None
    assert any(line["event"] == "masks are not used" and line["owners"] == [BAD] for line in read_audit(tmp_path / AUDIT))


def a_row_less(field: str, kind: type[Message]) -> Spoil:
    """Ragged rows that are well-formed, and one short of what was asked."""

    def change(was: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = was[f"{field}.values"][:-1]
        return {f"{field}.values": values, f"{field}.ptr": torch.tensor([0, values.shape[0]])}

    return changed(kind, change)


def absurd_floats(asked: Frame, told: Frame) -> bytes:
    """Every float of a reply becomes 1e30, whatever it means."""
    kind, ids, scalars, tensors = parse(told.body)
    big = {path: value * 0 + 1e30 if value.is_floating_point() else value for path, value in tensors.items()}
    layout = [[path, str(value.dtype).removeprefix("torch."), list(value.shape)] for path, value in big.items()]
    header = json.dumps({"type": kind, "ids": list(ids), "scalars": scalars, "tensors": layout}).encode()
    body = b"".join([b"SUT1", len(header).to_bytes(4, "little"), header, *(v.numpy().tobytes() for v in big.values())])
    return Frame(told.header, body).pack()


QUICK = {
    "fedsage_plus": ("fedsage_plus.generator_epochs=2",),
    "feddep": ("feddep.generator_epochs=2", "feddep.pretrain_epochs=2"),
    "fedggr": ("fedggr.pretrain_rounds=2", "fedggr.code_width=4"),
    "fedpub": (),
    "fedgls": (),
}
STEPS = {
    "fedsage_plus": ("offer", "answer", "feed_forward", "local_update"),
    "feddep": ("prototype", "local_update"),
    "fedggr": (
        *("train_autoencoder", "sum_near_anchors", "train_with_anchors"),
        *("send_group_codes", "send_codes", "local_update of groups"),
    ),
    "fedpub": ("local_update",),
    "fedgls": ("local_update",),
}
ASKED_IF = {
    "feed_forward": ("fedsage_plus.answers=exact",),
    "send_codes": ("fedggr.codes=nodes",),
    "send_group_codes": ("fedggr.codes=groups",),
    "local_update of groups": ("fedggr.codes=groups",),
}
"""Steps of other forms than the default."""


@pytest.mark.parametrize(("method", "step"), [(method, step) for method, steps in STEPS.items() for step in steps])
def test_methods_with_other_messages(method: str, step: str, shards: Path, tmp_path: Path) -> None:
    parties = Parties(tmp_path / "owners", shards, at("ask", absurd_floats, step=step.split()[0]))
    made = planned(method, *QUICK[method], *ASKED_IF.get(step, ()), rounds=2)
    assert coordinator(made, tmp_path, parties).carry_on() is not None
    assert "1e+30" in assert_finished_without(tmp_path, parties, Code.BAD_REPLY)


RAGGED = {
    # Its own model does not fit its nodes then, and it says so itself.
    ("fedggr", "send_codes"): (a_row_less("codes", Codes), Code.MALFORMED),
    ("fedggr", "local_update of groups"): (a_row_less("z_grad", GgrUp), Code.BAD_REPLY),
    ("fedpub", "local_update"): (a_row_less("values", PubUp), Code.BAD_REPLY),
}


@pytest.mark.parametrize(("method", "step"), list(RAGGED))
def test_rows_that_do_not_fit(method: str, step: str, shards: Path, tmp_path: Path) -> None:
    """Nothing is wrong with them but that the server cannot combine them; who sent them is found out by leaving it out."""
    spoil, code = RAGGED[method, step]
    parties = Parties(tmp_path / "owners", shards, at("ask", spoil, step=step.split()[0]))
    made = planned(method, *QUICK[method], *ASKED_IF.get(step, ()), rounds=2)
    assert coordinator(made, tmp_path, parties).carry_on() is not None
    assert_finished_without(tmp_path, parties, code)


def test_too_few_are_left(shards: Path, tmp_path: Path) -> None:
    parties = Parties(tmp_path / "owners", shards, at("ask", refuses, 2))
    parties.hostile = set(OWNERS[1:])
    leg = coordinator(planned(), tmp_path, parties)
    with pytest.raises(Refused, match=r"a round needs at least 2 owners \(min_owners\), and 1 of 5 are left") as caught:
        leg.carry_on()
    assert caught.value.code == Code.POLICY and leg.status.state == State.REFUSED
    parties = Parties(tmp_path / "bad" / "owners", shards, at("evaluate", lambda asked, told: b"no", 1))
    parties.hostile = set(OWNERS[1:])
    with pytest.raises(TooFew, match=r"left out: client-01, client-02, client-03, client-04 \(malformed frame"):
        coordinator(planned(), tmp_path / "bad", parties).carry_on()


def test_an_iteration_is_begun_anew_only_if_others_are_left(shards: Path, tmp_path: Path) -> None:
    """A step that cannot be carried out with those who are here, though nobody is lost, would be tried for ever."""
    parties, made = Parties(tmp_path / "owners", shards), planned()
    audit, task = AuditLog(tmp_path / AUDIT, "coordinator"), Task(20, 5, 0)
    cohort = OwnersCohort.start(made.methods[0], task, "run", parties, {}, audit, faults=CONTINUE)
    cohort._common.attendance.absent = {}
    tries = 0

    def never(server: Message, cohort: Cohort) -> Message:
        nonlocal tries
        tries += 1
        raise OwnersLost({})

    with pytest.raises(TooFew, match="cannot be carried out with the 5 owners"):
        cohort.carry_out(never, Nothing(("server",)))
    cohort.close()
    assert tries == 1


def test_what_an_owner_says_is_one_printable_line(shards: Path, tmp_path: Path) -> None:
    def shouts(asked: Frame, told: Frame) -> bytes:
        return Frame({"refused": "\x1b[2J" + "no\n" * 10_000, "code": "policy"}).answering(asked).pack()

    parties = Parties(tmp_path / "owners", shards, at("ask", shouts, 2))
    with pytest.raises(SutureError) as caught:
        coordinator(planned(), tmp_path, parties, WAIT).carry_on()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000

"""A hostile coordinator asks for absurd things: an owner refuses in one sentence, before it makes anything of them.

Every owner here runs in a process that may not take more than a little memory above what it has when it is warm.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from five_owners import BAD, OWNERS, Parties, coordinator, planned, write_shards

from suture.core.message import Model, Nothing
from suture.errors import IntegrityError
from suture.federation.owner.owner import Owner
from suture.federation.owner.scores import nothing_told
from suture.federation.wire.frames import SEVERAL, Frame
from suture.federation.wire.reasons import Code

OWNER = OWNERS[0]
ALLOWED = 600 << 20
"""Bytes beyond what a warm process has; the least that any of these asks for would take several gigabytes."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


def terms(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {"method": "fedavg", "features": 20, "classes": 5, "seed": 0, "rounds": 2}
    base |= {"training": {"rounds": 2}, "model": {"hidden": 4}}
    return base | changes


HUGE = 2**31
TERMS: dict[str, tuple[dict[str, object], str]] = {
    "width": (terms(model={"hidden": HUGE}), "model.hidden must be at most"),
    "a width below the bound": (terms(model={"hidden": 1 << 20, "layers": 4}), "100,000,000 numbers"),
    "layers": (terms(model={"layers": HUGE}), "model.layers must be at most 64"),
    "hops": (terms(model={"kind": "gprgnn", "hops": HUGE}), "model.hops must be at most 64"),
    "epochs": (terms(training={"rounds": 2, "local_epochs": 10**6}), "10,000 epochs in a step"),
    "rounds": (terms(training={"rounds": 10**12}, rounds=10**12), "too many"),
    "classes": (terms(classes=10**9), "speak of 1000000000 classes"),
    "features": (terms(features=10**12), "too many"),
    "batch": (terms(training={"rounds": 2, "batch_size": HUGE}), "training.batch_size must be at most"),
    "fanouts": (
        terms(model={"kind": "sage"}, training={"rounds": 2, "batch_size": 5, "fanouts": [HUGE, HUGE]}),
        "training.fanouts must be at most",
    ),
    "depth of a generator": (terms(method="feddep", fields={"depth": HUGE}), "feddep.depth must be at most 64"),
    "width of a generator": (terms(method="feddep", fields={"d_z": 1 << 20}, rounds=4), "numbers"),
    "generated neighbours": (terms(method="fedsage_plus", fields={"most": HUGE}), "fedsage_plus.most must be at most"),
    "a proxy graph": (terms(method="fedpub", fields={"proxy_blocks": HUGE}), "fedpub.proxy_blocks must be at most"),
    "a step of years": (terms(method="feddep", fields={"pretrain_epochs": 10**6}, rounds=4), "10,000 epochs in a step"),
}


def opening(content: dict[str, object]) -> bytes:
    return Frame({"verb": "open", "run": "run", "number": 0, "terms": content}).pack()  # type: ignore[dict-item]


def packed(kind: str, tensors: list[object], body: bytes = b"", **scalars: object) -> bytes:
    header = json.dumps({"type": kind, "ids": [OWNER], "scalars": scalars, "tensors": tensors}).encode()
    return b"".join([b"SUT1", len(header).to_bytes(4, "little"), header, body])


def asking(body: bytes, step: str = "local_update") -> bytes:
    header = {"verb": "ask", "run": "run", "step": step, "number": 1, "base": 0, "round": 1}
    return Frame(header, body).pack()  # type: ignore[arg-type]


def raw(header: bytes) -> bytes:
    return b"".join([b"SUX1", len(header).to_bytes(4, "little"), header])


MESSAGES: dict[str, tuple[bytes, str]] = {
    "a tensor that is not there": (asking(packed("Model", [["params.w", "float32", [1, HUGE, 64]]])), "cut short"),
    "sizes that overflow": (asking(packed("Model", [["params.w", "float32", [1, 2**62, 2**62]]])), "cut short"),
    "an empty tensor": (asking(packed("Model", [["params.w", "float32", [1, 0, 2**40]]])), "impossible tensor"),
    "many dimensions": (asking(packed("Model", [["params.w", "float32", [1] * 5000]])), "impossible tensor"),
    "many tensors": (asking(packed("Model", [[f"params.{n}", "float32", [1, 0]] for n in range(30_000)])), "malformed"),
    "a deep header": (raw(b'{"verb":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "malformed"),
    "many objects": (raw(b'{"verb":[' + b"{}," * 1_000_000 + b"1]}"), "too many entries"),
    "many keys": (raw(b"{" + b",".join(b'"%d":1' % n for n in range(600_000)) + b"}"), "malformed"),
    "a header of 9 MB": (raw(b'{"verb":"' + b"x" * 9_000_000 + b'"}'), "bytes, at most"),
    "a long number": (raw(b'{"verb":"open","number":' + b"9" * 100_000 + b"}"), "digits"),
    "a number that is none": (raw(b'{"verb":"open","number":1e999999}'), "has not been opened|must be|text"),
    "half a character": (raw(b'{"verb":"\\udc00","run":"\\ud800"}'), "cannot be read"),
    "bytes that are no text": (raw(b'{"verb":"\xed\xa0\x80"}'), "cannot be read"),
    "many parts": (
        Frame({"verb": SEVERAL, "sizes": [10] * 5000}, Frame({}).pack() * 5000).pack(),
        "holds 5,000 others",
    ),
    "a deep list in a known place": (
        raw(b'{"verb":"ask","number":' + b"[" * 900 + b"]" * 900 + b"}"),
        "nested too deeply",
    ),
}


def _answered_in_little_memory(home: Path, data: Path, requests: list[bytes], told: object) -> None:
    """In a process of its own: warm up, then forbid more memory, then answer."""
    torch.set_num_threads(1)
    desk = Owner.set_up(OWNER, data, None, home).desk()
    for content in (terms(), terms(method="feddep", rounds=4), terms()):
        desk.answer(opening(content))
    size = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (size + ALLOWED, size + ALLOWED))
    told.send([desk.answer(request) for request in requests])  # type: ignore[attr-defined]


def answers_in_little_memory(folder: Path, shards: Path, requests: list[bytes]) -> list[Frame]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    arguments = (folder / "owner", shards / f"{OWNER}.safetensors", requests, theirs)
    process = context.Process(target=_answered_in_little_memory, args=arguments)
    process.start()
    theirs.close()
    try:
        return [Frame.unpack(one).parts()[0] for one in mine.recv()]
    finally:
        process.join()


def assert_refused(answers: list[Frame], reasons: list[str], names: list[str]) -> None:
    for answer, reason, name in zip(answers, reasons, names, strict=True):
        refused = str(answer.header.get("refused"))
        assert any(part in refused for part in reason.split("|")), (name, answer.header)
        assert "\n" not in refused and answer.header["code"] != Code.FAILED, (name, answer.header)


def test_absurd_requests_are_refused_before_anything_is_made_of_them(shards: Path, tmp_path: Path) -> None:
    requests = MESSAGES | {name: (opening(content), reason) for name, (content, reason) in TERMS.items()}
    answers = answers_in_little_memory(tmp_path, shards, [request for request, _ in requests.values()])
    assert_refused(answers, [reason for _, reason in requests.values()], list(requests))


def test_the_largest_owner_may_not_have_any_number_of_nodes(shards: Path, tmp_path: Path) -> None:
    """FedGGR pads embeddings to as many nodes as the coordinator says the largest owner has."""
    parties = Parties(tmp_path / "owners", shards)
    made = planned("fedggr", "fedggr.codes=nodes", "fedggr.pretrain_rounds=1", "fedggr.code_width=4", rounds=1)
    sent: list[Frame] = []
    plain = parties.call

    def call(owner: str, request: bytes, timeout: float) -> bytes:
        sent.extend(frame for frame in Frame.unpack(request).parts() if owner == BAD)
        return plain(owner, request, timeout)

    parties.call = call  # type: ignore[method-assign]
    assert coordinator(made, tmp_path, parties).carry_on() is not None
    last = next(frame for frame in sent if frame.header.get("step") == "local_update")
    body = last.body.replace(b'"longest":', b'"longest":9000000000')
    length = int.from_bytes(body[4:8], "little") + len(b"9000000000")
    answer = parties.desks[BAD].answer(
        Frame({**last.header, "number": 99}, body[:4] + length.to_bytes(4, "little") + body[8:]).pack()
    )
    assert "beyond 67,108,864" in str(Frame.unpack(answer).header["refused"])


def test_an_honest_policy_can_allow_less(shards: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_numbers = 100\nmax_local_epochs = 3")
    desk = Owner.set_up(OWNER, shards / f"{OWNER}.safetensors", policy, tmp_path / "owner").desk()
    for content, reason in (
        (terms(), "the policy allows 100 numbers"),
        (terms(training={"rounds": 2, "local_epochs": 4}), "3 epochs in a step"),
    ):
        answer = Frame.unpack(desk.answer(opening(content)))
        assert reason in str(answer.header["refused"]) and answer.header["code"] == Code.POLICY


@pytest.mark.parametrize("verb", ["evaluate", "finish"])
def test_a_message_of_another_kind_is_no_model(verb: str, shards: Path, tmp_path: Path) -> None:
    """A test and a finish take whatever a method hands out, so that any of its messages can be read there."""
    desk = Owner.set_up(OWNER, shards / f"{OWNER}.safetensors", None, tmp_path / "owner").desk()
    assert Frame.unpack(desk.answer(opening(terms()))).refused is None
    scores = nothing_told((OWNER,))
    answer = Frame.unpack(desk.answer(Frame({"verb": verb, "run": "run", "number": 0}, scores.pack()).pack()))
    assert answer.header["code"] == Code.MALFORMED and "does not fit it (AttributeError)" in str(answer.header["refused"])


def test_an_answer_names_its_request(shards: Path, tmp_path: Path) -> None:
    desk = Owner.set_up(OWNER, shards / f"{OWNER}.safetensors", None, tmp_path / "owner").desk()
    request = Frame({"verb": "describe"}, b"anything")
    answer = Frame.unpack(desk.answer(request.pack()))
    assert answer.is_to(request.digest)
    others: list[Frame] = [Frame({"verb": "describe"}), Frame({"verb": "describe", "more": 1}, b"anything")]
    assert not any(answer.is_to(other.digest) for other in others)


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-1], lambda body: body + b"x", lambda body: b"", lambda body: body[:7]]
)
def test_lengths_are_compared_with_what_is_there(damage: Callable[[bytes], bytes]) -> None:
    body = Model((OWNER,), {"w": torch.ones(1, 3)}).pack()
    with pytest.raises(IntegrityError, match="refused"):
        Model.unpack(damage(body))
    assert Nothing.unpack(Nothing((OWNER,)).pack()).ids == (OWNER,)

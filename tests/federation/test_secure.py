"""Secure aggregation between coordinator and owners, and robust aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_faults import OWNERS, QUICK, InProcess, coordinator, metrics, planned, shards  # noqa: F401

from suture.core.message import Model
from suture.core.packing import kind_of
from suture.errors import ConfigError
from suture.federation.audit import AUDIT, read_audit
from suture.federation.owner.journal import LATER_THAN_ANY, Journal
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of
from suture.federation.wire.reasons import Code, TooFew, Unreachable
from suture.federation.wire.sealed import Sealed, to_words
from suture.methods.averaging import Up
from suture.runs.checkpoint import load_models


def secure_order(method: str, rounds: int = 3, **faults: object):
    return order_of(planned(method, rounds), "run", replace(QUICK, **faults), secure=True)  # type: ignore[arg-type]


# FedGram's eigenvectors move by what fixed-point sums round, over the distance of their values: by 2e-5 here, and by a
# sixteenth of that with words that are sixteen times as fine.
@pytest.mark.parametrize(
    ("method", "close"),
    [*((name, 1e-5) for name in ("fedavg", "fedprox", "fedsage", "fedper", "fedgls")), ("fedgram", 5e-5)],
)
def test_equals_the_plain_run_and_shows_no_update(
    method: str,
    close: float,
    shards: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    plain = InProcess(tmp_path / "plain" / "owners", shards)
    order = order_of(planned(method, 3), "run", QUICK)
    assert coordinator(order, tmp_path / "plain", plain).carry_on() is not None

    sealed = InProcess(tmp_path / "sealed" / "owners", shards)
    recorded: list[bytes] = []

    def record(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        reply = answer()
        body = Frame.unpack(reply).body
        if body:
            recorded.append(body)
        return reply

    sealed.meddle = record
    assert coordinator(secure_order(method), tmp_path / "sealed", sealed).carry_on() is not None
    for mine, theirs in zip(metrics(tmp_path / "sealed"), metrics(tmp_path / "plain"), strict=True):
        assert mine.keys() == theirs.keys()
        if mine["phase"] == "round":  # what is exchanged before the first round is not tested
            assert mine["client_test"] == theirs["client_test"]
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    for owner in OWNERS:
        path = Path("owners") / owner / "runs" / "run" / "model.safetensors"
        mine, theirs = (load_models(tmp_path / kind / path)[0][owner] for kind in ("sealed", "plain"))
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=close)

    kinds = {kind_of(body) for body in recorded}
    learns = {"Nothing"} if method == "fedgram" else set()  # told what the sums say, an owner answers that it has heard
    assert kinds == {"Sealed", "Scores"} | learns, "nothing but sealed words and test scores left an owner"
    words = np.concatenate([Sealed.unpack(b).words.numpy().ravel() for b in recorded if kind_of(b) == "Sealed"])
    assert flatness(words) > 1e-4


def flatness(data: np.ndarray) -> float:
    """How likely bytes as unevenly spread as these are, if all 256 values are equally likely."""
    return float(chisquare(np.bincount(data.view(np.uint8).ravel(), minlength=256)).pvalue)


def test_a_coordinator_that_records_everything_cannot_tell_an_update(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """Each owner's words, byte place by byte place, the sum of any of them, and the shares it passes on: all flat.

    Unmasked, the same words are as far from flat as can be; so the statistic would tell.
    """
    transport = InProcess(tmp_path / "owners", shards)
    words: dict[str, list[np.ndarray]] = {owner: [] for owner in OWNERS}
    shares: list[bytes] = []

    plain = transport.call

    def record(owner: str, request: bytes, timeout: float) -> bytes:
        reply = plain(owner, request, timeout)
        for asked, told in zip(Frame.unpack(request).parts(), Frame.unpack(reply).parts(), strict=True):
            if asked.header["verb"] == "seal-ask":
                words[owner].append(Sealed.unpack(told.body).words.numpy().ravel().view(np.uint64))
            if asked.header["verb"] == "seal-shares":
                shares.extend(bytes.fromhex(data) for data in told.header["shares"].values())  # type: ignore[union-attr,arg-type]
        return reply

    transport.call = record  # type: ignore[method-assign]
    assert coordinator(secure_order("fedavg", 12), tmp_path, transport).carry_on() is not None
    sent = {owner: np.concatenate(parts) for owner, parts in words.items()}
    wholes = [sum(sent[owner] for owner in some) for size in (1, 2, 3) for some in combinations(OWNERS, size)]
    pvalues = [
        flatness(np.ascontiguousarray(whole.view(np.uint8).reshape(-1, 8)[:, k])) for whole in wholes for k in range(8)
    ]
    pvalues.append(flatness(np.frombuffer(b"".join(shares), np.uint8)))
    assert min(pvalues) > 1e-4 / len(pvalues)
    journal = Journal(tmp_path / "owners" / OWNERS[0] / "runs" / "run" / "journal")
    entry = journal.last_before(LATER_THAN_ANY)
    assert entry is not None
    assert flatness(to_words(Up.unpack(entry.reply), 3)) < 1e-100


def test_a_dropout_mid_round_still_gives_the_right_sum(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """The owner is lost after its shares are out: the mean is that of the two others, as if it had never come."""
    ends = []
    for name, verb in (("sealed", "seal-ask"), ("plain", "ask")):
        transport = InProcess(tmp_path / name / "owners", shards, dict.fromkeys(OWNERS, "min_secure_members = 2"))

        def lose(owner: str, frame: Frame, answer: Callable[[], bytes], verb: str = verb) -> bytes:
            gone = frame.header["verb"] == verb or (frame.header["verb"] != "describe" and frame.number("number") > 2)
            if owner == "client-01" and gone and frame.header.get("number", 0) >= 2:  # type: ignore[operator]
                raise Unreachable("no answer")
            return answer()

        transport.meddle = lose
        order = order_of(
            planned("fedavg", 3), "run", replace(QUICK, on_loss="continue", patience=0.0), secure=name == "sealed"
        )
        assert coordinator(order, tmp_path / name, transport).carry_on() is not None
        assert any(line["event"] == "owner is lost" for line in read_audit(tmp_path / name / AUDIT))
        ends.append(load_models(tmp_path / name / "run" / "model.safetensors")[0]["shared"])
    for key, value in ends[1].items():
        torch.testing.assert_close(ends[0][key], value, rtol=1e-4, atol=1e-5)


def test_waiting_for_a_dropout_opens_nothing(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    opened = []

    def lose(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        opened.extend([owner] if frame.header["verb"] == "seal-open" else [])
        if owner == "client-01" and frame.header["verb"] == "seal-ask":
            raise Unreachable("no answer")
        return answer()

    transport.meddle = lose
    assert coordinator(secure_order("fedavg", patience=0.0), tmp_path, transport).carry_on() is None
    assert not opened
    transport.meddle = lambda owner, frame, answer: answer()
    assert coordinator(secure_order("fedavg", patience=0.0), tmp_path, transport).carry_on() is not None


def test_an_owner_under_secure_terms_does_not_answer_openly(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    transport = InProcess(tmp_path / "owners", shards)
    assert coordinator(secure_order("fedavg"), tmp_path, transport).carry_on() is not None
    header = {"verb": "ask", "run": "run", "step": "local_update", "number": 9, "base": 9, "round": 1}
    reply = Frame.unpack(transport.desks["client-00"].answer(Frame(header, Model(("client-00",), {}).pack()).pack()))
    assert "not answered openly" in str(reply.header["refused"])
    assert reply.header["code"] == Code.SECRECY
    assert any("not answered openly" in str(line.get("reason")) for line in transport.audit("client-00"))


def test_a_step_is_opened_for_one_set_of_survivors_even_by_a_new_process(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """A coordinator that goes back and leaves one owner out would learn that owner's update from the difference."""
    transport = InProcess(tmp_path / "owners", shards, dict.fromkeys(OWNERS, "min_secure_members = 2"))
    assert coordinator(secure_order("fedavg", 1), tmp_path, transport).carry_on() is not None
    for owner in OWNERS:
        transport.reborn(owner)
    (tmp_path / "run" / "result.json").unlink()

    def without_one(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if owner == "client-01" and frame.header["verb"] == "seal-ask":
            raise Unreachable("no answer")
        if frame.header["verb"] == "open":
            # pretend to go on after step 1, so that owners do not start anew
            desk = transport.desks[owner]
            return Frame.unpack(desk.answer(Frame({**frame.header, "number": 1}).pack())).answering(frame).pack()
        return answer()

    transport.meddle = without_one
    order = secure_order("fedavg", 1, on_loss="continue", patience=0.0)
    with pytest.raises(TooFew, match="opened for other survivors"):
        coordinator(order, tmp_path, transport).carry_on()


def test_a_method_that_needs_more_than_sums_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedpub needs more than sums"):
        order_of(planned("fedpub"), "run", QUICK, secure=True)
    with pytest.raises(ConfigError, match="hides; choose one"):
        order_of(planned("fedavg", 3, "training.aggregation=median"), "run", QUICK, secure=True)


def test_a_nan_update_is_left_out_and_its_sender_named(shards: Path, tmp_path: Path) -> None:  # noqa: F811
    """Robust aggregation goes on without it, and without losing the owner; the coordinator's log names the suspect."""
    transport = InProcess(tmp_path / "owners", shards)

    def spoil(owner: str, frame: Frame, answer: Callable[[], bytes]) -> bytes:
        if owner != "client-01" or frame.header["verb"] != "ask":
            return answer()
        reply = Frame.unpack(answer())
        up = Up.unpack(reply.body)
        return Frame(reply.header, replace(up, params={k: v * float("nan") for k, v in up.params.items()}).pack()).pack()

    transport.meddle = spoil
    order = order_of(planned("fedavg", 3, "training.aggregation=multi-krum"), "run", QUICK)
    outcome = coordinator(order, tmp_path, transport).carry_on()
    assert outcome is not None
    assert outcome.suspects == ("client-01",)
    events = [(line["event"], line.get("owner")) for line in read_audit(tmp_path / AUDIT)]
    assert events.count(("reply left out", "client-01")) == 3
    assert ("suspect", "client-01") in events
    model = load_models(tmp_path / "run" / "model.safetensors")[0]["shared"]
    assert all(bool(value.isfinite().all()) for value in model.values())

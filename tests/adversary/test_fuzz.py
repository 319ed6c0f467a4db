"""A short run of what benchmarks/fuzz_frames.py and benchmarks/fuzz_files.py do a million and a thousand times."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path

import pytest
from fuzzing import FACTOR, Fuzzer, framed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import DENSE, Mutator, dense

from suture.core.packing import parse
from suture.errors import IntegrityError
from suture.federation.owner.sealing import told_of_everybody
from suture.federation.wire.bounds import FRAME_HEADER
from suture.federation.wire.frames import Frame
from suture.federation.wire.reasons import Refused

READING = 2 << 20
"""Bytes that reading may take however short the frame is."""


@pytest.fixture(autouse=True)
def loud_again():
    yield
    logging.disable(logging.NOTSET)


def test_damaged_frames_end_in_a_refusal(tmp_path: Path) -> None:
    watch = Fuzzer(tmp_path, seed=11).run(1500)
    assert not watch.findings, "\n".join(watch.findings[:10])
    assert watch.tried == 1500
    assert watch.answers["malformed"] > 50 and watch.answers["OwnersLost"] > 100, "the damage was noticed"
    assert watch.answers["IntegrityError"] > 500 and watch.answers["read"] > 10
    assert watch.answers["answered"] + watch.answers["taken"] > 5, "and some of it was harmless, so the parties were alive"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_at_all(data: bytes, ours: bool) -> None:
    for read, magic in ((lambda raw: Frame.unpack(raw).parts(), b"SUX1"), (parse, b"SUT1")):
        raw = magic + len(data).to_bytes(4, "little") + data if ours else data
        try:
            read(raw)
        except IntegrityError as error:
            assert "\n" not in str(error) and len(str(error)) < 500


@pytest.mark.parametrize("kind", range(len(DENSE)))
def test_no_header_takes_more_than_ten_times_its_size(kind: int) -> None:
    """Whatever it is full of: dense ones are refused, and what is read is what the weighing took it for."""
    outcomes = set()
    for many in (1_000, 10_000, 100_000, 250_000):
        text = dense(kind, many)
        for filler in (0, 1, 3, 9):  # a long text is cheap, and pays for the dense part
            data = framed(f'{{"filler":"{"x" * (filler * len(text))}","more":{text}}}'.encode())
            if len(data) > FRAME_HEADER.size:
                continue
            taken, read = taken_by(data)
            outcomes.add(read)
            assert taken <= FACTOR * len(data) + READING, f"{taken / len(data):.1f} times, {many} entries, filler {filler}"
    assert True in outcomes, "something was read"


def taken_by(data: bytes) -> tuple[int, bool]:
    """(bytes taken at most while a frame is read and its digest made, whether it was read)."""
    tracemalloc.start()
    try:
        Frame.unpack(data).digest  # noqa: B018
        return tracemalloc.get_traced_memory()[1], True
    except IntegrityError:
        return tracemalloc.get_traced_memory()[1], False
    finally:
        tracemalloc.stop()


def test_a_body_of_keys_is_weighed_too() -> None:
    """What everybody in a secure sum is told comes as a body, which may be large."""
    frame = Frame({"verb": "seal-shares"}, ("{" + ",".join(f'"{k:x}":0' for k in range(200_000)) + "}").encode())
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="too many entries"):
            told_of_everybody(frame)
        assert tracemalloc.get_traced_memory()[1] < READING
    finally:
        tracemalloc.stop()


def test_damage_is_the_same_for_the_same_seed() -> None:
    frames = [Frame({"verb": "ask", "number": k, "step": "x"}, b"body").pack() for k in range(5)]
    one, two = Mutator(3, frames), Mutator(3, frames)
    first = [one.changed(frames[k % 5]) for k in range(200)]
    assert first == [two.changed(frames[k % 5]) for k in range(200)]
    assert len(set(first)) > 150

"""A short run of what benchmarks/fuzz_frames.py and benchmarks/fuzz_files.py do a million and a thousand times."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fuzzing import Fuzzer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import Mutator

from suture.core.packing import parse
from suture.errors import IntegrityError
from suture.federation.wire.frames import Frame


@pytest.fixture(autouse=True)
def loud_again():
    yield
    logging.disable(logging.NOTSET)


def test_damaged_frames_end_in_a_refusal(tmp_path: Path) -> None:
    watch = Fuzzer(tmp_path, seed=11).run(1500)
    assert not watch.findings, "\n".join(watch.findings[:10])
    assert watch.tried == 1500
    assert watch.answers["malformed"] > 100 and watch.answers["OwnersLost"] > 100, "the damage was noticed"
    assert watch.answers["answered"] + watch.answers["taken"] > 10, "and some of it was harmless, so the parties were alive"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_at_all(data: bytes, ours: bool) -> None:
    for read, magic in ((lambda raw: Frame.unpack(raw).parts(), b"SUX1"), (parse, b"SUT1")):
        raw = magic + len(data).to_bytes(4, "little") + data if ours else data
        try:
            read(raw)
        except IntegrityError as error:
            assert "\n" not in str(error) and len(str(error)) < 500


def test_damage_is_the_same_for_the_same_seed() -> None:
    frames = [Frame({"verb": "ask", "number": k, "step": "x"}, b"body").pack() for k in range(5)]
    one, two = Mutator(3, frames), Mutator(3, frames)
    first = [one.changed(frames[k % 5]) for k in range(200)]
    assert first == [two.changed(frames[k % 5]) for k in range(200)]
    assert len(set(first)) > 150

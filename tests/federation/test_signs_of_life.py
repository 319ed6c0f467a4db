"""Who counts as connected, and who as silent: by signs that come in, never by what is listed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from suture.federation.flare import pulse, session
from suture.federation.flare.pulse import Pulse
from suture.federation.flare.session import Session, wait_until


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "time", clock)
    return clock


def listening(clock: Clock, hangs: dict[str, float]) -> Session:
    """A session with a coordinator that lists everybody with its last beat, whether it hangs or not."""
    made = Session.__new__(Session)
    made._signs, made._looked = {}, float("-inf")

    def listed() -> list[SimpleNamespace]:
        return [
            SimpleNamespace(name=name, last_connect_time=min(clock.now, until) // session.HEARTBEAT)
            for name, until in hangs.items()
        ]

    made._session = SimpleNamespace(get_connected_client_list=listed)  # type: ignore[assignment]
    return made


def test_whoever_hangs_is_not_connected_though_it_is_listed(clock: Clock) -> None:
    for pause in (0.0, 0.5, 3.0, 60.0):
        looking = listening(clock, {"well": float("inf"), "hangs": clock.now - 1, "later": clock.now + 30})
        assert looking.connected() == {"well", "later"}
        clock.sleep(pause)
        assert "hangs" not in looking.connected()
        clock.sleep(40)
        assert looking.connected() == {"well"}, "a beat from before it hung is no sign of now"
        for _ in range(20):
            clock.sleep(0.5)
            assert looking.connected() == {"well"}


def test_whoever_comes_back_is_connected_again(clock: Clock) -> None:
    hangs = {"a": clock.now - 1}
    looking = listening(clock, hangs)
    assert looking.connected() == set()
    hangs["a"] = float("inf")
    clock.sleep(2 * session.HEARTBEAT)
    assert looking.connected() == {"a"}


def test_a_silent_owner_is_called_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.02)
    monkeypatch.setattr(pulse, "SILENCE", 0.3)
    called: list[str] = []

    def ping(owner: str) -> None:
        called.append(owner)
        if owner == "silent":
            raise TimeoutError

    watched = Pulse(["well", "silent"], ping)
    watched.start()
    try:
        assert wait_until(lambda: set(watched.silent()) == {"silent"}, 30, every=0.01)
        assert {"well", "silent"} <= set(called)
        watched.heard("silent")
        assert "silent" not in watched.silent()
    finally:
        watched.stop()

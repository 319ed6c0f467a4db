"""Who counts as connected, and who as silent: by signs that come in, never by what is listed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.signal import Signal

from suture.federation.coordinator.calls import MOST_LOST, Calls
from suture.federation.flare import pulse, session, transport
from suture.federation.flare.pulse import Pulse, Work
from suture.federation.flare.session import Session, wait_until
from suture.federation.wire.orders import FaultSettings
from suture.federation.wire.reasons import AnswerLost


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


class Losing:
    """A proxy of an owner, as FLARE has them, whose first answers never arrive."""

    name = "client-00"

    def __init__(self, lost: int) -> None:
        self.lost, self.asked, self.work = lost, 0, Work()
        self.backend = SimpleNamespace(abort_signal=Signal())

    def __call__(self, timeout: float) -> Losing:
        return self

    def alive(self) -> list[float]:
        return self.work.told()

    def answer(self, request: bytes) -> bytes:
        self.asked += 1
        told, signal = self.work.done(lambda: b"answer to " + request), self.backend.abort_signal
        if self.asked <= self.lost:
            wait_until(lambda: signal.triggered, 60, every=0.01)
            raise TimeoutError
        return told


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_lost_answer_is_asked_for_again(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE lost one in an hour's soak, and the run waited for the ten minutes that a step may take."""
    for name, value in (("EVERY", 0.02), ("LOST", 0.2)):
        monkeypatch.setattr(pulse, name, value)
    monkeypatch.setattr(transport, "SECONDS_BETWEEN_LOOKS", 0.02)
    proxy = Losing(lost)
    way = transport.FlareTransport([proxy])
    try:
        calls = Calls(way, "run", FaultSettings(patience=0.0))
        if lost == MOST_LOST:
            with pytest.raises(AnswerLost, match="lost on the way"):
                calls._delivered("client-00", b"this")
        else:
            assert calls._delivered("client-00", b"this") == b"answer to this"
        assert proxy.asked == min(lost + 1, MOST_LOST)
    finally:
        way.close()


def test_a_long_step_and_a_long_way_are_no_loss() -> None:
    watched = Pulse(["a"], lambda owner: None)
    assert not watched.has_lost("a", 100, 0.0)
    for told in ([0.0, 0.0], [29.0, 0.0], [500.0, 1e8], True, None, ["x", "y"], [99.0], [float("nan"), 0.0]):
        watched._work["a"] = (590.0, told)
        assert not watched.has_lost("a", 100, 0.0), told
    watched._work["a"] = (590.0, [31.0, 1000.0])
    assert watched.has_lost("a", 100, 0.0)
    assert not watched.has_lost("a", 100, 585.0), "it had nothing to do before this call, too"
    assert not watched.has_lost("a", 10**9, 0.0), "a long request is still on its way"

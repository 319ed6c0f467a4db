"""A hostile coordinator tries to take an owner's noise off again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from one_owner import NAME, NOISY, Hostile, planned, shifted, update, zeroed
from torch import Tensor

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.federation.owner.account import ACCOUNTS
from suture.federation.owner.journal import Entry, Journal
from suture.federation.owner.keys import KEY
from suture.privacy.gaussian import deviation_of, discrete_gaussian
from suture.privacy.keystream import Keystream
from suture.privacy.mechanisms import noise_like

PURE = "layer1.weight"
"""Gets no gradient where all weights are zero."""
FREE = "[privacy]\nepsilon = 1e6\n"


def guessed(observed: Tensor, candidates: list[Tensor]) -> Tensor:
    """What is left of pure noise under the best of all guesses; 1 is what no guess leaves."""
    left = [(observed - scale * one).square().mean() for one in candidates for scale in (-1.0, 1.0)]
    return torch.stack(left).min().sqrt() / observed.square().mean().sqrt()


def drawn(keys: range | list[int], like: Tree) -> list[Tensor]:
    """The noise of the public generator under each of these keys, of deviation 1."""
    return [noise_like({PURE: like[PURE]}, 1.0, Streams(torch.tensor([key])))[PURE] for key in keys]


def test_a_key_of_the_public_generator_is_found_by_trying() -> None:
    """The attack itself works: of 2^10 keys, on coordinates that carry noise alone, the right one leaves nothing."""
    like = {PURE: torch.zeros(1, 30, 8)}
    observed = drawn([313], like)[0]
    assert guessed(observed, drawn(range(2**10), like)) < 1e-6
    assert guessed(observed, drawn(range(2**10, 2**10 + 100), like)) > 0.9


def test_no_public_key_leads_to_an_owners_noise(pieces: Path, tmp_path: Path) -> None:
    """The same attack on a real owner, with everything a coordinator knows: it is left with all of the noise."""
    made = planned(2, *NOISY)
    hostile = Hostile(tmp_path, pieces, FREE)
    assert hostile.open(made).refused is None
    start = zeroed(made)
    moved = update(hostile.ask(start))[PURE]
    observed = moved / moved.square().mean().sqrt()
    seeds = [Streams.of(0, [NAME], "ask", 1, *more) for more in ((), ("",), ("run",), (NAME,))]
    streams = [one.fork("epoch", 0).fork("batch", 0) for one in seeds]
    candidates = [noise_like({PURE: start[PURE]}, 1.0, one)[PURE] for one in streams]
    candidates += drawn(range(2**10), start)
    for text in (b"", b"0", b"run", NAME.encode(), b"run" + NAME.encode(), b"ask1"):
        for secret in (Keystream(hashlib.sha256(text).digest()), Keystream(bytes(32))):
            inner = secret.fork("epoch", 0).fork("batch", 0).fork("noise", PURE)
            candidates.append(discrete_gaussian(inner, observed.numel()).view_as(observed) / deviation_of(2))
    assert guessed(observed, candidates) > 0.9


def test_two_runs_of_one_seed_do_not_share_their_noise(pieces: Path, tmp_path: Path) -> None:
    """2 g1 - g2 of sigma 5 and sigma 10 is the gradient if they do; else it has more noise than either."""
    stream, like = Streams.of(0, [NAME], "ask", 1), {PURE: torch.zeros(1, 30, 8)}
    five, ten = (noise_like(like, sigma, stream)[PURE] for sigma in (5.0, 10.0))
    assert (2 * five - ten).abs().max() < 1e-5, "what the attack does to noise that follows from the seed"
    hostile = Hostile(tmp_path, pieces, FREE)
    moved = []
    for run, sigma in (("five", 5), ("ten", 10)):
        made = planned(2, *NOISY, f"training.dp_sigma={sigma}.0")
        assert hostile.open(made, run).refused is None
        moved.append(update(hostile.ask(zeroed(made), run=run))[PURE])
    left = (2 * moved[0] - moved[1]).square().mean().sqrt() / moved[0].square().mean().sqrt()
    # Of independent noise sqrt(2^2 5^2 + 10^2) / 5 = 2.83 is left, give or take a twentieth for 240 numbers.
    assert 2.3 < left < 3.4


def test_the_same_run_again_and_another_number_draw_anew(pieces: Path, tmp_path: Path) -> None:
    hostile, made = Hostile(tmp_path, pieces, FREE), planned(4, *NOISY)
    start = zeroed(made)
    moved = []
    for run in ("one", "two"):
        assert hostile.open(made, run).refused is None
        moved += [update(hostile.ask(start, number, run))[PURE] for number in (1, 2)]
        moved.append(update(hostile.ask(shifted(start, 1e-9), 2, run))[PURE])
    for i, left in enumerate(moved):
        for right in moved[:i]:
            assert torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1].abs() < 0.3


def test_a_repeated_delivery_gets_the_same_bytes(pieces: Path, tmp_path: Path) -> None:
    """To the same process, to the next one, and to a coordinator that begins at the start again; it is charged once."""
    hostile, made = Hostile(tmp_path, pieces, FREE), planned(1, *NOISY)
    assert hostile.open(made).refused is None
    first = hostile.ask(zeroed(made)).pack()
    for again in range(3):
        if again:
            hostile.reborn()
            assert hostile.open(made, number=again - 1).refused is None
        assert hostile.ask(zeroed(made)).pack() == first
    assert (hostile.owner.home / ACCOUNTS / "run.jsonl").read_text().count('"ran"') == 1
    assert not (hostile.owner.home / "runs" / "run" / KEY).exists(), "the key of an answered step is of no more use"


class Killed(BaseException):
    """Not an error anybody may handle."""


def test_a_step_that_a_kill_interrupted_gives_what_it_would_have_given(
    pieces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, made = Hostile(tmp_path, pieces, FREE), planned(2, *NOISY)
    assert hostile.open(made).refused is None
    lost: list[bytes] = []

    def killed(journal: Journal, entry: Entry) -> None:
        lost.append(entry.reply)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "put", killed)
        with pytest.raises(Killed):
            hostile.ask(zeroed(made))
    hostile.reborn()
    assert hostile.open(made).refused is None
    assert hostile.ask(zeroed(made)).body == lost[0]
    account = hostile.owner.home / ACCOUNTS / "run.jsonl"
    assert account.read_text().count('"ran"') == 1
    # Another content in the place of an interrupted one: another key, and another charge.
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "put", killed)
        with pytest.raises(Killed):
            hostile.ask(zeroed(made), 2)
    hostile.reborn()
    assert hostile.open(made, number=1).refused is None
    assert "privacy budget is spent" in str(hostile.ask(shifted(zeroed(made), 1e-9), 2).header["refused"])
    assert account.read_text().count('"ran"') == 2


def test_a_gradient_that_is_not_finite_is_hidden_too(pieces: Path, tmp_path: Path) -> None:
    """Weights that overflow for some nodes only would tell which by a refusal, or by a NaN."""
    hostile, made = Hostile(tmp_path, pieces, FREE), planned(2, *NOISY)
    assert hostile.open(made).refused is None
    huge = {name: torch.full_like(value, 3e19) for name, value in zeroed(made).items()}
    moved = update(hostile.ask(huge))
    assert all(value.isfinite().all() for value in moved.values())

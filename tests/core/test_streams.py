# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from suture.core.streams import Streams, generator, rank

IDS = ("north", "south", "east", "west")


def ptr_of(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def draws_of(ids: tuple[str, ...], lengths: dict[str, int], draw: str) -> dict[str, Tensor]:
    """What each client draws when these clients stand together in this order."""
    streams = Streams.of(7, ids, "dropout", 3)
    ptr = ptr_of(*(lengths[name] for name in ids))
    drawn = {
        "bits": lambda: streams.bits(ptr, 3),
        "uniform": lambda: streams.uniform(ptr, 2),
        "normal": lambda: streams.normal(ptr, 2),
        "bytes_below": lambda: streams.bytes_below(100, ptr, 13),
        "fork": lambda: streams.fork("layer", 2).bits(ptr),
        "shuffle": lambda: streams.shuffle(ptr) - torch.repeat_interleave(ptr[:-1], ptr.diff()),
    }[draw]()
    return dict(zip(ids, drawn.split(ptr.diff().tolist()), strict=True))


@pytest.mark.parametrize("draw", ["bits", "uniform", "normal", "bytes_below", "fork", "shuffle"])
def test_a_client_draws_the_same_alone_together_and_in_another_order(draw: str) -> None:
    lengths = {"north": 9, "south": 0, "east": 40, "west": 17}
    together = draws_of(IDS, lengths, draw)
    reordered = draws_of(("west", "south", "east", "north"), lengths, draw)
    for name in IDS:
        alone = draws_of((name,), lengths, draw)[name]
        assert torch.equal(alone, together[name])
        assert torch.equal(alone, reordered[name])


def test_a_client_with_more_rows_begins_with_the_same_ones() -> None:
    short = draws_of(("east",), {"east": 10}, "bits")["east"]
    long = draws_of(("east",), {"east": 25}, "bits")["east"]
    assert torch.equal(short, long[:10])


def test_seed_client_and_labels_all_matter_and_nothing_else() -> None:
    ptr = ptr_of(4)
    variants = [
        Streams.of(0, ["a"]),
        Streams.of(1, ["a"]),
        Streams.of(0, ["b"]),
        Streams.of(0, ["a"], "x"),
        Streams.of(0, ["a"], "x", 1),
        Streams.of(0, ["a"]).fork("x"),
        Streams.of(0, ["a"]).fork("x").fork("y"),
        Streams.of(0, ["a"]).fork("y").fork("x"),
        Streams.of(0, ["a"]).fork("x", "y"),
    ]
    drawn = {tuple(s.bits(ptr).flatten().tolist()) for s in variants}
    assert len(drawn) == len(variants)
    assert torch.equal(Streams.of(0, ["a"], "x").bits(ptr), Streams.of(0, ["a"], "x").bits(ptr))


def test_drawing_and_forking_leave_the_stream_as_it_was() -> None:
    streams = Streams.of(0, IDS)
    keys = streams.keys.clone()
    streams.fork("a").bits(ptr_of(1, 2, 3, 4))
    streams.bits(ptr_of(1, 2, 3, 4))
    assert torch.equal(streams.keys, keys)


def test_splitmix64_reference_values() -> None:
    # The first outputs of splitmix64 from seed 1234567, as published with its reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    drawn = Streams(torch.tensor([1234567])).bits(ptr_of(5)).flatten().tolist()
    assert [value % 2**64 for value in drawn] == expected


def test_every_bit_is_balanced_and_neighbouring_bits_are_independent() -> None:
    words = Streams.of(3, ["a", "b"]).bits(ptr_of(20000, 20000)).flatten()
    bits = (words.unsqueeze(1) >> torch.arange(64)) & 1
    sigma = 0.5 / math.sqrt(words.numel())
    assert (bits.double().mean(0) - 0.5).abs().max() < 5 * sigma
    agree = (bits[:, 1:] == bits[:, :-1]).double().mean(0)
    assert (agree - 0.5).abs().max() < 5 * sigma


def test_no_row_repeats_a_word_of_another() -> None:
    for width in (1, 2, 5):
        words = Streams.of(3, ["a", "b"]).bits(ptr_of(400, 600), width)
        assert words.unique().numel() == 1000 * width


def test_streams_of_two_clients_and_two_labels_are_uncorrelated() -> None:
    ptr = ptr_of(50000, 50000)
    streams = Streams.of(0, ["client-1", "client-2"])
    first, second = streams.uniform(ptr).flatten().split(50000)
    third, _ = streams.fork("epoch", 1).uniform(ptr).flatten().split(50000)
    fourth, _ = streams.fork("epoch", 2).uniform(ptr).flatten().split(50000)
    correlation = torch.corrcoef(torch.stack([first, second, third, fourth])) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(50000)


def test_uniform_is_uniform() -> None:
    drawn = Streams.of(1, ["a", "b", "c"]).uniform(ptr_of(10000, 20000, 30000), 2)
    assert drawn.shape == (60000, 2)
    assert drawn.dtype == torch.float64
    assert drawn.min() >= 0 and drawn.max() < 1
    assert scipy.stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-3


def test_normal_is_normal() -> None:
    drawn = Streams.of(1, ["a", "b"]).normal(ptr_of(40000, 20000))
    assert drawn.dtype == torch.float32
    assert abs(float(drawn.mean())) < 5 / math.sqrt(60000)
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / 60000)
    assert scipy.stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3


def test_normal_is_finite_at_both_ends_of_the_uniform_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([[0.0], [1 - 2.0**-53]], dtype=torch.float64)
    monkeypatch.setattr(Streams, "uniform", lambda self, ptr, width=1: ends.clone())
    low, high = Streams.of(0, ["a"]).normal(ptr_of(2)).flatten().tolist()
    assert math.isfinite(low) and math.isfinite(high)
    assert low < -8 and high > 8


@pytest.mark.parametrize("threshold", [1, 64, 128, 255])
@pytest.mark.parametrize("width", [8, 13])
def test_bytes_below_has_its_probability(threshold: int, width: int) -> None:
    mask = Streams.of(5, ["a", "b"]).bytes_below(threshold, ptr_of(5000, 3000), width) > 0
    assert mask.shape == (8000, width)
    p = threshold / 256
    sigma = math.sqrt(p * (1 - p) / mask.shape[0])
    assert (mask.double().mean(0) - p).abs().max() < 5 * sigma


@pytest.mark.parametrize("threshold", [1, 128, 255])
def test_bytes_below_compares_the_bytes_of_the_words(threshold: int) -> None:
    streams, ptr = Streams.of(5, ["a", "b"]), ptr_of(50, 30)
    little_endian = b"".join(word.to_bytes(8, "little", signed=True) for word in streams.bits(ptr, 2).flatten().tolist())
    expected = torch.tensor([byte < threshold for byte in little_endian]).view(80, 16)[:, :13]
    assert torch.equal(streams.bytes_below(threshold, ptr, 13) > 0, expected)


def test_bytes_below_256_is_always_true() -> None:
    assert (Streams.of(5, ["a"]).bytes_below(256, ptr_of(100), 9) > 0).all()


def test_shuffle_permutes_inside_each_client() -> None:
    ptr = ptr_of(30, 0, 1, 20)
    order = Streams.of(0, IDS).shuffle(ptr)
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        assert sorted(order[start:end].tolist()) == list(range(start, end))
    assert order[:30].tolist() != list(range(30))


def test_shuffle_gives_every_permutation_alike() -> None:
    clients = 6000
    order = Streams.of(0, [f"c{k}" for k in range(clients)]).shuffle(torch.arange(0, 3 * clients + 1, 3))
    inside = order.view(clients, 3) - torch.arange(0, 3 * clients, 3).unsqueeze(1)
    _, counts = torch.unique(inside, dim=0, return_counts=True)
    assert counts.numel() == 6
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_rank_belongs_to_the_name_not_to_its_place() -> None:
    forward, backward = rank(0, IDS, "sample", 1), rank(0, IDS[::-1], "sample", 1)
    assert forward == backward[::-1]
    assert len(set(forward)) == len(IDS)
    assert forward != rank(0, IDS, "sample", 2)


def test_generator_is_reproducible_and_labelled() -> None:
    assert torch.equal(torch.randn(5, generator=generator(0, "w")), torch.randn(5, generator=generator(0, "w")))
    assert not torch.equal(torch.randn(5, generator=generator(0, "w")), torch.randn(5, generator=generator(0, "v")))


def test_the_global_generator_is_never_touched() -> None:
    before = torch.get_rng_state()
    streams = Streams.of(0, IDS).fork("a")
    ptr = ptr_of(5, 6, 7, 8)
    streams.normal(ptr)
    streams.bytes_below(9, ptr, 3)
    streams.shuffle(ptr)
    torch.rand(3, generator=generator(0, "w"))
    assert torch.equal(torch.get_rng_state(), before)

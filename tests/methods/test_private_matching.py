"""Private matching between the clients of a cut: what is found, what is sent, again with new nodes, and hostile parties."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import suture
from suture import api
from suture.core.message import Nothing, Rows
from suture.core.streams import Streams
from suture.engines.embedded import EmbeddedCohort
from suture.errors import IntegrityError
from suture.graph.batch import GraphBatch
from suture.graph.boundary import Boundary
from suture.method import Clients, Task
from suture.methods.links import Wanted, wanted_by
from suture.methods.matched import Matched, books_of, private_boundary
from suture.methods.matching import Matching
from suture.methods.matching_messages import Asked, Peers
from suture.privacy.points import hashed
from suture.report.privacy import read_privacy
from suture.runs.counting import Record
from suture.runs.prepare import Source

SMALL = "csbm:nodes=240,features=20,words_per_node=5"


@pytest.fixture(scope="module")
def pieces() -> GraphBatch:
    made = api.plan(SMALL, ["fedavg"], clients=3, seeds=[0], overrides=["partition.boundary=both"])
    return Source(made).prepared(0).clients


class Exchange:
    """A matching between the clients of a graph, and all that was sent in it."""

    def __init__(self, graph: GraphBatch, pad: int = 0, **how: object) -> None:
        self.graph, self.method, self.task = graph, Matching(pad=pad), Task(graph.x.width, 1, 0)
        self.record = Record()
        self.cohort = EmbeddedCohort.start(self.method, graph, self.task, ledger=self.record, **how)  # type: ignore[arg-type]

    def again(self, graph: GraphBatch | None = None) -> Matched:
        """Carry it out, perhaps with other graphs than before."""
        if graph is not None:
            before = self.cohort
            self.cohort = EmbeddedCohort.start(self.method, graph, self.task, ledger=self.record)
            self.cohort.restore(before.states(), before.asked)
            self.graph = graph
        self.record.sent.clear()
        self.method.match(self.method.init_server(self.task), self.cohort)  # type: ignore[arg-type]
        return Matched.concat(self.cohort.states())

    def traffic(self) -> bytes:
        return b"".join(one.message.select([name]).pack() for one in self.record.sent for name in one.message.ids)

    def sizes(self, field: str) -> int:
        """Rows of points or entries that went up."""
        up = (one.message for one in self.record.sent if one.direction == "up")
        return sum(getattr(message, field).values.shape[0] for message in up if hasattr(message, field))


def check_found(graph: GraphBatch, state: Matched) -> Boundary:
    """Every link's foreign end has the address that its holder gives the node, and nobody else's."""
    assert graph.boundary is not None
    known, new = graph.boundary, private_boundary(graph, state, 0, "night-7")
    truth = dict(zip(known.address.tolist(), new.address.tolist(), strict=True))
    assert [truth.get(one) for one in known.foreign.tolist()] == new.foreign.tolist()
    assert len(set(new.address.tolist())) == len(set(known.address.tolist()))
    assert not set(new.address.tolist()) & set(known.address.tolist())
    return new


@pytest.mark.parametrize("how", [{}, {"chunk_size": 1, "through_bytes": True}])
def test_everybody_finds_who_holds_what(pieces: GraphBatch, how: dict[str, object]) -> None:
    exchange = Exchange(pieces, **how)
    state = exchange.again()
    check_found(pieces, state)
    assert pieces.boundary is not None
    owner_of = dict(zip(pieces.boundary.address.tolist(), pieces.segments.client.tolist(), strict=True))
    for k, book in enumerate(books_of(state)):
        links = pieces.boundary.between(*pieces.segments.bounds[k : k + 2])
        expected = {end: pieces.ids[owner_of[end]] for end in links.foreign.tolist()}
        assert {end: name for end, (name, _) in book.holders().items()} == expected


def test_addresses_are_others_in_every_run(pieces: GraphBatch) -> None:
    state = Exchange(pieces).again()
    one, two = (private_boundary(pieces, state, 0, run) for run in ("night-7", "night-8"))
    assert not set(one.address.tolist()) & set(two.address.tolist())


def guesses(address: int) -> list[bytes]:
    """What somebody could make of an id it guesses, and look for."""
    raw = address.to_bytes(8, "little")
    made = [raw, raw[::-1], str(address).encode() + b" ", hashed(raw + bytes(24))]
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s", "sha3_256"):
        made += [hashlib.new(name, text).digest()[:8] for text in (raw, str(address).encode())]
    return made


def test_neither_ids_nor_anything_that_can_be_guessed_is_sent(pieces: GraphBatch) -> None:
    known = pieces.boundary
    assert known is not None
    # Addresses as real ones are: hashes of ids, not small numbers that stand in any header.
    rename = torch.from_numpy(np.random.default_rng(0).integers(2**55, 2**62, int(known.address.max()) + 1))
    hidden = dataclasses.replace(pieces, boundary=Boundary(known.node, rename[known.foreign], rename[known.address]))
    exchange = Exchange(hidden)
    check_found(hidden, exchange.again())
    traffic = exchange.traffic()
    assert len(traffic) > 10_000
    for address in rename[known.address].tolist():
        assert not [guess for guess in guesses(address) if guess in traffic]
    openly = Wanted(hidden.ids, wanted_by(hidden)).select([hidden.ids[0]]).pack()
    found = [address for address in rename[known.foreign].tolist() if any(guess in openly for guess in guesses(address))]
    assert found, "the same look finds what is compared openly"
    kinds = {type(one.message).kind_of(path) for one in exchange.record.sent for path in one.message.tensors()}
    assert {str(kind) for kind in kinds} == {"keys", "counts", "blinded ids"}


def test_an_asker_learns_nothing_of_what_it_did_not_ask_for(pieces: GraphBatch) -> None:
    """Tables of others hold no tag that the asker could compute for another id of theirs."""
    state = Exchange(pieces).again()
    mine = books_of(state)[0]
    codes = {row.tobytes()[:16] for peer in mine.peers.values() for row in peer.codes}
    tags = [row.tobytes()[:16] for peer in mine.peers.values() for row in peer.table]
    assert sum(tag in codes for tag in tags) == len(mine.holders()) < len(tags)


def test_repeated_only_new_ids_travel(pieces: GraphBatch) -> None:
    known = pieces.boundary
    assert known is not None
    # At first the last three links of everybody, and one node of the first owner, are not there.
    early = torch.arange(known.node.numel()) < known.node.numel() - 3
    gone = int(known.address[0])
    address = torch.where(known.address == gone, 10**6, known.address)
    before = Boundary(known.node[early], known.foreign[early], address)
    exchange = Exchange(dataclasses.replace(pieces, boundary=before))
    first = exchange.again()
    assert exchange.sizes("entries") == pieces.num_nodes
    assert all(gone not in book.holders() for book in books_of(first))
    state = exchange.again(pieces)
    last = known.node >= pieces.segments.bounds[2]  # whose these three links are
    new = set(known.foreign[~early].tolist()) - set(known.foreign[early & last].tolist())
    # Each new id is asked of two others, who answer it; the node that is new stands in one table.
    assert exchange.sizes("points") == len(new) + 2 * len(new)
    assert exchange.sizes("entries") == 1
    check_found(pieces, state)
    exchange.again()
    assert exchange.sizes("points") == exchange.sizes("entries") == 0


def test_sizes_are_padded(pieces: GraphBatch) -> None:
    exchange = Exchange(pieces, pad=50)
    check_found(pieces, exchange.again())
    for one in exchange.record.sent:
        for path, value in one.message.contents():
            if path in ("points", "entries") and isinstance(value, Rows):
                assert not (value.ptr.diff() % 50).any()


def test_who_has_lost_its_notes_is_heard_all_the_same(pieces: GraphBatch) -> None:
    """It publishes all of its table again, in another order than the others know, and a new node with it."""
    known = pieces.boundary
    assert known is not None
    wanted = next(one for one in known.address[: pieces.segments.bounds[1]].tolist() if one in known.foreign.tolist())
    address = torch.where(known.address == wanted, 10**6, known.address)
    exchange = Exchange(dataclasses.replace(pieces, boundary=Boundary(known.node, known.foreign, address)))
    everybody = exchange.again()
    nothing = exchange.method.init_clients(
        Clients(pieces.select([pieces.ids[0]]), Nothing(()), Streams.of(0, ()), exchange.task)
    )
    peers = dataclasses.replace(everybody.select([pieces.ids[0]]), asked=nothing.asked, published=nothing.published)
    for name, count in (("codes", "answered"), ("tables", "known")):
        counts = getattr(peers, count)
        zero = {count: Rows(torch.zeros_like(counts.values), counts.ptr), name: getattr(nothing, name)}
        peers = dataclasses.replace(peers, **zero)
    exchange.cohort.restore([everybody.replace_rows(peers)], exchange.cohort.asked)
    check_found(pieces, exchange.again(pieces))


def test_an_owner_with_another_scalar_is_asked_anew(pieces: GraphBatch) -> None:
    book = books_of(Exchange(pieces).again())[0]
    keys = {name: peer.key for name, peer in book.peers.items()}
    assert book.among(keys).peers == book.peers
    changed = book.among(keys | {pieces.ids[1]: bytes(16)})
    assert [len(changed.peers[name].codes) > 0 for name in pieces.ids] == [False, False, True]


@pytest.mark.parametrize("wrong", ["counts", "names", "points"])
def test_what_does_not_fit_together_is_refused(pieces: GraphBatch, wrong: str) -> None:
    exchange = Exchange(pieces)
    exchange.again()
    heard = [one.message for one in exchange.record.sent if isinstance(one.message, Asked)]
    (asked,) = heard
    if wrong == "counts":
        asked = dataclasses.replace(asked, counts=Rows(asked.counts.values + 1, asked.counts.ptr))
    elif wrong == "names":
        asked = dataclasses.replace(asked, names="only one")  # fewer than there are counts
    else:
        asked = dataclasses.replace(asked, points=Rows(torch.zeros_like(asked.points.values), asked.points.ptr))
    with pytest.raises((ValueError, IntegrityError)):
        exchange.cohort.ask(exchange.method.answer, asked)


def test_a_peer_that_is_not_named_properly_is_refused(pieces: GraphBatch) -> None:
    exchange = Exchange(pieces)
    keys = Rows(torch.zeros(9, 16, dtype=torch.uint8), torch.tensor([0, 3, 6, 9]))
    with pytest.raises(ValueError, match="everybody must be named once"):
        exchange.cohort.ask(exchange.method.ask_ids, Peers(pieces.ids, "x\ny\nz", keys))


def test_a_run_with_private_addresses_says_the_same_and_writes_it_down(tmp_path: Path) -> None:
    common = ["partition.boundary=both", "training.stitch=2", "rounds=2", "fedgcn.fewest=1", "model.dropout=0"]
    for method in ("fedavg", "fedgcn"):
        ends = [
            suture.run(
                SMALL, method, clients=3, overrides=[*common, f"partition.matching={how}"], out=tmp_path / method / how
            )
            for how in ("open", "private")
        ]
        assert ends[0].outcome.accuracy_weighted == pytest.approx(ends[1].outcome.accuracy_weighted, abs=0.02)
    folder = tmp_path / "fedgcn" / "private"
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["direction"] == "up"][:4:3] == ["matching.present", "matching.ask_ids"]
    (run,) = read_privacy(folder, 1e-5)
    assert {flow.kind for flow in run.disclosure.flows()} >= {"blinded ids", "keys"}
    assert any("were matched privately" in note for note in json.loads((folder / "data.json").read_text())["notes"])
    # What fedgcn remembers is by links, so that predictions need no addresses of the run.
    torch.testing.assert_close(suture.predict(folder).probability, ends[1].data.probability, atol=1e-5, rtol=0)

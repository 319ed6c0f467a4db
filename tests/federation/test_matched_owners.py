"""Private matching between owners who imported their own tables: no id is told, policies decide, questions are counted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import QUICK, Desks, audit_of
from loopback import Loopback
from small_tables import Kind, imported

from suture import api
from suture.core.message import Rows
from suture.federation.audit import AUDIT, AuditLog
from suture.federation.coordinator.coordinator import Coordinator
from suture.federation.owner.matching import ACCOUNT, MatchingAtOwner
from suture.federation.wire.frames import Frame
from suture.federation.wire.orders import order_of
from suture.federation.wire.reasons import Refused
from suture.graph.boundary import addresses_of
from suture.methods.matched import NOBODY, Matched, books_of
from suture.methods.matching_messages import Asked, Found, Questions
from suture.privacy.blinding import entries, hashed_times, things, times, usable_scalar
from suture.tables import GraphFolder

STITCHED = ("training.stitch=1", "rounds=2", "model.hidden=8", "split.scope=client")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three owners' folders, each of which knows the ids at the far ends of its edges to others."""
    out = tmp_path_factory.mktemp("tables")
    return imported(out, Kind()).per_owner(out / "pieces")


def planned(method: str = "fedavg", *more: str) -> api.Plan:
    return api.plan("federation", [method], seeds=[0], overrides=[*STITCHED, *more])


def carried_out(desks: Desks, folder: Path, made: api.Plan, run: str = "run") -> Path:
    audit = AuditLog(folder / AUDIT, "coordinator")
    assert Coordinator(order_of(made, run, QUICK), folder / run, desks, audit).carry_on() is not None
    return folder / run


def truth_of(pieces: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """For every owner its foreign ids, and who has them in its node table."""
    data = {owner: GraphFolder.read(path).to_data() for owner, path in pieces.items()}
    holder = {name: owner for owner, one in data.items() for name in one.node_name}
    return {owner: {name: holder[name] for name in one.boundary_foreign} for owner, one in data.items()}


def found_by(desks: Desks, owner: str) -> dict[int, str]:
    (book,) = books_of(Matched.unpack((desks.owned[owner].home / "matched.record").read_bytes()))
    return {address: name for address, (name, _) in book.holders().items()}


@pytest.mark.parametrize("method", ["fedavg", "fedgcn"])
def test_imported_tables_are_stitched_and_no_id_is_told(pieces: dict[str, Path], method: str, tmp_path: Path) -> None:
    desks = Desks(tmp_path / "homes", pieces)
    run = carried_out(desks, tmp_path, planned(method))
    truth = truth_of(pieces)
    assert all(truth.values())
    for owner, ends in truth.items():
        expected = {int(addresses_of([name])[0]): holder for name, holder in ends.items()}
        assert found_by(desks, owner) == expected
    traffic = b"".join(part.pack() for _, asked, told in desks.heard for part in (asked, told))
    for name in {name for ends in truth.values() for name in ends}:
        raw = name.encode()
        guesses = [int(addresses_of([name])[0]).to_bytes(8, "little"), b'"' + raw + b'"', b"\n" + raw + b"\n"]
        guesses += [hashlib.new(how, raw).digest()[:8] for how in ("md5", "sha1", "sha256", "blake2b")]
        assert not [guess for guess in guesses if guess in traffic]
    told = {line["step"] for line in map(json.loads, (run / "ledger.jsonl").read_text().splitlines())}
    assert {"matching.ask_ids", "matching.answer"} <= told
    assert {"stitch_offer"} <= told or {"post_sums"} <= told
    last = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["phase"] == "stitch"]
    # Everybody hears of each of its foreign ends.
    assert method == "fedgcn" or last[-1]["heard"] == sum(len(ends) for ends in truth.values())
    noted = [line for line in audit_of(desks, "north") if line["event"] == "matched"]
    assert noted and noted[0]["found"] == noted[0]["wanted"] == len(truth["north"])


def test_repeated_nothing_travels_and_questions_are_counted(pieces: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks(tmp_path / "homes", pieces, {"north": "[matching]\ntimes = 1"})
    carried_out(desks, tmp_path, planned(), "first")
    truth = truth_of(pieces)
    lines = [json.loads(line) for line in (desks.owned["north"].home / ACCOUNT).read_text().splitlines()]
    assert {line["peer"]: line["ids"] for line in lines} == {name: len(truth[name]) for name in ("south", "west")}
    desks.heard.clear()
    carried_out(desks, tmp_path, planned(), "second")  # asks nothing new, so that one matching is enough for north
    (asked,) = [frame for owner, frame, _ in desks.heard if frame.header.get("step") == "answer" and owner == "north"]
    assert len(asked.body) < 1000
    assert len((desks.owned["north"].home / ACCOUNT).read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("[matching]\nallowed = false", "forbids matching of ids"),
        ('[matching]\nonly_with = ["west"]', "matches no ids with south"),
        ("[matching]\nmax_ids = 3", "allows 3 ids to be asked for in all matchings, 0 have been"),
        ("statistics = true\n[privacy]\nepsilon = 8.0", "no noise covers which ids are held"),
    ],
)
def test_the_owner_decides(pieces: dict[str, Path], policy: str, why: str, tmp_path: Path) -> None:
    desks = Desks(tmp_path / "homes", pieces, {"north": policy})
    with pytest.raises(Refused, match=why):
        carried_out(desks, tmp_path, planned())


def test_an_owner_can_insist_on_it(pieces: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks(tmp_path / "homes", pieces, {"north": "[matching]\nrequired = true"})
    with pytest.raises(Refused, match="requires private matching, and this run compares hashes of ids openly"):
        carried_out(desks, tmp_path, planned("fedavg", "partition.matching=open"))


def test_a_home_that_another_matching_has_changed_is_not_overwritten(pieces: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks(tmp_path / "homes", pieces)
    carried_out(desks, tmp_path, planned(), "first")
    home = desks.owned["north"].home
    kept = (home / "matched.record").read_bytes()

    def meddle(owner: str, frame: object) -> None:
        if getattr(frame, "header", {}).get("step") == "take":
            (home / "matched.record").write_bytes(kept + b" ")

    desks.meddle = meddle
    with pytest.raises(Refused, match="another matching of this owner went on meanwhile"):
        carried_out(desks, tmp_path, planned(), "second")


@pytest.mark.parametrize("forged", ["points", "signature", "names"])
def test_nobody_asks_in_another_owners_name(pieces: dict[str, Path], forged: str, tmp_path: Path) -> None:
    """A coordinator that has changed points, a signature, or whose questions they are said to be, is refused."""
    desks = Desks(tmp_path / "homes", pieces)
    carried_out(desks, tmp_path, planned())
    home = desks.owned["north"].home
    before = (home / ACCOUNT).read_text()
    (frame,) = [asked for owner, asked, _ in desks.heard if asked.header.get("step") == "answer" and owner == "north"]
    asked = Asked.unpack(frame.body)
    if forged == "points":
        points = asked.points.values.clone()
        points[0] = points[1]
        asked = replace(asked, points=Rows(points, asked.points.ptr))
    elif forged == "signature":
        proofs = asked.proofs.values.clone()
        proofs[5] ^= 1
        asked = replace(asked, proofs=Rows(proofs, asked.proofs.ptr))
    else:
        asked = replace(asked, names="north\nwest\nsouth")
    answer = desks.desks["north"].answer(Frame({**frame.header, "number": 9}, asked.pack()).pack())
    refused = Frame.unpack(answer).refused
    assert refused is not None and "it is asked which ids it holds, but" in str(refused)
    assert (home / ACCOUNT).read_text() == before, "what is refused is not counted"


@pytest.mark.parametrize("believed", [False, True], ids=["signatures are checked", "nobody checks"])
def test_a_coordinator_does_not_learn_to_whom_an_owner_has_links(
    pieces: dict[str, Path], believed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers in another owner's place, with a scalar of its own and a table of all ids it can think of.

    Who believes that speaks of its links by addresses that the coordinator knows.
    """
    desks = Desks(tmp_path / "homes", pieces)
    carried_out(desks, tmp_path, planned())
    heard = {str(asked.header.get("step")): (asked, told) for owner, asked, told in desks.heard if owner == "north"}
    (frame, _), (_, questions) = heard["take"], heard["ask_ids"]
    found, points = Found.unpack(frame.body), Questions.unpack(questions.body).points.values.numpy()
    scalar, _ = usable_scalar(lambda attempt: os.urandom(32))
    guesses = np.asarray(addresses_of(list(truth_of(pieces)["north"])))
    secrets = np.arange(1, guesses.size + 1)
    table = entries(hashed_times(scalar, things(guesses)), secrets)
    # All of it in the place of what south said, which stands behind what north does not say to itself.
    answers = np.concatenate([times(scalar, points), found.points.values.numpy()[len(points) :]])
    _, south, west = (int(count) for count in found.counts.values)
    tables = np.concatenate([table, found.entries.values.numpy()[south:]])
    forged = replace(
        found,
        points=Rows(torch.from_numpy(answers), found.points.ptr),
        entries=Rows(torch.from_numpy(tables), torch.tensor([0, len(tables)])),
        counts=Rows(torch.tensor([0, len(table), west]), found.counts.ptr),
    )
    if believed:
        monkeypatch.setattr(MatchingAtOwner, "_check_answers", lambda *_: None)
    before = found_by(desks, "north")
    answer = Frame.unpack(desks.desks["north"].answer(Frame(frame.header, forged.pack()).pack()))
    (book,) = books_of(Matched.unpack((desks.owned["north"].home / "matched.record").read_bytes()))
    learnt = {secret for _, secret in book.holders().values()} & set(secrets.tolist())
    if believed:
        assert answer.refused is None and learnt == set(secrets.tolist()), "the attack is one"
    else:
        assert "it is told which ids others hold, but" in str(answer.refused)
        assert not learnt and found_by(desks, "north") == before


@pytest.mark.federation
def test_between_running_processes(pieces: dict[str, Path], tmp_path: Path) -> None:
    """Kits, certificates, a coordinator and three owners with their own folders, each a process."""
    folder = next(iter(pieces.values())).parent
    parties = Loopback(tmp_path, tuple(pieces), folder)
    parties.start()
    try:
        parties.wait()
        order = parties.order(planned("fedgcn", "fedgcn.fewest=1"), "night")
        (run,) = parties.carry_out([order])
    finally:
        parties.stop()
    steps = [json.loads(line)["step"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert "matching.take" in steps and "post_around" in steps
    for owner, ends in truth_of(pieces).items():
        (record,) = [path for path in parties.kits[owner].rglob("matched.record") if path.parent.name != "night"]
        (book,) = books_of(Matched.unpack(record.read_bytes()))
        assert len(book.holders()) == len(ends) == int((book.asked != NOBODY).sum())


@pytest.mark.parametrize(
    ("method", "settings", "limits"),
    [
        ("fedavg", ("training.stitch=2", "training.stitch_sigma=0.1"), {"stitch_offer": 2}),
        ("fedgcn", ("training.stitch=0", "fedgcn.clip=1", "fedgcn.sigma=0.1"), {"post_sums": 1, "post_around": 1}),
    ],
)
def test_noise_on_what_is_told_over_links_is_drawn_where_nobody_else_can(
    pieces: dict[str, Path], method: str, settings: tuple[str, ...], limits: dict[str, int], tmp_path: Path
) -> None:
    """Every such step has a key of its own, is counted, and is not run more often than the account says."""
    desks = Desks(tmp_path / "homes", pieces)
    carried_out(desks, tmp_path, planned(method, *settings))
    lines = map(json.loads, (desks.owned["north"].home / "accounts" / "run.jsonl").read_text().splitlines())
    keyed = [line["step"] for line in lines if line["event"] == "ran" and "key" in line]
    assert {step: keyed.count(step) for step in set(keyed)} == limits
    (again,) = [
        frame for owner, frame, _ in desks.heard if frame.header.get("step") == next(iter(limits)) and owner == "north"
    ][-1:]
    asked = Frame({**again.header, "number": 99}, again.body)
    refused = Frame.unpack(desks.desks["north"].answer(asked.pack())).refused
    assert refused is not None and "the privacy budget is spent" in str(refused)


def test_sums_of_several_owners_are_sealed(pieces: dict[str, Path], tmp_path: Path) -> None:
    ends = {}
    for secure in (False, True):
        desks = Desks(tmp_path / f"homes-{secure}", pieces)
        made = planned("fedgcn", "fedgcn.together=true", "fedgcn.fewest=1", "training.stitch=0", "model.dropout=0")
        order = order_of(made, "run", QUICK, secure)
        audit = AuditLog(tmp_path / f"{secure}-{AUDIT}", "coordinator")
        folder = tmp_path / f"run-{secure}"
        outcome = Coordinator(order, folder, desks, audit).carry_on()
        assert outcome is not None
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        up = [line for line in lines if line["step"] == "post_together" and line["direction"] == "up"]
        ends[secure] = (outcome.accuracy_weighted, {kind for line in up for kind in line["kinds"]})
    assert ends[False][1] >= {"node features"} and ends[True][1] == {"sealed"}
    assert ends[True][0] == pytest.approx(ends[False][0], abs=0.05)

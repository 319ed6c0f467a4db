"""Owners with graph folders of their own: the same statistics and the same scores as in one process, plain and secure."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from folders import OWNERS, ROLES, SHORT, Desks, audit_of, coordinator, imported, planned, tables_of

import suture
from suture import api
from suture.core.packing import kind_of
from suture.errors import ConfigError, DataError
from suture.federation.owner.owner import Owner
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.status import State
from suture.federation.wire.terms import terms_before
from suture.methods.census import Census
from suture.runs.card import DataCard
from suture.runs.checkpoint import load_models
from suture.runs.folder import read_card
from suture.tables import GraphFolder, Tables, Wishes, import_tables


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GraphFolder:
    return imported(tmp_path_factory.mktemp("tables") / "whole")


@pytest.fixture(scope="module")
def pieces(whole: GraphFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return whole.per_owner(tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="module")
def alone(whole: GraphFolder) -> suture.Result:
    """All owners in one process, one after the other."""
    return in_one_process(whole)


def in_one_process(whole: GraphFolder, method: str = "fedavg", *more: str) -> suture.Result:
    return suture.run(whole.path, method, seed=0, overrides=[*SHORT, *more], options=api.Options(chunk=1))


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def card_of(folder: Path) -> DataCard:
    return DataCard.read(read_card(folder / "run"))


def assert_same_run(folder: Path, alone: suture.Result, fixed_point: float = 0.0) -> None:
    """Statistics, notes, scores of every round, bytes and models."""
    counts = alone.finished.prepared.counts
    found = card_of(folder).statistics
    assert counts is not None and found is not None
    for name, value in asdict(counts.statistics).items():
        np.testing.assert_allclose(
            getattr(found, name), value, rtol=max(1e-6, 10 * fixed_point), atol=fixed_point, err_msg=name
        )
    assert card_of(folder).metric == counts.metric and card_of(folder).notes == counts.notes
    assert len(lines(folder)) == len(alone.history)
    for mine, theirs in zip(lines(folder), alone.history, strict=True):
        for key in ("loss", "train", "validation", "test", "client_validation", "client_test"):
            told, expected = (np.array(line[key], dtype=float) for line in (mine, theirs))  # None: nothing to test
            np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-5, err_msg=key)
    model = load_models(folder / "run" / "model.safetensors")[0]["shared"]
    assert alone.finished.shared is not None
    for key, value in alone.finished.shared.params.items():
        torch.testing.assert_close(model[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_folders_of_owners_run_as_their_whole_does(
    secure: bool, alone: suture.Result, pieces: dict[str, Path], tmp_path: Path
) -> None:
    desks = Desks(tmp_path / "owners", pieces)
    outcome = coordinator(planned("fedavg"), tmp_path, desks, secure=secure).carry_on()
    assert outcome is not None and outcome.protocol == "own"
    assert_same_run(tmp_path, alone, 1e-7 if secure else 0.0)
    if not secure:
        assert outcome.bytes_up == alone.outcome.bytes_up and outcome.bytes_down == alone.outcome.bytes_down
    bodies = [told.body for _, asked, told in desks.heard if told.body and asked.header["verb"] != "evaluate"]
    expected = {"Sealed"} if secure else {"Totals", "Spread", "Up"}
    assert {kind_of(body) for body in bodies} == expected, "what leaves an owner"


def test_statistics_are_those_of_all_tables_together(pieces: dict[str, Path], tmp_path: Path) -> None:
    """Against means and deviations that NumPy finds in the raw columns."""
    assert coordinator(planned("fedavg"), tmp_path, Desks(tmp_path / "owners", pieces)).carry_on() is not None
    card, found = card_of(tmp_path), card_of(tmp_path).statistics
    assert found is not None
    tables = [tables_of(owner) for owner in OWNERS]
    column = card.feature_names.index("income")
    incomes = np.concatenate([nodes["income"].fill_null(0.0).to_numpy() for nodes, _ in tables])
    assert found.shift[column] == pytest.approx(incomes.mean(), rel=1e-5)
    assert found.scale[column] == pytest.approx(incomes.std(), rel=1e-5)
    untouched = [k for k, name in enumerate(card.feature_names) if "=" in name or "(" in name]
    assert untouched and all(found.shift[k] == 0 and found.scale[k] == 1 for k in untouched)
    assert found.nodes == card.nodes == 180 and card.edges is None and card.owners == OWNERS
    assert sum(found.classes) == found.trained and card.class_names == ("no", "yes")
    assert found.edge_scale > 100


def test_every_owner_gets_predictions_under_its_own_ids(
    alone: suture.Result, pieces: dict[str, Path], tmp_path: Path
) -> None:
    assert coordinator(planned("fedavg"), tmp_path, Desks(tmp_path / "owners", pieces)).carry_on() is not None
    probability = alone.data.probability
    for number, owner in enumerate(OWNERS):
        home = tmp_path / "owners" / owner / "runs" / "run"
        rows = list(csv.DictReader((home / "predictions.csv").open()))
        nodes, _ = tables_of(owner)
        assert [row["id"] for row in rows] == nodes["account"].to_list()
        assert [row["labelled"] for row in rows] == ["false" if label is None else "true" for label in nodes["fraud"]]
        told = torch.tensor([[float(row["probability no"]), float(row["probability yes"])] for row in rows])
        torch.testing.assert_close(told, probability[alone.data.client == number], atol=1e-5, rtol=0)
        assert [row["prediction"] for row in rows] == [("no", "yes")[k] for k in told.argmax(1).tolist()]
        mine = DataCard.read(json.loads((home / "data.json").read_text()))
        assert mine.nodes == 60 and any("have no label" in note for note in mine.notes)
        assert (home / "model.safetensors").exists()


def test_an_owner_can_keep_its_statistics_to_itself(pieces: dict[str, Path], tmp_path: Path) -> None:
    for name, policy, complaint in (
        ("forbidden", "statistics = false", "the policy forbids statistics to leave"),
        ("budget", "[privacy]\nepsilon = 8.0", "statistics would leave without noise"),
    ):
        desks = Desks(tmp_path / name / "owners", pieces, {"south": policy})
        with pytest.raises(Refused, match=complaint) as refusal:
            coordinator(planned("fedavg"), tmp_path / name, desks).carry_on()
        assert refusal.value.code == Code.POLICY and "owner south refuses" in str(refusal.value)
        assert any(complaint in str(line.get("reason")) for line in audit_of(desks, "south"))
        assert not list((tmp_path / name / "owners" / "south").glob("runs/*/ledger.jsonl")), "nothing has left"
    # A run that needs none is not refused, and nothing is counted for it.
    none = ("preprocess.standardise=false", "preprocess.edge_weights=keep", "metric=accuracy", "class_weights=none")
    desks = Desks(tmp_path / "needless" / "owners", pieces, {"south": "statistics = false"})
    assert coordinator(planned("fedavg", *none), tmp_path / "needless", desks).carry_on() is not None
    assert card_of(tmp_path / "needless").statistics is None


HOSTILE = [
    ({"classes": 10**9}, "the terms speak of 1000000000 classes, this owner has 2"),
    ({"classes": 1}, "the terms speak of 1 classes, this owner has 2"),
    ({"task": "link", "classes": 1}, "the terms speak of 1 classes, this owner has 2"),
    ({"handling": {"split": {"scope": "client", "train": 1e-9}}}, "have no training node"),
    ({"handling": {"target": {"class_weights": [1.0, 1e30]}}}, "a class must weigh"),
    ({"handling": {"target": {"class_weights": [1.0, float("nan")]}}}, "class_weights must be a list of numbers"),
    ({"handling": {"statistics": {"nodes": 1, "trained": 1, "scale": [0.5]}}}, "columns were expected"),
    ({"handling": {"statistics": {"nodes": 1, "trained": 1, "edge_scale": 0.0}}}, "a scale that is not from"),
    ({"handling": {"statistics": {"nodes": 1, "trained": 1, "edge_scale": float("nan")}}}, "edge_scale must be a number"),
]


@pytest.mark.parametrize(("changes", "complaint"), HOSTILE, ids=[says for _, says in HOSTILE])
def test_an_owner_refuses_terms_that_no_census_gives(
    changes: dict[str, object], complaint: str, pieces: dict[str, Path], tmp_path: Path
) -> None:
    owner = Owner.set_up("north", pieces["north"], None, tmp_path)
    honest = terms_before(Census(), planned("fedavg"), owner.holding.described()).as_json()
    owner.agree("run.census", honest)
    with pytest.raises(Refused, match=complaint) as refusal:
        owner.agree("run.census", honest | changes)
    assert refusal.value.code == Code.TERMS and "\n" not in str(refusal.value)


def test_the_ledgers_show_what_was_counted(pieces: dict[str, Path], tmp_path: Path) -> None:
    desks = Desks(tmp_path / "owners", pieces, {"north": 'methods = ["fedavg"]\nmax_rounds = 4'})
    assert coordinator(planned("fedavg"), tmp_path, desks).carry_on() is not None
    sent = [json.loads(line) for line in (tmp_path / "owners/north/runs/run.census/ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in sent] == ["count", "measure"]
    assert all(set(line["kinds"]) == {"statistics", "counts"} for line in sent)
    central = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in central[:4]] == ["census.count", "census.count", "census.measure", "census.measure"]
    assert any(line["event"] == "opened" and line["run"] == "run.census" for line in audit_of(desks, "north"))


def test_owners_that_prepared_their_tables_otherwise_are_named(pieces: dict[str, Path], tmp_path: Path) -> None:
    nodes, edges = tables_of("south")
    for name, table, wishes, complaint in (
        ("column", nodes.drop("colour"), Wishes(), "it lacks the column 'colour'"),
        (
            "category",
            nodes.with_columns(colour=nodes["colour"].replace({"red": "pink"})),
            Wishes(),
            "it lacks 'red' among the categories of column 'colour'",
        ),
        ("kind", nodes, Wishes(kinds={"risk": "ignored"}), "it lacks the column 'risk'"),
        ("class", nodes, Wishes(classes=("yes", "no")), "the classes are in another order"),
        ("missing", nodes, Wishes(missing={"*": "indicator"}), "the missing of column"),
    ):
        other = import_tables(
            tmp_path / name / "south",
            [Tables(table, edges, owner="south")],
            replace(wishes, roles=ROLES, min_count=1, keep=frozenset({"risk", "income"})),
        )[0]
        desks = Desks(tmp_path / name / "owners", {**pieces, "south": other.path})
        one = coordinator(planned("fedavg"), tmp_path / name, desks)
        with pytest.raises(DataError, match="owner south's tables were prepared otherwise than north's") as refusal:
            one.carry_on()
        assert complaint in str(refusal.value) and "\n" not in str(refusal.value)
        assert one.status.state == State.FAILED
        assert set(desks.verbs()) == {"describe"}


class Killed(BaseException):
    """Not an error anybody may handle."""


@pytest.mark.parametrize("place", ["in the census", "between census and run"])
def test_a_coordinator_killed_around_the_census_goes_on(place: str, pieces: dict[str, Path], tmp_path: Path) -> None:
    made = planned("fedavg")
    assert coordinator(made, tmp_path / "reference", Desks(tmp_path / "reference" / "owners", pieces)).carry_on() is not None
    desks = Desks(tmp_path / "owners", pieces)

    def kill(owner: str, frame: object) -> None:
        header = frame.header  # type: ignore[attr-defined]
        in_census = header.get("step") == "measure" and owner == "south"
        before_run = header.get("verb") == "open" and header.get("run") == "run"
        if in_census if place == "in the census" else before_run:
            raise Killed

    desks.meddle = kill
    with pytest.raises(Killed):
        coordinator(made, tmp_path, desks).carry_on()
    asked = len(desks.heard)
    desks.meddle = lambda owner, frame: None
    for owner in OWNERS:
        desks.desks[owner] = desks.owned[owner].desk()
    assert coordinator(made, tmp_path, desks).carry_on() is not None
    again = {frame.header.get("step") for _, frame, _ in desks.heard[asked:]}
    assert ("count" in again) == (place == "in the census"), "asked again only if it was not answered"
    assert lines(tmp_path) == lines(tmp_path / "reference")
    steps = [
        [json.loads(line)["step"] for line in (path / "run/ledger.jsonl").read_text().splitlines()]
        for path in (tmp_path, tmp_path / "reference")
    ]
    assert steps[0] == steps[1]


def test_given_splits_are_honoured_by_all_or_drawn_by_all(tmp_path: Path) -> None:
    """One owner's table has a split column without validation nodes, the others' have none: as in one process."""
    parts = []
    for owner in OWNERS:
        nodes, edges = tables_of(owner)
        marks = [["train", "test"][one % 2] if owner == "north" else None for one in range(len(nodes))]
        nodes = nodes.with_columns(split=pl.Series(marks, dtype=pl.String))
        parts.append(Tables(nodes, edges, owner=owner))
    roles = replace(ROLES, split="split")
    whole = import_tables(tmp_path / "whole", parts, Wishes(roles, min_count=1))[0]
    alone = in_one_process(whole)
    desks = Desks(tmp_path / "owners", whole.per_owner(tmp_path / "pieces"))
    assert coordinator(planned("fedavg"), tmp_path, desks).carry_on() is not None
    assert_same_run(tmp_path, alone)


def test_a_folder_of_several_owners_is_refused(whole: GraphFolder, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"holds the graphs of 3 owners \(north, south, west\).*suture data pieces"
    ) as refusal:
        Owner.set_up("north", whole.path, None, tmp_path / "home")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "home" / "owner.json").exists()


def test_what_only_the_uncut_graph_can_say_is_refused(pieces: dict[str, Path], tmp_path: Path) -> None:
    made = api.plan("federation", ["fedavg"], protocol="fedpub-disjoint", seeds=[0], overrides=SHORT)
    with pytest.raises(Refused, match="largest_component speaks of the uncut graph"):
        coordinator(made, tmp_path, Desks(tmp_path / "owners", pieces)).carry_on()


@pytest.mark.parametrize("task", ["regression", "multi-label"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_numbers_and_several_labels(task: str, secure: bool, tmp_path: Path) -> None:
    """Directed, weighted, with unlabelled nodes: as in one process."""
    whole = imported(tmp_path / "whole", task, directed=True)
    alone = in_one_process(whole)
    desks = Desks(tmp_path / "owners", whole.per_owner(tmp_path / "pieces"))
    assert coordinator(planned("fedavg"), tmp_path, desks, secure=secure).carry_on() is not None
    assert_same_run(tmp_path, alone, 1e-6 if secure else 0.0)
    card = card_of(tmp_path)
    assert card.kind == {"regression": "value", "multi-label": "labels"}[task] and card.directed and card.weighted
    home = tmp_path / "owners" / "north" / "runs" / "run"
    rows = list(csv.DictReader((home / "predictions.csv").open()))
    mine = alone.data.client == 0
    if task == "regression":
        told = torch.tensor([float(row["prediction"]) for row in rows])
        torch.testing.assert_close(told, alone.data.prediction[mine, 0], rtol=1e-4, atol=0)
        assert float(told.mean()) > 500, "in the units of the table"
    else:
        names = card.class_names
        assert names == ("late", "punctual", "rich")
        chosen = [[int(row[f"predicted {name}"]) for name in names] for row in rows]
        assert chosen == alone.data.prediction[mine].tolist()
    evaluation = json.loads((home / "evaluation.json").read_text())
    whole_evaluation = alone.finished.evaluation["clients"]["north"]["test"]
    ours = evaluation["clients"]["north"]["test"]
    assert ours.keys() == whole_evaluation.keys()
    for name, value in whole_evaluation.items():
        assert ours[name] == pytest.approx(value, rel=1e-3), name


def test_a_method_that_cannot_predict_numbers_is_refused_before_anything_is_counted(tmp_path: Path) -> None:
    whole = imported(tmp_path / "whole", "regression")
    desks = Desks(tmp_path / "owners", whole.per_owner(tmp_path / "pieces"))
    with pytest.raises(ConfigError, match="fedproto can predict one class of a node, not numbers"):
        coordinator(planned("fedproto"), tmp_path, desks).carry_on()
    assert set(desks.verbs()) == {"describe"}

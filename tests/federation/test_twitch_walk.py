"""Real communities between real processes: each owner imports its own tables, and gets predictions for its own ids."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from loopback import Loopback

import suture
from suture.cli import main
from suture.tables import GraphFolder, read_schema
from suture.tables.folder import write_folder
from suture.tables.schema import difference
from suture.tables.summary import Summary

pytestmark = pytest.mark.federation
COUNTRIES = ("ES", "RU", "TW")
SHORT = ("rounds=3", "model.hidden=16")


def tables(data_root: Path, country: str) -> list[str]:
    base = data_root / "Twitch" / country / f"musae_{country}_"
    return ["--nodes", f"{base}target.csv", "--edges", f"{base}edges.csv", "--features", f"{base}features.json"]


@pytest.fixture(scope="module")
def folders(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One owner makes a schema; each checks it against its own tables, and imports them."""
    if not (data_root / "Twitch").is_dir():
        pytest.skip("Twitch is not here")
    out = tmp_path_factory.mktemp("twitch")
    schema = str(out / "schema.json")
    roles = ("--id", "new_id", "--label", "mature", "--type", "tokens=tokens:3170")
    assert main(["schema", "make", *tables(data_root, "ES"), *roles, "--out", schema]) == 0
    for country in COUNTRIES:
        assert main(["schema", "check", schema, *tables(data_root, country)]) == 0
        options = ["--schema", schema, "--owner-name", country, "--duplicates", "first"]
        assert main(["import", str(out / country), *tables(data_root, country), *options]) == 0
    return out


@pytest.fixture(scope="module")
def parties(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    loopback = Loopback(tmp_path_factory.mktemp("federation"), COUNTRIES, folders)
    loopback.start()
    try:
        loopback.wait()
        yield loopback
    finally:
        loopback.stop()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_from_tables_to_predictions(secure: bool, parties: Loopback, folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    overrides = [word for value in SHORT for word in ("--set", value)]
    code, printed = parties.run(
        *("federation", "run", "--kit", str(parties.kits["operator"]), "--method", "fedavg", "--seed", "0"),
        *(*overrides, "--out", str(out), *(["--secure"] if secure else [])),
    )
    assert code == 0, printed
    alone = suture.run(joined(folders, tmp_path), "fedavg", seed=0, overrides=SHORT)
    result, card = (json.loads((out / name).read_text()) for name in ("result.json", "data.json"))
    assert result["protocol"] == "own"
    assert result["accuracy_client_mean"] == pytest.approx(alone.outcome.accuracy_client_mean, abs=1e-3)
    counts = alone.finished.prepared.counts
    assert counts is not None
    np.testing.assert_allclose(card["statistics"]["scale"], counts.statistics.scale, rtol=1e-3)
    assert card["nodes"] == 4648 + 4385 + 2772
    for number, country in enumerate(COUNTRIES):
        told = tmp_path / f"{country}.csv"
        assert parties.run("owner", "predict", str(parties.kits[country]), "--out", str(told))[0] == 0
        rows = list(csv.DictReader(told.open()))
        assert [row["id"] for row in rows] == GraphFolder.read(folders / country).nodes()["id"].to_list()
        mine = [float(row[f"probability {card['class_names'][1]}"]) for row in rows]
        np.testing.assert_allclose(mine, alone.data.probability[alone.data.client == number, 1], atol=2e-3)
        code, printed = parties.run("owner", "ledger", str(parties.kits[country]))
        assert code == 0 and ("words" if secure else "label_square") in printed
    assert difference(read_schema(out / "schema.json"), GraphFolder.read(folders / "TW").schema, scaling=True) is None


def joined(folders: Path, tmp_path: Path) -> Path:
    """All owners' pieces in one folder, for the same run in one process."""
    pieces = [GraphFolder.read(folders / country) for country in COUNTRIES]
    write_folder(tmp_path / "whole", [one.piece() for one in pieces], pieces[0].schema, Summary())
    return tmp_path / "whole"

"""What is counted before a run, and what follows from it: weights, notes, and terms that no honest count gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suture.errors import ConfigError
from suture.graph.scaling import Statistics
from suture.graph.target import Target
from suture.runs.counting import concluded, needs_census, target_from
from suture.runs.piece import Handling
from suture.runs.plan import plan
from suture.settings import Protocol


def protocol(*overrides: str) -> Protocol:
    return plan("federation", ["fedavg"], protocol="own", overrides=overrides).protocol


def links(*overrides: str) -> Protocol:
    return replace(protocol(*overrides), task="link")


def test_links_are_counted_for_where_features_or_edge_weights_are_scaled() -> None:
    by_weight = links("preprocess.standardise=false", "preprocess.edge_weights=scaled")
    assert needs_census(by_weight, "class", weighted=True)
    assert not needs_census(by_weight, "class", weighted=False)
    assert needs_census(links(), "class", weighted=False)


def test_of_links_no_class_is_weighed_and_none_is_spoken_of() -> None:
    found = Statistics(nodes=100, trained=60, classes=(57.0, 3.0))
    assert any("each class weighs" in note for note in concluded(found, protocol(), "class", ()).notes)
    assert not any("class" in note for note in concluded(found, links(), "class", ()).notes)


def test_labels_weigh_by_how_rare_they_are_and_none_weighs_nothing() -> None:
    """As scikit-learn's pos_weight is usually set: negatives over positives; what all or none have cannot be balanced."""
    found = Statistics(nodes=100, trained=60, classes=(20.0, 60.0, 0.0))
    assert target_from(found, protocol("class_weights=balanced"), "labels").class_weights == (2.0, 1.0, 1.0)


HONEST = Handling(
    target=Target("class", class_weights=(0.5, 2.0)),
    statistics=Statistics(nodes=9, trained=5, shift=(1.0, 0.0, -2.0), scale=(1.0, 3.0, 0.1)),
)


@pytest.mark.parametrize(
    ("statistics", "target", "says"),
    [
        ({"scale": (1.0, 1.0), "shift": (0.0, 0.0)}, {}, "of 3 columns were expected"),
        ({"shift": ()}, {}, "shift as many columns as they scale"),
        ({"scale": ()}, {}, "shift as many columns as they scale"),
        ({"scale": (1.0, 0.0, 1.0)}, {}, "a scale that is not from"),
        ({"scale": (1.0, 1e-300, 1.0)}, {}, "a scale that is not from"),
        ({"scale": (1.0, float("nan"), 1.0)}, {}, "a scale that is not from"),
        ({"scale": (1.0, 1e300, 1.0)}, {}, "a scale that is not from"),
        ({"edge_scale": -1.0}, {}, "a scale that is not from"),
        ({"shift": (1.0, 1e300, 1.0)}, {}, "a shift beyond"),
        ({}, {"class_weights": (1.0, 1.0, 1.0)}, "of 2 columns were expected"),
        ({}, {"class_weights": (1.0, -1.0)}, "a class must weigh"),
        ({}, {"class_weights": (1.0, 1e30)}, "a class must weigh"),
        ({}, {"kind": "value", "class_weights": (), "scale": (1.0, 1.0)}, "shift as many columns as they scale"),
    ],
)
def test_terms_that_no_census_gives_are_refused(statistics: dict[str, object], target: dict[str, object], says: str) -> None:
    HONEST.check(features=3, outputs=2)
    assert HONEST.statistics is not None
    hostile = replace(HONEST, statistics=replace(HONEST.statistics, **statistics), target=replace(HONEST.target, **target))
    with pytest.raises(ConfigError, match=says):
        hostile.check(features=3, outputs=2)

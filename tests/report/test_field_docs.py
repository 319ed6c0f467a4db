from __future__ import annotations

import dataclasses

import pytest

from suture.methods import METHODS, own_fields
from suture.report.docs import field_docs
from suture.settings import TrainingSettings


def test_reads_what_stands_below_a_field() -> None:
    docs = field_docs(TrainingSettings)
    assert docs["rounds"] == "Communication rounds."
    assert set(docs) == {field.name for field in dataclasses.fields(TrainingSettings)}


@pytest.mark.parametrize("name", METHODS)
def test_every_hyper_parameter_of_every_method_is_explained(name: str) -> None:
    assert own_fields(METHODS[name]) <= set(field_docs(METHODS[name]))

"""Hyper-parameters outside their bounds: one sentence, the same from Python and from the command line."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

import suture
from suture.errors import ConfigError
from suture.method import Method
from suture.methods import METHODS, own_fields
from suture.methods.fedavg import FedAvg
from suture.settings import TrainingSettings

REFUSED = [
    ("fedprox", "mu", -0.1, "fedprox.mu must be a number >= 0, got -0.1"),
    ("fedper", "personal_layers", -1, "fedper.personal_layers must be an integer >= 0, got -1"),
    ("fedsage", "fanout", 0, "fedsage.fanout must be an integer >= 1, got 0"),
    ("fedsage", "batch_size", -1, "fedsage.batch_size must be an integer >= 0, got -1"),
    ("fedsage_plus", "hidden_share", 1.0, "fedsage_plus.hidden_share must be a number > 0 and < 1, got 1.0"),
    ("fedsage_plus", "generator_lr", 0.0, "fedsage_plus.generator_lr must be a number > 0, got 0.0"),
    ("locsage_plus", "rehide", -1, "locsage_plus.rehide must be an integer >= 0, got -1"),
    ("feddep", "r", 1.5, "feddep.r must be a number >= 0 and <= 1, got 1.5"),
    ("feddep", "depth", 0, "feddep.depth must be an integer >= 1, got 0"),
    ("feddep", "sigma", 0.0, "feddep.sigma must be a number > 0, got 0.0"),
    ("fedgnn", "neighbours", 0, "fedgnn.neighbours must be an integer >= 1, got 0"),
    ("fedgnn", "sigma", -1.0, "fedgnn.sigma must be a number >= 0, got -1.0"),
    ("fedgraph", "sizes", [], "fedgraph.sizes must be a non-empty list of integers >= 1, got []"),
    ("fedgraph", "sizes", [0, 3], "fedgraph.sizes must be a non-empty list of integers >= 1, got [0, 3]"),
    ("fedgsl", "noise", -0.1, "fedgsl.noise must be a number >= 0, got -0.1"),
    ("fedproto", "predict_by", "knn", "unknown fedproto.predict_by 'knn'"),
    ("fedpub", "threshold", -0.1, "fedpub.threshold must be a number >= 0, got -0.1"),
    ("fedpub", "community", 1.5, "fedpub.community must be a number >= -1 and <= 1, got 1.5"),
    ("fedpub", "proxy_p_in", 2.0, "fedpub.proxy_p_in must be a number >= 0 and <= 1, got 2.0"),
    ("fedpub", "similarity", "lables", "unknown fedpub.similarity 'lables': did you mean 'labels'"),
    ("gcfl", "eps1", -1, "gcfl.eps1 must be a number >= 0, got -1"),
    ("gcfl_plus", "seq_length", 1, "gcfl_plus.seq_length must be an integer >= 2, got 1"),
    ("local_gnnk", "neighbours", 0, "local_gnnk.neighbours must be an integer >= 1, got 0"),
    ("fedgls", "temperature", 0.0, "fedgls.temperature must be a number > 0, got 0.0"),
    ("fedggr", "code_dropout", 1.0, "fedggr.code_dropout must be a number >= 0 and < 1, got 1.0"),
    ("fedggr", "alignment", "avg", "unknown fedggr.alignment 'avg'"),
    ("fedggr", "gsl", "yes", 'fedggr.gsl must be true or false, got "yes"'),
    ("fedggr", "k", 2.5, "fedggr.k must be an integer >= 1, got 2.5"),
]
ANY_NUMBER = {("threshold", method) for method in ("fedgnn", "fedgraph", "fedgsl")}
"""Hyper-parameters for which every number has a meaning."""


@pytest.mark.parametrize(("method", "field", "value", "sentence"), REFUSED)
def test_bad_values_are_refused(method: str, field: str, value: Any, sentence: str) -> None:
    in_python = tuple(value) if isinstance(value, list) else value
    with pytest.raises(ConfigError) as from_python:
        METHODS[method](**{field: in_python})
    with pytest.raises(ConfigError) as from_text:
        suture.run("cora", method, overrides=[f"{method}.{field}={value}"])
    assert str(from_python.value).startswith(sentence)
    assert sentence in str(from_text.value)


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_every_number_has_its_bounds(kind: type[Method[Any, Any]]) -> None:
    """A number that may be anything is one that nobody thought about."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.name in own_fields(kind) and (field.name, kind.name) not in ANY_NUMBER:
            kinds = get_args(hints[field.name]) if get_origin(hints[field.name]) is not Annotated else ()
            assert not {int, float} & {hints[field.name], *kinds}, f"{kind.name}.{field.name}"


def test_settings_that_are_wrong_are_refused_as_the_methods() -> None:
    with pytest.raises(ConfigError, match=r"fedavg.training.lr must be a number > 0, got -1"):
        FedAvg(training=replace(TrainingSettings(), lr=-1))
    with pytest.raises(ConfigError, match=r"fedavg.model must be of type ModelSettings"):
        FedAvg(model="gcn")  # type: ignore[arg-type]

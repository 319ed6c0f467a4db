"""What people hand to the Python interface, made into what a plan and a source take, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data

from suture.config.toml import written
from suture.errors import ConfigError, DataError
from suture.nn.module import ModuleBackbone, ModuleFactory
from suture.runs import origin
from suture.runs.handed import let_in_named
from suture.settings import ModelSettings
from suture.tables import from_any

Overrides = str | Sequence[str] | Mapping[str, object]
"""`"rounds=5"`, `["rounds=5", "fedprox.mu=0.1"]` or `{"rounds": 5, "fedprox.mu": 0.1}`."""


def graph_of(graph: object, x: object = None, y: object = None) -> tuple[str, Data | None]:
    """The name that stands for a graph in a plan, and the graph itself if it has none."""
    if isinstance(graph, str | Path):
        path = Path(graph)
        if path.is_dir():
            return origin.named(path), None
        if isinstance(graph, str) and path.suffix != ".pt":
            if len(path.parts) > 1 and ":" not in graph:
                raise DataError(f"{path} does not exist; give the folder of a graph, a dataset's name or a graph")
            let_in_named(graph)
            return graph, None
    return origin.IN_MEMORY, from_any(graph, x=x, y=y)


def override_texts(overrides: Overrides, values: Mapping[str, object]) -> tuple[str, ...]:
    """Both ways of changing values as the texts of `--set`."""
    if isinstance(overrides, str):
        overrides = (overrides,)
    texts = _pairs(overrides) if isinstance(overrides, Mapping) else tuple(overrides)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"overrides must be texts such as 'rounds=20', got {text!r}")
    return (*texts, *_pairs(values))


def _pairs(values: Mapping[str, object]) -> tuple[str, ...]:
    for key, value in values.items():
        if not isinstance(value, str | bool | int | float | list | tuple):
            raise ConfigError(f"{key} cannot be {value!r}; give a number, a text, true or false, or a list")
    return tuple(f"{key}={written(value)}" for key, value in values.items())


def path_of(path: str | Path | None, what: str) -> Path | None:
    """A path that may be text."""
    if path is None or isinstance(path, Path):
        return path
    if not isinstance(path, str):
        raise ConfigError(f"{what} must be a path, got {type(path).__name__}")
    return Path(path)


def check_device(name: str) -> None:
    """Refuse a device that is not here."""
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"the device {name!r} cannot be used here; choose cpu, or cuda where there is one") from error


def check_module(factory: ModuleFactory, features: int, classes: int) -> None:
    """Try a user's own network on two nodes, so that a wrong one is found before training."""
    if isinstance(factory, nn.Module):
        raise ConfigError(
            "model must make a fresh network, not be one: give a function such as "
            f"model=lambda features, classes: {type(factory).__name__}(...)"
        )
    if not callable(factory):
        raise ConfigError(f"model must be a function of (features, classes) that makes a network, got {factory!r}")
    x, edges = torch.zeros(2, features), torch.tensor([[0, 1], [1, 0]])
    try:
        module = ModuleBackbone(ModelSettings(), features, classes, factory).build()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model must make a torch.nn.Module, it made a {type(module).__name__}")
        with torch.no_grad():
            out = module.eval()(x, edges)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the network cannot be used as module(x, edge_index) with {features} features "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}); "
            "it is made by model(features, classes)"
        ) from error
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != (2, classes):
        shape = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ConfigError(f"the network must give [nodes, {classes}], a score a class; for 2 nodes it gives {shape}")

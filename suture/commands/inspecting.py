"""`suture show` and `suture export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from suture.core.storage import write_atomically
from suture.core.tree import Tree
from suture.errors import ConfigError, IntegrityError, unknown
from suture.nn.export import OURS, PARTS, GprPropagation, WeightedMeanConv, arguments, state_for_pyg, to_pyg
from suture.report import console
from suture.report.view import folder_report
from suture.runs.folder import MODELS, is_comparison, place_of, read_asked, read_models, read_plan
from suture.settings import ModelSettings

SHARED = "shared"


def show(path: Path) -> None:
    """Print a run or comparison folder."""
    console.results().print(folder_report(path))


def export(path: Path, client: str | None, out: Path) -> None:
    """Write one model of a finished run as a PyG state dict, and print how to load it."""
    asked = read_asked(path)
    if is_comparison(path):
        runs = [str(place_of(path, method, seed)) for method in asked.methods for seed in asked.seeds]
        raise ConfigError(f"{path} is a comparison; export one of its runs: {', '.join(runs)}")
    models, description = read_models(path)
    params = _choose(models, client, path)
    if asked.own_module or _settings(description, path).kind not in PARTS:
        state, snippet = {name: value[0] for name, value in params.items()}, _own_snippet(out)
    else:
        settings = _settings(description, path)
        state = state_for_pyg(params, settings)
        done = read_plan(path).protocol.preprocess
        # A graph may turn out to have no weights; then the model is given None for them.
        module = to_pyg(params, settings, *_sizes(params, settings), weighted=done.edge_weights != "drop")
        snippet = pyg_snippet(module, out, done.row_normalise)
    write_atomically(out, safetensors.torch.save(state))
    console.notes().print(f"wrote {out}; load it with:", soft_wrap=True)
    console.results().out(snippet, end="")


def _choose(models: dict[str, Tree], client: str | None, path: Path) -> Tree:
    if client is None and SHARED not in models:
        raise ConfigError(f"every client of {path} has its own model; choose one with --client: {', '.join(models)}")
    name = client or SHARED
    if name in models:
        return models[name]
    if set(models) == {SHARED}:
        raise ConfigError(f"all clients of {path} share one model; leave --client out")
    raise unknown("client", name, models)


def _settings(description: dict[str, Any], path: Path) -> ModelSettings:
    try:
        return ModelSettings(**description["model"])
    except (KeyError, TypeError) as error:
        raise IntegrityError(f"{path / MODELS} does not say which network it holds; train it again") from error


def _sizes(params: Tree, settings: ModelSettings) -> tuple[int, int]:
    """Features and classes, read off the first weight [1, F, ...] and the last layer's bias [1, C]."""
    first = params["layer1.self" if settings.kind == "sage" else "layer1.weight"]
    last = "head" if settings.head else f"layer{settings.layers}"
    return first.shape[1], params[f"{last}.bias"].shape[1]


def pyg_snippet(module: nn.Module, file: Path, row_normalised: bool) -> str:
    """Code that rebuilds the module from stock layers, loads its values and applies it."""
    layers = {name: _constructor(layer) for name, layer in module.named_children()}
    used = {code.partition("(")[0] for code in layers.values()}
    plain, ours = used & {"Dropout", "Linear", "ReLU"}, used & {layer.__name__ for layer in OURS}
    inputs = ", ".join(arguments(module, weighted=True))
    steps = []
    for name, code in layers.items():
        wiring = "x -> x" if code.partition("(")[0] in plain else f"{inputs} -> x"
        steps.append(f'    "{name}": ({code}, "{wiring}"),')
    scaling = ["total = x.sum(1, keepdim=True)", "x = x / total.masked_fill(total == 0, 1)  # as in training"]
    lines = [
        "from collections import OrderedDict",
        "",
        "from safetensors.torch import load_file",
        *([f"from {GprPropagation.__module__} import {', '.join(sorted(ours))}"] if ours else []),
        f"from torch.nn import {', '.join(sorted(plain))}",
        f"from torch_geometric.nn import {', '.join([*sorted(used - plain - ours), 'Sequential'])}",
        "",
        f'model = Sequential("{inputs}", OrderedDict({{',
        *steps,
        "}))",
        f'model.load_state_dict(load_file("{file}"))',
        "model.eval()",
        *(scaling if row_normalised else []),
        f"scores = model({inputs})",
    ]
    return "\n".join(lines) + "\n"


def _constructor(layer: nn.Module) -> str:
    """What a layer prints about itself, made into valid Python."""
    if isinstance(layer, GprPropagation):
        return f"{GprPropagation.__name__}({layer.gamma.numel() - 1})"
    if isinstance(layer, WeightedMeanConv):
        return f"{WeightedMeanConv.__name__}({layer.lin_l.in_features}, {layer.lin_l.out_features})"
    return re.sub(r", aggr=\w+|, inplace=False|, bias=True|in_features=|out_features=", "", repr(layer))


def _own_snippet(file: Path) -> str:
    return (
        "from safetensors.torch import load_file\n\n"
        f'your_module.load_state_dict(load_file("{file}"), strict=False)\n'
        "your_module.eval()\n"
    )

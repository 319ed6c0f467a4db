"""Code that loads an exported model without Suture: `loader.py` of an exported folder, or what is printed for a single file.

Its text is `templates/loader.txt`; here its gaps are filled in. All numbers that training needed besides the network's are
in the metadata of the safetensors file, under `preprocessing`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from torch import nn

from suture.nn.export import OURS, GprPropagation, WeightedMeanConv, arguments

LOADER = "loader.py"
_UNUSUAL = re.compile(r"[^\w .,:/=()-]")
PLAIN = frozenset({"Dropout", "Linear", "ReLU"})
MEANINGS = {
    "class": ("probabilities", "probabilities of the classes"),
    "labels": ("probabilities", "probabilities of the labels"),
    "value": ("numbers", "predicted numbers"),
}
EDGES = {
    "both ways": "edge_index [2, E] has every edge in both directions; if not, missing directions are added.",
    "mirror": "edge_index [2, E] has directed edges; each is made to go both ways, as in training.",
    "as given": "edge_index [2, E] has directed edges, from edge_index[0] to edge_index[1], which hears of it.",
}
NO_NETWORK = (
    'raise SystemExit("this model was trained with somebody\'s own network: give it as load(layers=YourNetwork(...))")'
)


@dataclass(frozen=True)
class Told:
    """What a loader must know besides the network and its values: the metadata of the file."""

    kind: str
    """class, labels or value."""
    outputs: int
    features: int
    edges: str
    """One of `EDGES`."""
    weighted: bool
    row_normalise: bool = False
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    target_shift: tuple[float, ...] = ()
    target_scale: tuple[float, ...] = ()
    edge_scale: float = 1.0
    classes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    stock: bool = True
    """The network is made of PyG's layers."""

    def metadata(self) -> dict[str, str]:
        """For the file."""
        return {"preprocessing": json.dumps(vars(self))}


def loader_code(module: nn.Module | None, told: Told, title: str, file: Path, *, whole: bool) -> str:
    """A Python module; `module` None: the network is somebody's own. `whole`: it can also be run as a program."""
    name, meaning = MEANINGS[told.kind]
    standard = ["inspect", "json", "sys", *(["contextlib", "csv"] if whole else [])]
    lines = [
        *(f"import {one}" for one in sorted(standard)),
        "from collections import OrderedDict",
        "from pathlib import Path",
    ]
    filled = Template(template("loader")).substitute(
        TITLE=_UNUSUAL.sub("_", title),
        FILE=file.name,
        PATH=f'Path(__file__ if "__file__" in globals() else "{LOADER}").resolve().parent / {file.name!r}'
        if whole
        else f"Path({str(file)!r})",
        OUT=name,
        CALL=", edge_weight" if told.weighted else "",
        FEATURES=told.features,
        OUTPUTS=told.outputs,
        MEANING=meaning[0].upper() + meaning[1:],
        meaning=meaning,
        EDGES=EDGES[told.edges],
        STANDARD="\n".join([*lines, *(["", "import numpy as np"] if whole else [])]),
        IMPORTS=_imports(module),
        CLASSES=_classes(module),
        NETWORK=_network(module),
        MAIN=Template(template("main")).substitute(FEATURES=told.features) if whole else "",
    )
    return filled.replace("\nimport numpy as np\n\nimport torch", "\nimport numpy as np\nimport torch").rstrip("\n") + "\n"


def template(name: str) -> str:
    """A text of `templates/`."""
    return files(__package__).joinpath("templates", f"{name}.txt").read_text(encoding="utf-8")


def _layers(module: nn.Module | None) -> Mapping[str, str]:
    return {} if module is None else {name: _constructor(layer) for name, layer in module.named_children()}


def _used(module: nn.Module | None) -> set[str]:
    return {code.partition("(")[0] for code in _layers(module).values()}


def _ours(module: nn.Module | None) -> list[type[nn.Module]]:
    return [layer for layer in OURS if layer.__name__ in _used(module)]


def _imports(module: nn.Module | None) -> str:
    stock = _used(module) - PLAIN - {layer.__name__ for layer in OURS}
    plain = sorted(_used(module) & PLAIN)
    lines = [f"from torch.nn import {', '.join(plain)}"] if plain else []
    if module is not None:
        lines.append(f"from torch_geometric.nn import {', '.join(sorted({*stock, 'Sequential'}))}")
    if GprPropagation in _ours(module):
        lines.append("from torch_geometric.nn.conv.gcn_conv import gcn_norm")
    return "\n".join(lines)


def _classes(module: nn.Module | None) -> str:
    """Layers that PyG does not have, as they are written in Suture."""
    return "".join(f"{inspect.getsource(layer)}\n\n" for layer in _ours(module))


def _network(module: nn.Module | None) -> str:
    if module is None:
        return f"    {NO_NETWORK}"
    inputs = ", ".join(arguments(module, weighted=True))
    unweighted = {"GATConv", "SAGEConv"}
    lines = [f'    return Sequential("{inputs}", OrderedDict({{']
    for name, code in _layers(module).items():
        kind = code.partition("(")[0]
        wiring = "x" if kind in PLAIN else "x, edge_index" if kind in unweighted else inputs
        lines.append(f'        "{name}": ({code}, "{wiring} -> x"),')
    return "\n".join([*lines, "    }))"])


def _constructor(layer: nn.Module) -> str:
    """What a layer prints about itself, made into valid Python."""
    if isinstance(layer, GprPropagation):
        return f"{GprPropagation.__name__}({layer.gamma.numel() - 1})"
    if isinstance(layer, WeightedMeanConv):
        return f"{WeightedMeanConv.__name__}({layer.lin_l.in_features}, {layer.lin_l.out_features})"
    return re.sub(r", aggr=\w+|, inplace=False|, bias=True|in_features=|out_features=", "", repr(layer))


def loaded(code: str, file: Path) -> Any:
    """The model that the code of a loader makes of a file, made by that very code."""
    namespace: dict[str, Any] = {"__name__": "loader"}
    exec(compile(code, LOADER, "exec"), namespace)
    return namespace["load"](file)

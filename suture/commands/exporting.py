"""`suture export`: a trained model for people who have PyTorch Geometric, or only PyTorch, and no Suture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from suture.core.storage import read_json, sha256_of_file, staged_folder, write_atomically
from suture.core.tree import Tree
from suture.errors import ConfigError, DataError, IntegrityError, unknown
from suture.nn.export import PARTS, arguments, state_for_pyg, to_pyg
from suture.report import console
from suture.report.loader import LOADER, Told, loaded, loader_code
from suture.report.model_card import Subject, card_text
from suture.runs import folder as folders
from suture.runs import origin
from suture.runs.outcome import SHARED
from suture.runs.trained import Trained

VALUES, PROGRAM, SCHEMA, CARD = "model.safetensors", "model.pt2", "schema.json", "MODEL_CARD.md"
ONE_FILE = ".safetensors"


def export(path: Path, client: str | None, out: Path) -> None:
    """Write one model of a finished run: as a folder, or as one file with the code to load it printed."""
    trained = Trained.read(path, with_network=False)
    params = _choose(trained.models, client, path)
    module, state = None, {name: value[0].contiguous() for name, value in params.items()}
    if not folders.read_asked(path).own_module and trained.method.model.kind in PARTS:
        settings, sizes = trained.method.model, (trained.task.features, trained.task.classes)
        module, state = to_pyg(params, settings, *sizes, weighted=trained.card.weighted), state_for_pyg(params, settings)
    told = told_of(trained, module)
    content = safetensors.torch.save(state, told.metadata())
    title = f"A model trained by {trained.method.name} on {origin.label(trained.card.dataset)}"
    title += f"{'' if client is None else f', that of {client}'}, without the program that trained it."
    if out.suffix == ONE_FILE:
        write_atomically(out, content)
        console.notes().print(f"wrote {out}; load it with:", soft_wrap=True)
        applied = f"\n\nscores = predict(x, edge_index{', edge_weight' if told.weighted else ''})\n"
        console.results().out(loader_code(module, told, title, out, whole=False) + applied, end="")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already; choose another folder with --out")
    with staged_folder(out) as folder:
        (folder / VALUES).write_bytes(content)
        code = loader_code(module, told, title, Path(VALUES), whole=True)
        (folder / LOADER).write_text(code, encoding="utf-8")
        if module is not None:
            save_program(loaded(code, folder / VALUES), told, folder / PROGRAM)
        if trained.schema is not None:
            (folder / SCHEMA).write_bytes(trained.schema.read_bytes())
        hashes = {file.name: sha256_of_file(file) for file in folder.iterdir()}
        subject = _subject(path, trained, told, client or SHARED, sum(value.numel() for value in state.values()), hashes)
        (folder / CARD).write_text(card_text(subject), encoding="utf-8")
    _tell(out, trained, module)


def told_of(trained: Trained, module: nn.Module | None) -> Told:
    """What a loader must know; `module` None: the network is somebody's own."""
    card, preprocess, found = trained.card, trained.protocol.preprocess, trained.card.statistics
    weighted = card.weighted if module is None else "edge_weight" in arguments(module, weighted=card.weighted)
    edges = "as given" if card.directed else "both ways"
    if trained.schema is not None and preprocess.direction == "mirror":
        edges = "mirror" if read_json(trained.schema, "schema").get("directed") else edges
    return Told(
        kind=card.kind,
        outputs=card.outputs,
        features=card.features,
        edges=edges,
        weighted=weighted,
        row_normalise=preprocess.row_normalise,
        shift=found.shift if found else (),
        scale=found.scale if found else (),
        target_shift=trained.target.shift,
        target_scale=trained.target.scale,
        edge_scale=found.edge_scale if found else 1.0,
        classes=card.class_names,
        feature_names=card.feature_names,
        stock=module is not None,
    )


def save_program(model: nn.Module, told: Told, file: Path) -> None:
    """The whole model by torch.export, for any number of nodes and edges."""
    nodes, edges = torch.export.Dim("nodes", min=1), torch.export.Dim("edges", min=0)
    inputs: tuple[Tensor, ...] = (torch.zeros(3, told.features), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    shapes: dict[str, dict[int, Any]] = {"x": {0: nodes}, "edge_index": {1: edges}}
    if told.weighted:
        inputs, shapes = (*inputs, torch.ones(4)), shapes | {"edge_weight": {0: edges}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, inputs, dynamic_shapes=shapes), file)


def _choose(models: Any, client: str | None, path: Path) -> Tree:
    if client is None and SHARED not in models:
        raise ConfigError(f"every client of {path} has its own model; choose one with --client: {', '.join(models)}")
    name = client or SHARED
    if name in models:
        chosen: Tree = models[name]
        return chosen
    if set(models) == {SHARED}:
        raise ConfigError(f"all clients of {path} share one model; leave --client out")
    raise unknown("client", name, models)


def _subject(path: Path, trained: Trained, told: Told, client: str, parameters: int, hashes: dict[str, str]) -> Subject:
    outcome = folders.read_outcome(path)
    if outcome is None:
        raise IntegrityError(f"{path} is not finished; first run: suture resume {path}")
    return Subject(
        trained=trained,
        outcome=outcome,
        told=told,
        client=client,
        evaluation=folders.read_evaluation(path),
        schema=None if trained.schema is None else read_json(trained.schema, "schema"),
        parameters=parameters,
        environment=folders.read_environment(path),
        hashes=hashes,
    )


def _tell(out: Path, trained: Trained, module: nn.Module | None) -> None:
    told = console.notes()
    names = [VALUES, LOADER, *([PROGRAM] if module is not None else []), CARD]
    console.results().print(f"wrote {out}: {', '.join(names)}", soft_wrap=True)
    if trained.method.mends != "nothing":
        told.print(
            f"note: what {trained.method.name} mends graphs with is not in it; it gives what suture predict --no-mend does",
            soft_wrap=True,
        )
    if module is None:
        told.print("note: the network is not in it, only its values: load(layers=YourNetwork(...))")
    told.print(f"use it: python {out / LOADER} FOLDER predictions.csv, or read {out / CARD}", soft_wrap=True)

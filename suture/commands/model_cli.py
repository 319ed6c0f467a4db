"""`suture predict` and `suture export`: what is done with a model once it is trained.

What the commands do is imported when they run, because torch takes seconds to import and `--help` should not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import options as opt
from suture.commands.registering import command


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    command(
        app,
        "predict",
        "suture predict runs/mine --out predictions.csv",
        "suture import new --schema runs/mine/schema.json --nodes new.csv --edges new-edges.csv",
        "suture predict runs/mine --data new --out predictions.parquet",
    )(predict)
    command(
        app,
        "export",
        "suture export runs/mine/fedavg-seed0 --out model",
        "suture export runs/mine/fedper-seed0 --client client-02 --out model",
        "suture export runs/mine/fedavg-seed0 --out model.safetensors",
    )(export)


def predict(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Table to write, .csv or .parquet")],
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Graph of `suture import`  [default: the one that was trained on]")
    ] = None,
    mend: Annotated[
        bool | None,
        typer.Option("--mend/--no-mend", help="Mend the owners' pieces first  [default: where the method can]"),
    ] = None,
    uncut: Annotated[bool, typer.Option("--uncut", help="Use edges between owners too, which training did not see")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there")] = False,
    data_root: opt.DataRoot = None,
) -> None:
    """Predict every node of a graph with a trained model.

    The graph is the one that was trained on, or one with nodes and edges that came later, imported with the run's schema.
    Each owner predicts on its own piece. The table has id, owner, prediction, probabilities, and the label if there is one.
    """
    from suture.commands.predicting import predict_table

    predict_table(path, data, out, mend, uncut, force, data_root)


def export(
    path: opt.RunFolder,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose model  [default: the one all clients share]")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="New folder to write; or FILE.safetensors for the values alone")
    ] = Path("model.safetensors"),
) -> None:
    """Write a trained model for plain PyTorch Geometric.

    The folder holds the values, a loader.py that needs no Suture, a torch.export program, the schema and a model card.
    A single file holds the values alone; the code that loads it is printed.
    """
    from suture.commands import exporting

    exporting.export(path, client, out)

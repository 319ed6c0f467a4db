"""`suture communities`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from suture.errors import ConfigError
from suture.methods.fedpub.communities import Agreement, analyse, draw
from suture.report import console
from suture.runs import origin
from suture.runs.folder import is_comparison, place_of, read_asked, read_plan
from suture.runs.preprocess import preprocess


def communities(path: Path, rounds: list[int], image: Path | None, data_root: Path | None) -> None:
    """Print how well a run's similarities agree with its cut, and draw them if asked to."""
    asked = read_asked(path)
    if is_comparison(path):
        run = place_of(path, "fedpub", asked.seeds[0])
        raise ConfigError(f"{path} is a comparison; give one of its runs, such as {run}")
    data = preprocess(origin.load(asked.dataset, data_root), read_plan(path).protocol.preprocess)
    found = {agreement.round: agreement for agreement in analyse(path, data)}
    chosen = rounds or [max(found)]
    absent = [number for number in chosen if number not in found]
    if absent:
        raise ConfigError(f"{path} has no round {absent[0]}; it has rounds {min(found)} to {max(found)}")
    console.results().print(table([found[number] for number in chosen]))
    if image is not None:
        console.notes().print(f"wrote {draw(path, chosen, image)}", soft_wrap=True)


def table(agreements: list[Agreement]) -> Table:
    """One line a round."""
    out = Table(box=None, title="Correlation of model similarity, over pairs of clients", title_justify="left")
    for heading in ("round", "with label similarity", "by rank", "with missing edges", "by rank"):
        out.add_column(heading, justify="right")
    for one in agreements:
        values = (one.labels_pearson, one.labels_rank, one.edges_pearson, one.edges_rank)
        out.add_row(str(one.round), *("-" if value is None else f"{value:.3f}" for value in values))
    return out

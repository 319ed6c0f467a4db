"""Golden curves: a few rounds of every registered method under the protocol of its own paper, digit for digit.

    python tests/golden/curves.py             compute every curve and compare it with its file
    python tests/golden/curves.py --rewrite   write the files anew; say in the CHANGELOG which changed, and why

A redesign changes no number, and these files say so. On one thread sums are always rounded alike, but a processor with other
instructions adds up in another order; so a file names the one it was made on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import suture
from suture.methods import METHODS

HERE = Path(__file__).parent
SYNTHETIC = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
GRAPHS = {"cora": "cora", "synthetic": SYNTHETIC}
FAMILY = {
    "fedsage-louvain": ("fedsage", "fedsage_plus", "locsage", "locsage_plus", "globsage"),
    "feddep-louvain": ("feddep", "fedgraph", "fedgsl", "fedgnn"),
    "fedggr-random": ("fedggr",),
    "fedgls-graphless": ("fedgls", "fed_mlp", "fed_gnnmlp", "local_gnnk", "fed_gnnk", "fed_gnn"),
}
PROTOCOL = {method: protocol for protocol, methods in FAMILY.items() for method in methods}
BRIEF = {
    "adafgl": ("adapt_epochs=3",),
    "fedsage_plus": ("generator_epochs=4", "rehide=2"),
    "locsage_plus": ("generator_epochs=4", "rehide=2"),
    "feddep": ("generator_epochs=3", "pretrain_epochs=2"),
    "fedggr": ("pretrain_rounds=2", "refresh=2"),
    "gcfl": ("warm_up=1",),
    "gcfl_plus": ("warm_up=1", "seq_length=2"),
}
"""What only says for how long something is prepared, made short."""
KNOWING = {"fedgcn": ("partition.boundary=both",)}
"""Methods for owners who know the far ends of the links that a cut loses."""
AS_PUBLISHED = {
    "fedgcn": ("fewest=1",),
    "fedsage_plus": ("answers=exact",),
    "feddep": ("as_published=true",),
    "fedproto": ("told=counts", "smallest=1"),
}
"""Methods that tell less than their papers let them, and what makes them the paper's again: these curves have files too."""
FORM = "-as-published"
CURVES = (*METHODS, *(f"{method}{FORM}" for method in AS_PUBLISHED))
UNREPEATABLE = ("seconds",)


def processor() -> str:
    """Whose roundings these are."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().split("\n\n")[0].splitlines() if about.exists() else []
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    made = [facts.get(key, "").strip() for key in ("model name", "cpu family", "model")]
    return f"{' '.join(made)} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def curve(name: str, graph: str, data_root: Path | None) -> list[str]:
    """The metrics of every round, and the outcome, one JSON object a line."""
    method = name.removesuffix(FORM)
    form = AS_PUBLISHED[method] if name.endswith(FORM) else ()
    overrides = ["rounds=3", *KNOWING.get(method, ()), *(f"{method}.{value}" for value in (*BRIEF.get(method, ()), *form))]
    clients = 3 if graph == "synthetic" else 4
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = suture.run(
            GRAPHS[graph],
            method,
            protocol=PROTOCOL.get(method, "fedpub-disjoint"),
            clients=clients,
            seed=7,
            overrides=overrides,
            out=out,
            options=suture.Options(data_root=data_root),
        )
        rounds = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    outcome = {key: value for key, value in result.outcome.as_json().items() if key not in UNREPEATABLE}
    return [json.dumps(line) for line in (*rounds, outcome)]


def path_of(method: str, graph: str) -> Path:
    """Where a curve is kept."""
    return HERE / graph / f"{method}.jsonl"


def read(method: str, graph: str) -> tuple[str, list[str]]:
    """(the processor it was made on, its lines)."""
    made_on, *lines = path_of(method, graph).read_text().splitlines()
    return str(json.loads(made_on)["processor"]), lines


def write(method: str, graph: str, lines: Sequence[str]) -> None:
    """Keep a curve."""
    path = path_of(method, graph)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([json.dumps({"processor": processor()}), *lines]) + "\n")


def is_same(found: Sequence[str], expected: Sequence[str]) -> bool:
    """Equal to the last digit; what is told today and was not told then does not count."""
    pairs = [(json.loads(mine), json.loads(theirs)) for mine, theirs in zip(found, expected, strict=False)]
    return len(found) == len(expected) and all({key: mine.get(key) for key in theirs} == theirs for mine, theirs in pairs)


def main(arguments: Sequence[str]) -> int:
    """Compare, or rewrite; names after the option choose methods."""
    torch.set_num_threads(1)
    rewrite = "--rewrite" in arguments
    chosen = [name for name in arguments if not name.startswith("--")] or list(CURVES)
    beside = HERE.resolve().parents[2] / "shared" / "datasets"
    changed = 0
    for method in chosen:
        for graph in GRAPHS:
            lines = curve(method, graph, beside if beside.is_dir() else None)
            same = path_of(method, graph).exists() and is_same(lines, read(method, graph)[1])
            changed += not same
            if rewrite and not same:
                write(method, graph, lines)
            if not same:
                print(f"{method} on {graph}: {'written' if rewrite else 'differs'}")
    print(f"{changed} of {len(chosen) * len(GRAPHS)} curves differ" + (", written" if rewrite else ""))
    return 1 if changed and not rewrite else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

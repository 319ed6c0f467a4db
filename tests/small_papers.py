"""A paper nobody wrote, with a table of a few rounds on a small synthetic graph, for tests of `suture reproduce`."""

from __future__ import annotations

from pathlib import Path

GRAPH = "csbm:nodes=240,classes=3,features=40,degree=6.0,communities=3"
HEADER = "paper,table,setting,dataset,clients,method,variant,metric,mean,std,unit_note"
ROWS = (
    ("local", "", "accuracy", "0.50", "0.01"),
    ("fedavg", "", "accuracy", "0.60", "0.02"),
    ("fedprox", "", "accuracy", "0.99", ""),
    ("fedpub", "", "accuracy", "0.70", "0.02"),
    ("fedpub", "lambda1=9e-1", "accuracy", "0.65", "0.02"),
    ("fedpub", "", "comm_cost_pct", "100.0", "0.5"),
    ("fedavg", "", "comm_cost_pct", "100.0", "0.0"),
    ("fedavg", "round=20", "accuracy", "0.55", ""),
    ("nobody", "", "accuracy", "0.1", ""),
)
ABOUT = """
source = "nobody"
own = ["fedpub"]
baselines = ["fedavg", "local"]
repetitions = 2
set = ["rounds={rounds}"]
[variants]
lambda1 = ["fedpub.lambda1={{value}}"]
[tables.table-1]
printed = "Table 1"
title = "a small graph"
[tables.table-2]
printed = "Table 2"
title = "an absent graph"
[tables.figure-1]
printed = "Figure 1"
title = "a picture"
[[tables.figure-1.drawn]]
setting = "fedpub-disjoint"
datasets = ["{graph}"]
clients = [4]
rows = ["fedpub"]
variants = ["", "lambda1=0.5"]
"""


def small_papers(folder: Path, rounds: int = 20) -> Path:
    """Its folder, as `suture reproduce --papers` takes it."""
    folder.mkdir()
    lines = [HEADER]
    for method, variant, metric, mean, std in ROWS:
        lines.append(f'tiny,Table 1,fedpub-disjoint,"{GRAPH}",4,{method},{variant},{metric},{mean},{std},made up')
    lines.append("tiny,Table 2,fedpub-disjoint,arxiv,4,fedpub,,accuracy,0.7,0.01,made up")
    (folder / "figures.csv").write_text("\n".join(lines) + "\n")
    (folder / "tiny.toml").write_text(ABOUT.format(rounds=rounds, graph=GRAPH))
    return folder

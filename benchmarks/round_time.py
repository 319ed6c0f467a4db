"""How long a FedAvg round takes, against a plain per-client PyG loop that does the same work, in one run.

    python benchmarks/round_time.py [--datasets cora,pubmed] [--threads 2] [--rounds 15] [--clock processor]
        [--data-root DIR] [--json FILE]

Both train METIS clients (GCN, hidden 128, one full-batch local epoch of Adam, dropout 0.5) and test every client's model
after its epoch, and both average the models; rounds of the two alternate, medians are printed. Before timing, both run a
few rounds without dropout from the same weights and must end with the same accuracy.

`limit` is the share of the machine's own limit that our round reaches: the time its matrix products would take at the
measured rate of a large dense product, plus the time its unavoidable traffic (optimiser reads and writes, activations
and messages once each way) would take at the measured rate of a large copy, divided by the time it really took.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from suture.core.process import prepare_process

prepare_process()  # for both sides, and before torch is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.nn import GCNConv  # noqa: E402

from suture.config.resolve import resolve  # noqa: E402
from suture.core.message import Nothing  # noqa: E402
from suture.core.tree import Tree  # noqa: E402
from suture.engines.embedded import EmbeddedCohort  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.methods.fedavg import FedAvg  # noqa: E402
from suture.nn.export import state_for_pyg  # noqa: E402
from suture.runs.prepare import Prepared, prepare, preprocess  # noqa: E402

CLIENTS = 10
CLOCKS = {"time": time.perf_counter, "processor": time.process_time}
WANTED = {"cora": 10, "citeseer": 9, "pubmed": 8, "computers": 6, "cs": 18}


class PlainGcn(nn.Module):
    """What one would write: two GCN layers and a linear classifier."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.layer1, self.layer2 = GCNConv(features, hidden), GCNConv(hidden, hidden)
        self.head = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.layer1(x, edge_index).relu(), self.dropout, self.training)
        return self.head(self.layer2(h, edge_index).relu())


class PlainLoop:
    """FedAvg as a loop over PyG clients."""

    def __init__(self, prepared: Prepared, method: FedAvg, initial: Tree) -> None:
        task, settings = prepared.task, method.model
        self.data: list[Data] = [prepared.clients.client_data(k) for k in range(len(prepared.clients.ids))]
        self.models = [PlainGcn(task.features, settings.hidden, task.classes, settings.dropout) for _ in self.data]
        train = method.training
        self.optimizers = [
            torch.optim.Adam(m.parameters(), lr=train.lr, weight_decay=train.weight_decay) for m in self.models
        ]
        self.weights = state_for_pyg(initial, settings)

    def round(self) -> float:
        """One round; returns the mean test accuracy of the clients' own models."""
        sizes, accuracies = [], []
        for model, optimizer, data in zip(self.models, self.optimizers, self.data, strict=True):
            model.load_state_dict(self.weights)
            model.train()
            optimizer.zero_grad()
            out = model(data.x, data.edge_index)
            F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                right = model(data.x, data.edge_index).argmax(1) == data.y
            accuracies.append(float(right[data.test_mask].float().mean()))
            sizes.append(int(data.train_mask.sum()))
        states = [model.state_dict() for model in self.models]
        self.weights = {
            name: sum(size * state[name] for size, state in zip(sizes, states, strict=True)) / sum(sizes)
            for name in self.weights
        }
        return statistics.fmean(accuracies)


class Ours:
    """The same round in Suture."""

    def __init__(self, prepared: Prepared, method: FedAvg) -> None:
        self.method = method
        self.cohort = EmbeddedCohort.start(method, prepared.clients, prepared.task)
        self.server = method.init_server(prepared.task)

    def round(self) -> float:
        self.server = self.method.round(self.server, self.cohort)
        scores = self.cohort.evaluate(Nothing(self.cohort.ids))
        return float((scores.value[:, 2]).mean())


def machine_limits(clock: Callable[[], float]) -> tuple[float, float]:
    """(multiply-adds a second of a large dense product, bytes a second of a large copy), the best of several tries."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    source, target = torch.randn(1 << 25), torch.empty(1 << 25)
    product = min(seconds(lambda: torch.mm(a, b), clock) for _ in range(15))
    copy = min(seconds(lambda: target.copy_(source), clock) for _ in range(15))
    return 1536**3 / product, 2 * source.numel() * 4 / copy


def seconds(action: object, clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    action()  # type: ignore[operator]
    return clock() - started


def unavoidable(prepared: Prepared, method: FedAvg) -> tuple[float, float]:
    """(multiply-adds, bytes) of one round: forward, backward and a second forward for the test."""
    graph, hidden, classes = prepared.clients, method.model.hidden, prepared.task.classes
    edges = graph.gcn_operator.col.numel()
    first = graph.x.nonzeros * hidden + edges * hidden
    if graph.gcn_input is not None:
        first = graph.gcn_input.nonzeros * hidden
    last = hidden * hidden + hidden * classes
    # Features need no gradient, so the first layer's backward pass costs one product, the others' two. A loss needs the last
    # layers at training nodes only, the test at all.
    work = 3 * first + (graph.num_nodes + 3 * graph.train.nodes.numel()) * last
    work += (edges + 2 * graph.train.gcn_operator.col.numel()) * hidden
    weights = sum(value.numel() for value in method.initial_params(prepared.task).values()) * len(graph.ids)
    # Adam reads weight, gradient and two moments and writes three; sending and averaging reads each weight once more.
    traffic = 4 * (9 * weights + 2 * 6 * graph.num_nodes * hidden)
    return float(work), float(traffic)


def measure(
    name: str, root: Path | None, rounds: int, rates: tuple[float, float], clock: Callable[[], float]
) -> dict[str, object]:
    settings = resolve("fedpub-disjoint", name, ["rounds=1", "local_epochs=1"], clients=CLIENTS, method_fields={}).protocol
    data = preprocess(datasets.load(name, root), settings.preprocess)
    prepared = prepare(data, name, settings, seed=0)

    exact = FedAvg(model=dataclasses.replace(settings.model, dropout=0.0), training=settings.training)
    initial = exact.initial_params(prepared.task)
    ours, loop = Ours(prepared, exact), PlainLoop(prepared, exact, initial)
    for _ in range(5):
        accuracy = (ours.round(), loop.round())
    if abs(accuracy[0] - accuracy[1]) > 0.005:
        raise SystemExit(
            f"{name}: after 5 rounds ours reaches {accuracy[0]:.4f}, the loop {accuracy[1]:.4f}: not the same work"
        )

    method = FedAvg(model=settings.model, training=settings.training)
    ours, loop = Ours(prepared, method), PlainLoop(prepared, method, initial)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        for kept, side in zip(times, (ours, loop), strict=True):
            took = seconds(side.round, clock)
            if turn >= 2:
                kept.append(took * 1e3)
    ours_ms, loop_ms = statistics.median(times[0]), statistics.median(times[1])
    work, traffic = unavoidable(prepared, method)
    limit_ms = 1e3 * (work / rates[0] + traffic / rates[1])
    return {
        "dataset": name,
        "ours_ms": round(ours_ms, 2),
        "loop_ms": round(loop_ms, 2),
        "ratio": round(loop_ms / ours_ms, 2),
        "limit_fraction": round(limit_ms / ours_ms, 3),
        "accuracy_ours": round(accuracy[0], 4),
        "accuracy_loop": round(accuracy[1], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A FedAvg round of ours against a per-client PyG loop.")
    parser.add_argument("--datasets", default=",".join(WANTED), help="comma-separated names")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads, for both sides")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of each side")
    parser.add_argument("--clock", choices=CLOCKS, default="time", help="processor: of all threads; for busy machines")
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rates = machine_limits(CLOCKS[options.clock])
    print(f"{options.threads} threads, {rates[0] / 1e9:.0f} G multiply-adds/s, {rates[1] / 1e9:.1f} GB/s")
    header = ("dataset", "ours ms", "loop ms", "ratio", "wanted", "limit")
    print("{:10} {:>9} {:>9} {:>6} {:>6} {:>6}  accuracy after 5 exact rounds".format(*header))
    results = []
    for name in options.datasets.split(","):
        row = measure(name, options.data_root, options.rounds, rates, CLOCKS[options.clock])
        results.append(row)
        accuracy = f"{row['accuracy_ours']:.4f} / {row['accuracy_loop']:.4f}"
        wanted = f"{WANTED.get(name, 0):.0f}x"
        print(
            f"{name:10} {row['ours_ms']:9.1f} {row['loop_ms']:9.1f} {row['ratio']:5.1f}x {wanted:>6} "
            f"{row['limit_fraction']:6.0%}  {accuracy}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

r"""FedGGR's server step over everybody's nodes, beside one training round of the clients: time and peak memory.

    python benchmarks/server_graph.py [--dataset pubmed] [--clients 10] [--k 20] [--code-width 256] [--steps 3] \
        [--index auto] [--data-root DIR]
    python benchmarks/server_graph.py --code-width 64 \
        --dataset csbm:nodes=170000,degree=14,features=128,classes=40,communities=10

A server step is equations (6) to (8), forward and backward, and one step of its optimiser. The search for neighbours is
timed apart, because it happens every `refresh` rounds only. Codes are drawn as clusters, one a class, not pretrained.
Exit code 1 if 20,000 nodes or fewer take more than 2 GB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from suture.core.process import peak_bytes, prepare_process

prepare_process()

import torch  # noqa: E402

from suture.config.resolve import resolve  # noqa: E402
from suture.core.streams import Streams  # noqa: E402
from suture.engines.embedded import EmbeddedCohort  # noqa: E402
from suture.graph import datasets  # noqa: E402
from suture.methods.averaging import SERVER  # noqa: E402
from suture.methods.fedggr.messages import Up  # noqa: E402
from suture.methods.fedggr.method import FedGgr  # noqa: E402
from suture.runs.prepare import prepare, preprocess  # noqa: E402

BOUND_GB, BOUND_NODES = 2.0, 20_000


def seconds(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> int:
    parser = argparse.ArgumentParser(description="FedGGR's server step.")
    parser.add_argument("--dataset", default="pubmed")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--code-width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--index", default="auto", choices=["auto", "exact", "approximate"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--data-root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    protocol = resolve("fedggr-random", options.dataset, [], clients=options.clients, method_fields={}).protocol
    data = preprocess(datasets.load(options.dataset, options.data_root), protocol.preprocess)
    prepared = prepare(data, options.dataset, protocol, seed=0)
    method = FedGgr(
        model=protocol.model,
        training=protocol.training,
        k=options.k,
        code_width=options.code_width,
        index=options.index,
    )
    graph, task = prepared.clients, prepared.task
    cohort = EmbeddedCohort.start(method, graph, task)
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(task.classes, method.code_width, generator=rng)
    codes = centres[graph.y] + torch.randn(graph.num_nodes, method.code_width, generator=rng)
    pieces = dict(zip(graph.ids, torch.split(codes, graph.sizes.tolist()), strict=True))
    server = replace(method.init_server(task), codes={name: pieces[name].unsqueeze(0) for name in sorted(pieces)})
    found: list[torch.Tensor] = []
    search = seconds(lambda: found.append(method.search(server)), 1)
    server = replace(server, links=found[0])
    training = method.down(server, method.global_embeddings(server, server.own).detach(), cohort.ids)
    replies: list[Up] = []
    clients = seconds(lambda: replies.append(cohort.ask(method.local_update, training)), options.steps)

    def step() -> None:
        leaves = {name: value.detach().requires_grad_() for name, value in server.own.items()}
        z = method.global_embeddings(server, leaves, Streams.of(0, SERVER, "benchmark"))
        method.backward(server, leaves, z, replies[-1])

    one = seconds(step, options.steps)
    peak = peak_bytes() / 1e9
    print(f"{graph.num_nodes} nodes, k = {options.k}, codes of {method.code_width}, {options.threads} threads")
    print(f"search for neighbours   {search:8.2f} s, every {method.refresh} rounds")
    print(f"server step             {one:8.2f} s a round")
    print(f"clients' training       {clients:8.2f} s a round ({options.clients} clients, all in this process)")
    print(f"peak memory             {peak:8.2f} GB of the whole process")
    return int(graph.num_nodes <= BOUND_NODES and peak > BOUND_GB)


if __name__ == "__main__":
    sys.exit(main())

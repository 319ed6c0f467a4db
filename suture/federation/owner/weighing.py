"""How much a run would take of an owner's memory and time, found out before anything is made of its terms."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch_geometric.data import Data

from suture.core.message import Nothing, Record
from suture.core.streams import Streams
from suture.federation.owner.policy import Policy
from suture.federation.wire.reasons import Code, Refused
from suture.federation.wire.terms import Terms
from suture.graph.batch import GraphBatch, batch_of
from suture.method import Clients, Method, Task

FEW_NODES = 4


def weigh(policy: Policy, terms: Terms, method: Method[Any, Any], task: Task) -> None:
    """Refuse terms under which an owner would keep more numbers, or train longer in one step, than its policy allows."""
    epochs = {"training.local_epochs": method.training.local_epochs} | {
        f"{method.name}.{name}": value for name, value in terms.fields.items() if name.endswith("epochs")
    }
    for name, value in epochs.items():
        if isinstance(value, int) and value > policy.max_local_epochs:
            raise Refused(
                f"the policy allows {policy.max_local_epochs:,} epochs in a step, {name} is {value:,}", Code.POLICY
            )
    numbers = numbers_kept(method, task)
    if numbers > policy.max_numbers:
        raise Refused(
            f"the policy allows {policy.max_numbers:,} numbers (weights and moments) kept of a run, needed are {numbers:,}",
            Code.POLICY,
        )


def numbers_kept(method: Method[Any, Any], task: Task) -> int:
    """How many numbers a client keeps of its networks, counted on tensors that have a shape and no memory."""
    graph = _small_graph(task)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            rng = Streams.of(task.seed, graph.ids, "init")
            try:
                return _count(method.init_clients(Clients(graph, Nothing(graph.ids), rng, task)))
            except (DataDependentOutputException, DynamicOutputShapeException):
                # It looks at numbers, which are not there. The server has one of each network; a client also has moments,
                # and perhaps masks with theirs.
                return 8 * _count(method.init_server(task))
    except (RuntimeError, OverflowError, MemoryError) as error:  # sizes that no tensor can have
        raise Refused("the terms describe a network that cannot be made", Code.TERMS) from error


def _count(record: Record) -> int:
    return sum(tensor.numel() for tensor in record.tensors().values())


def _small_graph(task: Task) -> GraphBatch:
    """A graph of a few nodes: networks do not depend on how many there are."""
    nodes = torch.arange(FEW_NODES)
    ring = torch.stack([torch.cat([nodes, nodes.roll(1)]), torch.cat([nodes.roll(1), nodes])])
    x = torch.zeros(FEW_NODES, task.features)
    x[:, 0] = 1.0
    data = Data(x=x, edge_index=ring, y=nodes % max(1, task.classes))
    return batch_of(data, ["weighed"], [nodes], [torch.tensor([1, 1, 2, 3], dtype=torch.int8)], [False])

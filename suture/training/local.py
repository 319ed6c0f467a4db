"""Local training of K clients at once: some epochs over each client's own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from suture.core.streams import Streams
from suture.core.tree import Tree
from suture.graph.batch import GraphBatch
from suture.privacy.mechanisms import private_gradient
from suture.settings import TrainingSettings
from suture.training.batches import Batch, batches, examples, expected_batch
from suture.training.optimisers import Moments, optimise, slopes


def sum_terms(terms: Mapping[str, Tensor]) -> Tensor:
    """The loss of each client [K] from its named terms."""
    return torch.stack(list(terms.values())).sum(0)


Objective = Callable[[Tree, Batch], Tensor]
"""(parameters [K, ...], batch) to the loss of each client [K]."""


def _gradient(params: Tree, trained: Sequence[str], objective: Objective, batch: Batch) -> tuple[Tree, Tensor]:
    """Every client's gradient [K, ...] and loss [K]."""
    loss = objective(params, batch)
    return slopes(loss, {name: params[name] for name in trained}), loss.detach()


def _private_gradient(
    params: Tree, trained: Sequence[str], objective: Objective, batch: Batch, settings: TrainingSettings
) -> tuple[Tree, Tensor]:
    """The gradient of DP-SGD (`suture.privacy.mechanisms`) and the mean loss of the batch [K]."""
    loss_sum = torch.zeros(len(batch.graph.ids), device=batch.graph.device)

    def each() -> Iterator[tuple[Tree, Tensor]]:
        for example in examples(batch, settings):
            grads, loss = _gradient(params, trained, objective, example)
            present = example.counts > 0
            loss_sum.add_(loss * present)
            yield grads, present

    like = {name: params[name].detach() for name in trained}
    expected = expected_batch(batch.graph, settings)
    grads = private_gradient(each(), like, settings.dp_clip, settings.dp_sigma, expected, batch.rng)
    return grads, loss_sum / batch.counts.clamp_min(1)


def train_locally(
    graph: GraphBatch,
    start: Tree,
    moments: Moments,
    objective: Objective,
    settings: TrainingSettings,
    rng: Streams,
    frozen: frozenset[str] = frozenset(),
    epochs: range | None = None,
    spent: bool = False,
) -> tuple[Tree, Moments, Tensor]:
    """`local_epochs` epochs from `start`: (new parameters, new moments, mean loss of the last epoch [K]).

    The arguments are left untouched, except that moments which are `spent` become the new ones. Parameters named in `frozen`
    get no gradient. With `settings.dp_sigma` above zero every step is one of DP-SGD; the objective is then given one example
    of each client at a time, and whatever else it adds to an example's loss (a proximal term, say) is clipped with it.
    `epochs` are those of them to run, for a method that does something between two epochs.
    """
    clients, private = len(graph.ids), settings.dp_sigma > 0
    # Still one copy for all if the server sent everybody the same: the first step then reads less memory.
    params = {name: value.expand(clients, *value.shape[1:]) for name, value in start.items()}
    # Frozen entries are a module's buffers, which a forward pass may overwrite.
    buffers = {name: params[name] for name in frozen}
    params |= {name: value.clone() for name, value in buffers.items()}
    moments = {name: value if spent else value.clone() for name, value in moments.items()}
    trained = [name for name in params if name not in frozen]
    loss_sum = torch.zeros(clients, device=graph.device)
    first_step = True
    for epoch in range(settings.local_epochs) if epochs is None else epochs:
        loss_sum, seen = torch.zeros(clients, device=graph.device), torch.zeros(clients, device=graph.device)
        for batch in batches(graph, settings, rng.fork("epoch", epoch)):
            for name in trained:
                params[name] = params[name].detach().requires_grad_()
            if private:
                grads, loss = _private_gradient(params, trained, objective, batch, settings)
            else:
                grads, loss = _gradient(params, trained, objective, batch)
            for name in trained:
                value = params[name].detach()
                params[name] = value.clone(memory_format=torch.contiguous_format) if first_step else value
            first_step = False
            optimise(params, grads, moments, batch.active, settings)
            told = batch.counts > 0
            loss_sum += loss * told
            seen += told
        loss_sum /= seen.clamp_min(1)
    # What a forward pass writes into buffers, such as running statistics, would leave the client without noise.
    return params | ({name: value.clone() for name, value in buffers.items()} if private else {}), moments, loss_sum

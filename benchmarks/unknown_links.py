"""What FedGram gives back of what a random cut takes, where nobody knows the far ends of lost links.

    python benchmarks/unknown_links.py cora 200,201,202,203,204 [--data-root DIR] [key=value ...]

The cell of `known_links.py`: ten owners to whom nodes were dealt at random, 20/20/60, 200 rounds of Adam, a GCN. Printed for
each seed are the validation and test accuracy of all nodes together, each predicted by its owner, in the round with the best
validation accuracy:

    nothing     FedAvg on the owners' pieces
    oracle      the same, if owners had the lost neighbours with their true features, in training and in tests
    fedgram     FedGram on the owners' pieces, whose uploads are weights and sums
    set alike   FedAvg on the owners' pieces with FedGram's settings of network and training

and at the end the means, and how much of the way from `nothing` to `oracle` each goes. FedGram is set as `FEDGRAM` says:
with dropout and weight decay, which the cell has not, and averaged moments. `key=value` holds for all, but for values of
FedGram's own: `fedgram.stages=0`, `fedgram.training.moments=own`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from known_links import Scored, carry_out, trained, with_neighbourhoods

from suture.runs.plan import Plan
from suture.runs.prepare import Prepared

FEDGRAM = ("fedgram.model.dropout=0.5", "fedgram.training.weight_decay=5e-4", "fedgram.training.moments=averaged")
"""How FedGram, and FedAvg set alike, are trained here; chosen by validation."""


def compared(made: Plan, prepared: Prepared) -> Iterator[tuple[str, Scored]]:
    """Name and scores of each."""
    fedavg, fedgram = made.methods
    yield "nothing", trained(fedavg, prepared.clients, prepared)[2]
    yield "oracle", trained(fedavg, with_neighbourhoods(prepared, 1), prepared)[2]
    yield "fedgram", trained(fedgram, prepared.clients, prepared)[2]
    alike: Any = replace(fedavg, model=fedgram.model, training=fedgram.training)
    yield "set alike", trained(alike, prepared.clients, prepared)[2]


if __name__ == "__main__":
    carry_out(__doc__, ["fedavg", "fedgram"], compared, FEDGRAM)

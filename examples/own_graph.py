"""Your own graph, with owners and masks that you know: three clinics, one network of patients.

    python examples/own_graph.py

Patients have measurements (`x`), contacts (`edge_index`) and a diagnosis (`y`). Each was seen by one clinic (`client`), and
contacts between patients of different clinics are known to neither. Compared: what each clinic reaches alone (local), all of
them together (fedavg), and a single owner of everything (global).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

import suture

CLINICS, PATIENTS, DIAGNOSES, MEASUREMENTS = 3, 600, 3, 24


def make_graph(seed: int = 0) -> Data:
    """Replace this by your own tables: all that is needed is in the last statement."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(DIAGNOSES, (PATIENTS,), generator=draw)
    clinic = torch.randint(CLINICS, (PATIENTS,), generator=draw)
    typical = torch.randn(DIAGNOSES, MEASUREMENTS, generator=draw)
    x = 0.4 * typical[y] + torch.randn(PATIENTS, MEASUREMENTS, generator=draw)
    # Two patients met with a small chance, a larger one if they share a diagnosis.
    chance = torch.where(y[:, None] == y[None, :], 0.015, 0.002)
    edge_index = (torch.rand(PATIENTS, PATIENTS, generator=draw) < chance).nonzero().T
    place = torch.rand(PATIENTS, generator=draw)
    train, val, test = place < 0.1, (place >= 0.1) & (place < 0.4), place >= 0.4
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    return Data(x=x, edge_index=edge_index, y=y, client=clinic, directed=False, **masks)


def accuracy_by_clinic(annotated: Data) -> Tensor:
    """Share of each clinic's test patients whose diagnosis was predicted, [CLINICS]."""
    is_right = (annotated.prediction == annotated.y).float()
    return torch.stack([is_right[annotated.test_mask & (annotated.client == k)].mean() for k in range(CLINICS)])


def main() -> None:
    """Compare three methods, then look at one of them closely."""
    data = make_graph()
    # Nothing else need be said: a graph of one's own is run under the protocol `own`, which honours its owners and masks.

    print("method   client mean  worst client")
    comparison = suture.compare(data, ["local", "fedavg", "global"], seeds=[0], rounds=40, hidden=32)
    for outcome in comparison.outcomes:
        mean, worst = 100 * outcome.accuracy_client_mean, 100 * outcome.accuracy_worst
        print(f"{outcome.method:<8} {mean:11.2f} {worst:13.2f}")

    result = suture.run(data, "fedavg", seed=0, rounds=40, hidden=32)
    print("\nclinic     test accuracy of fedavg")
    for client, accuracy in zip(result.client_ids, accuracy_by_clinic(result.data), strict=True):
        print(f"{client} {100 * accuracy:15.2f}")

    print("\nassumed: " + "\n         ".join(result.notes))
    print("\npatient  clinic  diagnosis  predicted")
    for patient in result.data.test_mask.nonzero().flatten()[:5].tolist():
        clinic, diagnosis, predicted = (int(result.data[name][patient]) for name in ("client", "y", "prediction"))
        print(f"{patient:7d} {clinic:7d} {diagnosis:10d} {predicted:10d}")


if __name__ == "__main__":
    main()

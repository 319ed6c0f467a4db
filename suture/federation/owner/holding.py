"""What an owner brings into a federation: a graph folder of its own, or one file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from suture.errors import DataError, some_of
from suture.federation.wire.description import Description
from suture.graph.data import fingerprint, num_classes
from suture.graph.shard import load_shard
from suture.graph.splits import given_masks
from suture.runs.counting import kind_of
from suture.runs.piece import Handling, OwnersPiece, owners_piece
from suture.tables.schema import Schema


@dataclass(frozen=True)
class Holding:
    """An owner's checked graph, and what is known of how it was made."""

    data: Data
    classes: int
    roles: Tensor | None = None
    """What each node of a file is for; None: the terms of a run decide."""
    row_normalised: bool = False
    schema: Schema | None = None

    @property
    def features(self) -> int:
        """F."""
        return int(self.data.x.shape[1])

    def fingerprint(self) -> str:
        """SHA-256 of the graph, of its masks, and of what each node is for: of all that a run reads of it."""
        digest = hashlib.sha256(fingerprint(self.data).encode())
        masks = {name: self.data[name] for name in given_masks(self.data)}
        roles = {} if self.roles is None else {"roles": self.roles}
        for name, values in (masks | roles).items():
            digest.update(name.encode() + np.ascontiguousarray(values.numpy()).tobytes())
        return digest.hexdigest()

    def described(self) -> Description:
        """What everybody must know of it."""
        has_edges = self.data.edge_index.shape[1] > 0
        return Description(
            features=self.features,
            classes=self.classes,
            kind=kind_of(self.data),
            directed=bool(self.data.get("directed")) if has_edges else None,
            weighted=self.data.get("edge_weight") is not None if has_edges else None,
            masks=given_masks(self.data) if self.roles is None else (),
            schema=None if self.schema is None else self.schema.agreed().to_json(),
        )

    def piece(self, owner: str, handling: Handling, seed: int, link: bool) -> OwnersPiece:
        """The graph as the single client `owner` of a run."""
        if self.roles is not None:
            # A file is the piece of a graph that was preprocessed before it was cut, or its owner has prepared it.
            wanted = handling.preprocess
            undone = wanted.row_normalise and not self.row_normalised
            handling = replace(handling, preprocess=replace(wanted, largest_component=False, row_normalise=undone))
        return owners_piece(self.data, owner, handling, seed, roles=self.roles, link=link)


def read_holding(path: Path) -> Holding:
    """Read and check an owner's folder or file."""
    if not path.is_dir():
        shard = load_shard(path)
        return Holding(shard.data, shard.classes, shard.roles, shard.row_normalised)
    from suture.tables.folder import GraphFolder  # Polars, which only folders need

    folder = GraphFolder.read(path)
    if len(folder.owners) > 1:
        raise DataError(
            f"{path} holds the graphs of {len(folder.owners)} owners ({some_of(folder.owners)}), one owner brings its own; "
            f"write each one's piece with: suture data pieces {path} --out DIR"
        )
    data = folder.to_data()
    if num_classes(data) < 1:
        raise DataError(
            f"{path} says nothing of what is to be predicted; import it with --label, or with a schema that has one"
        )
    return Holding(data, num_classes(data), schema=folder.schema)

"""Records: the only shape in which anything travels, stays on a client, or is checkpointed.

A record is a frozen dataclass whose first field `ids` names the clients on its leading axis and whose other fields are
Tensor [K, ...], Tree of those, Rows (ragged), or a plain scalar shared by all. Because the axis is labelled, content is
always routed by client id, never by position. Every field of a message says what kind of thing it tells about a client,
`loss: Annotated[Tensor, Kind.LOSSES]`, so that the ledger can say what left whom. The byte format (`core/packing.py`) is
closed, never pickled. A field of type `Rows | None` may be absent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Self, TypeVar, get_origin, get_type_hints

import torch
from torch import Tensor

from suture.core.kernels import pointers
from suture.core.packing import MAGIC, Scalar, bytes_of, dtype_name, parse
from suture.core.tree import Tree, take_rows
from suture.errors import IntegrityError


class Kind(StrEnum):
    """What a field of a message tells about the client it is from (or, on the way down, about other clients)."""

    WEIGHTS = "weights"
    """Trained parameters of a network, or their change."""
    MASKS = "masks"
    """Which entries of a model a client uses."""
    GRADIENTS = "gradients"
    """Derivatives with respect to something another party sent."""
    MOMENTS = "moments"
    """What an optimiser keeps of a client's gradients: sums and running means of them, and of their squares."""
    EMBEDDINGS = "node embeddings"
    """A vector for single nodes, or means of a few, as hidden layers see them."""
    PREDICTIONS = "predictions"
    """Class probabilities of single nodes."""
    FEATURES = "node features"
    """Input features of single nodes, real or generated."""
    EDGES = "edges"
    """Who is linked with whom, real or inferred."""
    ADDRESSES = "addresses"
    """Names by which owners speak of nodes that lie at others: to which of them there are links, but not from where."""
    BLINDED = "blinded ids"
    """Ids of nodes as points and tags under secret scalars (`suture.privacy.blinding`): only their number can be told."""
    PROTOTYPES = "prototypes"
    """Means of the embeddings of many nodes: of a class or a cluster."""
    SIGNATURES = "signatures"
    """What clients are compared by: outputs on a public graph, statistics of a model."""
    COUNTS = "counts"
    """How many nodes, edges or labels there are."""
    STATISTICS = "statistics"
    """Sums over all nodes of a client: of features, of labels, of edge weights."""
    LOSSES = "losses"
    """Training losses."""
    SCORES = "scores"
    """Accuracies and the like."""
    SEALED = "sealed"
    """What secure aggregation hides: of these words only the sum over clients can be opened."""
    KEYS = "keys"
    """Public keys and encrypted shares, from which nothing of the data follows."""


UNDECLARED = "undeclared"
"""In a ledger, the kind of a field whose message does not say."""


@dataclass(frozen=True)
class Rows:
    """Ragged rows: client k owns values[ptr[k]:ptr[k + 1]]. Shapes: values [sum_k N_k, ...], ptr [K + 1]."""

    values: Tensor
    ptr: Tensor

    def select(self, index: Sequence[int]) -> Rows:
        """The rows of some clients, in that order."""
        bounds = self.ptr.tolist()
        pieces = [self.values[bounds[k] : bounds[k + 1]] for k in index]
        lengths = torch.tensor([piece.shape[0] for piece in pieces], dtype=torch.int64)
        return Rows(torch.cat(pieces) if pieces else self.values[:0], pointers(lengths))

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """Stack the client axes of several ragged pieces."""
        lengths = torch.cat([part.ptr.diff() for part in parts])
        return Rows(torch.cat([part.values for part in parts]), pointers(lengths))


Value = Tensor | Tree | Rows | Scalar | None


@dataclass(frozen=True)
class Record:
    """Base of messages and states; see the module docstring."""

    ids: tuple[str, ...]

    def contents(self) -> Iterator[tuple[str, Value]]:
        """(field name, value) of everything but `ids`."""
        for name in _names_of(type(self)):  # type: ignore[arg-type]
            yield name, getattr(self, name)

    def select(self, ids: Sequence[str]) -> Self:
        """The content of some clients, looked up by id."""
        if tuple(ids) == self.ids:
            return self
        position = {name: k for k, name in enumerate(self.ids)}
        absent = [name for name in ids if name not in position]
        if absent:
            raise KeyError(f"{type(self).__name__} holds nothing for client {absent[0]}; it holds {list(self.ids)}")
        return self.take([position[name] for name in ids], ids)

    def take(self, index: Sequence[int], ids: Sequence[str]) -> Self:
        """The rows at these places, under these names; a row may be taken several times."""
        chosen = {name: _select(value, index) for name, value in self.contents()}
        return type(self)(ids=tuple(ids), **chosen)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join records of different clients along the client axis."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: [getattr(part, name) for part in parts] for name, _ in parts[0].contents()}
        joined = {name: _concat(name, values) for name, values in columns.items()}
        return type(parts[0])(ids=tuple(i for part in parts for i in part.ids), **joined)

    def replace_rows(self, new: Self) -> Self:
        """This record with the rows of the clients in `new` taken from there."""
        if new.ids == self.ids:
            return new
        source = {name: (0, k) for k, name in enumerate(self.ids)} | {name: (1, k) for k, name in enumerate(new.ids)}
        both = type(self).concat([self.relabelled("old"), new.relabelled("new")])
        picks = [("old", "new")[side] + str(k) for side, k in (source[name] for name in self.ids)]
        return dataclasses.replace(both.select(picks), ids=self.ids)

    def written_over(self, given: Self, new: Self) -> Self:
        """This record after `given`, some rows of it, became `new`: fields that are still the same objects stay as they are.

        A step that changes one number of some clients would otherwise copy all that everybody keeps.
        """
        if new.ids == self.ids:
            return new
        place = {name: k for k, name in enumerate(new.ids)}
        index = [len(self.ids) + place[name] if name in place else k for k, name in enumerate(self.ids)]
        fields: dict[str, Value] = {}
        for name, value in self.contents():
            changed: Value = getattr(new, name)
            kept = changed is getattr(given, name)
            fields[name] = value if kept else _select(_concat(name, [value, changed]), index)
        return type(self)(ids=self.ids, **fields)

    def relabelled(self, prefix: str) -> Self:
        """The same content under ids `prefix0`, `prefix1`, ... (so that two records of one client can stand together)."""
        return dataclasses.replace(self, ids=tuple(f"{prefix}{k}" for k in range(len(self.ids))))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path, such as `params.conv1.weight`."""
        return {path: tensor for name, value in self.contents() for path, tensor in _leaves(name, value)}

    def every_tensor(self) -> Iterator[Tensor]:
        """The tensors alone, without spelling their paths."""
        for _, value in self.contents():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, dict):
                yield from value.values()
            elif isinstance(value, Rows):
                yield value.values
                yield value.ptr

    def layout(self) -> tuple[object, ...]:
        """All of a record but its numbers: records of equal layout have the same shapes and sizes for every client."""
        parts: list[object] = [type(self), self.ids]
        for name, value in self.contents():
            if isinstance(value, Rows):
                parts.append((name, tuple(value.ptr.tolist()), value.ptr.dtype, value.values.shape, value.values.dtype))
            elif isinstance(value, Tensor):
                parts.append((name, value.shape, value.dtype))
            elif isinstance(value, dict):
                parts.append((name, *[(key, tensor.shape, tensor.dtype) for key, tensor in value.items()]))
            else:
                parts.append((name, repr(value)))
        return tuple(parts)

    def shapes_per_client(self) -> list[dict[str, tuple[int, ...]]]:
        """For every client, what it sends or receives: path to shape (without the client axis)."""
        lengths = {name: value.ptr.diff().tolist() for name, value in self.contents() if isinstance(value, Rows)}
        fixed: dict[str, tuple[int, ...]] = {}
        for name, value in self.contents():
            if isinstance(value, Rows):
                continue
            for path, tensor in _leaves(name, value):
                fixed[path] = tuple(tensor.shape[1:])
        ragged = {name: tuple(getattr(self, name).values.shape[1:]) for name in lengths}
        return [fixed | {name: (lengths[name][k], *ragged[name]) for name in lengths} for k in range(len(self.ids))]

    def nbytes(self) -> list[int]:
        """Bytes of `pack()` for each client alone, without packing. Equal clients are computed once."""
        known: dict[tuple[object, ...], int] = {}
        sizes = []
        ragged = [value.ptr.diff().tolist() for _, value in self.contents() if isinstance(value, Rows)]
        for k, name in enumerate(self.ids):
            key = (len(json.dumps(name)), *(lengths[k] for lengths in ragged))
            if key not in known:
                known[key] = self.select([name])._size()
            sizes.append(known[key])
        return sizes

    def _header(self) -> bytes:
        scalars = {name: value for name, value in self.contents() if isinstance(value, Scalar)}
        layout = [[path, dtype_name(t.dtype), list(t.shape)] for path, t in self.tensors().items()]
        header = {"type": type(self).__name__, "ids": list(self.ids), "scalars": scalars, "tensors": layout}
        return json.dumps(header, separators=(",", ":")).encode()

    def _size(self) -> int:
        payload = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
        return len(MAGIC) + 4 + len(self._header()) + payload

    def pack(self) -> bytes:
        """To bytes."""
        header = self._header()
        body = [bytes_of(tensor) for tensor in self.tensors().values()]
        return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *body])

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """From bytes; anything but a well-formed record of this very type is refused."""
        kind, ids, scalars, tensors = parse(data)
        if kind != cls.__name__:
            raise IntegrityError(f"expected a {cls.__name__} message, got {kind!r}; it was refused")
        record = cls.from_tensors(ids, scalars, tensors)
        for name, value in record.contents():
            if not _has_client_axis(value, len(ids)):
                raise IntegrityError(f"{name!r} of a {kind} has no row for each of its clients; it was refused")
        return record

    @classmethod
    def from_tensors(cls, ids: tuple[str, ...], scalars: dict[str, Scalar], tensors: dict[str, Tensor]) -> Self:
        """Rebuild a record from `tensors()` and its scalars; every field must be there and nothing else."""
        scalars, tensors = dict(scalars), dict(tensors)
        values: dict[str, Value] = {}
        declaring: type = cls
        for name, kind in _field_types(declaring).items():
            try:
                values[name] = _take_field(name, kind, scalars, tensors)
            except (KeyError, TypeError) as error:
                raise IntegrityError(f"{name!r} of a {cls.__name__} is missing or of another type; refused") from error
        if scalars or tensors:
            raise IntegrityError(f"a {cls.__name__} has no {min([*scalars, *tensors])!r}; it was refused")
        return cls(ids=ids, **values)


@dataclass(frozen=True)
class Message(Record):
    """A record that crosses between server and clients.

    Its fields are annotated with their `Kind`. A tree whose entries are of several kinds has a mapping from entry to kind:
    `params: Annotated[Tree, {"prototypes": Kind.PROTOTYPES, "counts": Kind.COUNTS}]`.
    """

    @classmethod
    def kind_of(cls, path: str) -> Kind | None:
        """The kind of a field, or of an entry of a tree such as `params.counts`; None if it was not declared."""
        name, _, entry = path.partition(".")
        declared = _declared_kinds(cls).get(name)  # type: ignore[arg-type]
        if isinstance(declared, Mapping):
            kind = declared.get(entry)
            return kind if isinstance(kind, Kind) else None
        return declared


@dataclass(frozen=True)
class Nothing(Message):
    """The empty message: the call itself is all there is to say."""


@dataclass(frozen=True)
class Model(Message):
    """A model for each client: `params` [K, ...]; `moments` go along where a round shares them."""

    params: Annotated[Tree, Kind.WEIGHTS]
    moments: Annotated[Tree, Kind.MOMENTS] = field(default_factory=dict, kw_only=True)


AnyRecord = TypeVar("AnyRecord", bound=Record)


@cache
def _names_of(kind: type[Record]) -> tuple[str, ...]:
    """The fields of a kind of record but `ids`."""
    return tuple(item.name for item in dataclasses.fields(kind)[1:])


def _leaves(name: str, value: Value) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Rows):
        yield f"{name}.values", value.values
        yield f"{name}.ptr", value.ptr
    elif isinstance(value, dict):
        for key, tensor in value.items():
            yield f"{name}.{key}", tensor


def _select(value: Value, index: Sequence[int]) -> Value:
    if isinstance(value, Tensor):
        return take_rows(value, index)
    if isinstance(value, Rows):
        return value.select(index)
    if isinstance(value, dict):
        return {name: take_rows(tensor, index) for name, tensor in value.items()}
    return value


def _concat(name: str, values: Sequence[Value]) -> Value:
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat([v for v in values if isinstance(v, Tensor)])
    if isinstance(first, Rows):
        return Rows.concat([v for v in values if isinstance(v, Rows)])
    if isinstance(first, dict):
        trees = [v for v in values if isinstance(v, dict)]
        return {key: torch.cat([tree[key] for tree in trees]) for key in first}
    if any(value != first for value in values):
        raise ValueError(f"scalar {name!r} is shared by all clients but differs between them: {list(values)}")
    return first


@cache
def _field_types(cls: type[Record]) -> Mapping[str, object]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)[1:]}


@cache
def _declared_kinds(cls: type[Message]) -> dict[str, Kind | Mapping[str, Kind]]:
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: mark
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Kind | Mapping)
    }


def _take_field(name: str, kind: object, scalars: dict[str, Scalar], tensors: dict[str, Tensor]) -> Value:
    """One field's value, taken out of what is left."""
    prefix = f"{name}."
    if kind is Tensor:
        return tensors.pop(name)
    if kind == Rows | None and prefix + "ptr" not in tensors:
        return None
    if kind in (Rows, Rows | None):
        return Rows(tensors.pop(prefix + "values"), tensors.pop(prefix + "ptr"))
    if get_origin(kind) is dict:
        return {path.removeprefix(prefix): tensors.pop(path) for path in list(tensors) if path.startswith(prefix)}
    value = scalars.pop(name)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"{name} must be {kind}, got {value!r}")
    return value


def _has_client_axis(value: Value, clients: int) -> bool:
    if isinstance(value, Tensor):
        return value.dim() > 0 and value.shape[0] == clients
    if isinstance(value, dict):
        return all(_has_client_axis(tensor, clients) for tensor in value.values())
    if isinstance(value, Rows):
        ptr = value.ptr
        if ptr.dtype not in (torch.int64, torch.int32) or ptr.shape != (clients + 1,) or value.values.dim() == 0:
            return False
        return bool(ptr[0] == 0) and bool(ptr[-1] == value.values.shape[0]) and bool((ptr[1:] >= ptr[:-1]).all())
    return True

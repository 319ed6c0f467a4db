"""The byte format of records: closed, checked, never pickled.

    b"SUT1" | header length (4 bytes, little endian) | JSON header | tensor bytes in header order

The header names the record's type, its clients, its scalars, and path, type and shape of every tensor. Reading one takes
no more memory than a few times its bytes, whatever its header says: shapes are compared with the bytes that are there before
anything is made of them.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from suture.core.headers import HeaderBounds, read_header
from suture.errors import IntegrityError

Scalar = int | float | bool | str
MAGIC = b"SUT1"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
}

MOST_TENSORS = 4096
"""A model has some dozens; each costs microseconds to make, however small it is."""
MOST_DIMENSIONS = 8
MOST_OF_EMPTY = 1 << 24
"""An empty tensor may have other dimensions of any size, and whoever allocates by them would be surprised: their product."""
HEADER = HeaderBounds(size=1 << 20, elements=1 << 16, depth=8)
"""A model of a hundred layers has 10 kB; a thousand clients' names have 20."""


def dtype_name(dtype: torch.dtype) -> str:
    """How a header calls a type of numbers; some do not travel."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"{dtype} does not travel; convert it to one of {', '.join(DTYPES)}")
    return name


def bytes_of(tensor: Tensor) -> memoryview:
    """What is in memory, without a copy where it is already in the right place and order."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.numel() < 2:  # which counts as contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def _refusal(why: str) -> IntegrityError:
    return IntegrityError(f"malformed message ({why}); it was refused")


def kind_of(data: bytes) -> str:
    """The name of the type that a packed record claims to be."""
    kind = _header_of(data)[0]["type"]
    if not isinstance(kind, str):
        raise _refusal("its header has entries of another kind")
    return kind


def apart(data: bytes) -> tuple[bytes, memoryview]:
    """(type, scalars and layout, the tensors' bytes) of a packed record: all but whom it is for."""
    header, end = _header_of(data)
    known = [header["type"], header["scalars"], header["tensors"]]
    return json.dumps(known, sort_keys=True).encode(), memoryview(data)[end:]


def _header_of(data: bytes) -> tuple[dict[str, Any], int]:
    """(the header, where it ends)."""
    if data[:4] != MAGIC:
        raise _refusal("it does not start like one of ours")
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise _refusal("its header is cut short")
    try:
        header = read_header(memoryview(data)[8:end], HEADER, finite=False)
    except ValueError as error:
        raise _refusal(f"its header cannot be read: {error}") from error
    if set(header) != {"type", "ids", "scalars", "tensors"}:
        raise _refusal("its header is not complete")
    return header, end


def parse(data: bytes) -> tuple[str, tuple[str, ...], dict[str, Scalar], dict[str, Tensor]]:
    """(type, ids, scalars, tensors) of a packed record, or a refusal."""
    header, end = _header_of(data)
    view = memoryview(data)
    kind, ids, scalars, layout = header["type"], header["ids"], header["scalars"], header["tensors"]
    plain = isinstance(kind, str) and isinstance(scalars, dict) and isinstance(ids, list) and isinstance(layout, list)
    if not plain or not all(isinstance(name, str) for name in ids) or len(set(ids)) != len(ids):
        raise _refusal("its header has entries of another kind")
    if len(layout) > MOST_TENSORS:
        raise _refusal(f"it holds {len(layout):,} tensors, at most {MOST_TENSORS:,} are read")
    tensors: dict[str, Tensor] = {}
    for entry in layout:
        path, dtype, shape = _layout_of(entry)
        size = math.prod(shape) * dtype.itemsize
        if end + size > len(data):
            raise _refusal("it is cut short")
        if path in tensors:
            raise _refusal("it holds a tensor twice")
        tensors[path] = _tensor_of(view[end : end + size], dtype, shape)
        end += size
    if end != len(data):
        raise _refusal("it is longer than its header says")
    return kind, tuple(ids), scalars, tensors


def _layout_of(entry: object) -> tuple[str, torch.dtype, list[int]]:
    if isinstance(entry, list) and len(entry) == 3:
        path, dtype, shape = entry
        named = isinstance(path, str) and isinstance(dtype, str) and dtype in DTYPES
        if named and isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape):
            if len(shape) > MOST_DIMENSIONS or (0 in shape and math.prod(n for n in shape if n) > MOST_OF_EMPTY):
                raise _refusal("its header describes an impossible tensor")
            return path, DTYPES[dtype], shape
    raise _refusal("its header does not describe its tensors")


def _tensor_of(content: memoryview, dtype: torch.dtype, shape: list[int]) -> Tensor:
    try:
        if not content:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if dtype is torch.bool and bool((flat > 1).any()):
            raise _refusal("it holds a truth value that is neither true nor false")
        return flat.view(dtype).view(shape)
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes that no tensor can have
        raise _refusal("its header describes an impossible tensor") from error

"""The shape of a CSV file before any engine reads it: encoding, delimiter, header, and the fields of every record.

Engines fill short rows up, rename doubled columns and guess encodings without a word. Here a file is either exactly a
table or it is refused with the first record at fault.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from suture.core.storage import disk_errors
from suture.errors import DataError
from suture.tables.summary import Summary, shown

CHUNK = 1 << 22
DELIMITERS = ",;\t|"
LONGEST_HEADER = 1 << 24
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class CsvShape:
    """What must be known to read the file, and how many records there are below the header."""

    path: Path
    """The file itself, or a plain UTF-8 copy of it."""
    delimiter: str
    columns: tuple[str, ...]
    records: int
    blank: np.ndarray
    """Of the records, the numbers of those that are empty lines."""


def examine(path: Path, scratch: Path, encoding: str | None, summary: Summary) -> CsvShape:
    """Check a CSV or TSV file, packed or not; a copy in UTF-8 is left in `scratch` where the original is something else."""
    plain = _plain(path, scratch, encoding, summary)
    delimiter, columns, skip = _header(plain, path, summary)
    records, blank = _count(plain, path, delimiter, len(columns), skip)
    return CsvShape(plain, delimiter, columns, records, blank)


def _plain(path: Path, scratch: Path, encoding: str | None, summary: Summary) -> Path:
    """UTF-8 without a mark: the file itself if it is, else a copy."""
    with _open(path) as file:
        start = _read(file, 4, path)
    found = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        found = "utf-32"
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError as error:
            raise DataError(
                f"the encoding {shown(encoding)} is not known; say for instance utf-8, latin-1 or utf-16"
            ) from error
    used = found or encoding or "utf-8"
    if found and found != "utf-8-sig":
        summary.note(path.name, f"is written in {found}", "changed to UTF-8; the text is the same")
    packed = path.suffix == ".gz"
    decoder = codecs.getincrementaldecoder(used)()
    copy = None if used == "utf-8" and not packed else scratch / f"{path.name}.{len(list(scratch.iterdir()))}.csv"
    with _open(path) as file, (copy or Path("/dev/null")).open("wb") as sink:
        for chunk in _chunks(file, path):
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not written in {used} ({error.reason}); say how it is, for instance with --encoding latin-1"
                ) from error
            if "\0" in text:
                raise DataError(
                    f"{path} holds zero bytes, so it is not text in {used}; UTF-16 must be named: --encoding utf-16-le"
                )
            if copy is not None:
                sink.write(text.encode())
    return copy or path


def _open(path: Path) -> IO[bytes]:
    with disk_errors("read", path):
        return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        with disk_errors("read", path):
            return file.read(size)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is cut short or damaged ({error}); pack it again") from error


def _chunks(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Blocks of the file, and an empty one at its end."""
    while True:
        chunk = _read(file, CHUNK, path)
        yield chunk
        if not chunk:
            return


def _header(plain: Path, path: Path, summary: Summary) -> tuple[str, tuple[str, ...], int]:
    """Delimiter, column names, and the bytes of the header record."""
    with _open(plain) as file:
        line = _read(file, LONGEST_HEADER, plain)
    record = _first_record(line, path)
    if not record.strip():
        raise DataError(f"{path} is empty; a table needs a header line with the names of its columns")
    text = record.decode().rstrip("\r\n")
    if "\r" in text:
        raise DataError(f"{path} ends its lines with carriage returns only; write it with ordinary line ends")
    suffixes = path.suffixes
    if ".tsv" in suffixes:
        delimiter = "\t"
    else:
        delimiter = max(DELIMITERS, key=lambda one: len(_fields(text, one)))
        if delimiter != ",":
            summary.note(path.name, f"its columns are separated by {delimiter!r}", "kept as such")
    names = _fields(text, delimiter)
    for number, name in enumerate(names):
        if not name.strip():
            names[number] = f"column_{number + 1}"
            summary.note(path.name, f"column {number + 1} has no name", f"changed to {names[number]!r}")
    doubled = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if doubled:
        raise DataError(f"{path} has the column {shown(doubled[0])} more than once; give each column a name of its own")
    return delimiter, tuple(names), len(record)


def _first_record(line: bytes, path: Path) -> bytes:
    quoted = False
    for number, byte in enumerate(line):
        if byte == ord('"'):
            quoted = not quoted
        elif byte == ord("\n") and not quoted:
            return line[: number + 1]
    if quoted or len(line) == LONGEST_HEADER:
        raise DataError(f"the header of {path} does not end: a quotation mark is not closed, or it is not a table")
    return line


def _fields(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return []


def _count(plain: Path, path: Path, delimiter: str, width: int, skip: int) -> tuple[int, np.ndarray]:
    """The number of records below the header and which are empty lines; refuses the first that has not `width` fields."""
    records = carried_fields = carried_bytes = 0
    blank = []
    quoted = returned = False
    with _open(plain) as file:
        file.seek(skip)
        for chunk in _chunks(file, plain):
            block = np.frombuffer(chunk, dtype=np.uint8)
            outside = np.ones(block.size, dtype=bool)
            if quoted or b'"' in chunk:
                inside = (np.cumsum(block == ord('"')) + quoted) % 2 == 1
                outside, quoted = ~inside, bool(inside[-1]) if inside.size else quoted
            ends = np.flatnonzero((block == ord("\n")) & outside)
            marks = np.flatnonzero((block == ord(delimiter)) & outside)
            before = np.searchsorted(marks, ends)
            fields = np.diff(before, prepend=0) + 1
            lengths = np.diff(ends, prepend=-1) - 1
            lengths -= (lengths > 0) & (block[ends - 1] == ord("\r"))
            if ends.size:
                fields[0] += carried_fields
                lengths[0] += carried_bytes - (returned and ends[0] == 0)
                carried_fields = carried_bytes = 0
            returned = _refuse_lone_returns(path, block, outside, returned)
            empty = lengths <= 0
            _refuse_ragged(path, (fields != width) & ~empty, fields, width, records)
            blank.append(records + np.flatnonzero(empty))
            records += ends.size
            carried_fields += int(marks.size - (before[-1] if ends.size else 0))
            carried_bytes += int(block.size - 1 - (ends[-1] if ends.size else -1))
    if quoted:
        raise DataError(f"{path} ends inside quotation marks; close the quotation mark that was opened")
    if carried_bytes:
        _refuse_ragged(path, np.array([carried_fields + 1 != width]), np.array([carried_fields + 1]), width, records)
        records += 1
    return records, np.concatenate(blank)


def _refuse_lone_returns(path: Path, block: np.ndarray, outside: np.ndarray, before: bool) -> bool:
    """Carriage returns that end no line: some readers would begin a row there, others not. True if the last byte is one."""
    found = np.flatnonzero((block == ord("\r")) & outside)
    last = bool(found.size) and int(found[-1]) == block.size - 1
    lone = (block[found[: found.size - last] + 1] != ord("\n")).any()
    if lone or (before and (not block.size or block[0] != ord("\n"))):
        raise DataError(f"{path} has a carriage return inside a row; put that field in quotation marks, or remove it")
    return last


def _refuse_ragged(path: Path, wrong: np.ndarray, fields: np.ndarray, width: int, before: int) -> None:
    first = int(wrong.argmax()) if wrong.size else 0
    if wrong.size and wrong[first]:
        raise DataError(
            f"row {before + first + 1:,} of {path} has {int(fields[first]):,} fields, the header has {width:,}; "
            "correct that row (a field that holds the separator must be in quotation marks)"
        )

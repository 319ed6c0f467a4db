"""The table engine, Polars: imported in one place, so that its absence and its complaints are one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from suture.errors import ConfigError, DataError

try:
    import polars as pl
except ImportError as error:
    raise ConfigError("reading tables needs Polars; install it with: pip install 'suture-fl[tables]'") from error

__all__ = ["pl", "table_errors"]


@contextlib.contextmanager
def table_errors(source: str) -> Iterator[None]:
    """Turn what Polars says of a table into one sentence about `source`."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"{source} cannot be read as a table ({reason[:200]}); correct the file and import it again"
        ) from error

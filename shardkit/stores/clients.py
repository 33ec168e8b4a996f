"""The fsspec client of each store: found, made with the user's options, or named if it is not installed."""

from __future__ import annotations

from typing import Any

import fsspec

from shardkit.errors import UsageError, missing_extra
from shardkit.stores.locations import protocol_of

# Of each protocol the extra and the package that it takes.
_EXTRAS = {
    **dict.fromkeys(["http", "https"], ("http", "aiohttp")),
    "s3": ("s3", "s3fs"),
    **dict.fromkeys(["gs", "gcs"], ("gcs", "gcsfs")),
    **dict.fromkeys(["az", "abfs", "abfss"], ("azure", "adlfs")),
}


def client_of(path: str, *, is_written: bool = False) -> Any:
    """Returns the fsspec file system of a path.

    fsspec keeps one for each process and thread, and makes new ones after a fork.

    Raises:
        UsageError: If its backend is not installed.
    """
    protocol = protocol_of(path, is_written=is_written)
    try:
        return fsspec.filesystem(protocol)
    except (ImportError, ValueError) as error:
        if protocol in _EXTRAS:
            raise missing_extra(*_EXTRAS[protocol]) from error
        raise UsageError(
            f"{protocol}:// needs an fsspec backend that is not installed",
            why=str(error),
            next_step="Install the package that the reason names",
        ) from error

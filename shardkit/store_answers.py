"""What stores and the libraries of their clients answer, each in a way of its own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shardkit.errors import StorageError


def version_of(info: dict[str, Any]) -> str:
    """Returns what changes when a file does, of what a store tells about it; empty if it tells nothing such."""
    for key in ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "last_modified", "created"):
        if found := info.get(key):
            # Listing and asking for one file may give the same time as a number and as a datetime.
            return str(found.timestamp() if isinstance(found, datetime) else found)
    return ""


def failure_of(error: Exception, where: str, why: str) -> StorageError:
    """Returns the error for what a client's library raised when it was asked.

    Args:
        error: Of whatever class: they have none in common.
        where: What was asked for, without secrets.
        why: What the library says, without secrets.
    """
    if isinstance(error, PermissionError):
        return StorageError(
            "the store refuses to be read",
            where=where,
            why=why or "permission denied",
            next_step="Check that your credentials may read it, then run the same again",
        )
    return StorageError(
        "the store does not answer",
        where=where,
        why=f"{type(error).__name__}: {why}",
        next_step="Check the address, your credentials and the network, then run the same again",
    )

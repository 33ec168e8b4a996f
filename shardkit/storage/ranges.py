"""Requests for ranges of files in a store, by any number of threads through one pool of connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from shardkit.errors import StorageError
from shardkit.storage.locations import redact
from shardkit.storage.options import hide_secrets
from shardkit.storage.requests import call


def request_range(
    path: str, start: int, num_bytes: int, *, timeout_s: float, is_over: Callable[[], bool] = lambda: False
) -> bytes:
    """Returns a store's answer to one request for a range, whatever its length; for any number of threads.

    Args:
        path: URL.
        start: First byte.
        num_bytes: How many are asked for.
        timeout_s: How long an answer may take.
        is_over: Asked now and then, whether nobody wants the answer any more.

    Raises:
        FileNotFoundError, PermissionError: If the file is missing or may not be read.
        StorageError: If there is no answer in time, or the backend fails in whatever way it does.
    """
    try:
        end = start + num_bytes
        return cast(bytes, call(path, "cat_file", start=start, end=end, timeout_s=timeout_s, is_over=is_over))
    except (FileNotFoundError, PermissionError, StorageError):
        raise
    except Exception as error:  # Of the client's library: they have no common class.
        why = redact(hide_secrets(f"{type(error).__name__}: {error}"))
        raise StorageError("a request failed", where=redact(path), why=why) from error

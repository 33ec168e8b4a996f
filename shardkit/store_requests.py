"""Requests for ranges of files in a store, by any number of threads through one pool of connections."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from typing import Any, cast

from shardkit import storage
from shardkit.errors import StorageError

_POLL_S = 0.5


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
    filesystem = _shared_filesystem(os.getpid(), path[: path.index("://")])
    try:
        if not filesystem.async_impl:
            return cast(bytes, filesystem.cat_file(path, start=start, end=start + num_bytes))
        request = asyncio.wait_for(filesystem._cat_file(path, start=start, end=start + num_bytes), timeout_s)
        answer = asyncio.run_coroutine_threadsafe(request, filesystem.loop)
        while not wait([answer], _POLL_S).done:
            if is_over():
                answer.cancel()
        return cast(bytes, answer.result())
    except (FileNotFoundError, PermissionError):
        raise
    except TimeoutError as error:
        why = f"no answer in {timeout_s:.0f} s"
        raise StorageError("a request failed", where=storage.redact(path), why=why) from error
    except (Exception, CancelledError) as error:  # Of the client's library: they have no common class.
        why = storage.redact(f"{type(error).__name__}: {error}")
        raise StorageError("a request failed", where=storage.redact(path), why=why) from error


@functools.lru_cache(maxsize=16)
def _shared_filesystem(_process: int, protocol: str) -> Any:
    """Returns the file system of a process for all its threads.

    A forked child must not use its parent's: the thread that works on its requests is not there.
    """
    return storage.filesystem_of(f"{protocol}://")

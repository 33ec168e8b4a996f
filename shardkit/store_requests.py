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
        request = _ask(filesystem, path, start, start + num_bytes, timeout_s)
        answer = asyncio.run_coroutine_threadsafe(request, filesystem.loop)
        while not wait([answer], _POLL_S).done:
            if is_over():
                answer.cancel()
        found = answer.result()
        if isinstance(found, Exception):
            raise found
        return found
    except (FileNotFoundError, PermissionError):
        raise
    except TimeoutError as error:
        why = f"no answer in {timeout_s:.0f} s"
        raise StorageError("a request failed", where=storage.redact(path), why=why) from error
    except (Exception, CancelledError) as error:  # Of the client's library: they have no common class.
        why = storage.redact(f"{type(error).__name__}: {error}")
        raise StorageError("a request failed", where=storage.redact(path), why=why) from error


async def _ask(filesystem: Any, path: str, start: int, end: int, timeout_s: float) -> bytes | Exception:
    # An error is a result like any other: of one that is raised when nobody waits any more, asyncio complains.
    try:
        async with asyncio.timeout(timeout_s):
            return cast(bytes, await filesystem._cat_file(path, start=start, end=end))
    except Exception as error:  # noqa: BLE001 - it is raised again, if anybody waits
        return error


@functools.lru_cache(maxsize=16)
def _shared_filesystem(_process: int, protocol: str) -> Any:
    """Returns the file system of a process for all its threads.

    A forked child must not use its parent's: the thread that works on its requests is not there.
    """
    return storage.filesystem_of(f"{protocol}://")

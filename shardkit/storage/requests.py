"""Requests to stores: one with a time limit, or several until a deadline.

The clients' libraries ask again by themselves, some of them for seconds. This module outlasts longer faults, such as an
outage or a store that is throttled. Any number of threads ask for ranges through one pool of connections.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from shardkit.errors import ShardkitError, StorageError, UsageError
from shardkit.runtime.threads import current_stop_event, start_thread
from shardkit.storage.clients import client_of
from shardkit.storage.locations import protocol_of, redact
from shardkit.storage.options import hide_secrets
from shardkit.storage.responses import failure_of, is_missing, is_passing

# Limit of one request of a few bytes, or of a block.
TIMEOUT_S = 60.0
# Limit of a listing; a bucket may have a million objects.
LISTING_TIMEOUT_S = 600.0
# Outlasts an outage of a minute.
DEADLINE_S = 120.0
# A store that has never answered is more likely misspelt than broken.
FIRST_DEADLINE_S = 15.0
DEADLINE_VARIABLE = "SHARDKIT_STORAGE_DEADLINE"

_FIRST_PAUSE_S = 0.1
_SHORTEST_S = 1.0
_LONGEST_PAUSE_S = 10.0
_POLL_S = 0.25
_Answer = TypeVar("_Answer")
# Stores that have answered, by process and protocol.
_known: set[tuple[int, str]] = set()


def ask(
    path: str, method: str, *args: Any, is_written: bool = False, timeout_s: float = TIMEOUT_S, **options: Any
) -> Any:
    """Returns the answer of a store's client about a path, asked again until the deadline.

    Raises:
        FileNotFoundError, FileExistsError: If the store says so.
        StorageError: If it refuses, or whatever else it answers until the deadline.
    """

    def request(left_s: float) -> Any:
        return call(path, method, *args, is_written=is_written, timeout_s=capped(left_s, timeout_s), **options)

    return with_retries(request, path, is_written=is_written)


def ask_uncached(path: str, method: str, **options: Any) -> Any:
    """Returns the same as `ask`, but from the store itself, not from an older listing of the client."""
    client_of(path).invalidate_cache()
    return ask(path, method, **options)


def with_retries(request: Callable[[float], _Answer], path: str, *, is_written: bool = False) -> _Answer:
    """Returns the answer to a request, made again until the deadline while its errors may pass.

    Args:
        request: Makes it, given the seconds until the deadline.

    Raises:
        FileNotFoundError, FileExistsError: At once.
        StorageError: For whatever else is final or still there at the deadline.
    """
    import tenacity

    key = (os.getpid(), protocol_of(path, is_written=False))
    deadline_s = deadline() if key in _known else min(deadline(), FIRST_DEADLINE_S)
    stop_event = current_stop_event()
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_delay(deadline_s) | tenacity.stop_when_event_set(stop_event),  # type: ignore[arg-type]
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        retry=tenacity.retry_if_exception(_may_pass),
        sleep=lambda seconds: (stop_event.wait(seconds), None)[1],
        reraise=True,
    )
    try:
        end = time.monotonic() + deadline_s
        answer = retrying(lambda: request(end - time.monotonic()))
    except FileExistsError:
        _known.add(key)
        raise
    except ShardkitError:
        raise
    except Exception as error:  # Of the client's library: they have no common class.
        if is_missing(error):
            _known.add(key)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(path)) from error
        # Some go on with whole documents of their service.
        said = " ".join(str(error).strip().partition("\n")[0].split())
        raise failure_of(error, redact(path), redact(hide_secrets(said)), is_written=is_written) from error
    _known.add(key)
    return answer


def call(
    path: str,
    method: str,
    *args: Any,
    is_written: bool = False,
    timeout_s: float = TIMEOUT_S,
    **options: Any,
) -> Any:
    """Returns the answer of a store's client to one request, for any number of threads.

    Raises:
        StorageError: If there is no answer in time, or the caller gives up.
        Exception: Whatever the client's library raises.
    """
    client = client_of(path, is_written=is_written)
    arguments = args or (path,)
    if client.async_impl and (request := getattr(client, f"_{method}", None)) is not None:
        answer = asyncio.run_coroutine_threadsafe(_limited(request, timeout_s, *arguments, **options), client.loop)
    elif client.protocol == "memory":
        return getattr(client, method)(*arguments, **options)
    else:
        answer = in_a_thread(partial(getattr(client, method), *arguments, **options))
    return _awaited(answer, path, timeout_s)


def _awaited(answer: Future[Any], path: str, timeout_s: float) -> Any:
    stop_event = current_stop_event()
    # The client's own limit comes first, and ends the request.
    end = time.monotonic() + timeout_s + _POLL_S
    try:
        found: Any = TimeoutError()
        while time.monotonic() < end and not stop_event.is_set():
            if wait([answer], _POLL_S).done:
                found = answer.result()
                break
    except CancelledError as error:
        raise StorageError("a request was given up", where=redact(path)) from error
    finally:
        answer.cancel()
    if isinstance(found, TimeoutError) and stop_event.is_set():
        raise StorageError("a request was given up", where=redact(path))
    if isinstance(found, TimeoutError):
        raise StorageError(
            "the store does not answer",
            where=redact(path),
            why=f"no answer in {timeout_s:.0f} s",
            next_step="Check the address, your credentials and the network, then run the same again",
        ) from found
    if isinstance(found, Exception):
        raise found
    return found


def capped(left_s: float, timeout_s: float = TIMEOUT_S) -> float:
    """Returns how long one answer may take, given the seconds until the deadline."""
    return min(timeout_s, max(left_s, _SHORTEST_S))


def deadline() -> float:
    """Returns for how long a store is asked again, in seconds; `SHARDKIT_STORAGE_DEADLINE` sets it.

    Raises:
        UsageError: If that is no number of seconds.
    """
    text = os.environ.get(DEADLINE_VARIABLE, "")
    try:
        seconds = float(text) if text else DEADLINE_S
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{DEADLINE_VARIABLE} is {text!r}", next_step="Set it to a number of seconds, or unset it")
    return seconds


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ShardkitError):
        return isinstance(error, StorageError)
    return isinstance(error, Exception) and is_passing(error)


def in_a_thread(request: Callable[[], Any]) -> Future[Any]:
    """Starts a request that takes no time limit, in a thread. After the limit it is abandoned."""
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            found = request()
        except Exception as error:  # noqa: BLE001 - it is raised again, if the caller waits
            found = error
        with suppress(InvalidStateError):
            answer.set_result(found)

    start_thread(threading.Thread(target=work, name="shardkit-request", daemon=True))
    return answer


async def _limited(request: Callable[..., Any], timeout_s: float, *args: Any, **options: Any) -> Any:
    # An error is returned as a result: asyncio logs one that is raised when the caller does not wait any more.
    try:
        async with asyncio.timeout(timeout_s):
            return await request(*args, **options)
    except Exception as error:  # noqa: BLE001 - it is raised again, if the caller waits
        return error


def request_range(path: str, start: int, num_bytes: int, *, timeout_s: float) -> bytes:
    """Returns a store's answer to one request for a range, whatever its length; for any number of threads.

    Raises:
        FileNotFoundError, PermissionError: If the file is missing or may not be read.
        StorageError: If there is no answer in time, or the backend fails in whatever way it does.
    """
    try:
        end = start + num_bytes
        return cast(bytes, call(path, "cat_file", start=start, end=end, timeout_s=timeout_s))
    except (FileNotFoundError, PermissionError, StorageError):
        raise
    except Exception as error:  # Of the client's library: they have no common class.
        why = redact(hide_secrets(f"{type(error).__name__}: {error}"))
        raise StorageError("a request failed", where=redact(path), why=why) from error

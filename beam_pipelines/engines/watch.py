"""The watch over a conversion that an engine runs: how it moves, what its workers left, and how its end is reported.

An engine retries failed work by itself. A failure that remains, or work that no worker does any more, ends the command.
Nothing of an engine is imported.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shardkit._version import __version__
from shardkit.conversion.commit.commit import forbid_commit
from shardkit.conversion.exchange import fetch, fetch_signs
from shardkit.conversion.failures import FAILURE_FILES, read_failure
from shardkit.conversion.plan import Plan
from shardkit.conversion.progress import read_totals
from shardkit.conversion.shards.layout import LAYOUT_FILE
from shardkit.errors import ShardkitError, StorageError, UsageError

KEPT = "Nothing was committed; finished parts are kept"
_POLL_S = 0.25
_CANCEL_S = 5.0
_MIN_LOOK_S, _MAX_LOOK_S = 1.0, 15.0
_MISSING_MODULE = re.compile(r"No module named '(shardkit|beam_pipelines)[.\w]*'")
# Of gRPC, whose errors end with a bracket.
_DETAILS = re.compile(r"^\s*details = \"(.+)\"$", re.MULTILINE)
_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Worker)): (.*\w.*)$", re.MULTILINE)


def follow(work: Callable[[], None], cancel: Callable[[], None], plan: Plan, stall_s: float) -> None:
    """Does work in a thread; cancels it when a worker met an error that no retry mends, or when nothing moves.

    Args:
        work: Ends when the dataset is committed.
        plan: As the command has it.
        stall_s: Give up when no worker has done anything for so long.

    Raises:
        ShardkitError: In either case.
        Exception: What the engine raised.
    """
    watch = _Watch(plan)
    has_ended = threading.Event()
    raised: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one
            raised.append(error)
        finally:
            has_ended.set()

    threading.Thread(target=call, daemon=True, name="engine").start()
    seen, since_s = _signs_of_work(plan), time.monotonic()
    while not has_ended.wait(_POLL_S):
        watch.look()
        failure = read_failure(plan)
        if failure is not None and failure.error is not None:
            error = ShardkitError.from_dict(failure.error)
            # The engine tries again after an error of a store.
            if not isinstance(error, StorageError):
                cancel_soon(cancel)
                raise error
        if (now := _signs_of_work(plan)) != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > stall_s:
            # Workers that are out of reach may go on.
            state = KEPT if forbid_commit(plan) else "It may be committed already"
            cancel_soon(cancel)
            raise _stands_still(stall_s, state)
    if raised:
        raise raised[0]


def cancel_soon(cancel: Callable[[], None]) -> None:
    """Cancels a job, if its engine does so within seconds. An error is dropped: the end has a better reason."""

    def call() -> None:
        with suppress(Exception):
            cancel()

    # Not in a signal's handler: whatever the main thread waits for is locked.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_CANCEL_S)


@contextmanager
def explained_end(
    name: str, extra: str, plan: Plan, end_if_lost: Callable[[Exception], None] = lambda error: None
) -> Iterator[None]:
    """Turns what an engine raises into what a worker reported, or into an error of the engine.

    Args:
        extra: Of shardkit, which its workers need.
        plan: As the command has it.
        end_if_lost: Ends the process if workers died over the same part again and again.
    """
    try:
        yield
    except ShardkitError:
        raise
    except Exception as error:
        with suppress(ShardkitError):
            fetch(plan, FAILURE_FILES)
        if (failure := read_failure(plan)) is not None and failure.error is not None:
            raise ShardkitError.from_dict(failure.error) from None
        end_if_lost(error)
        raise _explained(error, name, extra) from error


class _Watch:
    """Brings the signs of workers without a shared disk here from time to time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started_s = time.monotonic()
        self._next_s = self._started_s

    def look(self) -> None:
        """Asks the store, unless that was done just now."""
        now_s = time.monotonic()
        if self._plan.exchange is None or now_s < self._next_s:
            return
        # Every look costs a request for each worker.
        self._next_s = now_s + min(max((now_s - self._started_s) / 20, _MIN_LOOK_S), _MAX_LOOK_S)
        with suppress(ShardkitError):
            fetch_signs(self._plan, *FAILURE_FILES, LAYOUT_FILE)


def _signs_of_work(plan: Plan) -> tuple[Any, ...]:
    folders = [plan.work_path(name) for name in ("survey", "extract", "spool", "shards")]
    counts = [sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0 for folder in folders]
    return (read_totals(plan.work_path("progress")), *counts)


def _stands_still(stall_s: float, state: str) -> StorageError:
    return StorageError(
        "the engine stands still",
        why=f"no worker has done anything for {stall_s / 60:.3g} minutes",
        state=state,
        next_step="See whether its workers live, then run the same command again; --engine-option "
        "stall-minutes=N waits longer",
    )


def _explained(error: Exception, name: str, extra: str) -> ShardkitError:
    text = str(error)
    if (missing := _MISSING_MODULE.search(text)) is not None:
        return UsageError(
            f"the workers of {name} have no shardkit",
            why=missing.group(),
            next_step=f"Install shardkit {__version__} with the extra {extra} where they run",
        )
    if lines := _ERROR_LINE.findall(text):
        why = ": ".join(lines[-1])
    elif details := _DETAILS.findall(text):
        why = f"the connection to it ended: {details[-1]}"
    else:
        why = f"{type(error).__name__}: {text.strip().splitlines()[-1] if text else ''}"
    return StorageError(
        f"the engine {name} ended with an error",
        why=why[:500],
        state=KEPT,
        next_step="Run the same command again to go on; with --debug it shows everything",
    )

"""Many files looked at together: a store answers slowly, so it is asked about many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from shardkit.errors import DamagedFileError
from shardkit.runtime.threads import worker_threads
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.storage import files as storage

_REMOTE_THREADS = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_files(function: Callable[[RawFile], _Result], files: Sequence[RawFile]) -> list[_Result]:
    """Returns the result of a function for each file; many at a time where files are in a store."""
    return map_remote(function, files, is_local=all(storage.is_local(file.path) for file in files))


def map_remote(function: Callable[[_Item], _Result], items: Sequence[_Item], *, is_local: bool) -> list[_Result]:
    """Returns the result of a function for each item; many at a time unless local files alone are read."""
    if len(items) < 2 or is_local:
        return [function(item) for item in items]
    with worker_threads(_REMOTE_THREADS, "shardkit-remote") as threads:
        return list(threads.map(function, items))


def attempt(work: Callable[..., _Result], *arguments: object) -> _Result | DamagedFileError:
    """Returns what `work` returns, or the damage that it meets."""
    try:
        return work(*arguments)
    except DamagedFileError as error:
        return error


def undamaged(found: Sequence[_Result | DamagedFileError], options: SourceOptions) -> list[_Result | None]:
    """Returns None for damaged files, which tolerance leaves to reading.

    Raises:
        DamagedFileError: If one is damaged and bad rows are not tolerated, or all are.
    """
    damage = [item for item in found if isinstance(item, DamagedFileError)]
    if damage and (not options.tolerates_bad_rows or len(damage) == len(found)):
        raise damage[0]
    return [None if isinstance(item, DamagedFileError) else item for item in found]

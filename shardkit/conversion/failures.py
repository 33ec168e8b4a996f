"""How an error of a worker reaches the command: as a file in the work folder.

An engine hands over text of its kind, such as a traceback; the file holds the error itself.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shardkit.conversion.plan import Plan
from shardkit.conversion.work_folder import FAILURE_FILE, FAILURE_RESERVE_BYTES, FAILURE_RESERVE_FILE
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import OutOfSpaceError, ShardkitError, StorageError
from shardkit.runtime.process_limits import NO_MEMORY, is_of_memory
from shardkit.storage import files as storage

# For workers that share no disk: the next try may mend an error of a store, which must not hide a lasting error.
PASSING_FILE = "passing-failure.json"
FAILURE_FILES = (FAILURE_FILE, PASSING_FILE)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first error of a run: an error of shardkit, or the traceback of an unexpected one."""

    error: dict[str, str | None] | None
    traceback: str


@contextmanager
def reported(plan_path: str, work_dir: str | None = None) -> Iterator[None]:
    """Leaves the first error that passes through beside the plan.

    Args:
        plan_path: Of the plan, in the work folder of the command or in a store.
        work_dir: Where this process works; None if that is not known yet.
    """
    try:
        yield
    except Exception as error:
        # The longest message and its traceback must fit into the reserved file.
        text = traceback.format_exc()[-FAILURE_RESERVE_BYTES // 8 :]
        folder = plan_path.rpartition("/")[0]
        content = msgspec.json.encode(Failure(error=_parts_of(error, work_dir or folder), traceback=text))
        if storage.is_local(folder):
            _leave(Path(folder), content)
        else:
            # If the store refuses, the engine tells of the error in its own way.
            name = PASSING_FILE if isinstance(error, StorageError) else FAILURE_FILE
            with suppress(ShardkitError):
                storage.try_create(storage.join(folder, name), content)
        raise


def read_failure(plan: Plan) -> Failure | None:
    """Returns the first error that a worker left, None if none did; one that a retry may mend only if no other came."""
    for name in FAILURE_FILES:
        with suppress(FileNotFoundError, *DECODE_ERRORS):
            return msgspec.json.decode(plan.work_path(name).read_bytes(), type=Failure)
    return None


def _parts_of(error: Exception, work_dir: str | Path) -> dict[str, str | None] | None:
    if is_of_memory(error):
        return OutOfSpaceError(
            NO_MEMORY,
            where=next(iter(getattr(error, "__notes__", ())), None),
            why="--max-memory says how much a process may ask for",
            next_step="Run the same command again with fewer --workers, or a larger --max-memory",
        ).to_dict()
    if isinstance(error, OSError) and (error.errno in _FULL or _is_of_work(error, work_dir)):
        try:
            with storage.translate_os_errors(work_dir):
                raise error
        except ShardkitError as known:
            return known.to_dict()
    return error.to_dict() if isinstance(error, ShardkitError) else None


def _is_of_work(error: OSError, work_dir: str | Path) -> bool:
    # An error of the disk is no bug of shardkit, so it is shown without a traceback.
    return isinstance(error.filename, str | os.PathLike) and os.fspath(error.filename).startswith(str(work_dir))


def _leave(folder: Path, content: bytes) -> None:
    # On a full disk no file can be made, so one is made in advance. The first worker that renames it writes its error.
    claimed = folder / f"{FAILURE_FILE}.{os.getpid()}"
    try:
        (folder / FAILURE_RESERVE_FILE).rename(claimed)
        with claimed.open("r+b") as file:
            file.write(content)
            file.truncate()
        claimed.rename(folder / FAILURE_FILE)
    except OSError:
        # Another worker failed first, or the disk is broken: the run ends with an error all the same.
        pass

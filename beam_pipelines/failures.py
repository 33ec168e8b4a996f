"""How an error of a worker reaches the command: as a file in the work folder.

The local runner hands over a wall of traceback text, and other engines other text; the file holds the error itself.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shardkit.conversion.plan import Plan
from shardkit.errors import ShardkitError

FAILURE_FILE = "failure.json"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first error of a run: the error that a user understands, or the traceback of one that nobody foresaw."""

    error: dict[str, str | None] | None
    traceback: str


@contextmanager
def reported(plan: Plan) -> Iterator[None]:
    """Leaves the first error that passes through in the work folder."""
    try:
        yield
    except Exception as error:
        parts = error.to_dict() if isinstance(error, ShardkitError) else None
        _leave(plan.work_path(FAILURE_FILE), Failure(error=parts, traceback=traceback.format_exc()))
        raise


def read_failure(plan: Plan) -> Failure | None:
    """Returns the first error that a worker left, None if none did."""
    try:
        return msgspec.json.decode(plan.work_path(FAILURE_FILE).read_bytes(), type=Failure)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _leave(path: Path, failure: Failure) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(failure))
        os.link(temporary, path)
    except OSError:
        # A full disk, or another worker failed first: the run ends with an error all the same.
        pass
    finally:
        temporary.unlink(missing_ok=True)

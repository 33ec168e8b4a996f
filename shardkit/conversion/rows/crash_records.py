"""The suspect rows of an input split that brought a process down, fewer with every process that it costs.

A file read alone that ends its process, and a row that does so when it is transformed alone, are left out; larger
pieces are cut into at most CUT_INTO smaller ones and tried again. So a bad row among a million costs about four
processes. A row without end costs its time twice, where it is noticed and where it is proved. In between, a piece that
takes longer than it should is cut at once. That does no harm to rows that are only slow: they get all their time
before they are left out.
"""

from __future__ import annotations

import msgspec

from shardkit.conversion.plan import Plan, input_versions, write_whole
from shardkit.conversion.rows.attempts import READING, TRANSFORMING, Place
from shardkit.decode_errors import DECODE_ERRORS

CUT_INTO = 64
_HASTE = 20
_MIN_SECONDS = 1.0
_CRASHES_PER_DOUBLING = 8


class Crash(msgspec.Struct, frozen=True, array_like=True):
    """Rows `start` to `stop` of a batch, which together ended a process, and how."""

    batch: int
    start: int
    stop: int
    how: str


class CrashRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an input split.

    Attributes:
        versions: Versions of its files; of others nothing is known.
        is_by_file: Whether its files are read one at a time.
        files: Positions of files that ended a process when they were read alone, and how.
        crashes: Rows that did so when they were transformed together.
        damage: How reading its only file ended a process.
    """

    versions: tuple[str, ...]
    is_by_file: bool = False
    files: dict[int, str] = {}
    crashes: tuple[Crash, ...] = ()
    damage: str | None = None


class Slice(msgspec.Struct, frozen=True):
    """Rows to transform together.

    Attributes:
        start, stop: Half-open.
        how: The process ended if they must be left out.
        num_crashes: Rows that ended a process are among them, and so often was one ended by this batch; 0 if nothing
            is known of them, or if it is one row.
    """

    start: int
    stop: int
    how: str | None = None
    num_crashes: int = 0

    def seconds(self, max_row_seconds: float) -> float:
        """Returns how long they may take, where a row may take so long."""
        if not self.num_crashes:
            return max_row_seconds
        # Haste must not cost a process for each row that is only slow.
        hasty = max(_MIN_SECONDS, max_row_seconds / _HASTE) * 2.0 ** (self.num_crashes // _CRASHES_PER_DOUBLING)
        return min(max_row_seconds, hasty)


def next_slice(crashes: tuple[Crash, ...], batch: int, start: int, num_rows: int, most: int) -> Slice:
    """Returns the rows of a batch to transform next.

    Args:
        start: The first row that is not done.
    """
    own = [c for c in crashes if c.batch == batch]
    around = [c for c in own if c.start <= start < c.stop]
    stop = min([num_rows, start + most, *(c.start for c in own if c.start > start)])
    if not around:
        return Slice(start, stop)
    nearest = min(around, key=lambda c: c.stop - c.start)
    size = nearest.stop - nearest.start
    if size == 1:
        return Slice(start, start + 1, nearest.how)
    stop = min(stop, nearest.stop, start + max(1, size // CUT_INTO))
    return Slice(start, stop, num_crashes=len(own) if stop - start > 1 else 0)


def crashed_rows(crash_record: CrashRecord) -> list[Crash]:
    """Returns the rows to leave out, in their order."""
    return sorted({c for c in crash_record.crashes if c.stop - c.start == 1}, key=lambda c: (c.batch, c.start))


def num_crashed(crash_record: CrashRecord) -> int:
    """Returns how many rows and files are to be left out."""
    return len(crashed_rows(crash_record)) + len(crash_record.files) + (crash_record.damage is not None)


def narrow(crash_record: CrashRecord, place: Place, how: str, num_files: int) -> CrashRecord | None:
    """Returns the record after one more process has ended.

    Args:
        how: It ended, such as `ended with SIGSEGV`.

    Returns:
        None if nothing about the rows explains it.
    """
    if place.phase == TRANSFORMING:
        crash = Crash(place.batch, place.start, place.stop, how)
        return msgspec.structs.replace(crash_record, crashes=(*crash_record.crashes, crash))
    if place.phase != READING:
        return None
    if place.file_index >= 0:
        # Batches of several small files change without this file.
        crashes = crash_record.crashes if crash_record.is_by_file else ()
        return msgspec.structs.replace(
            crash_record, files={**crash_record.files, place.file_index: how}, crashes=crashes
        )
    if num_files > 1:
        # Batches change from here on, so crashes by row hold no more.
        return msgspec.structs.replace(crash_record, is_by_file=True, crashes=())
    return msgspec.structs.replace(crash_record, damage=how)


def narrow_at_first(crash_record: CrashRecord, place: Place) -> CrashRecord:
    """Returns the record after a process with other work was held up. That is never enough to leave out a row."""
    if crash_record.crashes or place.phase != TRANSFORMING or place.stop - place.start < 2:
        return crash_record
    crash = Crash(place.batch, place.start, place.stop, "was held up")
    return msgspec.structs.replace(crash_record, crashes=(crash,))


def load_crash_record(plan: Plan, input_split_index: int) -> CrashRecord:
    """Returns the record of an input split; an empty one if its files have changed since."""
    versions = input_versions(plan, plan.input_splits[input_split_index])
    try:
        raw = plan.work_path("isolated", f"{input_split_index}.verdict").read_bytes()
        crash_record = msgspec.msgpack.decode(raw, type=CrashRecord)
    except (FileNotFoundError, *DECODE_ERRORS):
        return CrashRecord(versions=versions)
    return crash_record if crash_record.versions == versions else CrashRecord(versions=versions)


def save_crash_record(plan: Plan, input_split_index: int, crash_record: CrashRecord) -> None:
    """Stores the record of an input split.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    write_whole(plan.work_path("isolated", f"{input_split_index}.verdict"), msgspec.msgpack.encode(crash_record))

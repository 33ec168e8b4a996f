"""The commit of a version: its shard table, then its manifest. What a cleaning on another host removes is never named.

Both leave a sign in `manifests/` and then look for the sign of the other, so at least one of them sees the other:

- A writer puts its table, whose name is its own. Then it looks for marks of cleanings, and checks that its files are
  there. A cleaning spares all data while a table is there that no manifest names.
- A cleaning puts its mark. Then it lists the files. A writer that sees a mark takes its table back and waits.

A sign counts for `SIGN_S` seconds by the clock of the store, so that one of a dead process ends by itself. A writer
whose table is older than `COMMIT_S` does not commit, and a cleaning renews its mark.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping

from shardkit.dataset.manifest import MANIFESTS_DIR, Manifest, encode_manifest, manifest_path
from shardkit.errors import ConflictError, DamageError, StorageError, UsageError
from shardkit.runtime.owner import decode_owner, is_dead
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link

SIGN_S = 900.0
COMMIT_S = 300.0
_TABLE = re.compile(r"\d{8}(-[0-9a-f]{16})?\.shards\.parquet")
_MARK = re.compile(r"\.cleaning-[0-9a-f]{16}")
_LOOK_S = 1.0


def commit_version(
    root: str,
    version: int,
    manifest: Manifest,
    table: bytes,
    needed: Mapping[str, int],
    *,
    before_manifest: Callable[[], None] = lambda: None,
) -> None:
    """Makes a version, or raises; then nothing that was readable has changed.

    Args:
        root: Of the dataset, normalized.
        needed: Sizes of files of this writer's that the version names, by path relative to the dataset.

    Raises:
        ConflictError: If the version is there already, or a file that it names was removed.
        UnsafeError: If `manifests` is a link: the version would be one of another dataset.
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    refuse_link(root, MANIFESTS_DIR)
    table_path = manifest.shard_table.path
    table_url = storage.join(root, table_path)
    while True:
        put_at = time.monotonic()
        storage.commit_exclusive(table_url, table)
        if not (marks := _living_marks(root, table_path)):
            break
        storage.delete_file(table_url)
        _wait_for_end(root, marks)
    before_manifest()
    _check_present(root, table_path, table, needed)
    if is_late(put_at, now := time.monotonic()):
        raise StorageError(
            "the commit took too long",
            where=storage.redact(root),
            why=f"the shard table is {now - put_at:.0f} s old, and a cleaning may remove it after {SIGN_S:.0f} s",
            state="Nothing was committed",
            next_step="Run the same command again",
        )
    storage.commit_exclusive(storage.join(root, manifest_path(version)), encode_manifest(manifest))


def is_shard_table(name: str) -> bool:
    """Whether a file in `manifests/` is a shard table, by its name."""
    return _TABLE.fullmatch(name) is not None


def is_mark(name: str) -> bool:
    """Whether a file in `manifests/` is the mark of a cleaning, by its name."""
    return _MARK.fullmatch(name) is not None


def new_mark_name() -> str:
    """Returns a name for the mark of a cleaning."""
    return f".cleaning-{secrets.token_hex(8)}"


def counts(sign_at: float | None, now: float | None) -> bool:
    """Whether a sign that was put then still counts, by the same clock. It does where the store tells no times."""
    return sign_at is None or now is None or sign_at > now - SIGN_S


def is_late(put_at: float, now: float) -> bool:
    """Whether nothing is done any more behind a sign of this process, as others may soon count it no more. Pure."""
    return now - put_at > COMMIT_S


def lacking(needed: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Returns which of the needed files are not found with their sizes, by path. Pure."""
    return [path for path, num_bytes in sorted(needed.items()) if found.get(path) != num_bytes]


def marks_that_count(times: Mapping[str, float | None], table_name: str) -> set[str]:
    """Returns the marks of cleanings that may be at work.

    Args:
        times: When the files in `manifests/` were written, by name.
        table_name: Of the table that was put just now.
    """
    now = times.get(table_name)
    return {name for name, at in times.items() if is_mark(name) and counts(at, now)}


def _living_marks(root: str, table_path: str) -> set[str]:
    folder = storage.join(root, MANIFESTS_DIR)
    times = {f.path.rpartition("/")[2]: f.modified_at for f in storage.list_files(folder)}
    marks = marks_that_count(times, table_path.rpartition("/")[2])
    return {name for name in marks if not _is_of_dead(storage.join(folder, name))}


def _is_of_dead(path: str) -> bool:
    try:
        owner = decode_owner(storage.read_bytes(path))
    except FileNotFoundError:
        return True
    return owner is not None and is_dead(owner)


def _wait_for_end(root: str, marks: set[str]) -> None:
    """Waits until those marks are gone, or count no more. A cleaning that goes on puts marks of other names."""
    folder = storage.join(root, MANIFESTS_DIR)
    end = time.monotonic() + SIGN_S
    while time.monotonic() < end:
        left = marks.intersection(storage.list_names(folder))
        if not any(not _is_of_dead(storage.join(folder, name)) for name in left):
            return
        time.sleep(_LOOK_S)


def _check_present(root: str, table_path: str, table: bytes, needed: Mapping[str, int]) -> None:
    """Checks that the store gives back what the manifest is about to name.

    Raises:
        ConflictError: If something of it is not there any more, or is another.
    """
    table_url = storage.join(root, table_path)
    own = {storage.join(root, path): num_bytes for path, num_bytes in needed.items()}
    folders = sorted({url.rpartition("/")[0] for url in own})
    found = {f.path: f.num_bytes for folder in folders for f in storage.list_files(folder)}
    # A listing alone ends nothing.
    unlisted = (url for url in lacking(own, found) if not _has_size(url, own[url]))
    gone = next(unlisted, None) if _holds(table_url, table) else table_url
    if gone is not None:
        raise ConflictError(
            "a file of this version is not there any more",
            where=storage.redact(gone),
            why="another command removed or replaced it",
            state="Nothing was committed; earlier versions are untouched",
            next_step="Run the same command again: it makes what is missing",
        )


def _holds(path: str, content: bytes) -> bool:
    def compare(raw: bytes) -> None:
        if raw != content:
            raise DamageError("the content is another", where=storage.redact(path))

    try:
        storage.read_decoded(path, compare)
    except (FileNotFoundError, DamageError):
        return False
    return True


def _has_size(path: str, num_bytes: int) -> bool:
    try:
        return storage.stat_file(path).num_bytes == num_bytes
    except (FileNotFoundError, UsageError):
        return False

"""The work folder of a conversion: held by one process, tidied when it begins, gone when it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shardkit.conversion.commit.commit import COMMITTED_FILE, STOPPED_FILE, find_commit, refuse_existing
from shardkit.conversion.exchange import exchange_url, fetch_folder, remove_exchange, remove_uploaded
from shardkit.conversion.extract.extract import is_whole
from shardkit.conversion.extracted import Extracted
from shardkit.conversion.inputs.database_rows import forget_server_rows
from shardkit.conversion.plan import WORK_DIR, Plan, input_versions
from shardkit.conversion.rows.attempts import COMMITTING_FILE
from shardkit.conversion.shards.layout import LAYOUT_FILE
from shardkit.conversion.shards.write import forget_written
from shardkit.dataset.manifest import MANIFESTS_DIR
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import ConflictError, DamageError, ShardkitError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.temporary_files import try_lock
from shardkit.units import KiB

FAILURE_FILE, FAILURE_RESERVE_FILE = "failure.json", "failure.reserve"
FAILURE_RESERVE_BYTES = 64 * KiB
_OF_ONE_ATTEMPT = (FAILURE_FILE, LAYOUT_FILE, COMMITTING_FILE, STOPPED_FILE, COMMITTED_FILE)
_REMOVING_THREADS = 4
_LOCK_SECONDS = 2.0


@contextlib.contextmanager
def work_folder(plan: Plan) -> Iterator[None]:
    """Holds the work folder of a plan for this process and removes outdated results of an earlier attempt.

    Raises:
        ConflictError: If another process works on the same conversion, or has ended it.
        OutOfSpaceError, UsageError, StorageError: If the folder cannot be made.
        UnsafeError: If it is a link or holds one, as what is there is removed in the end.
    """
    handle = _locked(plan)
    try:
        _refuse_what_was_made_meanwhile(plan)
        with storage.translate_os_errors(plan.work_dir):
            fetch_folder(plan, "extract", ".msgpack")
            _tidy(plan)
        yield
    finally:
        os.close(handle)


def _refuse_what_was_made_meanwhile(plan: Plan) -> None:
    try:
        refuse_existing(plan)
    except ConflictError:
        if [path.name for path in plan.work_path().iterdir()] == ["lock"]:
            remove_work_folder(plan)
        raise


def _locked(plan: Plan) -> int:
    """Returns the descriptor of the lock of the work folder, held by this process."""
    _refuse_links(plan)
    folder = plan.work_path()
    while True:
        with storage.translate_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle, folder)
        except BaseException:
            os.close(handle)
            raise
        if os.fstat(handle).st_nlink:
            return handle
        # The process that held it has ended and removed the folder.
        os.close(handle)


def _refuse_links(plan: Plan) -> None:
    folder = plan.work_path()
    # A shard replaces a damaged one of its name, and what a killed writer left goes. Behind a link, both may be of
    # another dataset. A --work-dir may be a link.
    for path in (MANIFESTS_DIR, plan.data_path, storage.join(WORK_DIR, folder.name)):
        refuse_link(plan.destination, path)
    refuse_link(str(folder.parent), folder.name)
    with storage.translate_os_errors(folder):
        names = storage.list_names(plan.work_dir)
    for name in names:
        refuse_link(plan.work_dir, name)


def version_cut_off(plan: Plan) -> int | None:
    """Returns the version that an attempt committed which did not come to tidying up, None if there is none.

    Raises:
        ConflictError: If another process works on the same conversion.
        UnsafeError: If a folder that the conversion writes to is a link, or the work folder holds one.
    """
    _refuse_links(plan)
    if find_commit(plan) is None:
        return None
    try:
        handle = os.open(plan.work_path("lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    try:
        _lock(handle, plan.work_path())
        # The process that held it may have ended in the meantime, as it should.
        return find_commit(plan)
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    # Processes below a command that was killed need a moment to follow it.
    deadline = time.monotonic() + _LOCK_SECONDS
    while not try_lock(handle):
        if time.monotonic() >= deadline:
            raise ConflictError(
                "the same conversion is running already",
                where=str(folder),
                state="It was not disturbed",
                next_step="Wait for it to end",
            )
        time.sleep(0.05)


def remove_work_folder(plan: Plan) -> None:
    """Removes the spool and all records of a conversion that was committed, or that can never be as it is."""
    with contextlib.suppress(OSError), worker_threads(_REMOVING_THREADS, "remove") as threads:
        # Giving back the memory of a large file takes 0.3 s a GB, and nothing else is left to do.
        for _ in threads.map(Path.unlink, plan.work_path("spool").glob("*.run")):
            pass
    # Files that show a commit which was cut off here go last.
    with contextlib.suppress(OSError):
        for path in plan.work_path().iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not path.name.startswith("plan-"):
                path.unlink(missing_ok=True)
    shutil.rmtree(plan.work_path(), ignore_errors=True)
    forget_server_rows(plan)
    with contextlib.suppress(ShardkitError):
        remove_exchange(plan)
    _remove_dead_temporaries(plan)
    with contextlib.suppress(OSError):
        plan.work_path().parent.rmdir()
    with contextlib.suppress(OSError):
        if storage.is_local(plan.destination):
            storage.local_path(plan.destination).rmdir()


def _remove_dead_temporaries(plan: Plan) -> None:
    for folder in (MANIFESTS_DIR, plan.data_path):
        storage.remove_dead_temporaries(storage.join(plan.destination, folder))


def _tidy(plan: Plan) -> None:
    for folder in ("progress", "tmp", "attempts"):
        shutil.rmtree(plan.work_path(folder), ignore_errors=True)
    for name in _OF_ONE_ATTEMPT:
        plan.work_path(name).unlink(missing_ok=True)
    plan.work_path(FAILURE_RESERVE_FILE).write_bytes(bytes(FAILURE_RESERVE_BYTES))
    for leftover in (*plan.work_path().glob("plan-*.json"), *plan.work_path().glob("*/*.tmp")):
        leftover.unlink(missing_ok=True)
    stale = [path for path in plan.work_path("extract").glob("*.msgpack") if not _is_current(plan, path)]
    if stale:
        # An input changed since it was read: the files written from it are no longer right.
        forget_written(plan)
        remove_uploaded(plan, "shards", *(f"extract/{path.name}" for path in stale))
        for path in stale:
            path.unlink(missing_ok=True)
    _remove_dead_temporaries(plan)
    committed = _committed_shards(plan)
    if committed:
        plan.work_path("committed.json").write_bytes(msgspec.json.encode(committed))


def _committed_shards(plan: Plan) -> dict[str, str]:
    found: dict[str, str] = {}
    for version in list_versions(plan.destination):
        try:
            dataset = open_dataset(plan.destination, version)
            if dataset.manifest.fingerprint == plan.fingerprint:
                found.update({s.path: s.sha256 for s in dataset.shards})
        except DamageError:
            continue
    return found


def count_read_before(plan: Plan) -> int:
    """Returns how many input splits an earlier attempt read, wherever it left them."""
    if plan.exchange is None:
        return count_finished(plan)
    return sum(name.endswith(".msgpack") for name in storage.list_names(exchange_url(plan, "extract")))


def count_finished(plan: Plan) -> int:
    """Returns how many input splits an earlier attempt left in the spool."""
    folder = plan.work_path("extract")
    if not folder.is_dir():
        return 0
    return sum(_is_current(plan, path) for path in folder.glob("*.msgpack"))


def _is_current(plan: Plan, path: Path) -> bool:
    try:
        extracted = msgspec.msgpack.decode(path.read_bytes(), type=Extracted)
        split = plan.input_splits[extracted.input_split_index]
    except (OSError, *DECODE_ERRORS, IndexError):
        return False
    return extracted.versions == input_versions(plan, split) and is_whole(plan, extracted)

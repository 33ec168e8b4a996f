"""Removes what a plan names. Manifests go first, oldest first, so that none ever names a file that is gone. Before the
files go, two things are checked again: whether a new version needs them, and whether a conversion writes there now.

A lock keeps out a conversion of this host meanwhile. The mark of the cleaning keeps conversions of all hosts from
committing, and the table of one that is about to commit keeps the files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shardkit.cleaning.decide import (
    DOCTOR,
    HANDED_OVER,
    ROWS,
    UPLOADS,
    WORK,
    CleanPlan,
    Found,
    Group,
    Inventory,
    Upload,
    commits_near,
    has_changed,
    names_after,
)
from shardkit.cleaning.inventory import (
    BrokenVersion,
    find_broken,
    find_versions,
    found_files,
    held,
    is_any_held,
    list_folder,
    load_version,
)
from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.dataset.commit import is_late, new_mark_name
from shardkit.dataset.manifest import DATA_DIR, MANIFESTS_DIR, manifest_path
from shardkit.doctor.scratch import PREFIX
from shardkit.errors import ConflictError
from shardkit.runtime.owner import this_process
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.uploads import PendingUpload


class Mark:
    """A mark that is there until `end`. A killed process leaves it; then it counts for `SIGN_S` seconds.

    Attributes:
        now: When it was put, in seconds since 1970 by the clock of the store.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.now = 0.0
        self._paths: list[str] = []

    def renew(self) -> None:
        """Puts a mark that counts from now on, and removes the one before."""
        path = storage.join(self._root, MANIFESTS_DIR, new_mark_name())
        self._put_at = time.monotonic()
        # One that fails to be put may be there nevertheless.
        self._paths.append(path)
        storage.commit_exclusive(path, msgspec.json.encode(this_process()))
        for before in self._paths[:-1]:
            storage.delete_file(before)
        self._paths = [path]
        found = (f for f in storage.list_files(storage.join(self._root, MANIFESTS_DIR)) if f.path == path)
        self.now = next((f.modified_at for f in found if f.modified_at is not None), time.time())

    @property
    def is_old(self) -> bool:
        """Whether it will soon count no more."""
        return is_late(self._put_at, time.monotonic())

    def end(self) -> None:
        """Removes the mark, and the folder if nothing else is in it."""
        for path in self._paths:
            storage.delete_file(path)
        if storage.is_local(self._root):
            with suppress(OSError):
                storage.local_path(storage.join(self._root, MANIFESTS_DIR)).rmdir()


@contextmanager
def marked(root: str) -> Iterator[Mark | None]:
    """Yields a mark at a dataset; None where nothing is.

    Raises:
        UnsafeError: If a folder of the dataset is a link.
        OutOfSpaceError, StorageError, UsageError: If the mark cannot be put.
    """
    for folder in (DATA_DIR, MANIFESTS_DIR):
        refuse_link(root, folder)
    if not storage.exists(root):
        yield None
        return
    mark = Mark(root)
    try:
        mark.renew()
        yield mark
    finally:
        mark.end()


_THREADS = 16


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed.

    Attributes:
        spared: Folders that were left alone because a conversion began there, or a version needs them now.
    """

    num_files: int
    num_bytes: int
    spared: tuple[str, ...]


def remove(
    plan: CleanPlan,
    inventory: Inventory,
    root: str,
    work_root: str,
    mark: Mark | None,
    *,
    delete: Callable[[str], None] = storage.delete_file,
) -> Removed:
    """Removes the files that a plan names.

    Args:
        root: Of the dataset, normalized.
        mark: That was put before the inventory was taken; None if the dataset does not exist.

    Raises:
        UnsafeError: If a version was made meanwhile that cannot be read; the files removed by then were not needed.
        StorageError, UsageError: If something cannot be deleted. Whatever was not removed goes the next time.
    """
    remover = _Remover(plan, inventory, root, work_root, mark, delete)
    for group in plan.groups:
        remover.remove(group)
    remover.remove_empty_folders()
    return Removed(
        num_files=remover.num_files, num_bytes=remover.num_bytes, spared=tuple(dict.fromkeys(remover.spared))
    )


def remove_broken(root: str, *, delete: Callable[[str], None] = storage.delete_file) -> list[BrokenVersion]:
    """Removes the manifests of the versions that cannot be read, and returns those versions.

    Another command may remove one meanwhile, and a conversion make a good version of its number. The mark keeps that
    conversion from committing between the look at a version and its end.

    Raises:
        ConflictError: If the look at all versions took so long that a conversion may not have waited.
        UsageError, UnsafeError, StorageError: As for `find_broken`, or if a manifest cannot be deleted.
    """
    refuse_link(root, MANIFESTS_DIR)
    with marked(root) as mark:
        broken = find_broken(root)
        for found in broken:
            if mark is not None and mark.is_old:
                raise ConflictError(
                    "the look at all versions took too long",
                    where=storage.redact(root),
                    why="a conversion may have made a good version of the same number meanwhile",
                    state=f"Version {found.version} was not removed",
                    next_step="Run the same command again",
                )
            delete(storage.join(root, manifest_path(found.version)))
    return broken


class _Remover:
    def __init__(
        self,
        plan: CleanPlan,
        inventory: Inventory,
        root: str,
        work_root: str,
        mark: Mark | None,
        delete: Callable[[str], None],
    ) -> None:
        dropped = [group.version for group in plan.groups if group.version is not None]
        self._known = {version.version for version in inventory.versions}
        self._names = names_after(inventory, dropped)
        self._ever_named = names_after(inventory, ())
        self._files = {file.path: file for file in inventory.files}
        self._root = root
        self._work_root = work_root
        self._mark = mark
        self._delete = delete
        self._folders: set[str] = set()
        self.num_files = 0
        self.num_bytes = 0
        self.spared: list[str] = []

    def remove(self, group: Group) -> None:
        if group.kind == UPLOADS and group.upload is not None:
            self._abort(group.upload, group)
        elif group.kind == WORK:
            self._remove_work(group)
        elif group.kind == HANDED_OVER:
            self._remove_exchange_folders(group)
        elif group.kind == ROWS:
            refuse_link(self._work_root, ROWS_FOLDER)
            for file in group.files:
                storage.delete_file(file.path)
                self._count(file)
        elif group.version is not None:
            self._delete_all(group.files)
        elif group.kind == DOCTOR and group.folder.startswith(PREFIX):
            storage.remove_folder(storage.join(self._root, group.folder))
            for file in group.files:
                self._count(file)
        else:
            with self._held(group.fingerprint) as is_free:
                if not is_free or not self._delete_unneeded(group):
                    self.spared.append(group.folder)
        self._folders.add(group.folder)

    def _abort(self, upload: Upload, group: Group) -> None:
        with self._held(group.fingerprint) as is_free:
            if not is_free:
                self.spared.append(group.folder)
                return
            path = storage.join(self._root, upload.path)
            storage.abort_upload(PendingUpload(path, upload.upload_id, upload.started_at))
            self.num_files += 1

    def remove_empty_folders(self) -> None:
        """Removes local folders that nothing is left in; stores have none."""
        with suppress(OSError):
            Path(self._work_root).rmdir()
        if not storage.is_local(self._root):
            return
        for folder in (*sorted(self._folders), DATA_DIR, MANIFESTS_DIR):
            if folder.startswith((f"{DATA_DIR}/", DATA_DIR, MANIFESTS_DIR)):
                with suppress(OSError):
                    storage.local_path(storage.join(self._root, folder)).rmdir()

    def _delete_unneeded(self, group: Group) -> bool:
        """Deletes what no version needs, and returns whether all of the group could be looked at."""
        if self._has_changed(group):
            return False
        for file in group.files:
            if self._mark is not None and self._mark.is_old:
                self._mark.renew()
                if self._has_changed(group):
                    return False
            if file.path not in self._names:
                self._delete_all([file])
        return True

    def _has_changed(self, group: Group) -> bool:
        for number in find_versions(self._root):
            if number not in self._known and (version := load_version(self._root, number, None)) is not None:
                names = version.names | {manifest_path(number)}
                self._names |= names
                self._ever_named |= names
                self._known.add(number)
        beside = list_folder(self._root, MANIFESTS_DIR)
        if group.folder == MANIFESTS_DIR:
            return has_changed(group, self._files, beside, self._names) or is_any_held(self._work_root)
        if self._mark is not None and commits_near(beside, self._ever_named, self._mark.now):
            return True
        return has_changed(group, self._files, list_folder(self._root, group.folder), self._names)

    def _remove_work(self, group: Group) -> None:
        assert group.fingerprint is not None
        path = Path(group.folder)
        # The lock that is held is in the folder itself, wherever that is.
        with held(str(path.parent), group.fingerprint) as is_free:
            known = {file.path: file for file in group.files}
            now = [file for file in found_files(str(path.parent), path.name) if file.path != str(path / "lock")]
            if not is_free or any(known.get(file.path) != file for file in now):
                self.spared.append(group.folder)
                return
            with storage.translate_os_errors(path):
                shutil.rmtree(path)
        for file in group.files:
            self._count(file)

    def _remove_exchange_folders(self, group: Group) -> None:
        with self._held(group.fingerprint) as is_free:
            known = {file.path: file for file in group.files}
            if not is_free or any(known.get(file.path) != file for file in found_files(*group.folder.rsplit("/", 1))):
                self.spared.append(group.folder)
                return
            with worker_threads(_THREADS, "remove") as pool:
                for file, _ in zip(group.files, pool.map(storage.delete_file, known), strict=True):
                    self._count(file)
            storage.remove_folder(group.folder)

    @contextmanager
    def _held(self, fingerprint: str | None) -> Iterator[bool]:
        if fingerprint is None:
            yield True
            return
        folder = Path(self._work_root, fingerprint)
        is_new = not folder.exists()
        try:
            with held(self._work_root, fingerprint) as is_free:
                yield is_free
                if is_new and is_free:
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            if is_new:
                with suppress(OSError):
                    folder.parent.rmdir()

    def _delete_all(self, files: tuple[Found, ...] | list[Found]) -> None:
        for file in files:
            refuse_link(self._root, file.path.rpartition("/")[0])
            self._delete(storage.join(self._root, file.path))
            self._files.pop(file.path, None)
            self._count(file)

    def _count(self, file: Found) -> None:
        self.num_files += 1
        self.num_bytes += file.num_bytes

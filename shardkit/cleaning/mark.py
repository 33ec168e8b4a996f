"""The mark of a cleaning at work, in `manifests/`: writers on all hosts wait while it is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from shardkit.dataset.commit import is_late, new_mark_name
from shardkit.dataset.manifest import DATA_DIR, MANIFESTS_DIR
from shardkit.runtime.owner import this_process
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link


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

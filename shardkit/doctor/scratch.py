"""The folder that the doctor writes to: fresh, remembered name by name, and removed whatever happens."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardkit.errors import ShardkitError, StorageError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage

PREFIX = ".shardkit-doctor-"
_THREADS = 8
# After a signal, a store that has not answered for so long is given up.
_PATIENCE_S = 0.5


class Scratch:
    """A fresh folder in a store."""

    def __init__(self, root: str) -> None:
        self.url = storage.join(root, f"{PREFIX}{secrets.token_hex(8)}")
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()
        self._made = _missing_folders(root)
        self._is_written = False
        self._num_removed = 0

    def path(self, name: str) -> str:
        """Returns where a file goes; it is removed in the end."""
        with self._lock:
            self._names[name] = None
        return storage.join(self.url, name)

    def taken(self) -> None:
        """Says that the store took something."""
        self._is_written = True

    def remove(self) -> bool:
        """Removes all files, unlisted ones too, and returns whether there were any.

        Raises:
            StorageError, UsageError: If the store does not let go of it.
        """
        # A store that is away is not waited for again only to hear that nothing is there.
        if self._is_written:
            if not storage.is_local(self.url):
                paths = [storage.join(self.url, name) for name in self._names]
                with worker_threads(_THREADS, "shardkit-doctor") as threads:
                    for _ in threads.map(storage.delete_file, paths):
                        self._num_removed += 1
            storage.remove_folder(self.url)
        with suppress(OSError):
            for folder in self._made:
                folder.rmdir()
        return self._is_written

    def remove_while_answered(self) -> bool:
        """Does the same as `remove`, as long as the store answers.

        Raises:
            StorageError, UsageError: If the store does not let go of it, or does not answer soon.
        """
        if storage.is_local(self.url):
            return self.remove()
        found: list[bool | ShardkitError] = []

        def work() -> None:
            try:
                found.append(self.remove())
            except ShardkitError as error:
                found.append(error)

        thread, seen = threading.Thread(target=work, daemon=True), -1
        thread.start()
        while thread.is_alive() and seen < self._num_removed:
            seen = self._num_removed
            thread.join(_PATIENCE_S)
        answer = found[0] if found else StorageError("the store does not answer", where=storage.redact(self.url))
        if isinstance(answer, ShardkitError):
            raise answer
        return answer

    def left(self) -> list[str]:
        """Returns the names that the store still lists."""
        return storage.list_names(self.url)


@contextmanager
def scratch_folder(root: str) -> Iterator[Scratch]:
    """Yields a fresh folder below `root`, which is gone at the end, after an error or Ctrl-C as well.

    Raises:
        StorageError, UsageError: If it cannot be removed; says what is left.
    """
    scratch = Scratch(root)
    try:
        yield scratch
    except BaseException as error:
        try:
            is_stopped = isinstance(error, KeyboardInterrupt)
            is_removed = scratch.remove_while_answered() if is_stopped else scratch.remove()
            state = "All that the doctor wrote is removed again" if is_removed else "Nothing was written"
        except ShardkitError:
            state = f"Files of the doctor could not be removed: delete {storage.redact(scratch.url)}"
        if isinstance(error, ShardkitError):
            raise error.with_state(state) from error
        error.add_note(state)
        raise
    try:
        scratch.remove()
    except ShardkitError as error:
        left = f"Files of the doctor could not be removed: delete {storage.redact(scratch.url)}"
        raise error.with_state(left) from error


def _missing_folders(root: str) -> list[Path]:
    if not storage.is_local(root):
        return []
    path = storage.local_path(root)
    return [folder for folder in (path, *path.parents) if not folder.exists()]

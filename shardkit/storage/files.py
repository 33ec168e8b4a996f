"""The door to local folders and, by way of `storage`, to object stores. No other module goes around it.

Rules, each from a measured failure (local and cloud): a file is built whole in a local temporary file and then put,
because an exception inside an fsspec write publishes the partial object; a commit is exclusive, by `os.link` locally
because fsspec's own exclusive create lost 32 of 400 races; nothing is found by globbing except raw inputs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from shardkit.errors import DamageError, StorageError
from shardkit.storage.local_listing import LocalFile, find_local_file, list_local_files, walk_files
from shardkit.storage.locations import (
    check_bucket,
    is_local,
    join,
    local_path,
    normalize,
    protocol_of,
    redact,
    repository_of,
    unpinned,
    without_scheme,
)
from shardkit.storage.object_listing import expand_objects
from shardkit.storage.objects import (
    ObjectInfo,
    check_own,
    create_object,
    create_once,
    delete_object,
    list_folder,
    list_objects,
    object_exists,
    pin,
    put_object,
    read_object,
    read_object_range,
    read_object_range_once,
    remove_objects,
    stat_object,
)
from shardkit.storage.os_errors import free_bytes, translate_os_errors
from shardkit.storage.regular_files import open_regular
from shardkit.storage.seekable_file import open_object
from shardkit.storage.temporary_files import copy_whole, fsync_folder, make_writable, remove_dead, temporary_beside
from shardkit.storage.uploads import abort_upload, can_leave_unfinished, list_uploads, unfinished_object
from shardkit.units import MiB

__all__ = [
    "abort_upload",
    "can_leave_unfinished",
    "free_bytes",
    "is_local",
    "join",
    "list_uploads",
    "local_path",
    "normalize",
    "pin",
    "protocol_of",
    "redact",
    "repository_of",
    "translate_os_errors",
    "unpinned",
]

# A store that cuts off one answer in two gives two whole ones in a row within these 98 times of 100.
_MOST_ANSWERS = 20
_MOST_LINKS = 3
_Decoded = TypeVar("_Decoded")


class FileInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file as its store describes it.

    Attributes:
        path: Absolute local path, or URL.
        version: Modification time in nanoseconds or the store's etag: changes when the content does.
        identity: The same for all names of one local file; 0 in stores, where each has one.
    """

    path: str
    num_bytes: int
    version: str
    identity: int = 0


class StoredFile(NamedTuple):
    """A file that was found: where, its size, and when it was written, in seconds since 1970, if that is known."""

    path: str
    num_bytes: int
    modified_at: float | None


class InputFiles(NamedTuple):
    """What an input names: files by path; folders left out at a second name, with the one by which they are read."""

    files: list[FileInfo]
    circles: list[tuple[str, str]]


def expand_input(pattern: str) -> InputFiles:
    """Returns the files that one input argument names: a file, all files below a folder, or a glob, sorted by path.

    A glob is a shell's, with `**` for any number of folders; a folder that it matches stands for all files below.
    Links are followed, into no folder twice. Hidden files and folders are passed over unless named.

    Raises:
        UsageError: If nothing is there, anything that is may not be read or is no regular file, or no bucket is named.
    """
    check_bucket(pattern)
    if not is_local(pattern):
        return InputFiles([_info_of_object(found) for found in expand_objects(pattern)], [])
    files, circles = list_local_files(without_scheme(pattern))
    return InputFiles([_info_of(file) for file in files], circles)


def stat_file(path: str) -> FileInfo:
    """Returns size and version of a file. Raises UsageError if it is missing or may not be read."""
    if not is_local(path):
        return _info_of_object(stat_object(path))
    return _info_of(find_local_file(str(local_path(path))))


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes; seekable. Other things than regular files are refused, not waited for."""
    if is_local(path):
        return open_regular(local_path(path))
    return open_object(path)


def read_bytes(path: str, *, is_stored: bool = False) -> bytes:
    """Returns a whole file; one of a dataset, `is_stored`, has to be a regular one.

    Raises:
        FileNotFoundError: If it is missing.
    """
    if is_local(path):
        with open_read(path) if is_stored else local_path(path).open("rb") as file:
            return file.read()
    return read_object(path)


def read_decoded(path: str, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """Returns the value that `decode` makes of a file of a dataset. If it refuses a store's answer, it asks again.

    A store or the network may cut an answer off or turn a bit. The file counts as damaged if two answers are equal, and
    as long as the store says that the file is.

    Raises:
        DamageError: If the file itself is damaged.
        FileNotFoundError: If it is missing.
        StorageError: If the store gave another answer every time.
    """
    previous = None
    for _ in range(_MOST_ANSWERS):
        content = read_bytes(path, is_stored=True)
        try:
            return decode(content)
        except DamageError:
            if is_local(path) or (content == previous and stat_file(path).num_bytes == len(content)):
                raise
            previous = content
    raise StorageError("the store gives no two answers alike", where=redact(path), next_step="Run the same again")


def read_range(path: str, start: int, num_bytes: int) -> bytes:
    """Returns exactly `num_bytes` bytes from `start`. Raises StorageError if the store gives fewer."""
    if not is_local(path):
        return read_object_range(path, start, num_bytes)
    with local_path(path).open("rb") as file:
        data = os.pread(file.fileno(), num_bytes, start)
    if len(data) != num_bytes:
        raise StorageError("the disk gave a short answer", where=path, why=f"{len(data)} of {num_bytes} bytes")
    return data


def read_range_once(path: str, start: int, num_bytes: int) -> bytes:
    """Returns the bytes that the store gives for a range, whatever their number is. It is for checks of a store.

    Raises:
        FileNotFoundError: If the file is missing.
        StorageError: If the store refuses.
    """
    if not is_local(path):
        return read_object_range_once(path, start, num_bytes)
    with local_path(path).open("rb") as file:
        return os.pread(file.fileno(), num_bytes, start)


def list_names(folder: str) -> list[str]:
    """Returns the sorted names in a folder, empty if there is no such folder."""
    if is_local(folder):
        try:
            return sorted(os.listdir(local_path(folder)))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
    return list_folder(folder)


def list_files(folder: str) -> list[StoredFile]:
    """Returns all files below a folder, hidden ones as well, empty if there is no such folder. No link is followed.

    Raises:
        UsageError, StorageError: If they cannot be listed.
    """
    if not is_local(folder):
        return [StoredFile(path, num_bytes, modified_at) for path, num_bytes, modified_at in list_objects(folder)]
    with translate_os_errors(folder, "read"):
        return [StoredFile(*found) for found in walk_files(str(local_path(folder)))]


def exists(path: str) -> bool:
    """Whether a file or folder is there."""
    return local_path(path).exists() if is_local(path) else object_exists(path)


def put_file(local: Path, destination: str) -> None:
    """Publishes a finished local file under its final name, whole or not at all.

    Contents are a pure function of the name, so a file that is already there with the same bytes is kept; one with
    other bytes is damaged and replaced whole. On the same file system the file is linked, not copied.

    Raises:
        OutOfSpaceError, StorageError, UsageError: If the store cannot take it.
    """
    if not is_local(destination):
        put_object(local, destination)
        return
    target = local_path(destination)
    with translate_os_errors(target):
        _again_if_gone(lambda: _put_once(local, target))


def _put_once(local: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(local, target)
    except FileExistsError:
        if hash_file(str(target)) != hash_file(str(local)):
            copy_whole(local, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        copy_whole(local, target)
    fsync_folder(target.parent)


def commit_exclusive(path: str, content: bytes) -> None:
    """Creates a file that must not exist yet; exactly one of several writers wins.

    Raises:
        ConflictError: If the file exists with other content.
    """
    if not is_local(path):
        create_object(path, content)
        return
    if not _link_whole(local_path(path), content):
        check_own(path, content, read_bytes(path))


def try_create(path: str, content: bytes) -> bool:
    """Tells the store once to create a file that must not exist, and returns whether it says that it did.

    It is for checks of a store; a commit is made by `commit_exclusive`.

    Raises:
        OutOfSpaceError, StorageError, UsageError: If the store cannot take it.
    """
    return _link_whole(local_path(path), content) if is_local(path) else create_once(path, content)


def _link_whole(target: Path, content: bytes) -> bool:
    with translate_os_errors(target):
        return _again_if_gone(lambda: _link_once(target, content))


def _again_if_gone(write: Callable[[], _Decoded]) -> _Decoded:
    """Writes again what a cleaning of another host takes for a file and an empty folder of a dead writer."""
    for _ in range(_MOST_LINKS - 1):
        with suppress(FileNotFoundError):
            return write()
    return write()


def _link_once(target: Path, content: bytes) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(target) as (temporary, file):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(temporary, target)
            is_new = True
        except FileExistsError:
            is_new = False
    fsync_folder(target.parent)
    return is_new


def delete_file(path: str) -> None:
    """Deletes a file; it may be gone already. Raises StorageError or UsageError if it cannot be deleted."""
    if not is_local(path):
        delete_object(path)
        return
    with translate_os_errors(path):
        local_path(path).unlink(missing_ok=True)


def remove_folder(path: str) -> None:
    """Removes a folder and all below it, unfinished uploads as well; it may be gone already.

    Raises:
        StorageError, UsageError: If anything of it cannot be removed.
    """
    if is_local(path):
        with translate_os_errors(path), suppress(FileNotFoundError):
            shutil.rmtree(local_path(path))
        return
    remove_objects(path)
    for upload in list_uploads(path):
        abort_upload(upload)


@contextmanager
def unfinished_upload(path: str) -> Iterator[None]:
    """Sends a part of a file, and gives it up at the end of the context: at no time is anything to be seen of it.

    Raises:
        StorageError: If the store does not take the part.
    """
    if not is_local(path):
        with unfinished_object(path):
            yield
        return
    target = local_path(path)
    with translate_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(target) as (_, file):
        file.write(bytes(MiB))
        file.flush()
        yield


def make_folder(path: str) -> None:
    """Creates a local folder and its parents, and checks that a file can be made there; object stores have none.

    Raises:
        OutOfSpaceError, StorageError, UsageError: If it cannot be.
    """
    if is_local(path):
        target = local_path(path)
        with translate_os_errors(target):
            make_writable(target)


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with open_read(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def _info_of(file: LocalFile) -> FileInfo:
    return FileInfo(path=file.path, num_bytes=file.num_bytes, version=str(file.modified_ns), identity=file.identity)


def _info_of_object(found: ObjectInfo) -> FileInfo:
    return FileInfo(path=found.path, num_bytes=found.num_bytes, version=found.version)


def remove_dead_temporaries(folder: str) -> None:
    """Removes the temporary files that killed processes left in a local folder."""
    if is_local(folder):
        remove_dead(local_path(folder))

"""The only module that touches stores: local folders, and object stores through fsspec.

Rules, each from a measured failure (local and cloud): a file is built whole in a local temporary file and then put,
because an exception inside an fsspec write publishes the partial object; a commit is exclusive, by `os.link` locally
because fsspec's own exclusive create lost 32 of 400 races; nothing is found by globbing except raw inputs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import fsspec
import msgspec

from shardkit.errors import ConflictError, OutOfSpaceError, StorageError, UnsafeError, UsageError, missing_extra
from shardkit.local_files import LocalFile, find_local_file, list_local_files
from shardkit.regular_files import open_regular
from shardkit.store_answers import failure_of, version_of
from shardkit.temporary_files import copy_whole, fsync_folder, remove_dead, temporary_beside
from shardkit.units import format_size

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ALLOWED_PROTOCOLS = frozenset({"file", "memory", "s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs"})
# Datasets are read from web servers; raw inputs, whose names may come from others, are not, and nothing is written.
_READ_ONLY_PROTOCOLS = frozenset({"http", "https"})
# Of each protocol the extra and the package that it takes.
_EXTRAS = {
    **dict.fromkeys(["http", "https"], ("http", "aiohttp")),
    "s3": ("s3", "s3fs"),
    **dict.fromkeys(["gs", "gcs"], ("gcs", "gcsfs")),
    **dict.fromkeys(["az", "abfs", "abfss"], ("azure", "adlfs")),
}


class FileInfo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file as its store describes it.

    Attributes:
        path: Absolute local path, or URL.
        num_bytes: Size.
        version: Modification time in nanoseconds or the store's etag: changes when the content does.
        identity: The same for all names of one local file; 0 in stores, where each has one.
    """

    path: str
    num_bytes: int
    version: str
    identity: int = 0


class InputFiles(NamedTuple):
    """What an input names: files by path; folders left out at a second name, with the one by which they are read."""

    files: list[FileInfo]
    circles: list[tuple[str, str]]


def protocol_of(path: str, *, is_written: bool = True) -> str:
    """Returns the protocol of a path, `file` for plain local paths; datasets are read over more than is written to.

    Raises:
        UnsafeError: If the protocol is not one that shardkit uses, or protocols are chained with `::`.
    """
    match = _PROTOCOL.match(path)
    protocol = match.group(1).lower() if match else "file"
    is_refused = protocol not in _ALLOWED_PROTOCOLS and (is_written or protocol not in _READ_ONLY_PROTOCOLS)
    if is_refused or ("://" in path and "::" in path):
        raise UnsafeError(
            f"the location {redact(path)!r} is refused",
            why="only local paths, s3, gs, az, abfs and hdfs are read",
        )
    return protocol


def is_local(path: str) -> bool:
    """Whether a path lies on a mounted file system."""
    return path.startswith("/") or protocol_of(path, is_written=False) == "file"


def local_path(path: str) -> Path:
    """Returns a local location as an absolute path.

    Raises:
        UsageError: If it starts with the home folder of somebody unknown.
    """
    try:
        return Path(_without_scheme(path)).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(
            f"the location {path!r} is refused",
            why="there is no such home folder",
            next_step="Write the path out instead of ~",
        ) from error


def _without_scheme(path: str) -> str:
    return re.sub("^file://", "", path, flags=re.IGNORECASE)


def normalize(path: str | os.PathLike[str]) -> str:
    """Returns an absolute local path, or the URL without a final slash."""
    path = os.fspath(path)
    return str(local_path(path)) if is_local(path) else path.rstrip("/")


def join(base: str, *parts: str) -> str:
    """Returns `base/part/...`."""
    return "/".join([base.rstrip("/"), *parts])


def redact(text: str) -> str:
    """Returns text without user names, passwords and query strings in the URLs that it holds."""
    text = re.sub(r"(://)[^/\s]*@", r"\1***@", text)
    return re.sub(r"(://[^\s?]+)\?\S+", r"\1?***", text)


def expand_input(pattern: str) -> InputFiles:
    """Returns the files that one input argument names: a file, all files below a folder, or a glob, sorted by path.

    A glob is a shell's, with `**` for any number of folders; a folder that it matches stands for all files below.
    Links are followed, into no folder twice. Hidden files and folders are passed over unless named.

    Raises:
        UsageError: If nothing is there, or if anything that is may not be read or is no regular file.
    """
    if not is_local(pattern):
        return InputFiles(_expand_remote(pattern), [])
    files, circles = list_local_files(_without_scheme(pattern))
    return InputFiles([_info_of(file) for file in files], circles)


def stat_file(path: str) -> FileInfo:
    """Returns size and version of a file.

    Raises:
        UsageError: If it is missing or may not be read.
    """
    if not is_local(path):
        info = _ask(path, "info")
        return FileInfo(path=path, num_bytes=int(info["size"]), version=version_of(info))
    return _info_of(find_local_file(str(local_path(path))))


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes; seekable. What is no regular file is refused, not waited for."""
    if is_local(path):
        return open_regular(local_path(path))
    return cast(BinaryIO, filesystem_of(path).open(path, "rb"))


def read_bytes(path: str, *, is_stored: bool = False) -> bytes:
    """Returns a whole file; one of a dataset, `is_stored`, has to be a regular one.

    Raises:
        FileNotFoundError: If it is missing.
    """
    if is_local(path):
        with open_read(path) if is_stored else local_path(path).open("rb") as file:
            return file.read()
    return cast(bytes, _ask(path, "cat_file"))


def read_range(path: str, start: int, num_bytes: int) -> bytes:
    """Returns exactly `num_bytes` bytes from `start`.

    Raises:
        StorageError: If the store gives fewer.
    """
    if is_local(path):
        with local_path(path).open("rb") as file:
            data = os.pread(file.fileno(), num_bytes, start)
    else:
        data = cast(bytes, _ask(path, "cat_file", start=start, end=start + num_bytes))
    if len(data) != num_bytes:
        raise StorageError(
            "the store gave a short answer",
            where=redact(path),
            why=f"{len(data)} of {num_bytes} bytes",
        )
    return data


def list_names(folder: str) -> list[str]:
    """Returns the sorted names in a folder, empty if there is no such folder."""
    if is_local(folder):
        try:
            return sorted(os.listdir(local_path(folder)))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
    try:
        return sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in _ask(folder, "ls", detail=False))
    except FileNotFoundError:
        return []


def exists(path: str) -> bool:
    """Whether a file or folder is there."""
    return local_path(path).exists() if is_local(path) else bool(_ask(path, "exists"))


def put_file(local: Path, destination: str) -> None:
    """Publishes a finished local file under its final name, whole or not at all.

    Contents are a pure function of the name, so a file that is already there with the same bytes is kept; one with
    other bytes is damaged and replaced whole. On the same file system the file is linked, not copied.

    Raises:
        OutOfSpaceError, StorageError, UsageError: If the store cannot take it.
    """
    if not is_local(destination):
        filesystem_of(destination, is_written=True).put_file(str(local), destination)
        return
    target = local_path(destination)
    with translate_os_errors(target):
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
        try:
            filesystem_of(path, is_written=True).pipe_file(path, content, mode="create")
        except FileExistsError:
            _check_own_commit(path, content)
        return
    target = local_path(path)
    with translate_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(target) as (temporary, file):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(temporary, target)
            except FileExistsError:
                _check_own_commit(path, content)
        fsync_folder(target.parent)


def make_folder(path: str) -> None:
    """Creates a local folder and its parents; object stores have none.

    Raises:
        UsageError: If it may not be created.
    """
    if is_local(path):
        target = local_path(path)
        with translate_os_errors(target):
            target.mkdir(parents=True, exist_ok=True)


def free_bytes(path: str) -> int | None:
    """Returns the free space where a path lies, None where the store does not tell."""
    if not is_local(path):
        return None
    target = local_path(path)
    while not target.exists():
        target = target.parent
    return shutil.disk_usage(target).free


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a file, hexadecimal."""
    with open_read(path) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


@contextmanager
def translate_os_errors(path: Path | str) -> Iterator[None]:
    """Turns operating system errors while writing `path` into errors that a user understands.

    Raises:
        OutOfSpaceError: If the disk or the quota is full; names the path and what is free.
        UsageError: If the path may not be written.
        StorageError: For everything else.
    """
    try:
        yield
    except OSError as error:
        _raise_write_error(error, str(path))


def _raise_write_error(error: OSError, path: str) -> NoReturn:
    where = str(error.filename or path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(path)
        raise OutOfSpaceError(
            "no space left",
            where=where,
            why=f"{format_size(free or 0)} free there",
            next_step="Free some space or choose another place, then run the same command again",
        ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
        raise UsageError(
            "cannot write there",
            where=where,
            why=_reason(error),
            next_step="Choose another place, or allow writing there",
        ) from error
    again = "Run the same command again, or choose another place"
    raise StorageError("writing failed", where=where, why=_reason(error), next_step=again) from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _info_of(file: LocalFile) -> FileInfo:
    return FileInfo(path=file.path, num_bytes=file.num_bytes, version=str(file.modified_ns), identity=file.identity)


def _expand_remote(pattern: str) -> list[FileInfo]:
    protocol = protocol_of(pattern)
    is_folder = not any(c in pattern for c in "*?[") and _ask(pattern, "isdir")
    found = _ask(pattern, "find" if is_folder else "glob", detail=True)
    files = [
        FileInfo(path=f"{protocol}://{path}", num_bytes=int(info["size"]), version=version_of(info))
        for path, info in sorted(found.items())
        if info["type"] == "file"
    ]
    if not files:
        raise UsageError(
            f"no file matches {redact(pattern)!r}", next_step="Check the bucket, the path and the pattern, and quote it"
        )
    return files


def _ask(path: str, method: str, **options: Any) -> Any:
    """Returns what a store's file system answers about a path.

    Raises:
        FileNotFoundError: If it is missing.
        StorageError: For whatever else the client's library raises.
    """
    filesystem = filesystem_of(path)
    try:
        return getattr(filesystem, method)(path, **options)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise failure_of(error, redact(path), redact(str(error))) from error


def _check_own_commit(path: str, content: bytes) -> None:
    # An answer may be lost after the store applied the write: the commit that is there decides, not the answer.
    if read_bytes(path) != content:
        raise ConflictError(
            "another conversion committed first",
            where=redact(path),
            state="Its dataset is whole and untouched",
            next_step="Run again with --overwrite to make the next version, or choose another destination",
        )


def remove_dead_temporaries(folder: str) -> None:
    """Removes what processes that were killed while they wrote left in a local folder, and nobody will ever finish."""
    if is_local(folder):
        remove_dead(local_path(folder))


def filesystem_of(path: str, *, is_written: bool = False) -> Any:
    """Returns the fsspec file system of a path; nothing else may touch it but what sends requests.

    Raises:
        UsageError: If its backend is not installed.
    """
    protocol = protocol_of(path, is_written=is_written)
    try:
        return fsspec.filesystem(protocol)
    except (ImportError, ValueError) as error:
        if protocol in _EXTRAS:
            raise missing_extra(*_EXTRAS[protocol]) from error
        raise UsageError(
            f"{protocol}:// needs an fsspec backend that is not installed",
            why=str(error),
            next_step="Install the package that the reason names",
        ) from error

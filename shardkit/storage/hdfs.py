"""HDFS for fsspec. Names keep their cluster, files get their final names when they are whole, creates are exclusive.

The file system that hdfs-native brings strips the cluster from names, so that they lead to the default cluster, and
asks whether a file exists before it overwrites it, so that of two writers both may win.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import hdfs_native
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from shardkit.storage.requests import in_a_thread
from shardkit.units import MiB

_CHUNK_BYTES = 4 * MiB
_STALLED_S = 30.0
_MOST_NAME_BYTES = 200
# `RPCError("org.apache.hadoop.fs.SomeException", "a reason\n\tat Some.java")`, with the line break as two characters.
_ANSWER = re.compile(r'\w+\("(?:[\w.]*[.$])?(\w+)", "(.*)"\)', re.DOTALL)
_FULL = frozenset({"NSQuotaExceededException", "DSQuotaExceededException", "QuotaByStorageTypeExceededException"})
_FINAL: dict[str, type[Exception]] = {
    "AccessControlException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "InvalidPathException": ValueError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathComponentTooLongException": ValueError,
    "PathIsNotEmptyDirectoryException": IsADirectoryError,
}


class HdfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of one cluster. Names are `host:port/folder/file`, those of the default cluster `/folder/file`.

    Args:
        cluster: Host and port, or a name of the configuration; empty for its default cluster.
        config: Settings of Hadoop's clients beside those of `HADOOP_CONF_DIR`.
    """

    protocol = "hdfs"
    root_marker = "/"

    def __init__(self, cluster: str = "", config: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(cluster, config, **options)
        self._cluster = cluster
        settings = tuple(sorted((name, str(value)) for name, value in (config or {}).items()))
        self._client = _client_of(os.getpid(), f"hdfs://{cluster}", settings)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"cluster": path.partition("://")[2].partition("/")[0]}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Returns what the name node says of a file or folder."""
        with _translated():
            return self._described(self._client.get_file_info(self._path(path)))

    def exists(self, path: str, **_: Any) -> bool:
        """Whether the name node says that a file or folder is there, not whether it answers."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Returns what is in a folder, or the file of this name."""
        with _translated():
            found = [self._described(status) for status in self._client.list_status(self._path(path), False)]
        return found if detail else [info["name"] for info in found]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Returns what is below a folder. Unlike fsspec's own, it passes over no folder that cannot be listed."""
        found = {info["name"]: info for info in self.ls(path)}
        folders, depth = _folders(found.values()), 1
        while folders and (maxdepth is None or depth < maxdepth):
            below: dict[str, dict[str, Any]] = {}
            for folder in folders:
                # Removed since its name was listed.
                with suppress(FileNotFoundError):
                    below |= {info["name"]: info for info in self.ls(folder)}
            found |= below
            folders, depth = _folders(below.values()), depth + 1
        kept = {name: info for name, info in sorted(found.items()) if withdirs or info["type"] == "file"}
        return kept if detail else list(kept)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Returns the bytes of a file, or of a range of it as far as the file goes."""
        with _translated():
            return _read(self._client.read(self._path(path)), start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Writes a file; with the mode `create` it must not be there yet, and of several writers one wins."""
        self._publish(path, [value], is_new=mode == "create")

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Copies a local file, likewise."""
        with open(lpath, "rb") as file:  # noqa: PTH123 - fsspec names them by text
            self._publish(rpath, iter(lambda: file.read(_CHUNK_BYTES), b""), is_new=mode == "create")

    def rm_file(self, path: str) -> None:
        """Deletes a file. As in a store without folders, a folder that holds something stays."""
        with suppress(IsADirectoryError), _translated():
            self._client.delete(self._path(path), False)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes a file, or a folder and all below it."""
        with _translated():
            self._client.delete(self._path(path), recursive)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError("files are written as a whole")
        return _HdfsFile(self, path, block_size=block_size)

    def reader_of(self, path: str) -> hdfs_native.FileReader:
        """Returns where a file is read from."""
        with _translated():
            return self._client.read(self._path(path))

    def _publish(self, path: str, chunks: Iterable[bytes], *, is_new: bool) -> None:
        """Writes a temporary file and renames it, so that a killed writer leaves no part under the final name."""
        target = self._path(path)
        folder, _, name = target.rpartition("/")
        short = name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")
        temporary = f"{folder}/.{short}.{secrets.token_hex(8)}"
        try:
            with _translated():
                writer = self._client.create(temporary, hdfs_native.WriteOptions(overwrite=False))
                for chunk in chunks:
                    _in_time(functools.partial(writer.write, chunk))
                _in_time(writer.close)
                self._client.rename(temporary, target, not is_new)
        except BaseException as error:
            with suppress(Exception):
                self._client.delete(temporary, False)
            if isinstance(error, FileNotFoundError):
                # Folders are made, so a cleaning took the file for one of a dead writer, or an answer was lost.
                raise OSError(str(error)) from error
            raise

    def _path(self, name: str) -> str:
        """Returns a name within this cluster."""
        cluster, _, rest = name.removeprefix("hdfs://").partition("/")
        if cluster != self._cluster:
            raise ValueError(f"{name} is not in the cluster {self._cluster!r}")
        return f"/{rest.rstrip('/')}"

    def _described(self, status: hdfs_native.FileStatus) -> dict[str, Any]:
        return {
            "name": f"{self._cluster}{status.path}",
            "size": status.length,
            "type": "directory" if status.isdir else "file",
            "etag": f"{status.modification_time}-{status.length}",
            "mtime": status.modification_time / 1000,
        }


class _HdfsFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read ahead. One that is replaced meanwhile is an error, not a mixture of both."""

    _reader: hdfs_native.FileReader | None = None

    def _fetch_range(self, start: int, end: int) -> bytes:
        before, reader = self.details, self._reader
        # A reader that failed is not asked again.
        self._reader = None
        if reader is None:
            reader = self.fs.reader_of(self.path)
            if self.fs.info(self.path)["etag"] != before["etag"]:
                raise OSError(errno.EBUSY, "the file was replaced while it was read")
        with _translated():
            data = _read(reader, start, end)
        self._reader = reader
        return data


@functools.cache
def _client_of(pid: int, url: str, settings: tuple[tuple[str, str], ...]) -> hdfs_native.Client:
    """Returns the client that the threads of a process share. Its own threads do not outlive a fork.

    Those of the parent process are kept: the end of one would wait for threads that are not there.
    """
    return hdfs_native.Client(url, dict(settings))


def _read(reader: hdfs_native.FileReader, start: int | None, end: int | None) -> bytes:
    # The client's library panics if it is asked for bytes behind the end.
    size = len(reader)
    first, stop, _ = slice(start, end).indices(size)
    return bytes(reader.read_range(first, stop - first)) if first < stop else b""


def _in_time(step: Callable[[], Any]) -> None:
    """Carries out one step of a writer, or gives up the writer.

    That of hdfs-native 0.14 can wait for ever where it is given a block on a data node that has just died.

    Raises:
        TimeoutError: If the step takes too long.
        Exception: Whatever the step raises.
    """
    if isinstance(answer := in_a_thread(step).result(_STALLED_S), Exception):
        raise answer


def _folders(infos: Iterable[dict[str, Any]]) -> list[str]:
    return [info["name"] for info in infos if info["type"] == "directory"]


@contextmanager
def _translated() -> Iterator[None]:
    """Gives errors of the cluster the classes that other stores' clients use, and one line of text."""
    try:
        yield
    except RuntimeError as error:
        found = _ANSWER.fullmatch(str(error))
        kind, text = found.groups() if found else ("", str(error))
        reason = text.replace("\\n", "\n").partition("\n")[0]
        if kind in _FULL:
            raise OSError(errno.EDQUOT, reason) from error
        raise _FINAL.get(kind, OSError)(reason) from error
    except OSError as error:
        reason, trace, _ = str(error).partition("\n")
        if not trace:
            raise
        raise type(error)(reason) from error

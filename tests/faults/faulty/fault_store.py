"""A `fault://` file system: wraps any other one of fsspec, numbers what it is asked to do, and fails as planned.

The faults lie below whatever its caller does about them, such as asking again. In S3 the requests of an upload in
parts are operations of their own.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from tests.faults.faulty.operations import Operations, kill_all

_flips = itertools.count()

# By the methods of the file systems that are wrapped.
NAMES = {
    "put_file": "put", "pipe_file": "put", "cat_file": "get", "get_file": "get", "info": "stat", "exists": "stat",
    "pinned": "stat", "isdir": "stat", "isfile": "stat",
    "ls": "list", "find": "list", "glob": "list", "rm_file": "delete",
}  # fmt: skip
S3_NAMES = {
    "create_multipart_upload": "start-upload", "upload_part": "put-part", "complete_multipart_upload": "end-upload",
    "abort_multipart_upload": "abort-upload",
}  # fmt: skip
CLIENTS = {
    "s3": ("s3fs", "S3FileSystem"),
    **dict.fromkeys(["gs", "gcs"], ("gcsfs", "GCSFileSystem")),
    **dict.fromkeys(["az", "abfs", "abfss"], ("adlfs", "AzureBlobFileSystem")),
    "hf": ("shardkit.storage.hub", "HubFileSystem"),
}

_active: Operations | None = None


class Unavailable(OSError):
    """What a store says that has too much to do."""

    status = 503


def install(operations: Operations) -> None:
    """Makes the stores of the plan fail in this process and those that it forks."""
    global _active
    _active = operations
    for protocol in operations.plan.protocols:
        # Made when it is asked for: its client takes long to import.
        fsspec.register_implementation(protocol, f"{__name__}.Fault_{protocol}", clobber=True)
    fsspec.register_implementation("fault", FaultFileSystem, clobber=True)


def __getattr__(name: str) -> Any:
    if (client := CLIENTS.get(name.removeprefix("Fault_"))) is None:
        raise AttributeError(name)
    kind = getattr(importlib.import_module(client[0]), client[1])
    found = type(name, (FaultFileSystem,), {"protocol": kind.protocol, "target_kind": kind})
    globals()[name] = found
    return found


class FaultFileSystem(AsyncFileSystem):
    """Another file system, with faults.

    Args:
        target_protocol: Of the other one.
        target_options: What it is made with.
        fs: It, made already.
    """

    protocol: Any = "fault"
    target_kind: Any = None

    def __init__(
        self, target_protocol: str = "", target_options: dict[str, Any] | None = None, fs: Any = None, **options: Any
    ) -> None:
        asynchronous = {key: options.pop(key) for key in ("asynchronous", "loop") if key in options}
        super().__init__(**asynchronous)
        if fs is None and self.target_kind is not None:
            fs = self.target_kind(**options)
        self.target = fs or fsspec.filesystem(target_protocol, **(target_options or {}))
        if hasattr(self.target, "_call_s3"):
            self._ask_s3 = self.target._call_s3
            self.target._call_s3 = self._numbered_s3

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if cls.target_kind is not None:
            return cls.target_kind._strip_protocol(path)
        return super()._strip_protocol(path)

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, Any]:
        return dict(cls.target_kind._get_kwargs_from_urls(path)) if cls.target_kind is not None else {}

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets what was listed."""
        self.target.invalidate_cache(path) if path else self.target.invalidate_cache()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            return self.target.open(path, mode, **options)
        return _FaultFile(self, path, mode, **options)

    async def _put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        return await self._do("put_file", rpath, lpath, rpath, **options)

    async def _pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        return await self._do("pipe_file", path, path, value, **options)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        return await self._do("cat_file", path, path, start=start, end=end, **options)

    async def _get_file(self, rpath: str, lpath: str, **options: Any) -> Any:
        return await self._do("get_file", rpath, rpath, lpath, **options)

    async def _info(self, path: str, **options: Any) -> Any:
        return await self._do("info", path, path, **options)

    async def _pinned(self, path: str) -> Any:
        return await self._do("pinned", path, path)

    async def _exists(self, path: str, **options: Any) -> Any:
        return await self._do("exists", path, path, **options)

    async def _isdir(self, path: str) -> Any:
        return await self._do("isdir", path, path)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return await self._do("ls", path, path, detail=detail, **options)

    async def _find(self, path: str, **options: Any) -> Any:
        return await self._do("find", path, path, **options)

    async def _glob(self, path: str, **options: Any) -> Any:
        return await self._do("glob", path, path, **options)

    async def _rm_file(self, path: str, **options: Any) -> Any:
        return await self._do("rm_file", path, path, **options)

    async def _call_s3(self, method: str, *args: Any, **options: Any) -> Any:
        return await self.target._call_s3(method, *args, **options)

    async def _do(self, method: str, path: str, *args: Any, **options: Any) -> Any:
        name = "create" if options.get("mode") == "create" else NAMES[method]
        torn = (lambda: self._tear(method, path, args)) if name == "put" else None
        return await _failing(name, path, lambda: self._ask(method, *args, **options), torn)

    async def _numbered_s3(self, method: str, *args: Any, **options: Any) -> Any:
        if method not in S3_NAMES:
            return await self._ask_s3(method, *args, **options)
        path = f"s3://{options.get('Bucket')}/{options.get('Key')}"
        return await _failing(S3_NAMES[method], path, lambda: self._ask_s3(method, *args, **options), None)

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        request = getattr(self.target, f"_{method}", None) if self.target.async_impl else None
        if request is not None and inspect.iscoroutinefunction(inspect.unwrap(request)):
            return await request(*args, **options)
        return await asyncio.to_thread(getattr(self.target, method), *args, **options)

    async def _tear(self, method: str, path: str, args: tuple[Any, ...]) -> None:
        # As a store or a client would that publishes what it has when it is cut off.
        if method == "put_file":
            with open(args[0], "rb") as file:
                content = file.read()
        else:
            content = args[1]
        await self._ask("pipe_file", path, content[: len(content) // 2])


class _FaultFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> Any:
        return self.fs.cat_file(self.path, start=start, end=end)


async def _failing(
    name: str, path: str, act: Callable[[], Awaitable[Any]], tear: Callable[[], Awaitable[None]] | None
) -> Any:
    kind = None if _active is None else await asyncio.to_thread(_active.begin, name, path)
    if kind == "error":
        raise Unavailable("503: slow down")
    if kind == "timeout":
        raise TimeoutError("no answer")
    if kind == "torn":
        if tear is not None:
            await tear()
        kill_all()
    if kind == "short-put" and tear is not None:
        await tear()
        return None
    answer = await act()
    if kind == "kill-after":
        kill_all()
    if kind == "lost-answer":
        raise ConnectionResetError("the answer was lost")
    if kind == "asked-again":
        return await act()
    return _spoilt(kind, answer)


def _spoilt(kind: str | None, answer: Any) -> Any:
    if kind == "short-read" and isinstance(answer, bytes):
        return answer[: len(answer) // 2]
    if kind == "flip" and answer and isinstance(answer, bytes):
        # Never the same bit twice: what is wrong twice alike is damage of the file.
        place = (len(answer) // 2 + 7919 * next(_flips)) % len(answer)
        return answer[:place] + bytes([answer[place] ^ 1]) + answer[place + 1 :]
    if kind == "stale-listing" and isinstance(answer, list):
        # What came last is not there yet.
        last = max((_name(entry) for entry in answer), default="")
        return [entry for entry in answer if _name(entry) != last]
    return answer


def _name(entry: Any) -> str:
    return str(entry["name"] if isinstance(entry, dict) else entry)

"""What is done with the objects of a store: each is put whole or not at all, and the store says what is there."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from shardkit.errors import ConflictError, StorageError, UsageError
from shardkit.storage.clients import client_of
from shardkit.storage.locations import check_bucket, is_local, protocol_of, redact
from shardkit.storage.requests import LISTING_TIMEOUT_S, TIMEOUT_S, ask, ask_uncached, call, capped, with_retries
from shardkit.storage.responses import is_missing, is_taken, is_upload_gone, modified_at, version_of
from shardkit.units import MiB

# A store that is away is not waited for only to tidy up in it.
_ABORT_TIMEOUT_S = 5.0
# A slow uplink, in bytes a second: a slower transfer counts as hung.
_SLOWEST = 0.25 * MiB
# s3fs keeps `max_concurrency` parts in memory: 64 MiB where its own choice takes twice the file.
_PART_BYTES, _NUM_PARTS_AT_ONCE, _MOST_PARTS = 16 * MiB, 4, 9_000


class ObjectInfo(NamedTuple):
    """An object as its store describes it: URL, size, and a version that changes when it does."""

    path: str
    num_bytes: int
    version: str


def stat_object(path: str) -> ObjectInfo:
    """Returns the store's description of an object.

    Raises:
        FileNotFoundError: If it is missing.
        StorageError: If the store kept failing.
    """
    info = ask_uncached(path, "info")
    return ObjectInfo(path, int(info["size"]), version_of(info))


def pin(path: str) -> str:
    """Returns an input as it is now: that of a store with commits as of its newest commit, others as they are named.

    Raises:
        StorageError: If the store kept failing.
        UsageError: If it begins as a URL does and is none, or there is no such repository or revision.
    """
    check_bucket(path)
    if is_local(path) or protocol_of(path) != "hf":
        return path
    try:
        return cast(str, ask(path, "pinned"))
    except FileNotFoundError as error:
        raise UsageError(
            "there is no such dataset or revision on the hub",
            where=redact(path),
            next_step="Check owner, name and revision, and HF_TOKEN if it is private",
        ) from error


def object_exists(path: str) -> bool:
    """Whether an object or a folder is there."""
    return bool(ask_uncached(path, "exists"))


def read_object(path: str) -> bytes:
    """Returns a whole object. Raises FileNotFoundError if it is missing, and StorageError if the store kept failing."""
    return cast(bytes, ask_uncached(path, "cat_file"))


def read_object_range(path: str, start: int, num_bytes: int) -> bytes:
    """Returns exactly `num_bytes` bytes from `start`.

    Raises:
        FileNotFoundError: If the object is missing.
        StorageError: If the store kept failing, or giving fewer bytes.
    """

    def request(left_s: float) -> bytes:
        data = cast(bytes, call(path, "cat_file", start=start, end=start + num_bytes, timeout_s=capped(left_s)))
        if len(data) != num_bytes:
            raise StorageError(
                "the store gave a short answer", where=redact(path), why=f"{len(data)} of {num_bytes} bytes"
            )
        return data

    return with_retries(request, path)


def read_object_range_once(path: str, start: int, num_bytes: int) -> bytes:
    """Returns the bytes that a store gives for a range, whatever their number is.

    Raises:
        FileNotFoundError: If the object is missing.
        StorageError: If the store kept failing.
    """
    return cast(bytes, ask(path, "cat_file", start=start, end=start + num_bytes))


def list_folder(folder: str) -> list[str]:
    """Returns the sorted names in a folder, empty if there is no such folder.

    Raises:
        StorageError: If the store kept failing.
    """
    try:
        found = ask_uncached(folder, "ls", detail=False, timeout_s=LISTING_TIMEOUT_S)
    except FileNotFoundError:
        return []
    names = {path.rstrip("/").rsplit("/", 1)[-1] for path in found if not _is_same(path, folder)}
    return sorted(names)


def list_objects(folder: str) -> list[tuple[str, int, float | None]]:
    """Returns URL, size and time of all objects below a folder, hidden ones as well, sorted.

    Raises:
        StorageError: If the store kept failing.
    """
    try:
        times = {"with_times": True} if protocol_of(folder) == "hf" else {}
        found = ask_uncached(folder, "find", detail=True, timeout_s=LISTING_TIMEOUT_S, **times)
    except FileNotFoundError:
        return []
    return [
        (_url_of(path, folder), int(info["size"]), modified_at(info))
        for path, info in sorted(found.items())
        if info["type"] == "file" and not _is_same(path, folder)
    ]


def put_object(local: Path, path: str) -> None:
    """Puts a local file, and replaces an object with other content. Contents are a pure function of the name.

    An object with the same content may be part of a dataset, so it is not written again.

    Raises:
        StorageError: If the store kept failing.
        UsageError: If there is no such bucket.
    """
    num_bytes = local.stat().st_size
    limit_s = TIMEOUT_S + num_bytes / _SLOWEST

    def request(left_s: float) -> None:
        if _size_once(path, left_s) == num_bytes and _holds(path, local):
            return
        try:
            call(
                path, "put_file", str(local), path, is_written=True, timeout_s=limit_s, **_part_options(path, num_bytes)
            )
        except Exception as error:
            if num_bytes >= 2 * _PART_BYTES:
                _abort_uploads(path)
            if is_upload_gone(error):
                raise StorageError(
                    "an upload was lost", where=redact(path), why="it ended without an answer"
                ) from error
            raise
        client_of(path).invalidate_cache()
        found = int(call(path, "info", timeout_s=capped(left_s))["size"])
        if found != num_bytes:
            raise StorageError("a file was cut off on its way", where=redact(path), why=f"{found} of {num_bytes} bytes")

    try:
        with_retries(request, path, is_written=True)
    except FileNotFoundError as error:
        raise _no_bucket(path) from error


def create_object(path: str, content: bytes) -> None:
    """Creates an object that must not be there yet; of several writers with different contents one wins.

    An answer may be lost after the store applied the write. Then clients' libraries ask again by themselves, and the
    store answers that the object exists. So the object that is there decides, not the answer.

    Raises:
        ConflictError: If it is there with other content.
        StorageError: If the store kept failing; the object may be there then, or come to be.
        UsageError: If there is no such bucket.
    """

    def request(left_s: float) -> None:
        # Some servers know no conditions, and take an object that they should refuse. So the object is read before and
        # after the write. Each request is made once; if one fails, all are made again until the one deadline.
        if (found := _read_twice(path, content, left_s)) is None:
            try:
                call(path, "pipe_file", path, content, is_written=True, timeout_s=capped(left_s), mode="create")
            except Exception as error:
                if is_missing(error):
                    raise _no_bucket(path) from error
                if (found := _read_twice(path, content, left_s)) is None:
                    if isinstance(error, FileExistsError):
                        raise _contradiction(path, "it is there and not") from error
                    raise
            else:
                if (found := _read_twice(path, content, left_s)) is None:
                    raise _contradiction(path, "its new object is not there")
        check_own(path, content, found)

    with_retries(request, path, is_written=True)


def create_once(path: str, content: bytes) -> bool:
    """Tells a store to create an object that must not be there yet, and returns whether it says that it did.

    Unlike `create_object`, this asks nothing before or after: the answer shows what the store itself promises. It may
    be no although the object is one's own, where the first answer was lost and the client asked again.

    Raises:
        StorageError: If the store kept failing.
        UsageError: If there is no such bucket.
    """

    def request(left_s: float) -> bool:
        try:
            call(path, "pipe_file", path, content, is_written=True, timeout_s=capped(left_s), mode="create")
        except Exception as error:
            if is_missing(error):
                raise _no_bucket(path) from error
            if is_taken(error):
                return False
            raise
        return True

    return with_retries(request, path, is_written=True)


def delete_object(path: str) -> None:
    """Deletes an object; it may be gone already. Raises StorageError if the store kept failing."""
    try:
        ask(path, "rm_file", is_written=True)
    except FileNotFoundError:
        return


def remove_objects(folder: str) -> None:
    """Deletes all objects below a folder, and the folder where a store has such.

    Raises:
        StorageError: If the store kept failing.
    """
    protocol = protocol_of(folder)
    if protocol == "hf":
        # One commit for all of them; a hub takes about a hundred an hour.
        with suppress(FileNotFoundError):
            ask(folder, "rm", is_written=True, recursive=True)
        return
    try:
        found = ask_uncached(folder, "find", timeout_s=LISTING_TIMEOUT_S)
    except FileNotFoundError:
        return
    for path in found:
        delete_object(_url_of(path, folder))
    if not ask_uncached(folder, "exists"):
        return
    with suppress(FileNotFoundError, NotImplementedError):
        if protocol == "s3":
            # Gateways to file systems keep the folder, by a name that s3fs cuts.
            bucket, _, key = folder.partition("://")[2].strip("/").partition("/")
            ask(folder, "call_s3", "delete_object", is_written=True, Bucket=bucket, Key=f"{key}/")
        else:
            ask(folder, "rm", is_written=True, recursive=True)


def _url_of(name: str, folder: str) -> str:
    """Returns the URL of a file that was listed below a folder."""
    # Only HDFS's default cluster has no name. The store in memory puts a slash before the names of all files.
    start = "/" if folder.partition("://")[2].startswith("/") else ""
    return f"{protocol_of(folder)}://{start}{name.rpartition('://')[2].lstrip('/')}"


def _answer_once(path: str, verb: str, left_s: float) -> Any:
    # s3fs sends no request for a file that its listing lacks, and the listing may be older than a commit.
    client_of(path).invalidate_cache()
    try:
        return call(path, verb, timeout_s=capped(left_s))
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _size_once(path: str, left_s: float) -> int | None:
    info = _answer_once(path, "info", left_s)
    return None if info is None else int(info["size"])


def _holds(path: str, local: Path) -> bool:
    with client_of(path).open(path, "rb") as found, local.open("rb") as own:
        digests = [hashlib.file_digest(cast(Any, file), "sha256").digest() for file in (found, own)]
    return digests[0] == digests[1]


def _is_same(path: str, folder: str) -> bool:
    """Whether a listed object is the folder itself: some stores keep an empty object of its name."""
    return path.strip("/") == folder.partition("://")[2].strip("/")


def _read_twice(path: str, expected: bytes, left_s: float) -> bytes | None:
    """Reads an object, again if it is not as expected: an answer may be cut off on its way, twice at the same byte.

    Raises:
        StorageError: If the answers differ, or are of another size than the object.
    """
    found = cast(bytes | None, _answer_once(path, "cat_file", left_s))
    if found is None or found == expected:
        return found
    again = cast(bytes | None, _answer_once(path, "cat_file", left_s))
    if again not in (expected, found):
        raise _contradiction(path, "it gave two contents")
    if again != expected and _size_once(path, left_s) != len(again):
        raise StorageError("the store gave a short answer", where=redact(path), why=f"{len(again)} bytes, twice")
    return again


def _contradiction(path: str, why: str) -> StorageError:
    return StorageError("the store contradicts itself", where=redact(path), why=why)


def check_own(path: str, content: bytes, found: bytes) -> None:
    """Checks that a commit that is there is one's own. Raises ConflictError if it is not."""
    if found != content:
        raise ConflictError(
            "another conversion committed first",
            where=redact(path),
            state="Its dataset is whole and untouched",
            next_step="Run again with --overwrite to make the next version, or choose another destination",
        )


def _no_bucket(path: str) -> UsageError:
    depth = 3 if protocol_of(path) == "hf" else 1
    bucket = "/".join(path.partition("://")[2].split("/")[:depth])
    return UsageError(
        f"there is no bucket or container {bucket!r}",
        where=redact(path),
        next_step="Make it first, or check its name, the endpoint and the credentials",
    )


def _part_options(path: str, num_bytes: int) -> dict[str, Any]:
    if protocol_of(path) != "s3":
        return {}
    return {"chunksize": max(_PART_BYTES, -(-num_bytes // _MOST_PARTS)), "max_concurrency": _NUM_PARTS_AT_ONCE}


def _abort_uploads(path: str) -> None:
    """Aborts the upload of a failed put on S3, where unfinished uploads are kept, and paid for, until then."""
    if protocol_of(path) != "s3":
        return
    bucket, _, key = path.partition("://")[2].partition("/")
    ask_s3 = partial(call, path, "call_s3", timeout_s=_ABORT_TIMEOUT_S)
    try:
        listed = ask_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        for upload in listed.get("Uploads", ()):
            if upload["Key"] == key:
                ask_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload["UploadId"])
    except Exception:  # noqa: BLE001 - the put's own failure is reported; a lifecycle rule removes what stays
        return

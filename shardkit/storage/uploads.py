"""Unfinished uploads, which killed writers leave and stores keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from shardkit.storage.clients import client_of
from shardkit.storage.locations import is_local, protocol_of, redact
from shardkit.storage.options import hide_secrets
from shardkit.storage.requests import ask
from shardkit.storage.responses import failure_of
from shardkit.units import MiB

# The smallest part that S3 takes, and a multiple of the smallest parts of the others.
_PART_BYTES = 5 * MiB
# Stores whose client can send a part of an object and then stop.
_GIVE_UP = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss"})


class PendingUpload(NamedTuple):
    """An upload that a store keeps the parts of: the URL that it would have, its name there, when it began."""

    path: str
    upload_id: str
    started_at: float


def can_leave_unfinished(path: str) -> bool:
    """Whether the client of a store can be made to send a part of a file and no more."""
    return is_local(path) or protocol_of(path) in _GIVE_UP


@contextmanager
def unfinished_object(path: str) -> Iterator[None]:
    """Sends the first part of an object and, at the end of the context, gives the upload up.

    Raises:
        StorageError: If the store does not take the part.
    """
    try:
        file = client_of(path, is_written=True).open(path, "wb", block_size=_PART_BYTES)
        try:
            file.write(bytes(_PART_BYTES + MiB))
            yield
        finally:
            # A file that stays open publishes its bytes when it is dropped.
            with suppress(AttributeError):
                file.discard()
            file.closed = True
    except OSError as error:
        raise failure_of(error, redact(path), redact(hide_secrets(str(error))), is_written=True) from error


def list_uploads(folder: str) -> list[PendingUpload]:
    """Returns the unfinished uploads below a folder; empty where a store lets them expire by itself.

    Raises:
        StorageError: If the store kept failing.
    """
    if is_local(folder) or protocol_of(folder) != "s3":
        return []
    bucket, _, key = folder.partition("://")[2].strip("/").partition("/")
    found: list[PendingUpload] = []
    marker: dict[str, Any] = {}
    while True:
        try:
            answer = ask(
                folder, "call_s3", "list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/" if key else "", **marker
            )
        except FileNotFoundError:
            return []
        for upload in answer.get("Uploads", ()):
            started: datetime = upload["Initiated"]
            found.append(PendingUpload(f"s3://{bucket}/{upload['Key']}", upload["UploadId"], started.timestamp()))
        if not answer.get("IsTruncated"):
            return found
        marker = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def abort_upload(upload: PendingUpload) -> None:
    """Removes the parts of an upload that a store keeps; they may be gone already.

    Raises:
        StorageError: If the store kept failing.
    """
    bucket, _, key = upload.path.partition("://")[2].partition("/")
    abort = partial(ask, upload.path, "call_s3", "abort_multipart_upload", is_written=True)
    with suppress(FileNotFoundError):
        abort(Bucket=bucket, Key=key, UploadId=upload.upload_id)

"""What stores and the libraries of their clients answer, each in another way. Pure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from shardkit.errors import OutOfSpaceError, ShardkitError, StorageError

# Nothing changes by asking again: the request, the credentials or the installation are wrong, or the answer is final.
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    AttributeError,
)
# Names of errors of client libraries that need not be installed.
_FINAL_NAMES = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"})
# Names of errors that they raise before the first request.
_SETUP_NAMES = frozenset({"ProfileNotFound", "ConfigParseError", "ConfigNotFound", "AzureSigningError"})
_REFUSED_STATUS = (401, 403)
# Errors of the client that may pass: too slow, in conflict with another request, too early, too many.
_PASSING_STATUS = (408, 409, 425, 429)


def version_of(info: dict[str, Any]) -> str:
    """Returns the part of a store's answer that changes when a file does; empty if there is none."""
    for key in ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "last_modified", "created"):
        if found := info.get(key):
            # Listing and asking for one file may give the same time as a number and as a datetime.
            return str(found.timestamp() if isinstance(found, datetime) else found)
    return ""


def modified_at(info: dict[str, Any]) -> float | None:
    """Returns from a store's answer when a file was written, in seconds since 1970; None if it lacks that."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "modification_time", "timeCreated", "created"):
        found = info.get(key)
        if isinstance(found, str):
            with suppress(ValueError):
                found = datetime.fromisoformat(found)
        if isinstance(found, datetime):
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    return None


def is_passing(error: BaseException) -> bool:
    """Whether the same request may be answered later on."""
    chain = list(_chain(error))
    if any(isinstance(e, _FINAL) or type(e).__name__ in _FINAL_NAMES | _SETUP_NAMES for e in chain) or is_full(error):
        return False
    status = status_of(error)
    return status is None or status >= 500 or status in _PASSING_STATUS


def is_refusal(error: BaseException) -> bool:
    """Whether the store refuses the caller, known or unknown."""
    chain = list(_chain(error))
    is_named = any(isinstance(e, PermissionError) or type(e).__name__ in _FINAL_NAMES for e in chain)
    return is_named or status_of(error) in _REFUSED_STATUS


def is_full(error: BaseException) -> bool:
    """Whether the store says that a quota or its space is used up."""
    return any(isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT) for e in _chain(error))


def is_missing(error: BaseException) -> bool:
    """Whether the store says that something is not there."""
    return isinstance(error, FileNotFoundError) or status_of(error) == 404


def is_taken(error: BaseException) -> bool:
    """Whether the store says that an object that must not exist exists."""
    # 412: the condition does not hold. Some clients hand it on as a general error of the system.
    return any(isinstance(e, FileExistsError) for e in _chain(error)) or status_of(error) == 412


def is_upload_gone(error: BaseException) -> bool:
    """Whether S3 knows no such upload in parts: its end was asked for twice, as clients do when an answer is lost."""
    codes = (_error_of(one).get("Code") for one in _chain(error))
    return "NoSuchUpload" in codes


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error of a client's library tells of, None if there was no answer."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        found = (metadata.get("HTTPStatusCode"), getattr(one, "status_code", None), getattr(one, "code", None))
        for status in (*found, getattr(one, "status", None)):
            if isinstance(status, int) and 100 <= status < 600:
                return status
            if isinstance(status, str) and status.isdecimal() and len(status) == 3:
                return int(status)
        # gcsfs says this one status in words alone.
        if isinstance(one, OSError) and str(one).startswith("Forbidden: "):
            return 403
    return None


def failure_of(error: BaseException, where: str, why: str, *, is_written: bool = False) -> ShardkitError:
    """Returns the error for what a client's library raised when it was asked.

    Args:
        error: Of any class: clients have no class of errors in common.
        where: What was asked for, without secrets.
        why: What the library says, without secrets.
    """
    if is_full(error):
        return OutOfSpaceError(
            "no space left",
            where=where,
            why=why,
            next_step="Free some space, raise the quota or choose another place, then run the same command again",
        )
    if is_refusal(error):
        right = "write" if is_written else "read"
        return StorageError(
            f"the store refuses to be {'written to' if is_written else 'read'}",
            where=where,
            why=why or "permission denied",
            next_step=f"Check that your credentials may {right} it, then run the same again",
        )
    if any(_is_of_setup(one) for one in _chain(error)):
        return StorageError(
            "the store cannot be asked",
            where=where,
            why=why or type(error).__name__,
            next_step="Correct its address, profile or credentials, in the environment or in --storage-options",
        )
    return StorageError(
        "the store does not answer",
        where=where,
        why=f"{type(error).__name__}: {why}" if why else type(error).__name__,
        next_step="Check the address, your credentials and the network, then run the same again",
    )


def _is_of_setup(error: BaseException) -> bool:
    return type(error).__name__ in _SETUP_NAMES or (
        isinstance(error, ValueError) and str(error).lower().startswith("invalid endpoint")
    )


def _error_of(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    found = response.get("Error") if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__

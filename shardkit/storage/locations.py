"""Paths and URLs as text: which store one names, and how it is shown without secrets. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from shardkit.errors import UnsafeError, UsageError

_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ALLOWED_PROTOCOLS = frozenset({"file", "memory", "s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "hf"})
_NO_BUCKET = re.compile(r"(?:s3|gs|gcs|az|abfss?|hdfs|https?):(?:/?(?:[^/]|$)|/+$)", re.IGNORECASE)
_WITH_PASSWORD = re.compile(r"(?:s3|gs|gcs|az|abfss?)://[^/]*:[^/]*@", re.IGNORECASE)
# A path in a revision of a dataset of the Hugging Face Hub: how the revision is named, repository, revision, path.
HUB_PATH = re.compile(
    r"(?:hf://)?(datasets/([^/@\s]+/[^/@\s]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?)(?:/(.*))?",
    re.IGNORECASE | re.DOTALL,
)
_PINNED = re.compile(r"(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/|$)")
# Secret parameters of requests that clients show without their host.
_SECRET_PARAMETER = re.compile(
    r"([?&][\w-]*(?:token|signature|sig|secret|password|credential|key)[\w-]*=)(?!\*\*\*)[^\s&'\")]+", re.IGNORECASE
)
# Of a page of a job on Google Cloud, which an error names.
_PROJECT = r"project=[\w-]+(?:[\s:.]|$)"
# Datasets are read from web servers; raw inputs, whose names may come from others, are not, and nothing is written.
_READ_ONLY_PROTOCOLS = frozenset({"http", "https"})


def protocol_of(path: str, *, is_written: bool = True) -> str:
    """Returns the protocol of a path, `file` for plain local paths; datasets are read over more than is written to.

    Raises:
        UnsafeError: If the protocol is not one that shardkit uses, or protocols are chained with `::`.
    """
    match = _PROTOCOL.match(path)
    protocol = match.group(1).lower() if match else "file"
    is_refused = protocol not in _ALLOWED_PROTOCOLS and (is_written or protocol not in _READ_ONLY_PROTOCOLS)
    if is_refused or ("://" in path and "::" in path):
        why = "only local paths, s3, gs, az, abfs, hdfs and hf are read"
        step = "Copy the files to one of these, and name that"
        if protocol in _READ_ONLY_PROTOCOLS:
            why = "web servers are read from as datasets only, and never written to"
            step += ", or write their addresses into a table and add --fetch COLUMN"
        raise UnsafeError(f"the location {redact(path)!r} is refused", why=why, next_step=step)
    return protocol


def is_local(path: str) -> bool:
    """Whether a path is on a mounted file system."""
    return path.startswith("/") or protocol_of(path, is_written=False) == "file"


def local_path(path: str) -> Path:
    """Returns a local location as an absolute path.

    Raises:
        UsageError: If it starts with the home folder of an unknown user.
    """
    try:
        return Path(without_scheme(path)).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(
            f"the location {redact(path)!r} is refused",
            why="there is no such home folder",
            next_step="Write the path out instead of ~",
        ) from error


def without_scheme(path: str) -> str:
    """Returns a local path without `file://`."""
    return re.sub("^file://", "", path, flags=re.IGNORECASE)


def check_bucket(path: str) -> None:
    """Checks that a text that begins like the URL of a store is one: it would else be a folder of this machine.

    Raises:
        UsageError: If it names no bucket, or credentials before it. Does not repeat it, as secrets are only found in
            whole URLs.
    """
    scheme = path.partition(":")[0].lower()
    if _WITH_PASSWORD.match(path):
        raise UsageError(
            f"a location that begins with {scheme}: holds a name and a password",
            why="stores take none there, and would show them in their answers",
            state="Nothing was read or written",
            next_step="Leave them to the environment or profile of the store, or to --storage-options",
        )
    if scheme == "hf" and HUB_PATH.fullmatch(path) is None:
        raise UsageError(
            "a location that begins with hf: names no dataset of the Hugging Face Hub",
            state="Nothing was read or written",
            next_step="Write it like hf://datasets/OWNER/NAME/FOLDER, of a revision "
            "hf://datasets/OWNER/NAME@REVISION/FOLDER, and a folder of this machine that is called so like ./hf",
        )
    if _NO_BUCKET.match(path):
        raise UsageError(
            f"a location that begins with {scheme}: names no bucket",
            state="Nothing was read or written",
            next_step=f"Write it like {scheme}://BUCKET/FOLDER; a variable that is not set may have left it out",
        )


def unpinned(path: str) -> str:
    """Returns a URL without the commit that it was pinned to: the same place at any time."""
    return _PINNED.sub(r"\1", path)


def repository_of(path: str) -> str | None:
    """Returns the URL of the repository that holds a path, None where a store has none."""
    found = HUB_PATH.fullmatch(path) if path.lower().startswith("hf://") else None
    return f"hf://{found.group(1)}" if found else None


def names_path(pattern: str, path: str) -> bool:
    """Whether an input names a file, or a folder that it lies in; hidden names only if it says so.

    Args:
        pattern: A file, a folder or a glob with `**` for any number of folders; absolute, or a URL.
        path: Of the file, likewise.
    """
    return _names(pattern.rstrip("/").split("/"), path.split("/"))


def _names(pattern: Sequence[str], path: Sequence[str]) -> bool:
    if not pattern:
        # A folder stands for all files below that are not hidden.
        return not any(_is_hidden(part) for part in path)
    if not path:
        return False
    if pattern[0] == "**":
        return _names(pattern[1:], path) or (not _is_hidden(path[0]) and _names(pattern, path[1:]))
    if pattern[0] != path[0] and (_is_hidden(path[0]) and not _is_hidden(pattern[0])):
        return False
    return (pattern[0] == path[0] or fnmatchcase(path[0], pattern[0])) and _names(pattern[1:], path[1:])


def _is_hidden(part: str) -> bool:
    return part.startswith(".")


def normalize(path: str | os.PathLike[str]) -> str:
    """Returns an absolute local path, or the URL without a final slash.

    Raises:
        UsageError: If it begins as a URL does and names no bucket.
    """
    path = os.fspath(path)
    check_bucket(path)
    return str(local_path(path)) if is_local(path) else path.rstrip("/")


def join(base: str, *parts: str) -> str:
    """Returns `base/part/...`."""
    return "/".join([base.rstrip("/"), *parts])


def redact(text: str) -> str:
    """Returns text without user names, passwords and query strings in the URLs that it holds, and without tokens.

    In the URLs of stores a question mark is a letter of a name or of a glob, unless what follows is a query.
    """
    text = re.sub(r"(://)[^/\s]*@", r"\1***@", text)
    text = re.sub(rf"(https?://[^\s?]+)\?(?!\*\*\*|{_PROJECT})\S+", r"\1?***", text, flags=re.IGNORECASE)
    text = re.sub(rf"(://[^\s?]+(?:\?[^\s?]*)*?)\?(?!{_PROJECT})[\w.~%-]+=\S+", r"\1?***", text)
    return _SECRET_PARAMETER.sub(r"\1***", text)

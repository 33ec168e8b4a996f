"""Which objects of a store an input names, by the rules of folders and globs on disk."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from shardkit.errors import UsageError
from shardkit.storage.clients import client_of
from shardkit.storage.locations import names_path, protocol_of, redact
from shardkit.storage.objects import ObjectInfo
from shardkit.storage.requests import LISTING_TIMEOUT_S, ask_uncached
from shardkit.storage.responses import version_of

_Found = dict[str, dict[str, Any]]


def expand_objects(pattern: str) -> list[ObjectInfo]:
    """Returns the objects below a folder, or those that a glob matches, sorted; hidden ones only if they are named.

    A name that is there is meant, though it would be a glob.

    Raises:
        UsageError: If there are none.
        StorageError: If the store kept failing.
    """
    protocol = protocol_of(pattern)
    fixed = "/".join(takewhile(lambda part: not _is_glob(part), pattern.split("/")))
    # Some stores name a bucket in more than one way; their listings use one.
    root = client_of(pattern)._strip_protocol(fixed)
    rest = pattern[len(fixed) :]
    found = _below(pattern) or (_matches(fixed, rest) if rest else {})
    files = [
        ObjectInfo(f"{protocol}://{path}", int(info["size"]), version_of(info))
        for path, info in sorted(found.items())
        if info["type"] == "file" and names_path(f"{root}{rest}", path)
    ]
    if not files:
        raise UsageError(
            f"no file matches {redact(pattern)!r}",
            why="hidden ones are passed over" if any(info["type"] == "file" for info in found.values()) else None,
            next_step="Check the bucket, the path and the pattern, and quote it",
        )
    return files


def _below(url: str) -> _Found:
    """Returns the object of this name, or all objects below the folder of this name."""
    try:
        info = ask_uncached(url, "info")
    except FileNotFoundError:
        return {}
    if info["type"] == "file":
        return {info["name"]: info}
    return _all_below(url)


def _matches(root: str, rest: str) -> _Found:
    # A pattern with ** may match a folder, and clients differ in which of its files they find. The client of Azure
    # takes the text after a question mark for a query, and a # in it for the end.
    if "**" in rest.split("/") or ("?" in rest and "#" in rest):
        return _all_below(root)
    try:
        found: _Found = dict(ask_uncached(f"{root}{rest}", "glob", detail=True, timeout_s=LISTING_TIMEOUT_S))
    except FileNotFoundError:
        return {}
    protocol = protocol_of(root)
    for folder in [path for path, info in found.items() if info["type"] == "directory"]:
        found |= _all_below(f"{protocol}://{folder}")
    return found


def _all_below(url: str) -> _Found:
    try:
        return dict(ask_uncached(url, "find", detail=True, timeout_s=LISTING_TIMEOUT_S))
    except FileNotFoundError:
        return {}


def _is_glob(text: str) -> bool:
    return any(c in text for c in "*?[")

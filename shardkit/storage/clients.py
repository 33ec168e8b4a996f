"""The fsspec client of each store: found, made with the user's options, or named if it is not installed."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Collection
from typing import Any

import fsspec

from shardkit.errors import UsageError, missing_extra, suggest
from shardkit.storage.locations import protocol_of, redact
from shardkit.storage.options import hide_secrets, options_for

# The extra and the package that each protocol needs.
_EXTRAS = {
    "hdfs": ("hdfs", "hdfs_native"),
    "hf": ("hf", "huggingface_hub"),
    **dict.fromkeys(["http", "https"], ("http", "aiohttp")),
    "s3": ("s3", "s3fs"),
    **dict.fromkeys(["gs", "gcs"], ("gcs", "gcsfs")),
    **dict.fromkeys(["az", "abfs", "abfss"], ("azure", "adlfs")),
}

# Options that a client hands on, but that its signature lacks.
_HANDED_ON = {"s3": frozenset({"profile"})}

# Their URLs name a host or an account, not only a bucket.
_SAY_WHERE = frozenset({"hdfs", "az", "abfs", "abfss"})

# They log what they try again, with tracebacks. Without a handler that would go to stderr.
for _name in ("s3fs", "gcsfs", "adlfs", "azure", "fsspec", "botocore", "aiobotocore"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

# fsspec's own takes a Java machine and Hadoop's libraries.
fsspec.register_implementation("hdfs", "shardkit.storage.hdfs.HdfsFileSystem", clobber=True)
fsspec.register_implementation("hf", "shardkit.storage.hub.HubFileSystem", clobber=True)


def client_of(path: str, *, is_written: bool = False) -> Any:
    """Returns the fsspec file system of a path.

    fsspec keeps one for each process and thread, and makes new ones after a fork.

    Raises:
        UsageError: If its backend is not installed, lacks what it needs to know, or is given an option that it does
            not know.
    """
    protocol = protocol_of(path, is_written=is_written)
    kind = _kind_of(protocol)
    options = options_for(protocol)
    if options:
        _check_names(protocol, tuple(options))
    if protocol in _SAY_WHERE:
        options = {**kind._get_kwargs_from_urls(path), **options}
    try:
        return fsspec.filesystem(protocol, **options)
    except Exception as error:  # Of the client's library: they have no common class.
        raise UsageError(
            f"the client of {protocol}:// cannot be made",
            why=redact(hide_secrets(str(error))),
            next_step="Set what it needs in the environment or a profile, as that store's own tools read it, or with "
            "--storage-options",
        ) from error


@functools.lru_cache(maxsize=16)
def _kind_of(protocol: str) -> Any:
    try:
        return fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        if protocol in _EXTRAS:
            raise missing_extra(*_EXTRAS[protocol]) from error
        raise UsageError(
            f"{protocol}:// needs an fsspec backend that is not installed",
            why=str(error),
            next_step="Install the package that the reason names",
        ) from error


@functools.lru_cache(maxsize=16)
def _check_names(protocol: str, names: Collection[str]) -> None:
    kinds = _kind_of(protocol).__mro__
    parameters = [p for kind in kinds for p in inspect.signature(kind.__init__).parameters.values()]
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}
    known |= _HANDED_ON.get(protocol, frozenset())
    for name in names:
        if name not in known:
            raise UsageError(
                f"the client of {protocol}:// has no option {name!r}",
                next_step=suggest(name, known).strip()
                or f"Take it out of --storage-options, or name the store that it is for: STORE:{name}=...",
            )

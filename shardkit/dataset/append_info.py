"""Facts that a version holds about the version that it was appended to, and for later appends to it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shardkit.dataset.documents import Count, InputInfo, check_relative_path
from shardkit.dataset.manifest import Json, Manifest
from shardkit.errors import DamageError

_APPENDED_TO = "appended_to"
_COUNTED = "statistics"
_Document = TypeVar("_Document", "AppendedTo", "StatisticsFile")


class AppendedTo(msgspec.Struct, frozen=True, kw_only=True):
    """The version that another one began with.

    Attributes:
        num_inputs: How many inputs it had; they are first in the accounting of the other.
    """

    version: Count
    fingerprint: str
    num_inputs: Count


class StatisticsFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the counts lie that the statistics of a version were made of, relative to the dataset."""

    path: str
    sha256: str


def appended_to(manifest: Manifest) -> AppendedTo | None:
    """Returns the version that a version was appended to, None if it is a conversion by itself.

    Raises:
        DamageError: If it tells something else.
    """
    return _describe(manifest, _APPENDED_TO, AppendedTo)


def statistics_file(manifest: Manifest) -> StatisticsFile | None:
    """Returns where the counts of a version are, None if they were not kept.

    Raises:
        DamageError: If it tells something else.
        UnsafeError: If that leads out of the dataset.
    """
    found = _describe(manifest, _COUNTED, StatisticsFile)
    if found is not None:
        check_relative_path(found.path, manifest.name)
    return found


def extensions_of(base: AppendedTo | None, counted: StatisticsFile) -> dict[str, Json]:
    """Returns both as extensions of a manifest."""
    own: dict[str, Json] = {_COUNTED: msgspec.to_builtins(counted)}
    return own if base is None else own | {_APPENDED_TO: msgspec.to_builtins(base)}


def _describe(manifest: Manifest, name: str, kind: type[_Document]) -> _Document | None:
    found = manifest.extensions.get(name)
    if found is None:
        return None
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise DamageError(f"the manifest cannot be understood where it tells of {name!r}", why=str(error)) from error


def own_inputs(manifest: Manifest) -> tuple[InputInfo, ...]:
    """Returns the inputs that came with this very version."""
    base = appended_to(manifest)
    return manifest.accounting.inputs[base.num_inputs if base is not None else 0 :]

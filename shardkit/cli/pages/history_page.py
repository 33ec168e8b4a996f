"""`shardkit inspect --history`: the versions of a dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from rich.console import Console

from shardkit.cli.shell.command import print_document
from shardkit.cli.shell.tables import print_columns
from shardkit.dataset.append_info import appended_to, own_inputs
from shardkit.dataset.open import list_versions, open_dataset
from shardkit.errors import DamageError, UsageError
from shardkit.messages import visible
from shardkit.units import format_count, format_size

_MAX_INPUTS = 3


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a dataset.

    Attributes:
        created_at: When its conversion began; UTC, ISO 8601.
        fingerprint: Of inputs and recipe: versions that have the same hold the same examples.
        inputs: As they were named to the conversion, without secrets.
        appended_to: The version that it begins with; None of a conversion by itself.
        new_inputs: Names of the inputs that came to that one.
        damage: Why it cannot be read; None where it can, and then nothing else is.
    """

    version: int
    created_at: str = ""
    shardkit: str = ""
    fingerprint: str = ""
    num_examples: int = 0
    num_shards: int = 0
    num_bytes: int = 0
    inputs: tuple[str, ...] = ()
    appended_to: int | None = None
    new_inputs: tuple[str, ...] = ()
    damage: str | None = None


def show_history(dataset: str, *, as_json: bool) -> None:
    """Prints all versions of a dataset, oldest first.

    Raises:
        UsageError: If there is no dataset.
        StorageError: If the store keeps failing.
    """
    found = read_history(dataset)
    if as_json:
        print_document(found)
        return
    headings = ("version", "made at", "shardkit", "examples", "shards", "size", "of")
    print_columns(Console(highlight=False), headings, history_rows(found), num_left=3, last_is_left=True)


def history_rows(versions: Sequence[VersionInfo]) -> list[tuple[str, ...]]:
    """Returns the rows of the table."""
    rows: list[tuple[str, ...]] = []
    before: VersionInfo | None = None
    for own in versions:
        if own.damage is not None:
            rows.append((str(own.version), "-", "-", "-", "-", "-", f"cannot be read: {visible(own.damage)}"))
            continue
        rows.append(
            (
                str(own.version),
                visible(own.created_at),
                visible(own.shardkit),
                format_count(own.num_examples),
                format_count(own.num_shards),
                format_size(own.num_bytes),
                _inputs(own, before),
            )
        )
        before = own
    return rows


def _inputs(own: VersionInfo, before: VersionInfo | None) -> str:
    if before is not None and before.fingerprint == own.fingerprint:
        return f"the same as version {before.version}"
    named = own.inputs if own.appended_to is None else own.new_inputs
    begun = "" if own.appended_to is None else f"version {own.appended_to} and "
    more = len(named) - _MAX_INPUTS
    return begun + visible(", ".join(named[:_MAX_INPUTS])) + (f" and {more:,} more" if more > 0 else "")


def read_history(url: str | os.PathLike[str]) -> tuple[VersionInfo, ...]:
    """Returns all versions of a dataset; one whose manifest is damaged hides no other.

    Raises:
        UsageError: If there is no dataset.
        StorageError: If the store keeps failing.
    """
    versions = list_versions(url)
    if not versions:
        open_dataset(url)  # Its error says what is there instead.
    return tuple(_read(url, version) for version in versions)


def _read(url: str | os.PathLike[str], version: int) -> VersionInfo:
    try:
        manifest = open_dataset(url, version).manifest
        base = appended_to(manifest)
    except (DamageError, UsageError) as error:
        return VersionInfo(version=version, damage=f"{error.what}{f': {error.why}' if error.why else ''}")
    return VersionInfo(
        version=version,
        created_at=manifest.created.at,
        shardkit=manifest.created.tool_versions.get("shardkit", ""),
        fingerprint=manifest.fingerprint,
        num_examples=sum(s.num_examples for s in manifest.splits),
        num_shards=sum(s.num_shards for s in manifest.splits),
        num_bytes=sum(s.num_bytes for s in manifest.splits),
        inputs=manifest.created.inputs,
        appended_to=None if base is None else base.version,
        new_inputs=() if base is None else tuple(i.name for i in own_inputs(manifest)),
    )

"""`shardkit inspect --history`: the versions of a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardkit.dataset.history import VersionInfo, read_history

_MAX_INPUTS = 3


def show_history(dataset: str, *, as_json: bool) -> None:
    """Prints all versions of a dataset, oldest first.

    Raises:
        UsageError: If there is no dataset.
        StorageError: If the store keeps failing.
    """
    found = read_history(dataset)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    from rich.console import Console

    from shardkit.cli.shell.tables import print_columns

    headings = ("version", "made at", "shardkit", "examples", "shards", "size", "of")
    print_columns(Console(highlight=False), headings, history_rows(found), num_left=3, last_is_left=True)


def history_rows(versions: Sequence[VersionInfo]) -> list[tuple[str, ...]]:
    """Returns the rows of the table."""
    from shardkit.messages import visible
    from shardkit.units import format_count, format_size

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
    from shardkit.messages import visible

    if before is not None and before.fingerprint == own.fingerprint:
        return f"the same as version {before.version}"
    named = own.inputs if own.appended_to is None else own.new_inputs
    begun = "" if own.appended_to is None else f"version {own.appended_to} and "
    more = len(named) - _MAX_INPUTS
    return begun + visible(", ".join(named[:_MAX_INPUTS])) + (f" and {more:,} more" if more > 0 else "")

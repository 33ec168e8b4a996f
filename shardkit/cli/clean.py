"""`shardkit clean`: shows files that no manifest names and no live conversion owns, and removes them if wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.option_types import DurationType

if TYPE_CHECKING:
    from shardkit.cleaning.decide import CleanPlan
    from shardkit.cleaning.remove import Removed


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit clean out/flights
        shardkit clean out/flights --delete
        shardkit clean gs://bucket/flights --older-than 2d --delete
        shardkit clean out/flights --keep-versions 2 --delete
        shardkit clean out/flights --drop-broken-version --delete
    """,
)
@click.argument("dataset")
@click.option("--delete", is_flag=True, help="Remove the listed files; without it nothing is changed.")
@click.option(
    "--older-than",
    "older_than_s",
    type=DurationType(),
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Keep files that are younger: a conversion on another host may still write them, or go on from them.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also remove versions replaced that long ago, but not the newest N, with the files that only they need.",
)
@click.option("--work-dir", metavar="DIR", help="Folder of intermediate files, if conversions named one by --work-dir.")
@click.option(
    "--drop-broken-version",
    is_flag=True,
    help="Only remove the manifest of a version that cannot be read, so that the one before it is the newest again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report, with every file, as one JSON document.")
def command(
    dataset: str,
    delete: bool,
    older_than_s: float,
    keep_versions: int | None,
    work_dir: str | None,
    drop_broken_version: bool,
    as_json: bool,
) -> None:
    """Show, and with --delete remove, what no manifest of DATASET names and no live conversion owns.

    That is what conversions left that were killed and not run again: data, intermediate files on this host, uploads.
    Run the same conversion again instead to go on from there. If a manifest cannot be read, nothing is removed;
    --drop-broken-version gives such a version up.
    """
    import time
    from contextlib import nullcontext

    from shardkit.cleaning.decide import plan_cleaning
    from shardkit.cleaning.inventory import take_inventory
    from shardkit.cleaning.remove import marked, remove
    from shardkit.conversion.plan import work_roots
    from shardkit.storage import files as storage

    root = storage.normalize(dataset)
    if not storage.is_local(root):
        storage.protocol_of(root)
    if drop_broken_version:
        _drop_broken(root, delete, as_json)
        return
    work_root, exchange_root = work_roots(root, work_dir)
    with marked(root) if delete else nullcontext() as mark:
        now = time.time() if mark is None else mark.now
        inventory = take_inventory(root, work_root, exchange_root)
        plan = plan_cleaning(inventory, now=now, older_than_s=older_than_s, keep_versions=keep_versions)
        removed = remove(plan, inventory, root, work_root, mark) if delete else None
    if as_json:
        _print_json(root, plan, removed)
    else:
        _print_page(plan, removed, now)


def _drop_broken(root: str, delete: bool, as_json: bool) -> None:
    from shardkit.cleaning.inventory import find_broken
    from shardkit.cleaning.remove import remove_broken
    from shardkit.messages import visible

    broken = remove_broken(root) if delete else find_broken(root)
    if as_json:
        print_document({"broken": [found._asdict() for found in broken], "is_removed": delete})
        return
    for found in broken:
        click.echo(f"version {found.version}: {visible(found.why)}")
    if not broken:
        click.echo("ok: every version can be opened")
    elif delete:
        click.echo("removed: their manifests; `shardkit clean` shows the files that no version needs now")
    else:
        click.echo("would remove: their manifests, no data; --delete does it")


def _print_page(plan: CleanPlan, removed: Removed | None, now: float) -> None:
    from rich.console import Console

    from shardkit.cleaning.decide import totals
    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible
    from shardkit.units import format_count, format_number, format_size

    rows = [
        (kind, format_count(number), format_size(num_bytes), _age(now, oldest, youngest))
        for kind, (number, num_bytes, oldest, youngest) in totals(plan.groups).items()
    ]
    if rows:
        print_columns(Console(highlight=False), ("kind", "files", "size", "age"), rows, num_left=1)
        click.echo()
    for reason, (number, num_bytes) in sorted(plan.kept.items()):
        click.echo(f"kept: {format_number(number, 'file')}, {format_size(num_bytes)}, {reason}")
    if not rows:
        click.echo("ok: there is nothing to remove")
        return
    if removed is None:
        number = sum(len(group.files) for group in plan.groups)
        num_bytes = sum(file.num_bytes for group in plan.groups for file in group.files)
        click.echo(f"would remove: {format_number(number, 'file')}, {format_size(num_bytes)}; --delete does it")
        return
    for folder in removed.spared:
        click.echo(f"spared: {visible(folder)}, where work began meanwhile")
    click.echo(f"removed: {format_number(removed.num_files, 'file')}, {format_size(removed.num_bytes)}")


def _age(now: float, oldest: float, youngest: float) -> str:
    first, last = _days(now - youngest), _days(now - oldest)
    return first if first == last else f"{first} to {last}"


def _days(seconds: float) -> str:
    from shardkit.units import format_duration

    seconds = max(0.0, seconds)
    return format_duration(seconds) if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def _print_json(root: str, plan: CleanPlan, removed: Removed | None) -> None:
    import msgspec

    from shardkit.storage import files as storage

    document: dict[str, object] = {
        "location": storage.redact(root),
        "groups": [
            {"kind": group.kind, "folder": group.folder, "files": msgspec.to_builtins(group.files)}
            for group in plan.groups
        ],
        "kept": {reason: {"files": number, "bytes": size} for reason, (number, size) in plan.kept.items()},
        "removed": None if removed is None else msgspec.to_builtins(removed),
    }
    print_document(document)

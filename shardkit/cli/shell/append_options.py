"""`shardkit convert --append` on the command line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from shardkit.cli.shell.option_files import key_of

if TYPE_CHECKING:
    from rich.console import Console

    from shardkit.conversion.inputs.append_check import NothingNew
    from shardkit.conversion.request import ConvertRequest


def typed_options(ctx: click.Context) -> frozenset[str]:
    """Returns the names of the options that were typed, which the dataset may contradict."""
    return frozenset(key_of(p) for p in ctx.command.params if p.name and _is_typed(ctx, p.name))


def tidy_after_append(options: ConvertRequest) -> None:
    """Removes the work folder of a conversion that was killed after it committed the newest version."""
    from shardkit.conversion.plan import load_plan, work_roots
    from shardkit.conversion.work_folder import remove_work_folder, version_cut_off
    from shardkit.dataset.open import open_dataset
    from shardkit.errors import ShardkitError
    from shardkit.storage import files as storage

    destination = storage.normalize(options.destination)
    work_root, _ = work_roots(destination, options.work_dir)
    # Another process may remove the folder now. The plan of the next conversion reports faults of the dataset.
    with contextlib.suppress(ShardkitError, OSError):
        fingerprint = open_dataset(destination).manifest.fingerprint
        folder = storage.local_path(storage.join(work_root, fingerprint))
        for path in sorted(folder.glob("plan-*.json"))[:1]:
            plan = load_plan(str(path))
            if version_cut_off(plan) is not None:
                remove_work_folder(plan)


def show_nothing_new(console: Console, nothing: NothingNew, destination: str) -> None:
    """Prints that a dataset has all inputs already."""
    from shardkit.messages import visible
    from shardkit.storage import files as storage
    from shardkit.units import format_count

    number = nothing.num_known
    files = "the only file is" if number == 1 else f"all {format_count(number)} files are"
    version = f"version {nothing.base.version} of {storage.redact(destination)}"
    text = f"Nothing to append: {files} in {version} already"
    if number == 0:
        text = f"Nothing to append: {version} has no rows that are to be fetched again"
    console.print(visible(text), soft_wrap=True, markup=False)
    for note in nothing.notes:
        console.print(visible(f"note: {storage.redact(note)}"), soft_wrap=True, markup=False)


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)

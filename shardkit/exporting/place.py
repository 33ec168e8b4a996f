"""The folder of an export: `export.json` makes it that of a plan, and files appear in it whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardkit.errors import ConflictError
from shardkit.exporting.options import format_named
from shardkit.exporting.plan import ExportPlan, decode_plan, encode_plan, files_of
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.temporary_files import temporary_beside

PLAN_NAME = "export.json"


def claim(target: str, plan: ExportPlan, *, overwrite: bool) -> None:
    """Makes a folder that of a plan, and removes the export of another plan from it if that is wanted.

    Raises:
        ConflictError: If it holds something else.
        UnsafeError: If the folder of a split is a link.
    """
    where, place = storage.redact(target), storage.join(target, PLAN_NAME)
    names = [name for name in storage.list_names(target) if not name.startswith(".")]
    held = decode_plan(storage.read_bytes(place), where) if PLAN_NAME in names else None
    if held is None and names:
        raise ConflictError(
            "there is something already that is no export",
            where=where,
            why=f"it holds {names[0]!r}",
            state="It is untouched",
            next_step="Name another folder",
        )
    if held is not None and held != plan and not overwrite:
        raise ConflictError(
            "there is another export already",
            where=where,
            why=_difference(held, plan),
            state="It is untouched",
            next_step="Name another folder, or replace it with --overwrite",
        )
    for split in (*(held.splits if held else ()), *plan.splits):
        refuse_link(target, split.name)
    if held is not None and held != plan:
        _remove(target, held)
    if held != plan:
        storage.make_folder(target)
        storage.commit_exclusive(place, encode_plan(plan))
    for folder in (target, *(storage.join(target, split.name) for split in plan.splits)):
        storage.remove_dead_temporaries(folder)


def _difference(held: ExportPlan, plan: ExportPlan) -> str:
    if held.format != plan.format:
        return f"it is {format_named(held.format).title}, not {format_named(plan.format).title}"
    if (held.dataset, held.version) != (plan.dataset, plan.version):
        if held.dataset == plan.dataset or held.version == plan.version:
            return "it is of another dataset"
        return f"it is of version {held.version}, not {plan.version}; files of several versions do not go together"
    if held.features != plan.features:
        return "it has other columns"
    return "it has other splits, or files of other sizes"


def _remove(target: str, plan: ExportPlan) -> None:
    """Removes the files of an export, and what makes the folder its own at last: cut off, it can be done again."""
    indexes = [format_named(plan.format).index_name(split.name) for split in plan.splits]
    for name in (*filter(None, indexes), *(file.path for file in files_of(plan)), PLAN_NAME):
        storage.delete_file(storage.join(target, name))


def sizes_below(target: str) -> dict[str, int]:
    """Returns the sizes of the files below a folder, by path relative to it."""
    prefix = f"{target.rstrip('/')}/"
    return {found.path.removeprefix(prefix): found.num_bytes for found in storage.list_files(target)}


@contextmanager
def scratch_file(target: str) -> Iterator[Path]:
    """Yields the path of a new local file, beside a local target, which is removed at the end."""
    if storage.is_local(target):
        place = storage.local_path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(place) as (path, _):
            yield path
        return
    with tempfile.TemporaryDirectory(prefix="shardkit-export-") as folder:
        yield Path(folder) / "file"

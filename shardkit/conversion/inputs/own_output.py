"""A dataset is not made where its inputs are looked for, or it would be read as input the next time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from shardkit.dataset.manifest import manifest_path, shard_table_path
from shardkit.errors import UsageError
from shardkit.sources.base import SourceOptions
from shardkit.sources.file_globs import matches
from shardkit.storage import files as storage
from shardkit.storage.locations import names_path

_DATA = ("train-00000-of-00001.tfrecord.gz", "train-00000-of-00001.tfrecord", "rejected-00000.jsonl.gz")
_NEXT_STEP = "Choose a destination outside of the input folders"


def refuse_own_output(
    patterns: Sequence[str], paths: Sequence[str], root: str, destination: str, options: SourceOptions
) -> None:
    """Checks that no input lies in the destination, and that the inputs would not name what is made there.

    Args:
        patterns: The inputs as the user names them.
        paths: Those of the files that they name now whose paths begin as the destination's.
        root: The folder that names of files are relative to.
        destination: The folder of the dataset.
        options: Hold globs over those names.

    Raises:
        UsageError: If one does.
    """
    inside = [p for p in paths if p.startswith(f"{destination}/") and _is_chosen(p, root, options)]
    if inside:
        raise UsageError(
            "the destination lies among the inputs",
            where=storage.redact(inside[0]),
            why="the shards would be read as input",
            next_step=_NEXT_STEP,
        )
    if destination in paths:
        # A file is no folder, which is another error.
        return
    made = [p for p in _made_paths(_resolved(destination)) if _is_chosen(p, _resolved(root), options)]
    for pattern in patterns:
        if any(names_path(_resolved(storage.normalize(pattern)), path) for path in made):
            raise UsageError(
                "the destination lies inside of an input",
                where=storage.redact(destination),
                why=f"the next conversion of {storage.redact(pattern)} would read its shards as input",
                next_step=_NEXT_STEP,
            )


def _resolved(path: str) -> str:
    return os.path.realpath(path) if path and storage.is_local(path) else path


def _made_paths(destination: str) -> Iterator[str]:
    for name in (manifest_path(1), shard_table_path(1), *(f"data/{'0' * 32}/{name}" for name in _DATA)):
        yield storage.join(destination, name)


def _is_chosen(path: str, root: str, options: SourceOptions) -> bool:
    name = path.removeprefix(root).lstrip("/") if root else path
    is_included = not options.include or any(matches(name, glob) for glob in options.include)
    return is_included and not any(matches(name, glob) for glob in options.exclude)

"""Where the examples of a run are kept, so that epochs after the first read no store, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shardkit.dataset.block_cache import DEFAULT_CACHE_BYTES, open_cache
from shardkit.errors import UsageError
from shardkit.reading.splits import Splits
from shardkit.runtime.process_limits import free_bytes
from shardkit.storage import files as storage
from shardkit.units import format_size
from train.options.config import CacheChoice

# The rest is for the model, the batches and other processes of the host.
MAX_MEMORY_SHARE = 0.5


def keep_examples(opened: Splits, names: Sequence[str], cache: CacheChoice, num_processes: int) -> str | None:
    """Keeps splits as asked for; returns a note for the user.

    Args:
        opened: The dataset.
        cache: `disk` keeps blocks of a store in a folder of this host, `memory` all records in this process.
        num_processes: Of this host, each of which keeps its own.

    Raises:
        UsageError: If the records do not fit into memory, or the folder cannot be used.
    """
    if cache == "memory":
        wanted, free = sum(opened[name].num_framed_bytes for name in names), free_bytes()
        most = None if free is None else int(free * MAX_MEMORY_SHARE) // num_processes
        if most is not None and wanted > most:
            raise UsageError(
                f"the examples do not fit into memory: {format_size(wanted)}",
                why=f"half of what is free is {format_size(most)} for each of the processes of this host",
                next_step="Use --cache disk for a dataset in a store, or no --cache",
            )
        for name in names:
            opened[name].keep_in_memory()
        return f"{format_size(wanted)} of examples are kept in memory"
    if cache == "disk":
        if storage.is_local(opened.dataset.url):
            return "--cache disk keeps nothing: the dataset is on a disk of this host"
        folder = cache_folder()
        opened.dataset.block_cache = open_cache(folder, DEFAULT_CACHE_BYTES)
        return f"blocks are kept in {folder}, at most {format_size(DEFAULT_CACHE_BYTES)}"
    return None


def cache_folder() -> Path:
    """Returns this user's folder for files that can be fetched again."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "shardkit" / "blocks"

"""A new Dask cluster: processes on this machine that end with the conversion.

The workers load this module as they start, so it imports little.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shardkit.errors import StorageError

# Dask's profiler asks for the frames of all threads a hundred times a second, and in Python 3.11 that may lock a worker
# for good when a thread starts meanwhile (github.com/python/cpython/issues/106883). Its result is not shown.
_CONFIG: dict[str, object] = {"distributed.worker.profile.enabled": False}


@contextmanager
def dask_cluster(num_workers: int, folder: Path | None = None) -> Iterator[str]:
    """Gives the address of a cluster of so many processes with one thread each.

    Args:
        folder: For their temporary files, and for records that find no place in memory.

    Raises:
        StorageError: If they do not start.
    """
    import dask
    from distributed import LocalCluster

    # Dask gives its settings to a worker that replaces a dead one as they are at that time.
    # The folder of the scheduler, for which LocalCluster has no argument.
    own = {} if folder is None else {"temporary-directory": str(folder)}
    with dask.config.set(_CONFIG | own):
        try:
            cluster = LocalCluster(
                n_workers=num_workers,
                # What takes a process down takes one piece of work along.
                threads_per_worker=1,
                processes=True,
                # A process that is killed removes nothing; what it left is found by the next run.
                local_directory=folder and str(folder),
                env={} if folder is None else {"TMPDIR": str(folder)},
                # None would be Dask's usual port, and a second cluster of a machine warns that it is taken.
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
                preload=[__name__],
            )
        except (RuntimeError, OSError, TimeoutError) as error:
            raise StorageError(
                "the workers of Dask did not start",
                why=" ".join(str(error).split()) or type(error).__name__,
                state="Nothing was committed",
                next_step="Run the same command again, with fewer --workers if there is too little memory",
            ) from error
        try:
            yield cluster.scheduler_address
        finally:
            with suppress(Exception):
                cluster.close(timeout=5)


def dask_setup(worker: object) -> None:
    """Silences the log of a worker.

    Dask finds it by this name, and calls it in every worker that preloads this module.
    """
    if not os.environ.get("SHARDKIT_DEBUG"):
        logging.disable(logging.CRITICAL)

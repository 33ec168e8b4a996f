"""A Dask cluster of our own: processes on this machine that end with the conversion."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Dask's profiler asks for the frames of all threads a hundred times a second, and in Python 3.11 that may lock a worker
# for good when a thread starts meanwhile (github.com/python/cpython/issues/106883). Nobody sees what it finds.
_CONFIG = {"distributed.worker.profile.enabled": False}


@contextmanager
def dask_cluster(num_workers: int) -> Iterator[str]:
    """Gives the address of a cluster of so many processes with one thread each."""
    import dask
    from distributed import LocalCluster

    # Steps let go of the interpreter, but Dask's runner hands the same receivers to all threads of a process.
    with dask.config.set(_CONFIG):
        cluster = LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )
    try:
        yield cluster.scheduler_address
    finally:
        with suppress(Exception):
            cluster.close(timeout=5)

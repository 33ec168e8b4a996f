"""Beam without the clients of cloud stores and databases, which take longer to import than all the rest of it."""

from __future__ import annotations

import sys

# Beam imports them where their packages are installed. shardkit reads and writes stores by itself.
_CLIENTS = (
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.bigquery",
    "apache_beam.io.gcp.gcsfilesystem",
    "apache_beam.io.hadoopfilesystem",
)


def load_beam() -> None:
    """Imports Beam for work on this machine, unless it was imported before; its clients can be imported later."""
    if "apache_beam" in sys.modules:
        return
    for name in _CLIENTS:
        # The import system takes this for a module that is not there.
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import apache_beam  # noqa: F401
    finally:
        for name in _CLIENTS:
            del sys.modules[name]

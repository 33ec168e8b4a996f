"""Ray: a cluster of this machine that ends with the command, or a running one."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardkit.clusters.addresses import UNTOUCHED, Client, check_port, refuse_storage_options
from shardkit.errors import StorageError, UsageError

PACKAGES = ("ray",)
_ADDRESS = re.compile(r"([\w.-]+):(\d+)")
# Paths of sockets have 107 characters at most, of which Ray takes this many.
_SOCKET_CHARACTERS = 75


def find_obstacle(address: str | None, client: Client) -> UsageError | None:
    """Returns why an address cannot be used, None if it can."""
    address = address or ""
    if address.startswith("ray://"):
        return UsageError(
            f"{client.work} does not run through Ray Client",
            why=client.why_no_ray_client,
            state=UNTOUCHED,
            next_step="Run the command on a node, or hand it over with ray job submit, and name address=auto",
        )
    if address and address != "auto" and _ADDRESS.fullmatch(address) is None:
        return UsageError(
            f"{address!r} is no address of a head node of Ray",
            state=UNTOUCHED,
            next_step=f"Write it like {client.option} address=HOST:6379, or address=auto",
        )
    return None


def check_head(address: str | None, client: Client) -> None:
    """Checks that the head node of a running cluster answers.

    Raises:
        UsageError: If there are options of stores, which its workers do not get.
        StorageError: If nothing answers.
    """
    if address is None:
        return
    refuse_storage_options()
    if (found := _ADDRESS.fullmatch(address)) is not None:
        check_port("head node of Ray", address, found[1], int(found[2]), client)


def own_cluster(num_workers: int, folder: Path) -> dict[str, Any]:
    """Returns the settings of a cluster of this machine, for `begin`."""
    return {
        "address": "local",
        "num_cpus": num_workers,
        "include_dashboard": False,
        "_temp_dir": str(folder),
        "_node_ip_address": "127.0.0.1",
    }


def begin(settings: Mapping[str, Any], files: Path, client: Client) -> None:
    """Begins a session of this process with Ray.

    Args:
        settings: Of `ray.init`, at least the address.
        files: Where workers put their temporary files.

    Raises:
        StorageError: If Ray does not start, or takes no work.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    files.mkdir(parents=True, exist_ok=True)
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    # Ray puts the current folder, where anything may be, in front of all places of modules.
    with warnings.catch_warnings(), contextlib.chdir(files), _temporary_files_of_workers_in(files):
        warnings.simplefilter("ignore")
        try:
            ray.init(**settings, **quiet)
        except Exception as error:
            is_own = "_temp_dir" in settings
            raise StorageError(
                "Ray did not start" if is_own else "Ray takes no work",
                where=None if is_own else settings["address"],
                why=" ".join(str(error).split())[:500] or type(error).__name__,
                state=client.kept,
                next_step="With --debug it shows everything",
            ) from error


def short_folder() -> str:
    """Returns a folder for temporary files of which Ray can make paths of sockets."""
    folder = tempfile.gettempdir()
    return folder if len(folder) + len("/shardkit-ray-12345678/") + _SOCKET_CHARACTERS <= 107 else "/tmp"


@contextlib.contextmanager
def _temporary_files_of_workers_in(folder: Path) -> Iterator[None]:
    # Ray kills its workers, which then remove nothing; and they get the variables that are set when it starts.
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before

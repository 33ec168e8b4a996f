"""Exchange: workers without a shared disk fetch the inputs of a step into their own folder, and upload its results.

The store holds the files of the work folder under their own names. The record of a step is put last, after all
files that it names. Signs of one attempt are apart from the rest: two hosts may be at the same conversion, and a sign
for one must not stop the other.
"""

from __future__ import annotations

import atexit
import functools
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import xxhash

from shardkit.conversion.plan import Plan, plan_file, write_whole
from shardkit.errors import ShardkitError, UsageError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import own_folder
from shardkit.transforms.options import TransformOptions, split_reference

# Requests at the same time: a store answers after 20 to 100 ms, and many at once as fast as one.
_THREADS = 16
_BESIDE, _PROGRESS, _ATTEMPTS = "beside", "progress", "attempts"
# Every attempt at the same conversion makes these with the same bytes.
_SHARED = frozenset({_BESIDE, "survey", "extract", "statistics", "spool", "rejected", "shards"})
_FOLDER_PREFIX = "shardkit-worker-"

# Those of this process: the plan that each is for, and its lock.
_folders: list[tuple[str, Path, BinaryIO]] = []

_Item = TypeVar("_Item")


def exchange_folder(root: str, destination: str, fingerprint: str) -> str:
    """Returns where workers exchange the files of a conversion; those to other destinations have their own folders."""
    return storage.join(root, f"{folder_prefix(destination)}{fingerprint}")


def folder_prefix(destination: str) -> str:
    """Returns the common start of the folders of all conversions to a destination."""
    return f"{xxhash.xxh3_64_hexdigest(destination.encode())}-"


def exchange_url(plan: Plan, name: str) -> str:
    """Returns where a file or folder of the work folder is in the store."""
    assert plan.exchange is not None
    own = () if name.partition("/")[0] in _SHARED else (_ATTEMPTS, plan.created.commit_id)
    return storage.join(plan.exchange, *own, name)


def in_threads(function: Callable[[_Item], Any], items: Iterable[_Item]) -> None:
    """Calls a function for all items, several at the same time, and raises the error of the first that failed."""
    with worker_threads(_THREADS, "exchange") as pool:
        for _ in pool.map(function, items):
            pass


def fetch(plan: Plan, names: Sequence[str]) -> None:
    """Brings files into the work folder of this process; files that are here stay, missing ones are passed over.

    Raises:
        StorageError: If the store kept failing.
    """
    if plan.exchange is None:
        return
    wanted = [name for name in names if not plan.work_path(name).exists()]
    if len(wanted) == 1:
        _fetch(plan, wanted[0])
    elif wanted:
        in_threads(lambda name: _fetch(plan, name), wanted)


def fetch_folder(plan: Plan, folder: str, suffix: str = "") -> None:
    """Brings all files of a folder whose names end so. Raises StorageError if the store kept failing."""
    if plan.exchange is not None:
        names = storage.list_names(exchange_url(plan, folder))
        fetch(plan, [f"{folder}/{name}" for name in names if name.endswith(suffix)])


def upload(plan: Plan, names: Sequence[str], *, is_kept: bool = True) -> None:
    """Puts those of the files that this process has into the store, the last one when all others are there.

    Args:
        names: Relative to the work folder.

    Raises:
        StorageError: If the store kept failing.
    """
    if plan.exchange is None:
        return
    here = [name for name in names if plan.work_path(name).exists()]
    in_threads(lambda name: storage.put_file(plan.work_path(name), exchange_url(plan, name)), here[:-1])
    for name in here[-1:]:
        storage.put_file(plan.work_path(name), exchange_url(plan, name))
    if not is_kept:
        for name in here:
            plan.work_path(name).unlink(missing_ok=True)


def remove_uploaded(plan: Plan, *names: str) -> None:
    """Removes files and folders from the store. Raises StorageError if the store kept failing."""
    if plan.exchange is None:
        return
    found = [f.path for name in names for f in storage.list_files(exchange_url(plan, name))]
    in_threads(storage.delete_file, [*found, *(exchange_url(plan, name) for name in names)])


def remove_exchange(plan: Plan) -> None:
    """Removes all that was uploaded. Raises StorageError if the store kept failing."""
    if plan.exchange is not None:
        in_threads(storage.delete_file, [file.path for file in storage.list_files(plan.exchange)])
        storage.remove_folder(plan.exchange)


def set_mark(plan: Plan, name: str) -> None:
    """Makes an empty file of the work folder that all processes of the conversion see.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be made.
    """
    write_whole(plan.work_path(name), b"")
    upload(plan, [name])


def has_mark(plan: Plan, name: str) -> bool:
    """Returns whether any process made such a file."""
    return plan.work_path(name).exists() or (plan.exchange is not None and storage.exists(exchange_url(plan, name)))


def upload_progress(plan: Plan) -> None:
    """Puts the counters of this process where the command finds them, if the store takes them."""
    if plan.exchange is None:
        return
    # The figures are for display only, so an error here does not repeat work.
    with suppress(ShardkitError):
        for path in plan.work_path(_PROGRESS).glob("*.counters"):
            storage.put_file(path, exchange_url(plan, f"{_PROGRESS}/{Path(plan.work_dir).name}-{path.name}"))


def fetch_signs(plan: Plan, *names: str) -> None:
    """Brings the signs of all workers: their counters as they are now, and files that may have come.

    Raises:
        StorageError: If the store kept failing.
    """
    if plan.exchange is None:
        return
    for name in storage.list_names(exchange_url(plan, _PROGRESS)):
        _fetch(plan, f"{_PROGRESS}/{name}")
    fetch(plan, names)


def offer_plan(plan: Plan) -> str:
    """Puts the plan, stored in the work folder already, and the files that it names, and returns where the plan is.

    Raises:
        UsageError: If a file of the user's cannot be read.
        StorageError: If the store kept failing.
    """
    upload(plan, ["committed.json"])
    for name, path in _files_beside(plan.transforms.options).items():
        storage.put_file(Path(path), exchange_url(plan, f"{_BESIDE}/{name}"))
    name = plan_file(plan).name
    upload(plan, [name])
    return exchange_url(plan, name)


@functools.lru_cache(maxsize=4)
def receive_plan(url: str) -> Plan:
    """Returns a plan from the store, with a work folder for this process alone, which holds the plan's files.

    The folder goes when the process ends, or when another one begins where this one was killed.

    Raises:
        StorageError: If the store kept failing.
        OutOfSpaceError, UsageError: If the folder cannot be made.
    """
    offered = msgspec.json.decode(storage.read_bytes(url), type=Plan)
    folder = _new_folder(url)
    plan = msgspec.structs.replace(offered, work_dir=folder)
    # The recipe goes into the manifest as it is.
    options = _with_files_in(plan.transforms.options, plan.work_path(_BESIDE))
    plan = msgspec.structs.replace(plan, transforms=msgspec.structs.replace(plan.transforms, options=options))
    fetch_folder(plan, _BESIDE)
    fetch(plan, ["committed.json"])
    write_whole(plan_file(plan), msgspec.json.encode(plan))
    return plan


def check_exchange(plan: Plan) -> None:
    """Checks that workers which share no disk can do the work of a plan.

    Raises:
        UsageError: If something that they need, or make, is on this machine alone.
    """
    if plan.exchange is None:
        return
    why = f"the work folder {storage.redact(plan.exchange)} lies in a store, so workers share no disk with this machine"
    if storage.is_local(plan.destination):
        raise UsageError(
            "the destination is a folder of this machine",
            where=plan.destination,
            why=why,
            next_step="Name a destination in a store, or a --work-dir that all workers share",
        )
    labels = plan.recipe.source.labels
    if labels is not None and storage.is_local(labels):
        raise UsageError(
            "--labels names files of this machine", where=labels, why=why, next_step="Put them beside the inputs"
        )
    local = next((f.path for f in plan.files if storage.is_local(f.path)), None)
    if local is not None:
        raise UsageError(
            "an input lies on this machine",
            where=local,
            why=why,
            next_step="Copy the inputs to a store first, or name a --work-dir that all workers share",
        )


def _new_folder(url: str) -> str:
    folder, lock = own_folder(_FOLDER_PREFIX)
    if not _folders:
        atexit.register(remove_worker_folders)
    _folders.append((url, folder, lock))
    return str(folder)


def remove_worker_folders(url: str | None = None) -> None:
    """Removes the folders that `receive_plan` made in this process, for processes that end without `atexit` or live on.

    Args:
        url: Of the only plan that is over; None for all.
    """
    receive_plan.cache_clear()
    for found in [found for found in _folders if url in (None, found[0])]:
        _folders.remove(found)
        shutil.rmtree(found[1], ignore_errors=True)
        found[2].close()


def _fetch(plan: Plan, name: str) -> None:
    try:
        content = storage.read_bytes(exchange_url(plan, name))
    except FileNotFoundError:
        return
    write_whole(plan.work_path(name), content)


def _files_beside(options: TransformOptions) -> dict[str, str]:
    found = {sha256: path for _, path, sha256 in options.tokenize}
    if options.map_path is not None:
        path, _ = split_reference(options.map_path)
        # Its name is in messages, and only such files can be imported.
        found[f"{options.map_sha256}-{_plain(Path(path).name)}"] = path
    return {name: path for name, path in found.items() if storage.is_local(path)}


def _with_files_in(options: TransformOptions, folder: Path) -> TransformOptions:
    places = {path: str(folder / name) for name, path in _files_beside(options).items()}
    tokenize = tuple((column, places.get(path, path), sha256) for column, path, sha256 in options.tokenize)
    if options.map_path is None:
        return msgspec.structs.replace(options, tokenize=tokenize)
    path, function = split_reference(options.map_path)
    return msgspec.structs.replace(options, tokenize=tokenize, map_path=f"{places.get(path, path)}:{function}")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)

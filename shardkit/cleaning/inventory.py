"""What is at a dataset: its versions and what they name, all files with their ages, and which locks are held."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from shardkit.cleaning.decide import Folder, Found, Inventory, Upload, Version
from shardkit.conversion.exchange import exchange_folder, folder_prefix
from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.conversion.plan import WORK_DIR
from shardkit.conversion.shards.tfds import tfds_documents
from shardkit.dataset.append_info import statistics_file
from shardkit.dataset.commit import is_mark
from shardkit.dataset.manifest import DATA_DIR, MANIFESTS_DIR, is_indexed, manifest_path, parse_manifest_name
from shardkit.dataset.open import Dataset, give_up_command, list_versions, open_dataset
from shardkit.doctor.scratch import PREFIX
from shardkit.errors import DamageError, UnsafeError, UsageError
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.temporary_files import try_lock

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


class BrokenVersion(NamedTuple):
    """A version that cannot be read, and why."""

    version: int
    why: str


def find_broken(root: str) -> list[BrokenVersion]:
    """Returns the versions whose manifest or shard table is damaged or missing, ascending.

    Raises:
        UsageError: If there is no dataset, or a newer shardkit wrote a version.
        UnsafeError: If `manifests` is a link, or a manifest a folder.
        StorageError: If the store kept failing.
    """
    refuse_link(root, MANIFESTS_DIR)
    broken = []
    numbers = find_versions(root)
    if not numbers:
        raise _no_dataset(root)
    for number in numbers:
        try:
            _ = open_dataset(root, number).shards
        except (DamageError, UsageError) as error:
            if (found := as_broken(number, error, is_there=not _is_dropped(root, number))) is not None:
                broken.append(found)
                _refuse_folder(root, manifest_path(number))
    return broken


def _no_dataset(root: str) -> UsageError:
    return UsageError(
        "there is no dataset", where=storage.redact(root), next_step="Check the path; nothing was removed"
    )


def as_broken(number: int, error: DamageError | UsageError, *, is_there: bool) -> BrokenVersion | None:
    """Returns a version that could not be opened; None if another command has removed its manifest meanwhile. Pure.

    Raises:
        UsageError: That is why it could not be opened, if it is there and not damaged.
    """
    if is_there and isinstance(error, UsageError):
        raise error
    return BrokenVersion(number, f"{error.where}: {error.what}") if is_there else None


def take_inventory(root: str, work_root: str, exchange_root: str | None = None) -> Inventory:
    """Returns the files and versions at a dataset.

    Args:
        root: Of the dataset, normalized.
        exchange_root: Where workers that share no disk hand them over in a store, if such was named.

    Raises:
        UsageError: If there is neither a dataset nor anything that a conversion left.
        UnsafeError: If a manifest cannot be read, so that the files it names are unknown, or `data` is a link.
        StorageError: If the store kept failing.
    """
    # Files before manifests, so that the manifests name each listed file that was committed in between.
    files = _list_files(root)
    known = {file.path: file for file in files}
    found = (load_version(root, number, known.get(manifest_path(number))) for number in find_versions(root))
    versions = tuple(version for version in found if version is not None)
    work = tuple(_work_folders(root, work_root))
    rows = tuple(found_files(work_root, ROWS_FOLDER))
    live = {folder.fingerprint for folder in work if folder.is_live}
    handed = () if exchange_root is None else tuple(_exchange_folders(root, exchange_root, live))
    is_empty = all(is_mark(file.path.rpartition("/")[2]) for file in files)
    if is_empty and not versions and not work and not rows and not handed:
        raise _no_dataset(root)
    prefixes = (f"{storage.join(root, DATA_DIR)}/", f"{storage.join(root, MANIFESTS_DIR)}/")
    uploads = tuple(
        Upload(_relative(found.path, root), found.upload_id, found.started_at)
        for found in storage.list_uploads(root)
        if found.path.startswith(prefixes)
    )
    return Inventory(files=files, versions=versions, work=(*work, *handed), rows=rows, uploads=uploads)


def find_versions(root: str) -> list[int]:
    """Returns the versions that have a manifest, ascending.

    Raises:
        UnsafeError: If the listing is not what is there, or names manifests of another form.
    """
    names = storage.list_names(storage.join(root, MANIFESTS_DIR))
    odd = [n for n in names if n.endswith(".json") and not n.startswith(".") and parse_manifest_name(n) is None]
    if odd:
        raise _unsafe(root, f"{MANIFESTS_DIR}/{odd[0]}", "it is no manifest of this shardkit", "Move it away")
    versions = list_versions(root)
    behind = max(versions, default=0) + 1
    if storage.exists(storage.join(root, manifest_path(behind))):
        versions = list_versions(root)
        if behind not in versions:
            why = "the store does not list it, though it exists"
            raise _unsafe(root, manifest_path(behind), why, "Run the same command again later")
    return versions


def _refuse_folder(root: str, path: str) -> None:
    place = storage.join(root, path)
    if storage.is_local(root) and storage.local_path(place).is_dir():
        raise UnsafeError(
            "a folder is in place of a manifest",
            where=place,
            why="shardkit makes none there, so what it holds is not its own",
            state="Nothing was removed",
            next_step="Move it away",
        )


def _is_dropped(root: str, number: int) -> bool:
    """Whether the manifest of a version that was there is gone."""
    return number not in list_versions(root, number)


def load_version(root: str, number: int, file: Found | None) -> Version | None:
    """Returns a version and everything that it names, None if another cleaning has dropped it meanwhile.

    Raises:
        UnsafeError: If its manifest or shard table cannot be read.
    """
    try:
        dataset = open_dataset(root, number)
        names = frozenset(_names_of(dataset))
    except (DamageError, UsageError, UnsafeError) as error:
        if _is_dropped(root, number):
            return None
        step = error.next_step or "Move its manifest away if the version is given up"
        if isinstance(error, DamageError):
            step = f"Make that version whole again, or give it up: {give_up_command(root)}"
        why = error.what if error.why is None else f"{error.what}: {error.why}"
        raise _unsafe(root, manifest_path(number), why, step) from error
    return Version(
        version=number,
        names=names,
        modified_at=None if file is None else file.modified_at,
        is_indexed=is_indexed(dataset.manifest),
    )


def list_folder(root: str, folder: str) -> tuple[Found, ...]:
    """Returns the files below a folder of the dataset, as they are now.

    Raises:
        UnsafeError: If the folder is a link: what is behind it may be of another dataset.
    """
    found = found_files(root, folder)
    return tuple(msgspec.structs.replace(file, path=_relative(file.path, root)) for file in found)


@contextmanager
def held(work_root: str, fingerprint: str) -> Iterator[bool]:
    """Holds the lock of a conversion, so that it does not begin meanwhile; yields whether no other process holds it."""
    folder = Path(work_root, fingerprint)
    with storage.translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def _names_of(dataset: Dataset) -> Iterator[str]:
    manifest = dataset.manifest
    yield manifest.shard_table.path
    for shard in dataset.shards:
        yield shard.path
        yield f"{shard.path}.idx"
    for rejected in manifest.accounting.rejected_files:
        yield rejected.path
    if (counted := statistics_file(manifest)) is not None:
        yield counted.path
    for name in tfds_documents(manifest.name, manifest.features, dataset.shards):
        yield f"{DATA_DIR}/{manifest.fingerprint}/{name}"


def _list_files(root: str) -> tuple[Found, ...]:
    folders = [DATA_DIR, MANIFESTS_DIR, *(name for name in storage.list_names(root) if name.startswith(PREFIX))]
    return tuple(file for folder in folders for file in list_folder(root, folder))


def _work_folders(dataset: str, work_root: str) -> Iterator[Folder]:
    root = Path(work_root)
    if work_root == storage.join(dataset, WORK_DIR):
        refuse_link(dataset, WORK_DIR)
    for path in _entries(root):
        if _FINGERPRINT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            files = tuple(found_files(work_root, path.name))
            yield Folder(path=str(path), fingerprint=path.name, files=files, is_live=_is_held(path / "lock"))


def _exchange_folders(root: str, exchange_root: str, live: Set[str]) -> Iterator[Folder]:
    prefix = folder_prefix(root)
    for name in storage.list_names(exchange_root):
        fingerprint = name.removeprefix(prefix)
        if name.startswith(prefix) and _FINGERPRINT.fullmatch(fingerprint):
            files = tuple(found_files(exchange_root, name))
            folder = exchange_folder(exchange_root, root, fingerprint)
            yield Folder(path=folder, fingerprint=fingerprint, files=files, is_live=fingerprint in live)


def found_files(root: str, folder: str) -> Iterator[Found]:
    """Yields the files below a folder of another one, by their whole paths.

    Raises:
        UnsafeError: If the folder is a link: what is behind it may be of another dataset.
    """
    refuse_link(root, folder)
    for file in storage.list_files(storage.join(root, folder)):
        yield Found(path=file.path, num_bytes=file.num_bytes, modified_at=file.modified_at)


def is_any_held(work_root: str) -> bool:
    """Whether a process of this host holds the lock of some conversion of the dataset."""
    return any(_is_held(path / "lock") for path in _entries(Path(work_root)))


def _entries(folder: Path) -> list[Path]:
    """Returns the paths in a folder; none if a conversion that ended has removed it."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_held(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not try_lock(handle)
    finally:
        os.close(handle)


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root.rstrip("/") + "/")


def _unsafe(root: str, path: str, why: str, next_step: str) -> UnsafeError:
    return UnsafeError(
        "it is unknown which files are needed",
        where=storage.redact(storage.join(root, path)),
        why=why,
        state="Nothing was removed",
        next_step=next_step,
    )

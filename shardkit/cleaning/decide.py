"""Which files of a dataset may go: those that no manifest names, no live conversion owns, and that are old. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from itertools import pairwise, takewhile
from typing import NamedTuple

import msgspec

from shardkit.dataset.commit import counts, is_mark, is_shard_table
from shardkit.dataset.manifest import DATA_DIR, MANIFESTS_DIR, manifest_path, parse_manifest_name
from shardkit.doctor.scratch import PREFIX

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
# Names of files that conversions write. Other files in their folders are not removed.
_OWN = re.compile(
    r".+-\d{5,}-of-\d{5,}\.tfrecord(\.gz)?(\.idx)?|rejected-\d{5,}\.jsonl\.gz|dataset_info\.json|features\.json"
    r"|.+\.labels\.txt|statistics-[0-9a-f]{16}\.zst"
)

UNFINISHED = "data of conversions that were never committed"
ORPHANS = "files beside committed data that no manifest names"
OLD_DATA = "data of old versions"
OLD_VERSIONS = "manifests of old versions"
TABLES = "shard tables that no manifest names"
TEMPORARY = "temporary files of writers that died"
WORK = "intermediate files of conversions that died"
HANDED_OVER = "files that workers of such conversions handed over"
ROWS = "rows of servers or programs that such conversions hold"
UPLOADS = "unfinished uploads"
DOCTOR = "files of a killed shardkit doctor"

LIVE, YOUNG, FOREIGN, AGELESS = "of a live conversion", "too young", "not of shardkit", "of unknown age"


class Found(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A file that is there.

    Attributes:
        path: Relative to the dataset; absolute for local intermediate files.
        modified_at: When it was written, in seconds since 1970; None if the store does not tell.
    """

    path: str
    num_bytes: int
    modified_at: float | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the dataset.

    Attributes:
        names: Relative paths of everything that it takes, but for its own manifest.
        is_indexed: Whether it is of files that others wrote, which are never removed.
    """

    version: int
    names: frozenset[str]
    modified_at: float | None
    is_indexed: bool = False


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of intermediate files on this host, or of those that workers handed over in a store.

    Attributes:
        path: Absolute, or a URL.
    """

    path: str
    fingerprint: str
    files: tuple[Found, ...]
    is_live: bool


class Upload(NamedTuple):
    """An upload without an end: its path relative to the dataset, its name in the store, when it began."""

    path: str
    upload_id: str
    started_at: float


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What is at a dataset.

    Attributes:
        files: Below `data/`, `manifests/` and the folders of doctors.
        versions: Ascending.
        rows: Files with rows of servers on this host.
        uploads: That the store keeps parts of.
    """

    files: tuple[Found, ...]
    versions: tuple[Version, ...]
    work: tuple[Folder, ...] = ()
    rows: tuple[Found, ...] = ()
    uploads: tuple[Upload, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Files that go together, or stay.

    Attributes:
        folder: The folder that holds them, as its paths begin.
        files: Sorted by path.
        fingerprint: Of the conversion whose lock is held meanwhile; None if there is none.
        version: Of the manifest that goes; None if none does.
        upload: What is aborted.
    """

    kind: str
    folder: str
    files: tuple[Found, ...]
    fingerprint: str | None = None
    version: int | None = None
    upload: Upload | None = None


class CleanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes and what stays.

    Attributes:
        groups: In the order in which they go: no manifest ever names what is gone already.
        kept: Number of files and bytes by reason.
    """

    groups: tuple[Group, ...]
    kept: dict[str, tuple[int, int]]


def plan_cleaning(
    inventory: Inventory, *, now: float, older_than_s: float, keep_versions: int | None = None
) -> CleanPlan:
    """Returns the files that may go.

    Files of one conversion go together, when the youngest of them is old enough: a conversion that still writes there
    may need the older ones. The age of a version counts from the next version: until then it was the newest.

    Args:
        now: When the mark of this cleaning was put, in seconds since 1970.
        older_than_s: Age from which on files may go.
        keep_versions: How many versions stay; None for all.
    """
    return _Planner(inventory, now, older_than_s, keep_versions).plan()


def commits_near(files: Iterable[Found], named: Set[str], now: float) -> bool:
    """Whether one of the files in `manifests/` is the table of a conversion that may be about to commit."""
    unnamed = (file for file in files if file.path not in named and is_shard_table(_name_of(file.path)))
    return any(counts(file.modified_at, now) for file in unnamed)


def has_changed(group: Group, before: Mapping[str, Found], now: Iterable[Found], names: Set[str]) -> bool:
    """Whether a group has to stay, as files came or changed that it holds, or that are in its folder of data.

    Args:
        group: Of shard tables, or of the data of one conversion.
        before: What lay there when it was decided that the group goes, by path.
        names: What versions take by now.
    """
    if group.folder == MANIFESTS_DIR:
        # A manifest that names the table may have come since, or is about to: a conversion that waited for a
        # cleaning puts its table again, under the same name.
        found = {file.path: file for file in now}
        return any(file.path in names or found.get(file.path, file) != file for file in group.files)
    return any(before.get(file.path) != file for file in now if file.path not in names)


def names_after(inventory: Inventory, dropped: Iterable[int]) -> frozenset[str]:
    """Returns everything that the versions take which stay, and the files of others that any version takes."""
    gone = set(dropped)
    names: set[str] = set()
    for version in inventory.versions:
        if version.version not in gone:
            names |= version.names
        elif version.is_indexed:
            names |= {name for name in version.names if not name.startswith(f"{MANIFESTS_DIR}/")}
    return frozenset(names)


class _Planner:
    def __init__(self, inventory: Inventory, now: float, older_than_s: float, keep_versions: int | None) -> None:
        self._inventory = inventory
        self._now = now
        self._limit = now - older_than_s
        self._files = {file.path: file for file in inventory.files}
        self._kept: Counter[str] = Counter()
        self._kept_bytes: Counter[str] = Counter()
        self._dropped = self._versions_to_drop(keep_versions)
        older = () if keep_versions is None else inventory.versions[: max(0, len(inventory.versions) - keep_versions)]
        self._recent = {version.version for version in older} - set(self._dropped)
        self._named = names_after(inventory, self._dropped)
        self._foreign = {_folder_of(name) for v in inventory.versions if v.is_indexed for name in v.names}
        self._live = {folder.fingerprint for folder in inventory.work if folder.is_live}
        beside = [file for file in inventory.files if _folder_of(file.path) == MANIFESTS_DIR]
        self._is_commit_near = commits_near(beside, names_after(inventory, ()), now)

    def plan(self) -> CleanPlan:
        by_folder: dict[str, list[Found]] = {}
        for file in sorted(self._inventory.files):
            by_folder.setdefault(_folder_of(file.path), []).append(file)
        groups = [*self._manifests()]
        for folder, files in by_folder.items():
            if folder.startswith(f"{DATA_DIR}/"):
                groups += self._data(folder, files)
            elif folder == MANIFESTS_DIR:
                groups += self._beside_manifests(files)
            elif folder.startswith(PREFIX):
                groups += self._whole(DOCTOR, folder, files)
            else:
                for file in files:
                    self._keep(file, FOREIGN)
        for work in self._inventory.work:
            groups += self._work(work)
        for file in self._inventory.rows:
            groups += self._whole(ROWS, file.path.rpartition("/")[0], [file])
        for upload in self._inventory.uploads:
            groups += self._upload(upload)
        kept = {reason: (number, self._kept_bytes[reason]) for reason, number in self._kept.items()}
        return CleanPlan(groups=tuple(groups), kept=kept)

    def _versions_to_drop(self, keep_versions: int | None) -> tuple[int, ...]:
        versions = self._inventory.versions
        if keep_versions is None or len(versions) <= keep_versions:
            return ()
        pairs = list(pairwise(versions))[: len(versions) - keep_versions]
        old = takewhile(lambda pair: self._is_old(pair[1].modified_at), pairs)
        return tuple(version.version for version, _ in old)

    def _manifests(self) -> Iterable[Group]:
        for number in self._dropped:
            path = manifest_path(number)
            yield Group(kind=OLD_VERSIONS, folder=MANIFESTS_DIR, files=(self._files[path],), version=number)

    def _data(self, folder: str, files: list[Found]) -> Iterable[Group]:
        fingerprint = folder.partition("/")[2]
        dropped = frozenset().union(*(v.names for v in self._inventory.versions if v.version in self._dropped))
        is_committed = any(file.path in self._named for file in files)
        candidates = []
        for file in files:
            if file.path in self._named:
                self._keep(file, self._named_by(file.path))
            elif folder in self._foreign or not _FINGERPRINT.fullmatch(fingerprint) or not _is_own(file.path):
                self._keep(file, FOREIGN)
            else:
                candidates.append(file)
        is_live = self._is_commit_near or fingerprint in self._live
        reason = LIVE if is_live else self._reason_to_keep(candidates)
        if reason is not None:
            for file in candidates:
                self._keep(file, reason)
            return
        kinds: dict[str, list[Found]] = {}
        for file in candidates:
            kind = OLD_DATA if file.path in dropped else ORPHANS if is_committed else UNFINISHED
            kinds.setdefault(TEMPORARY if _is_temporary(file.path) else kind, []).append(file)
        for kind, own in sorted(kinds.items()):
            yield Group(kind=kind, folder=folder, files=tuple(own), fingerprint=fingerprint)

    def _beside_manifests(self, files: list[Found]) -> Iterable[Group]:
        manifests = {v.version for v in self._inventory.versions}
        dropped = frozenset().union(*(v.names for v in self._inventory.versions if v.version in self._dropped))
        for file in files:
            name = _name_of(file.path)
            number = parse_manifest_name(name)
            if number in manifests:
                if number not in self._dropped:
                    self._keep(file, self._named_as(number))
            elif file.path in self._named:
                self._keep(file, self._named_by(file.path))
            elif is_mark(name) and counts(file.modified_at, self._now):
                continue  # This cleaning, or another one.
            elif file.path not in dropped and self._may_be_needed(file):
                self._keep(file, LIVE)
            elif is_shard_table(name):
                kind = OLD_DATA if file.path in dropped else TABLES
                yield from self._whole(kind, MANIFESTS_DIR, [file])
            elif _is_temporary(file.path) or is_mark(name):
                yield from self._whole(TEMPORARY, MANIFESTS_DIR, [file])
            else:
                self._keep(file, FOREIGN)

    def _may_be_needed(self, file: Found) -> bool:
        """Whether a conversion may be about to commit a manifest that names the file, or by way of it."""
        if is_shard_table(_name_of(file.path)):
            return bool(self._live) or counts(file.modified_at, self._now)
        return bool(self._live) and _is_temporary(file.path)

    def _work(self, work: Folder) -> Iterable[Group]:
        if work.is_live:
            for file in work.files:
                self._keep(file, LIVE)
            return
        kind = HANDED_OVER if "://" in work.path else WORK
        yield from self._whole(kind, work.path, list(work.files), work.fingerprint)

    def _whole(self, kind: str, folder: str, files: list[Found], fingerprint: str | None = None) -> Iterable[Group]:
        reason = self._reason_to_keep(files)
        if reason is None:
            yield Group(kind=kind, folder=folder, files=tuple(files), fingerprint=fingerprint)
            return
        for file in files:
            self._keep(file, reason)

    def _upload(self, upload: Upload) -> Iterable[Group]:
        folder = _folder_of(upload.path)
        fingerprint = folder.partition("/")[2] or None
        file = Found(path=upload.path, num_bytes=0, modified_at=upload.started_at)
        if fingerprint in self._live:
            self._keep(file, LIVE)
        elif upload.started_at <= self._limit:
            yield Group(kind=UPLOADS, folder=folder, files=(file,), fingerprint=fingerprint, upload=upload)

    def _reason_to_keep(self, files: list[Found]) -> str | None:
        if any(file.modified_at is None for file in files):
            return AGELESS
        return None if all(self._is_old(file.modified_at) for file in files) else YOUNG

    def _is_old(self, modified_at: float | None) -> bool:
        return modified_at is not None and modified_at <= self._limit

    def _named_by(self, path: str) -> str:
        naming = [v.version for v in self._inventory.versions if path in v.names and v.version not in self._dropped]
        return self._named_as(max(naming)) if naming else FOREIGN

    def _named_as(self, version: int) -> str:
        return f"named by version {version}" + (", replaced too recently" if version in self._recent else "")

    def _keep(self, file: Found, reason: str) -> None:
        self._kept[reason] += 1
        self._kept_bytes[reason] += file.num_bytes


def totals(groups: Iterable[Group]) -> Mapping[str, tuple[int, int, float, float]]:
    """Returns files, bytes, and when the oldest and the youngest were written, by kind."""
    found: dict[str, tuple[int, int, float, float]] = {}
    for group in groups:
        for file in group.files:
            at = file.modified_at or 0.0
            number, size, oldest, youngest = found.get(group.kind, (0, 0, at, at))
            found[group.kind] = (number + 1, size + file.num_bytes, min(oldest, at), max(youngest, at))
    return found


def _folder_of(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == DATA_DIR and len(parts) > 2 else parts[0]


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _is_temporary(path: str) -> bool:
    return _TEMPORARY.fullmatch(_name_of(path)) is not None


def _is_own(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 3 and (_is_temporary(path) or _OWN.fullmatch(parts[2]) is not None)

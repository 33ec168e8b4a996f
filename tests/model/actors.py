"""The actors of the model: conversions, appends, cleanings and readers of different hosts.

The functions of shardkit that decide in a real one decide here. A planted bug changes one step.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from shardkit.cleaning.decide import Found, Group, Inventory, Version, commits_near, names_after, plan_cleaning
from shardkit.dataset.commit import is_shard_table, marks_that_count
from shardkit.dataset.manifest import parse_manifest_name
from tests.model.explore import JUMP_S, START_S, Request

Steps = Generator[Request, Any, str]


class Content(NamedTuple):
    """What a manifest holds."""

    writer: str
    table: str
    names: frozenset[str]
    base: int
    is_append: bool


def manifest(version: int) -> str:
    return f"manifests/{version:08d}.json"


def table(version: int, writer: str) -> str:
    return f"manifests/{version:08d}-{writer * 16}.shards.parquet"


def shards(fingerprint: str, number: int = 1) -> tuple[str, ...]:
    return tuple(f"data/{fingerprint * 32}/train-0000{i}-of-0000{number}.tfrecord.gz" for i in range(number))


def versions_in(listing: tuple[tuple[str, float], ...]) -> list[int]:
    numbers = (parse_manifest_name(path.rpartition("/")[2]) for path, _ in listing)
    return sorted(number for number in numbers if number is not None)


def convert(
    writer: str, fingerprint: str, *, is_append: bool = False, overwrites: bool = False, number: int = 1, bug: str = ""
) -> Steps:
    """A conversion, by `shardkit.dataset.commit.commit_version` and `shardkit.conversion.commit`.

    An append goes behind the newest version if appends alone made those behind its base.
    """
    own = shards(fingerprint, number)
    planned = max(versions_in((yield "list", "manifests/")), default=0)
    if bool(planned) != (is_append or overwrites):
        return "there is a dataset, or none to append to"
    for path in own:
        yield from _put_data(path, bug)
    for _ in range(2):
        base, names = yield from _base(planned, is_append, bug)
        if base is None:
            return "the dataset changed"
        content = _content(writer, base, names | set(own), is_append, bug)
        if bug == "manifest before table":
            yield "create", manifest(base + 1), content
        put_at = yield from _put_table(content.table, bug)
        if bug != "no look at the files":
            found = yield "list", f"data/{fingerprint * 32}/"
            if (yield "read", content.table) is None or {path for path, _ in found} < set(own):
                return "a file is gone"
        done = yield _commit(base + 1, content, put_at, bug)
        if done == "late":
            return "it took too long"
        if done or bug in ("taken is success", "overwrites"):
            return f"version {base + 1}"
        if not is_append:
            return "another was faster"
    return "others were faster each time"


def _put_data(path: str, bug: str) -> Steps:
    """Puts a file of data; what a dead conversion left is kept, however old it is."""
    if bug == "data put again":
        yield "delete", path
    if (yield "read", path) is None:
        yield "put", path, path
    return path


def _base(planned: int, is_append: bool, bug: str) -> Generator[Request, Any, tuple[int | None, frozenset[str]]]:
    """Returns the version to go behind, None if that may not be, and what of it the next version takes."""
    newest = max(versions_in((yield "list", "manifests/")), default=0)
    if not is_append:
        return newest, frozenset()
    version = planned if bug == "rebase with the old rows" else newest
    names: frozenset[str] | None = None
    while version >= planned:
        content = yield "read", manifest(version)
        if content is None or (version > planned and not content.is_append):
            return None, frozenset()
        if names is None and (yield "read", content.table) is None:
            return None, frozenset()  # What cannot be read is not appended to.
        names = content.names - {content.table} if names is None else names
        version = content.base if version > planned else 0
    return newest, frozenset(names or ())


def _content(writer: str, base: int, names: frozenset[str], is_append: bool, bug: str) -> Content:
    path = table(base + 1, "0" if bug == "tables of one name" else writer)
    return Content(writer, path, names | {path}, base, is_append)


def _put_table(path: str, bug: str) -> Generator[Request, Any, float]:
    """Puts a table when no cleaning is at work, and returns when that was."""
    while True:
        put_at = yield ("time",)
        # A table of another attempt with the same contents was taken over with its age.
        if bug != "tables of one name" or (yield "read", path) is None:
            yield "create", path, "table"
        times = {p.rpartition("/")[2]: at for p, at in (yield "list", "manifests/")}
        marks = marks_that_count(times, path.rpartition("/")[2])
        if not marks or bug in ("no look for marks", "tables of one name"):
            return float(put_at)
        yield "delete", path
        yield "wait", tuple(sorted(f"manifests/{name}" for name in marks))


def _commit(version: int, content: Content, put_at: float, bug: str) -> Request:
    if bug == "overwrites":
        return "put", manifest(version), content
    request = ("create what is not there" if bug == "own is taken" else "create", manifest(version), content)
    return request if bug == "no look at the clock" else ("if young", put_at, request)


def clean(*, keep_versions: int | None = None, older_than_s: float = 0.0, second: bool = False, bug: str = "") -> Steps:
    """A cleaning of all that no version names, however young unless told, by `shardkit.cleaning`."""
    number = 10**15 * second
    mark = f"manifests/.cleaning-{number:016d}"
    put_at = now = yield ("time",)
    if bug not in ("no mark", "tables of one name"):
        yield "create", mark, number
    files = yield from _files()
    # Ages are by the clock of the store, which the mark tells.
    is_by_own_clock = bug in ("age by the own clock", "no mark", "tables of one name")
    now = now if is_by_own_clock else next((f.modified_at or now for f in files if f.path == mark), now)
    loaded = yield from _versions()
    groups, names, ever = _plan(files, loaded, now, keep_versions, older_than_s, bug)
    known, at = {v.version for v in loaded}, {f.path: f for f in files}
    for group in groups:
        if group.version is not None:
            yield "delete", group.files[0].path
            continue
        for file in group.files:
            passed = yield ("time",)
            if passed != put_at and bug not in ("mark not renewed", "no mark", "tables of one name"):
                number += 1
                yield "create", f"manifests/.cleaning-{number:016d}", number
                yield "delete", mark
                mark, put_at = f"manifests/.cleaning-{number:016d}", passed
                now = passed if is_by_own_clock else (yield "written", mark) or passed
            if bug != "no second look":
                for found in (yield from _versions()):
                    if found.version not in known:
                        known |= {found.version}
                        names, ever = names | found.names | {manifest(found.version)}, ever | found.names
                if (yield from _has_changed(group, at, names, ever, now, bug)):
                    break
            if file.path not in names:
                request = ("delete", file.path)
                is_guarded = bug not in ("mark not renewed", "no mark", "tables of one name")
                if (yield ("if young", put_at, request) if is_guarded else request) == "late":
                    break
                del at[file.path]
    yield "delete", mark
    return "cleaned"


def drop_broken(*, second: bool = False, bug: str = "") -> Steps:
    """`clean --drop-broken-version`, by `shardkit.cleaning.remove`: removes manifests whose table is gone."""
    mark = f"manifests/.cleaning-{10**15 * second:016d}"
    broken = (yield from _broken()) if bug in ("dropped without a mark", "dropped by an old look") else None
    put_at = yield ("time",)
    if bug != "dropped without a mark":
        yield "create", mark, second
    for version in (yield from _broken()) if broken is None else broken:
        dropped = [version]
        if bug == "dropped with the newer ones":
            dropped = [n for n in versions_in((yield "list", "manifests/")) if n >= version]
        for number in dropped:
            request = ("delete", manifest(number))
            is_guarded = bug not in ("dropped without a mark", "dropped when it is late")
            yield ("if young", put_at, request) if is_guarded else request
    yield "delete", mark
    return "dropped"


def _broken() -> Generator[Request, Any, tuple[int, ...]]:
    broken = []
    for number in versions_in((yield "list", "manifests/")):
        content = yield "read", manifest(number)
        if content is not None and (yield "read", content.table) is None:
            broken.append(number)
    return tuple(broken)


def read(*, kept_for_s: float, version: int | None = None, bug: str = "") -> Steps:
    """A reader, by `shardkit.dataset.open`: a version, the newest if none is named, its table, and its data.

    A version that is named was opened before. The reader may read it for as long as `clean` keeps what was replaced.
    Planted bugs are those of the others.
    """
    del bug
    opened_at = START_S if version else (yield ("time",))
    opened = version or max(versions_in((yield "list", "manifests/")), default=0)
    content = yield "read", manifest(opened)
    for path in (manifest(opened),) if content is None else (content.table, *sorted(content.names - {content.table})):
        if (yield "read", path) is None:
            now = yield ("time",)
            return "it read for too long" if now - opened_at >= kept_for_s else f"lost {path}"
    return "read"


def _has_changed(
    group: Group, at: dict[str, Found], names: frozenset[str], ever: frozenset[str], now: float, bug: str
) -> Generator[Request, Any, bool]:
    beside = yield from _files("manifests/")
    if not group.folder.startswith("data/"):
        there = () if bug == "a table put again" else beside
        changed = {file.path for file in there if at.get(file.path) != file}
        return any(file.path in names or file.path in changed for file in group.files)
    if commits_near(beside, ever, now) and bug not in ("no look for tables", "tables of one name"):
        return True
    there = yield from _files(f"{group.folder}/")
    return any(at.get(file.path) != file for file in there if file.path not in names)


@lru_cache(1000)
def _plan(
    files: tuple[Found, ...],
    versions: tuple[Version, ...],
    now: float,
    keep_versions: int | None,
    older_than_s: float,
    bug: str,
) -> tuple[tuple[Group, ...], frozenset[str], frozenset[str]]:
    """Returns the groups that go, what the versions that stay take, and what all take."""
    inventory = Inventory(files=files, versions=versions)
    # The rules for young tables did not exist before each had its own name.
    moment = now + 10 * JUMP_S if bug == "tables of one name" else now
    looked_at = inventory
    if bug == "no look for tables":
        tables = [file for file in files if is_shard_table(file.path.rpartition("/")[2])]
        looked_at = Inventory(files=tuple(file for file in files if file not in tables), versions=versions)
    if bug == "age of the own manifest":
        ages = [versions[0].modified_at, *(version.modified_at for version in versions)] if versions else []
        moved = (msgspec.structs.replace(v, modified_at=at) for v, at in zip(versions, ages, strict=False))
        looked_at = Inventory(files=files, versions=tuple(moved))
    age_s = 0.0 if bug == "versions of any age" else older_than_s
    plan = plan_cleaning(looked_at, now=moment, older_than_s=age_s, keep_versions=keep_versions)
    dropped = [group.version for group in plan.groups if group.version is not None]
    groups = plan.groups
    if bug == "data before manifests":
        groups = tuple(sorted(groups, key=lambda group: group.version is not None))
    return groups, names_after(inventory, dropped), names_after(inventory, ())


def _files(prefix: str = "") -> Generator[Request, Any, tuple[Found, ...]]:
    folders = (prefix,) if prefix else ("data/", "manifests/")
    found: list[Found] = []
    for folder in folders:
        found += [Found(path=path, num_bytes=1, modified_at=at) for path, at in (yield "list", folder)]
    return tuple(found)


def _versions() -> Generator[Request, Any, tuple[Version, ...]]:
    loaded = []
    listing = yield "list", "manifests/"
    times = dict(listing)
    for number in versions_in(listing):
        content = yield "read", manifest(number)
        if content is not None:
            loaded.append(Version(version=number, names=content.names, modified_at=times[manifest(number)]))
    return tuple(loaded)

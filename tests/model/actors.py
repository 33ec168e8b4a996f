"""The actors of the model: conversions, appends, cleanings and readers of different hosts.

The functions of shardkit that decide in a real one decide here, called by way of their modules, so that one with a
fault can take their place. A planted bug of a step changes that step.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from shardkit.cleaning import decide, inventory
from shardkit.cleaning.decide import Found, Group, Inventory, Version
from shardkit.conversion.commit import rebase
from shardkit.conversion.commit.rebase import Append
from shardkit.conversion.inputs import append_check
from shardkit.conversion.plan import BaseVersion
from shardkit.dataset import commit
from shardkit.dataset.append_info import AppendedTo
from shardkit.dataset.documents import Accounting, InputInfo
from shardkit.dataset.manifest import Created, InputRoot, Manifest, ShardTableInfo, parse_manifest_name
from shardkit.errors import DamageError
from shardkit.sources.base import RawFile
from tests.model.explore import JUMP_S, START_S, Request

Steps = Generator[Request, Any, str]
CHANGED, UNREADABLE, DROPPED = "the dataset changed", "the newest version cannot be read", "dropped"
NOTHING_NEW = "nothing to append"
_ROOT = "/in"


class Content(NamedTuple):
    """What a manifest holds. Of an append, `before` is the fingerprint of its base, and `planned` its first base."""

    writer: str
    table: str
    names: frozenset[str]
    base: int
    is_append: bool
    inputs: tuple[str, ...] = ()
    before: str = ""
    planned: int = 0

    @property
    def fingerprint(self) -> str:
        """Of the version."""
        return self.before + self.writer


@lru_cache(1000)
def manifest_of(content: Content) -> Manifest:
    """Returns a real manifest of a content, with all that decides about appends."""
    inputs = tuple(InputInfo(name=n, num_bytes=ord(n[0]), num_rows=1, num_examples=1) for n in content.inputs)
    link = AppendedTo(version=content.base, fingerprint=content.before, num_inputs=len(inputs) - 1)
    return Manifest(
        format_version=1,
        name="set",
        fingerprint=content.fingerprint,
        created=Created(
            at="2025-01-02T03:04:05Z", commit_id=content.writer, inputs=(_ROOT,), tool_versions={},
            roots=(InputRoot(path=_ROOT, num_inputs=len(inputs)),),
        ),
        recipe={},
        compression="gzip",
        features=(),
        splits=(),
        accounting=Accounting(num_rows=len(inputs), num_examples=len(inputs), inputs=inputs),
        shard_table=ShardTableInfo(path=content.table, num_rows=1, sha256=""),
        extensions={"appended_to": msgspec.to_builtins(link)} if content.is_append else {},
    )  # fmt: skip


class Own(NamedTuple):
    """What a conversion brings: who it is, its files in the store, its input, and how it goes behind what is there."""

    writer: str
    shards: tuple[str, ...]
    source: str
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


def convert(writer: str, fingerprint: str, *, how: str = "", source: str = "", number: int = 1, bug: str = "") -> Steps:
    """A conversion, by `shardkit.dataset.commit.commit_version` and `shardkit.conversion.commit`.

    Args:
        how: `append`, `overwrite`, or nothing.

    An append goes behind the newest version if appends alone made those behind its base.
    """
    is_append = how == "append"
    own = Own(writer, shards(fingerprint, number), source or f"{writer}.csv", is_append)
    planned = max(versions_in((yield "list", "manifests/")), default=0)
    if bool(planned) != bool(how):
        return "there is a dataset, or none to append to"
    before = (yield from _base(own, planned)) if is_append else None
    if isinstance(before, str):
        return before
    for path in own.shards:
        yield from _put_data(path, bug)
    for _ in range(2):
        content = yield from _content(own, planned, before, bug)
        if isinstance(content, str):
            return content
        base = content.base
        if bug == "manifest before table":
            yield "create", manifest(base + 1), content
        put_at = yield from _put_table(content.table, bug)
        if bug != "no look at the files":
            found = yield "list", f"data/{fingerprint * 32}/"
            if (yield "read", content.table) is None or _is_any_gone(own.shards, found):
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


def _input(own: Own) -> RawFile:
    return RawFile(path=f"{_ROOT}/{own.source}", name=own.source, num_bytes=ord(own.source[0]), version="1")


def _is_any_gone(own: tuple[str, ...], listing: tuple[tuple[str, float], ...]) -> bool:
    return bool(commit.lacking(dict.fromkeys(own, 1), {path: 1 for path, _ in listing}))


def _open(version: int) -> Generator[Request, Any, Content | None]:
    """Returns what a version holds, None if it cannot be read."""
    content = yield "read", manifest(version)
    return None if content is None or (yield "read", content.table) is None else content


def _base(own: Own, planned: int) -> Generator[Request, Any, Content | str]:
    """Returns the version that an append is planned behind, or why there is none."""
    before = yield from _open(planned)
    if before is None:
        return UNREADABLE
    is_known = append_check.first_known(manifest_of(before), (_input(own),), _ROOT) is not None
    return NOTHING_NEW if is_known else before


def _content(own: Own, planned: int, before: Content | None, bug: str) -> Generator[Request, Any, Content | str]:
    """Returns what the next version holds, or why it may not be."""
    versions = versions_in((yield "list", "manifests/"))
    newest = max(versions, default=0)
    if before is None:
        path = table(newest + 1, "0" if bug == "tables of one name" else own.writer)
        return Content(own.writer, path, frozenset((*own.shards, path)), newest, is_append=False, inputs=(own.source,))
    loaded: dict[int, Content | None] = {}
    while (found := _why_not_behind(own, planned, before, tuple(versions), tuple(loaded.items()))) is not None:
        if isinstance(found, str):
            return f"{CHANGED}: {found}"
        loaded[found] = yield "read", manifest(found)
    base = yield from _open(planned if bug == "rebase with the old rows" else newest)
    if base is None:
        return UNREADABLE
    path = table(newest + 1, "0" if bug == "tables of one name" else own.writer)
    names = (base.names - {base.table}) | {*own.shards, path}
    inputs = (*base.inputs, own.source)
    return Content(own.writer, path, names, newest, True, inputs, base.fingerprint, planned)


@lru_cache(10_000)
def _why_not_behind(
    own: Own, planned: int, before: Content, versions: tuple[int, ...], loaded: tuple[tuple[int, Content | None], ...]
) -> str | int | None:
    """Returns why an append may not go behind the newest version, or the version that has to be read to tell."""

    def load(version: int) -> Manifest:
        if version not in dict(loaded):
            raise _Unread(version)
        if (content := dict(loaded)[version]) is None:
            raise DamageError("the manifest is missing")
        return manifest_of(content)

    append = Append(BaseVersion(version=planned, fingerprint=before.fingerprint), (), (_input(own),), _ROOT)
    behind = [version for version in versions if version >= planned]
    try:
        return rebase.why_not_behind(append, behind, load, rebases=True)
    except _Unread as unread:
        return unread.version


class _Unread(Exception):
    """A version whose manifest has to be read."""

    def __init__(self, version: int) -> None:
        self.version = version


def _put_table(path: str, bug: str) -> Generator[Request, Any, float]:
    """Puts a table when no cleaning is at work, and returns when that was."""
    while True:
        put_at = yield ("time",)
        # A table of another attempt with the same contents was taken over with its age.
        if bug != "tables of one name" or (yield "read", path) is None:
            yield "create", path, "table"
        times = {p.rpartition("/")[2]: at for p, at in (yield "list", "manifests/")}
        marks = commit.marks_that_count(times, path.rpartition("/")[2])
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
            if commit.is_late(put_at, passed) and bug not in ("mark not renewed", "no mark", "tables of one name"):
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
    put_at, done = (yield ("time",)), None
    if bug != "dropped without a mark":
        yield "create", mark, second
    for version in (yield from _broken()) if broken is None else broken:
        dropped = [version]
        if bug == "dropped with the newer ones":
            dropped = [n for n in versions_in((yield "list", "manifests/")) if n >= version]
        for number in dropped:
            request = ("delete", manifest(number))
            is_guarded = bug not in ("dropped without a mark", "dropped when it is late")
            done = yield ("if young", put_at, request) if is_guarded else request
    yield "delete", mark
    return "it took too long" if done == "late" else DROPPED


def _broken() -> Generator[Request, Any, tuple[int, ...]]:
    broken = []
    for number in versions_in((yield "list", "manifests/")):
        if (yield from _open(number)) is None:
            is_there = number in versions_in((yield "list", "manifests/"))
            found = inventory.as_broken(number, DamageError("the shard table is missing", where=""), is_there=is_there)
            broken += [] if found is None else [found.version]
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
        return decide.has_changed(group, at, () if bug == "a table put again" else beside, names)
    if decide.commits_near(beside, ever, now) and bug not in ("no look for tables", "tables of one name"):
        return True
    return decide.has_changed(group, at, (yield from _files(f"{group.folder}/")), names)


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
    there = Inventory(files=files, versions=versions)
    # The rules for young tables did not exist before each had its own name.
    moment = now + 10 * JUMP_S if bug == "tables of one name" else now
    looked_at = there
    if bug == "no look for tables":
        tables = [file for file in files if commit.is_shard_table(file.path.rpartition("/")[2])]
        looked_at = Inventory(files=tuple(file for file in files if file not in tables), versions=versions)
    if bug == "age of the own manifest":
        ages = [versions[0].modified_at, *(version.modified_at for version in versions)] if versions else []
        moved = (msgspec.structs.replace(v, modified_at=at) for v, at in zip(versions, ages, strict=False))
        looked_at = Inventory(files=files, versions=tuple(moved))
    age_s = 0.0 if bug == "versions of any age" else older_than_s
    plan = decide.plan_cleaning(looked_at, now=moment, older_than_s=age_s, keep_versions=keep_versions)
    dropped = [group.version for group in plan.groups if group.version is not None]
    groups = plan.groups
    if bug == "data before manifests":
        groups = tuple(sorted(groups, key=lambda group: group.version is not None))
    return groups, decide.names_after(there, dropped), decide.names_after(there, ())


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


def forget() -> None:
    """Forgets what functions decided that others may stand for by now."""
    _plan.cache_clear()
    _why_not_behind.cache_clear()

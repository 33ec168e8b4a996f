"""Trials of a store's promises: its answers and the bytes read back are noted. `store_guarantees` judges them.

Everything goes through `shardkit.storage`, as conversions do, but for the conditional create, the ranges and the upload
that is given up: there the store's own answer counts, without shardkit's retries.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from shardkit.doctor.scratch import Scratch, scratch_folder
from shardkit.doctor.store_guarantees import (
    Finding,
    Observation,
    Race,
    RangeTrial,
    Verdict,
    give_verdict,
    judge_observations,
    judge_races,
    judge_ranges,
    not_checked,
    observe,
)
from shardkit.errors import StorageError
from shardkit.runtime.threads import worker_threads
from shardkit.storage import files as storage
from shardkit.storage.temporary_files import try_lock
from shardkit.units import MiB

NUM_WRITERS = 8
NUM_ROUNDS = 100
BUDGET_S = 20.0
"""After which a check that has been tried `MIN_ROUNDS` times is tried no more: some stores settle a race in seconds."""

MIN_ROUNDS = 10
LARGE_BYTES = 40 * MiB
"""More than two of the parts in which files are put."""

_LARGE_CREATE_BYTES, _LARGE_ROUNDS, _LARGE_WRITERS = 6 * MiB, 2, 2
_RANGED_BYTES, _NUM_RANDOM_RANGES = 1 * MiB, 40
_BARRIER_S = 120.0

Rounds = Callable[[], Iterator[int]]


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a store.

    Attributes:
        url: Where it was asked, without secrets.
        folder: What was written to, and is removed, below it.
        is_tidy: Whether nothing of the folder is listed any more.
    """

    url: str
    folder: str
    findings: tuple[Finding, ...]
    verdict: Verdict
    is_tidy: bool
    seconds: float


def examine_store(
    root: str, *, num_rounds: int | None = None, progress: Callable[[str], None] = lambda name: None
) -> StoreReport:
    """Asks a store, or a local folder, to keep its promises; everything that is written is removed again.

    Args:
        root: URL or path.
        num_rounds: How often each of the cheap promises is tried; None for `NUM_ROUNDS`, or fewer of a slow store.

    Raises:
        UsageError: If there is no such bucket, or nothing may be written there.
        StorageError: If the store does not answer or refuses.
    """
    root = storage.normalize(root)
    started = time.monotonic()
    rounds = partial(_rounds, num_rounds)
    checks: list[tuple[str, Callable[[Scratch, Rounds], list[Finding]]]] = [
        ("exclusive creates", _check_creates),
        ("reads, listings and deletions", _check_files),
        ("ranges", _check_ranges),
        ("a large file", _check_large_put),
        ("an upload that is given up", _check_given_up),
        ("locks", _check_locks),
    ]
    findings: list[Finding] = []
    with scratch_folder(root) as scratch:
        # Whether there is a bucket, and whether it may be written to, shows before anything is tried a hundred times.
        _put(scratch, "first", b"shardkit doctor")
        scratch.taken()
        for name, check in checks:
            progress(name)
            findings += check(scratch, rounds)
    findings += [
        not_checked("power_cut", "a command cannot try that"),
        not_checked("other_places", "seen from this host only"),
    ]
    return StoreReport(
        url=storage.redact(root),
        folder=storage.redact(scratch.url),
        findings=tuple(findings),
        verdict=give_verdict(findings),
        is_tidy=not scratch.left(),
        seconds=time.monotonic() - started,
    )


def _rounds(num_rounds: int | None) -> Iterator[int]:
    end = time.monotonic() + BUDGET_S
    for number in range(NUM_ROUNDS if num_rounds is None else num_rounds):
        if num_rounds is None and number >= MIN_ROUNDS and time.monotonic() > end:
            return
        yield number


def _check_creates(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    small = [f"writer {i}".encode() for i in range(NUM_WRITERS)]
    races = [_race(scratch.path(f"race-{number}"), small) for number in rounds()]
    observations: list[Observation] = []
    for number in range(len(races)):
        path = scratch.path(f"race-{number}")
        before = _read(path)
        was_taken = storage.try_create(path, b"late")
        observations.append("wrong" if was_taken else observe(_read(path), before))
    large = [bytes([i]) * _LARGE_CREATE_BYTES for i in range(_LARGE_WRITERS)]
    large_races = [_race(scratch.path(f"large-race-{number}"), large) for number in range(_LARGE_ROUNDS)]
    return [
        judge_races("exclusive_create", races),
        judge_observations("refused_create", observations, "refused every time, and left as it was"),
        judge_races("large_exclusive_create", large_races),
    ]


def _race(path: str, contents: Sequence[bytes]) -> Race:
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> bool:
        barrier.wait(_BARRIER_S)
        return storage.try_create(path, content)

    with worker_threads(len(contents), "shardkit-doctor") as writers:
        try:
            answers = list(writers.map(write, contents))
        except BaseException:
            # Ctrl-C may come when some of them wait for others that are never sent off.
            barrier.abort()
            raise
    found = _read(path)
    owner = None if found is None else contents.index(found) if found in contents else -1
    return Race(len(contents), tuple(i for i, has_won in enumerate(answers) if has_won), owner)


def _check_files(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    reads: list[Observation] = []
    lists: list[Observation] = []
    overwrites: list[Observation] = []
    deletions: list[Observation] = []
    for number in rounds():
        name = f"file-{number:05}"
        path = scratch.path(name)
        first, second = (f"{word} content of {name}".encode() for word in ("first", "other"))
        _put(scratch, name, first)
        reads.append(observe(_read(path), first))
        lists.append("right" if _is_listed(path) else "missing")
        _put(scratch, name, second)
        overwrites.append(observe(_read(path), second, first))
        storage.delete_file(path)
        deletions.append("seen" if _read(path) is not None or _is_listed(path) else "right")
    return [
        judge_observations("read_after_write", reads, "read at once every time"),
        judge_observations("list_after_write", lists, "listed at once every time"),
        judge_observations("overwrite", overwrites, "read anew at once every time"),
        judge_observations("delete", deletions, "neither read nor listed any more"),
    ]


def _check_ranges(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    draw = random.Random(0)
    content = draw.randbytes(_RANGED_BYTES)
    path = scratch.path("ranged")
    _put(scratch, "ranged", content)
    size = len(content)
    within = [(0, 1), (0, 4096), (size // 2, 4096), (size - 4096, 4096), (size - 1, 1), (0, size)]
    for _ in range(_NUM_RANDOM_RANGES):
        start = draw.randrange(size)
        within.append((start, draw.randint(1, size - start)))
    over = [(size - 1, 2), (size - 4096, 8192), (size // 2, size), (0, size + 1)]
    return [
        judge_ranges("ranges", [_range(path, content, start, num_bytes) for start, num_bytes in within]),
        judge_ranges("range_past_end", [_range(path, content, start, num_bytes) for start, num_bytes in over]),
    ]


def _range(path: str, content: bytes, start: int, num_bytes: int) -> RangeTrial:
    there = content[start : start + num_bytes]
    try:
        return RangeTrial(start, num_bytes, there, storage.read_range_once(path, start, num_bytes))
    except (StorageError, FileNotFoundError):
        return RangeTrial(start, num_bytes, there, None)


def _check_large_put(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    content = random.Random(1).randbytes(LARGE_BYTES)
    _put(scratch, "large", content)
    observation = observe(_read(scratch.path("large")), content)
    return [judge_observations("large_put", [observation], f"{LARGE_BYTES // MiB} MiB came back as they were sent")]


def _check_given_up(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    if not storage.can_leave_unfinished(scratch.url):
        return [not_checked("given_up_upload", "its client sends files in one go")]
    path = scratch.path("given-up")
    observations: list[Observation] = []
    with storage.unfinished_upload(path):
        observations.append(_unseen(path))
    observations.append(_unseen(path))
    observations += ["seen" for _ in storage.list_uploads(scratch.url)]
    return [judge_observations("given_up_upload", observations, "seen neither meanwhile nor afterwards")]


def _unseen(path: str) -> Observation:
    return "seen" if _read(path) is not None or _is_listed(path) else "right"


def _check_locks(scratch: Scratch, rounds: Rounds) -> list[Finding]:
    if not storage.is_local(scratch.url):
        return []
    path = storage.local_path(scratch.path("lock"))
    with storage.translate_os_errors(path):
        # Two descriptions of one file are two holders, even of one process.
        handles = [os.open(path, os.O_RDWR | os.O_CREAT, 0o666) for _ in range(2)]
    try:
        given = [try_lock(handle) for handle in handles]
    finally:
        for handle in handles:
            os.close(handle)
    return [judge_observations("lock", ["right" if given == [True, False] else "wrong"], "the second one was refused")]


def _put(scratch: Scratch, name: str, content: bytes) -> None:
    # A local file may be linked to its target, so the source is in the same folder.
    folder = scratch.url if storage.is_local(scratch.url) else None
    if folder is not None:
        storage.make_folder(folder)
        scratch.taken()
    with tempfile.TemporaryDirectory(prefix=".sent-", dir=folder) as place:
        local = Path(place, "file")
        local.write_bytes(content)
        storage.put_file(local, scratch.path(name))


def _read(path: str) -> bytes | None:
    try:
        return storage.read_bytes(path)
    except FileNotFoundError:
        return None


def _is_listed(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in storage.list_names(folder)

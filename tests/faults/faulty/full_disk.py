"""Disks of all sizes up to what is needed, as memory file systems; by faults where nobody may mount."""

from __future__ import annotations

import os
import random
import re
import subprocess
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from tests.faults.campaigns import Trial, wait_for_operation
from tests.faults.faulty.conversion_process import Ended
from tests.faults.faulty.fault_plan import Fault, FaultPlan
from tests.faults.faulty.operations import join_meeting, read_log
from tests.faults.judges.oracle import Version
from tests.faults.judges.records import Row
from tests.faults.places import LocalPlace
from tests.faults.trials import Outcome, disturb, find_wrongs, leftovers, state_of
from tests.faults.worlds import SCENARIOS, Scenario, World

FULL = 6
_PLENTY_BYTES = 64 * 2**20
_SMALLEST, _LARGEST = 0.01, 1.1
_POLL_S = 0.0005
_SMALLEST_BYTES, _LARGEST_BYTES, _PAGE_BYTES = 8 * 2**20, 40 * 2**20, 4096
_NUM_LARGE_ROWS, _VALUE_BYTES = 1_600, 4_500
# Of the writes before which others fill the disk, what is in the path.
_STAGES = {
    "none": "",
    "data": r"/(spool|tmp)/[^/]*$",
    "table": r"\.shards\.parquet\.[0-9a-f]{16}$",
    "manifest": r"\.json\.[0-9a-f]{16}$",
}
_PUBLISHED = ("table", "manifest")
_BALLAST = "of-others"
_MET = re.compile('"fault": "meet"')
_making = Lock()


def disks(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """Disks from 1 to 110 % of what a conversion needs."""
    if not may_mount():
        num_operations = disturb(world, SCENARIOS["next"]).num_operations
        for _ in range(num_trials):
            fault = Fault(("full",), since=rng.randint(1, num_operations))
            yield partial(disturb, world, SCENARIOS["next"], (fault,))
        return
    for scenario in (SCENARIOS["fresh"], SCENARIOS["next"]):
        num_bytes = _need(world, scenario)
        count = num_trials // 2 + (num_trials % 2 if scenario.has_old else 0)
        for index in range(count):
            share = _SMALLEST + (_LARGEST - _SMALLEST) * (index + rng.random()) / count
            yield partial(fill, world, scenario, int(num_bytes * share), share)


def may_mount() -> bool:
    """Returns whether this process may mount file systems."""
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


def sizes(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """Disks of 8 to 40 MiB for a conversion that needs about 18, of which three in four fill up at a certain write."""
    if not may_mount():
        yield from disks(world, rng, num_trials)
        return
    large: list[World] = []
    for index in range(num_trials):
        share = index / max(1, num_trials - 1)
        num_bytes = int(_SMALLEST_BYTES + share * (_LARGEST_BYTES - _SMALLEST_BYTES))
        stage = list(_STAGES)[index % len(_STAGES)]
        free_bytes = rng.randrange(2**20 if stage == "data" else 3 * _PAGE_BYTES)
        scenario = SCENARIOS[rng.choice(("fresh", "next"))]
        yield partial(_fill_of_large, large, world, scenario, num_bytes, stage, free_bytes)


def _fill_of_large(
    large: list[World], world: World, scenario: Scenario, num_bytes: int, stage: str, free_bytes: int
) -> Outcome:
    with _making:
        if not large:
            large.append(with_large_input(world))
    return fill_at(large[0], scenario, num_bytes, stage, free_bytes)


def with_large_input(world: World) -> World:
    """Returns the same with an input of 10 MB that hardly gets smaller."""
    rng = random.Random(7)
    with world.store.trial() as (_, folder):
        source = folder.parent / "large" / "new.csv"
        source.parent.mkdir(exist_ok=True)
        values = [b64encode(rng.randbytes(_VALUE_BYTES)) for _ in range(_NUM_LARGE_ROWS)]
        source.write_bytes(b"id,x\n" + b"".join(b"%d,%b\n" % row for row in enumerate(values)))
    rows: Counter[Row] = Counter((("id", (i,)), ("x", (x,))) for i, x in enumerate(values))
    return world.with_new_input(source, rows)


def fill(world: World, scenario: Scenario, num_bytes: int, share: float) -> Outcome:
    """Converts on a disk that takes so many more bytes than the old dataset, then on one that takes all."""
    with world.store.trial() as (_, folder), mounted(folder / "disk") as disk:
        place = LocalPlace(disk / "set")
        before = world.prepare(place, scenario)
        _resize(disk, _used(disk) + num_bytes)
        command = world.command(world.new_input, place, disk / "work", *scenario.options)
        plan = world.plan(folder)
        ended = world.start(command, plan).end()
        setup = f"{scenario.name}: {share:.0%}, {num_bytes} bytes"
        return _judged(world, place, before, plan, Tried(command, ended, setup))


def fill_at(world: World, scenario: Scenario, num_bytes: int, stage: str, free_bytes: int) -> Outcome:
    """Converts on a disk of a size that others fill at a certain write, then on one that takes all.

    Args:
        world: Where.
        scenario: What is there before.
        num_bytes: Size of the disk.
        stage: Before which write it is filled; `none` if it is not.
        free_bytes: What others leave.
    """
    with world.store.trial() as (_, folder), mounted(folder / "disk") as disk:
        place = LocalPlace(disk / "set")
        before = world.prepare(place, scenario)
        _resize(disk, num_bytes)
        command = world.command(world.new_input, place, disk / "work", *scenario.options)
        faults = (Fault(("meet",), names=("open", "write"), path=_STAGES[stage]),) if stage != "none" else ()
        plan = world.plan(folder, faults, num_parties=2)
        conversion = world.start(command, plan)
        is_filled = stage != "none" and wait_for_operation(conversion, Path(plan.log), _MET)
        if is_filled:
            _fill_up(disk, free_bytes)
            join_meeting(plan.log)
        ended = conversion.end()
        (disk / _BALLAST).unlink(missing_ok=True)
        setup = f"{scenario.name}: {num_bytes / 2**20:.1f} MiB, {stage} {'at' if is_filled else 'not at'} {free_bytes}"
        outcome = _judged(world, place, before, plan, Tried(command, ended, setup))
        if is_filled and stage in _PUBLISHED and not free_bytes // _PAGE_BYTES and ended.code == 0:
            return outcome._replace(wrongs=(*outcome.wrongs, "LIE: it ended well without room"))
        return outcome


class Tried(NamedTuple):
    """A conversion on a small disk: its command, its end, and how small the disk was."""

    command: tuple[str, ...]
    ended: Ended
    setup: str


def _judged(world: World, place: LocalPlace, before: Version | None, plan: FaultPlan, tried: Tried) -> Outcome:
    """Judges what was left, converts again on a disk that takes all, and judges that."""
    ended, disk = tried.ended, place.folder.parent
    state, _ = state_of(place, before, world.new_rows)
    wrongs = find_wrongs(state, ended, before, place)
    if ended.code not in (0, FULL):
        wrongs.append(f"CODE {ended.code} on a full disk")
    elif ended.code == FULL and (str(disk) not in ended.said or "free" not in ended.said):
        wrongs.append("CODE 6 without a place or what is free")
    _resize(disk, _PLENTY_BYTES)
    again = world.start(tried.command).end()
    after, found = state_of(place, before, world.new_rows)
    problems = []
    if (again.code, after) != (0, "new") and not (again.code == 4 and state == "new"):
        problems.append(f"RERUN: exit code {again.code}, {after}")
    elif found is not None and (found.shards, found.document) != (world.reference.shards, world.reference.document):
        problems.append("BYTES: the rerun made others")
    if left := leftovers(place, disk):
        problems.append(f"LEFT: {', '.join(left[:4])}")
    story = f"{tried.setup} -> {ended.code}, {state}; {again.code}"
    if wrongs or problems:
        story += f"\n{ended.said[-600:]}\n--- again:\n{again.said[-600:]}"
    num_operations = len(read_log(Path(plan.log)))
    return Outcome(state, (*wrongs, *problems), not problems, int(ended.code == FULL), num_operations, story)


def _fill_up(disk: Path, free_bytes: int) -> None:
    status = os.statvfs(disk)
    num_bytes = status.f_bfree * status.f_frsize - free_bytes // _PAGE_BYTES * _PAGE_BYTES
    if num_bytes > 0:
        with (disk / _BALLAST).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)


def _need(world: World, scenario: Scenario) -> int:
    """Returns a size beside the old dataset on which a conversion ends well, not much larger than what it needs."""
    most = 0
    while True:
        with world.store.trial() as (_, folder), mounted(folder / "disk") as disk:
            place = LocalPlace(disk / "set")
            world.prepare(place, scenario)
            start = _used(disk)
            if most:
                _resize(disk, start + most)
            conversion = world.start(world.command(world.new_input, place, disk / "work", *scenario.options))
            peak = 0
            while not conversion.has_ended(_POLL_S):
                peak = max(peak, _used(disk) - start)
            code = conversion.end().code
            if code == 0 and most:
                return most
            assert code == 0 or (code == FULL and most)
            # On a busy machine the peak may pass between two looks.
            most = peak if code == 0 else most * 11 // 10


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Yields a folder that is a file system in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_PLENTY_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _resize(folder: Path, num_bytes: int) -> None:
    # Whole pages, and none of them for nothing means no limit.
    subprocess.run(["mount", "-o", f"remount,size={max(4096, num_bytes)}", str(folder)], check=True)


def _used(folder: Path) -> int:
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize

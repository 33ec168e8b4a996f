"""Disks of all sizes up to what is needed, as memory file systems; by faults where nobody may mount."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.faults.campaigns import Trial
from tests.faults.fault_plan import Fault
from tests.faults.operations import read_log
from tests.faults.places import LocalPlace
from tests.faults.trials import Outcome, disturb, leftovers, state_of, verdict
from tests.faults.worlds import SCENARIOS, Scenario, World

FULL = 6
_PLENTY_BYTES = 64 * 2**20
_SMALLEST, _LARGEST = 0.01, 1.1
_POLL_S = 0.0005


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


def fill(world: World, scenario: Scenario, num_bytes: int, share: float) -> Outcome:
    """Converts on a disk that takes so many more bytes than the old dataset, then on one that takes all."""
    with world.store.trial() as (_, folder), _disk(folder / "disk") as disk:
        place = LocalPlace(disk / "set")
        before = world.prepare(place, scenario)
        _resize(disk, _used(disk) + num_bytes)
        options = ("--overwrite",) if scenario.has_old else ()
        command = world.command(world.new_input, place, disk / "work", *options)
        plan = world.plan(folder)
        ended = world.start(command, plan).end()
        state, _ = state_of(place, before, world.new_rows)
        wrongs = verdict(state, ended, before, place)
        if ended.code not in (0, FULL):
            wrongs.append(f"CODE {ended.code} on a full disk")
        elif ended.code == FULL and (str(disk) not in ended.said or "free" not in ended.said):
            wrongs.append("CODE 6 without a place or what is free")
        _resize(disk, _PLENTY_BYTES)
        again = world.start(command).end()
        after, found = state_of(place, before, world.new_rows)
        problems = []
        if (again.code, after) != (0, "new") and not (again.code == 4 and state == "new"):
            problems.append(f"RERUN: exit code {again.code}, {after}")
        elif found is not None and (found.shards, found.document) != (world.reference.shards, world.reference.document):
            problems.append("BYTES: the rerun made others")
        if left := leftovers(place, disk):
            problems.append(f"LEFT: {', '.join(left[:4])}")
        num_operations = len(read_log(Path(plan.log)))
        story = f"{scenario.name}: {share:.0%}, {num_bytes} bytes -> {ended.code}, {state}; {again.code}"
        if wrongs or problems:
            story += f"\n{ended.said[-600:]}\n--- again:\n{again.said[-600:]}"
        is_hit = int(ended.code == FULL)
        return Outcome(state, (*wrongs, *problems), not problems, is_hit, num_operations, story)


def _need(world: World, scenario: Scenario) -> int:
    with world.store.trial() as (_, folder), _disk(folder / "disk") as disk:
        place = LocalPlace(disk / "set")
        world.prepare(place, scenario)
        start = most = _used(disk)
        options = ("--overwrite",) if scenario.has_old else ()
        conversion = world.start(world.command(world.new_input, place, disk / "work", *options))
        while not conversion.has_ended(_POLL_S):
            most = max(most, _used(disk))
        assert conversion.end().code == 0
        return most - start


@contextmanager
def _disk(folder: Path) -> Iterator[Path]:
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

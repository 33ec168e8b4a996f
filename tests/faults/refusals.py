"""Places that may not be written: a file system that is remounted read-only in the middle, folders without rights."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.faults.campaigns import Trial, wait_for_operation
from tests.faults.faulty.conversion_process import Ended
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.full_disk import may_mount, mounted
from tests.faults.faulty.operations import join_meeting
from tests.faults.judges.oracle import Version
from tests.faults.places import LocalPlace
from tests.faults.trials import CONFLICT, Outcome, find_wrongs, leftovers, state_of
from tests.faults.worlds import SCENARIOS, World

USAGE, STORAGE = 2, 5
# About how many operations a conversion has; those on the dataset begin in the middle.
_NUM_OPERATIONS = 118
_STATES = re.compile("Nothing was committed|untouched|Nothing was changed|is a new version|was committed")
_FOLDERS = ("", "set", "set/data", "set/manifests", "work")
_MET = re.compile('"fault": "meet"')
# Of operations before which no file of the dataset is open for writing, which would forbid a remount.
_NAMES = ("make-folder", "open", "link", "rename", "delete")
_POLL_S, _LIMIT_S = 0.01, 2.0
# Capabilities by which root passes over the permissions of files. Without them root still reads a Python environment
# in a private folder, which another user could not.
_RIGHTS = "-dac_override,-dac_read_search"
_WITHOUT_RIGHTS = ("setpriv", "--bounding-set", _RIGHTS, "--inh-caps", _RIGHTS)


def can_forbid() -> bool:
    """Returns whether permissions of files can hold for a conversion: root needs a program for it."""
    return os.geteuid() != 0 or shutil.which("setpriv") is not None


def refusals(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """In turn a remount before a random operation, where that is possible, and a folder without rights."""
    can_mount = may_mount()
    for index in range(num_trials):
        if can_mount and (index % 2 == 0 or not can_forbid()):
            since = Fault(("meet",), since=rng.randint(1, _NUM_OPERATIONS), names=_NAMES, path="/disk/set")
            yield partial(remount, world, since, has_old=rng.random() < 0.7)
        else:
            folder = _FOLDERS[index // 2 % len(_FOLDERS)]
            yield partial(forbid, world, folder, has_old=folder.startswith("set") or rng.random() < 0.5)


def remount(world: World, meeting: Fault, *, has_old: bool) -> Outcome:
    """Makes the file system of the dataset read-only before the first operation of a meeting, then writable again."""
    scenario = SCENARIOS["next" if has_old else "fresh"]
    with world.store.trial() as (_, folder), mounted(folder / "disk") as disk:
        place = LocalPlace(disk / "set")
        before = world.prepare(place, scenario)
        plan = world.plan(folder, (meeting,), num_parties=2)
        command = world.command(world.new_input, place, folder / "work", *scenario.options)
        conversion = world.start(command, plan)
        is_hit = wait_for_operation(conversion, Path(plan.log), _MET) and _is_remounted(disk, "ro")
        join_meeting(plan.log)
        ended = conversion.end()
        state, wrongs = _refused(world, place, before, ended, str(disk))
        if not is_hit and ended.code != 0:
            wrongs.append(f"CODE {ended.code} without a fault")
        assert _is_remounted(disk, "rw"), "the file system stays read-only"
        problems, code = _again(world, place, before, command)
        story = f"remount at {meeting.since}, {scenario.name} -> {ended.code}, {state}; {code}"
        return _outcome(state, wrongs, problems, is_hit=is_hit, story=story, ended=ended)


def forbid(world: World, name: str, *, has_old: bool) -> Outcome:
    """Converts as a user who may not write into one folder, then as one who may."""
    scenario = SCENARIOS["next" if has_old else "fresh"]
    with tempfile.TemporaryDirectory(prefix="refusals.") as text:
        folder = Path(text)
        # It has its name: a dataset is known by those of its inputs.
        source = Path(shutil.copy(world.new_input, folder))
        place = LocalPlace(folder / "place" / "set")
        (folder / "place" / "work").mkdir(parents=True)
        before = world.prepare(place, scenario)
        closed = folder / "place" / name
        closed.chmod(0o555)
        command = world.command(source, place, folder / "place" / "work" / "own", *scenario.options)
        launcher = _WITHOUT_RIGHTS if os.geteuid() == 0 else ()
        ended = world.start(command, world.plan(folder), launcher).end()
        state, wrongs = _refused(world, place, before, ended, str(closed))
        # A work folder and a dataset that are there already need nothing of the folder above.
        is_hit = ended.code != 0
        closed.chmod(0o755)
        problems, code = _again(world, place, before, command)
        story = f"no rights for {name or 'the folder above'!r}, {scenario.name} -> {ended.code}, {state}; {code}"
        return _outcome(state, wrongs, problems, is_hit=is_hit, story=story, ended=ended)


def _refused(
    world: World, place: LocalPlace, before: Version | None, ended: Ended, where: str
) -> tuple[str, list[str]]:
    state, _ = state_of(place, before, world.new_rows)
    # For what is there afterwards, a refusal is like an error of the store.
    wrongs = find_wrongs(state, ended._replace(code=STORAGE) if ended.code == USAGE else ended, before, place)
    if ended.code not in (0, USAGE, STORAGE):
        wrongs.append(f"CODE {ended.code} of what may not be written")
    if ended.code != 0 and where not in ended.said:
        wrongs.append("MESSAGE without the place")
    if ended.code != 0 and not _STATES.search(ended.said):
        wrongs.append("MESSAGE without what the destination holds")
    return state, wrongs


def _again(world: World, place: LocalPlace, before: Version | None, command: tuple[str, ...]) -> tuple[list[str], int]:
    again = world.start(command).end()
    state, found = state_of(place, before, world.new_rows)
    problems = []
    if state != "new" or not (again.code == 0 or (again.code == CONFLICT and before is None)):
        problems.append(f"RERUN: exit code {again.code}, {state}: {again.said[-300:]}")
    elif found is not None and (found.shards, found.document) != (world.reference.shards, world.reference.document):
        problems.append("BYTES: the rerun made others")
    if left := leftovers(place, place.folder.parent):
        problems.append(f"LEFT: {', '.join(left[:4])}")
    return problems, again.code


def _outcome(state: str, wrongs: list[str], problems: list[str], *, is_hit: bool, story: str, ended: Ended) -> Outcome:
    story += f"\n{ended.said[-600:]}" if wrongs or problems else ""
    return Outcome(state, (*wrongs, *problems), not problems, int(is_hit), 0, story, ended.code)


def _is_remounted(disk: Path, mode: str) -> bool:
    """Whether the file system could be remounted: another thread may write just then."""
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        command = ["mount", "-o", f"remount,{mode}", str(disk)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return True
        time.sleep(_POLL_S)
    return False

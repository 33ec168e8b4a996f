"""Several conversions to one place: at the same time, and one that was thought dead."""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.campaigns import Trial, wait_for_operation
from tests.faults.faulty.conversion_process import Ended, Hung
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.operations import read_log
from tests.faults.judges.oracle import Version, read_versions
from tests.faults.judges.records import Row
from tests.faults.places import Place
from tests.faults.trials import CONFLICT, Outcome
from tests.faults.worlds import SCENARIOS, Scenario, World, write_input

NUM_WRITERS = 8
_VERSION = re.compile(r"version (\d+) of")
_MEETING = Fault(("meet",), names=("link", "rename", "create"), path=r"\.shards\.parquet$")
_FIRST_ROW = 2_000


class Writer(NamedTuple):
    """One of several conversions: what it reads, and how it ended."""

    rows: Counter[Row]
    ended: Ended


def writers(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """Eight conversions that come to their commit together, of which three are of the same rows."""
    for _ in range(num_trials):
        scenario = rng.choice([SCENARIOS["fresh"], SCENARIOS["next"]])
        yield partial(race, world, scenario)


def zombies(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """A conversion is stopped at any operation, another one commits, and the first goes on."""
    for _ in range(num_trials):
        scenario = rng.choice([SCENARIOS["fresh"], SCENARIOS["next"]])
        yield partial(outlive, world, scenario, rng.random(), is_twin=rng.random() < 0.5)


def race(world: World, scenario: Scenario) -> Outcome:
    """Makes one race."""
    with world.store.trial() as (place, folder):
        before = world.prepare(place, scenario)
        plan = world.plan(folder, (_MEETING,), num_parties=NUM_WRITERS)
        started = []
        for number in range(NUM_WRITERS):
            source, rows = write_input(folder / f"{number}.csv", _FIRST_ROW + 400 * max(0, number - 2))
            # A dataset is known by the names of its inputs: twins have the same.
            (folder / f"in-{number}").mkdir()
            source = source.rename(folder / f"in-{number}" / f"{max(0, number - 2)}.csv")
            options = ("--overwrite",) if scenario.has_old else ()
            command = world.command(source, place, folder / f"work-{number}", *options)
            started.append((rows, world.start(command, plan)))
        found: list[Writer] = []
        wrongs: list[str] = []
        for rows, conversion in started:
            try:
                found.append(Writer(rows, conversion.end()))
            except Hung as error:
                wrongs.append(f"HUNG: {error}")
        wrongs += judge(place, before, found)
        acknowledged = [w for w in found if w.ended.code == 0]
        if not scenario.has_old and len(acknowledged) != 1:
            wrongs.append(f"LIE: {len(acknowledged)} of {NUM_WRITERS} writers were first")
        if not acknowledged:
            wrongs.append("LOST: all were refused")
        codes = [w.ended.code for w in found]
        said = "\n".join(w.ended.said[-300:] for w in found) if wrongs else ""
        met = len([line for line in read_log(Path(plan.log)) if line["fault"]])
        return Outcome("new", tuple(wrongs), True, met, met, f"{world.store.name} {scenario.name}: {codes}\n{said}")


def outlive(world: World, scenario: Scenario, moment: float, *, is_twin: bool) -> Outcome:
    """Makes one trial with a conversion that sleeps while another one commits."""
    options = ("--overwrite",) if scenario.has_old else ()
    with world.store.trial() as (place, folder):
        before = world.prepare(place, scenario)
        plan = world.plan(folder)
        first = world.start(world.command(world.new_input, place, folder / "work-1", *options), plan)
        # Of about as many operations as a conversion has here.
        number = 1 + int(moment * (20 if world.store.protocols else 110))
        pattern = re.compile(rf'"number": {number},')
        if wait_for_operation(first, Path(plan.log), pattern):
            first.signal_all(signal.SIGSTOP)
        source, rows = (world.new_input, world.new_rows) if is_twin else (world.old_input, world.old_rows)
        command = world.command(source, place, folder / "work-2", *options)
        second = world.start(command, world.plan_of_bug(folder)).end()
        first.signal_all(signal.SIGCONT)
        wrongs: list[str] = []
        found = [Writer(rows, second)]
        try:
            found.append(Writer(world.new_rows, first.end()))
        except Hung as error:
            wrongs.append(f"HUNG: {error}")
        wrongs += judge(place, before, found)
        codes = [w.ended.code for w in found]
        if 0 not in codes:
            wrongs.append("LOST: both were refused")
        said = "\n".join(w.ended.said[-300:] for w in found) if wrongs else ""
        story = f"{world.store.name} {scenario.name}: stopped at {number}, {codes}\n{said}"
        return Outcome("conflict" if CONFLICT in codes else "new", tuple(wrongs), True, 1, number, story)


def judge(place: Place, before: Version | None, found: list[Writer]) -> list[str]:
    """Returns what is wrong with what several conversions said, and with what is there."""
    versions, wrongs = read_versions(place)
    known = {before.number: before} if before is not None else {}
    for number, version in known.items():
        if versions.get(number) != version:
            wrongs.append(f"LOST: version {number} is no longer what it was")
    num_acknowledged: Counter[int] = Counter()
    for writer in found:
        if writer.ended.code not in (0, CONFLICT):
            wrongs.append(f"CODE {writer.ended.code}")
        if writer.ended.code != 0:
            continue
        match = _VERSION.search(writer.ended.said)
        number = int(match.group(1)) if match else 0
        num_acknowledged[number] += 1
        if number not in versions or versions[number].rows != writer.rows:
            wrongs.append(f"LOST: version {number} was acknowledged, and is another one's or nobody's")
    wrongs += [f"LOST: {n} writers were told of version {number}" for number, n in num_acknowledged.items() if n > 1]
    if set(versions) != set(num_acknowledged) | set(known):
        wrongs.append(f"LIE: versions {sorted(versions)}, acknowledged {sorted(num_acknowledged)}")
    return wrongs

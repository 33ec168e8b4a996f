"""Two or three commands at once on one dataset, with faults of the storage and kills of each, all drawn by one seed."""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.campaigns import ALL_OF_STORES, FAULT_SHARE, Trial, wait_for_operation
from tests.faults.command import READ
from tests.faults.faulty.conversion_process import Ended, Hung
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.operations import join_meeting, read_log
from tests.faults.judges.excuses import Pair, Ran, Side
from tests.faults.judges.oracle import Version, newest
from tests.faults.judges.pair_judge import judge, judge_reruns
from tests.faults.places import Place
from tests.faults.trials import CONFLICT, KILLED, Outcome
from tests.faults.worlds import SCENARIOS, World, write_input

_OTHER_FIRST = 9_000
# One trial in so many trains with TensorFlow; in the others a reader reads whole epochs.
_TRAININGS = 6
# About how many operations a command has, on a local disk and in a store.
_NUM_OPERATIONS = {"convert": (110, 28), "clean": (24, 16)}
_READS = 12
# Before the table and before the manifest of a commit, and before a cleaning deletes something.
AT_TABLE = Fault(("meet",), names=("open", "create"), path=r"\.shards\.parquet")
AT_MANIFEST = Fault(("meet",), names=("open", "create"), path=r"0000[23]\.json")
AT_DELETION = Fault(("meet",), names=("delete",), path=r"/(data|manifests)/[^.][^/]*(/[^/]*)?$")
_AT_LOOK = Fault(("meet",), names=("list", "make-folder"))
_CRITICAL = {"convert": (AT_TABLE, AT_MANIFEST), "clean": (_AT_LOOK, AT_DELETION)}
_MET = re.compile('"fault": "meet"')
_NEVER = "(?!)"
_HELD_S = 3.0
_EVERYTHING, _ONE_VERSION = ("--older-than", "0"), ("--keep-versions", "1")
_OF_DISKS = ("error", "full", "timeout", "asked-again")
_KILLS = ("kill-before", "kill-after", "torn")


class Trouble(NamedTuple):
    """What happens to one command: faults, and a kill so long after its start."""

    faults: tuple[Fault, ...] = ()
    kill_s: float | None = None


class Hold(NamedTuple):
    """The order of commands: the first one waits before an operation until the second one is so far.

    Attributes:
        at: The meeting at which the first one waits; None to start all together.
        until: Searched for in the log of the second one; empty for its end.
    """

    at: Fault | None
    until: str


class Script(NamedTuple):
    """What happens to a pair.

    Attributes:
        first: Index of the side that starts first; those behind it follow.
        hold: The order of the two that start first.
        troubles: Of each, in the order in which they start.
    """

    first: int
    hold: Hold
    troubles: tuple[Trouble, ...] = (Trouble(), Trouble())


def pairs(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """Pairs of commands, as many of each kind."""
    for index in range(num_trials):
        yield partial(meet, world, list(PAIRS)[index % len(PAIRS)], rng.randrange(2**32))


def meet(world: World, name: str, seed: int, script: Script | None = None) -> Outcome:
    """Makes one trial.

    Args:
        world: Where.
        name: Of the pair.
        seed: Of all that is drawn.
        script: What happens; None draws it, too.
    """
    rng = random.Random(seed)
    with world.store.trial() as (place, folder):
        pair = PAIRS[name](world, place, folder, rng)
        first, hold, troubles = script or _drawn(world, pair, rng)
        sides = _in_turn(pair, first)
        ran, wrongs = _run(world, folder, sides, troubles, hold)
        wrongs += judge(place, pair, ran)
        problems = judge_reruns(world, place, folder, pair, ran)
        codes = [r.ended.code for r in ran]
        ends = ", ".join(f"{r.side.kind} {r.fault_notes}-> {r.ended.code}" for r in ran)
        at = hold.at and (hold.at.at or hold.at.path)
        story = f"{world.store.name} {name} seed {seed}, first {first} waits at {at} until {hold.until!r}: {ends}"
        if wrongs or problems:
            story += "".join(f"\n--- {r.side.arguments[0]}:\n{r.ended.said[-600:]}" for r in ran)
        num_faults = sum(r.num_faults + r.is_killed for r in ran)
        is_new = any(r.ended.code == 0 for r in ran if r.side.kind == "convert")
        state = "conflict" if CONFLICT in codes else "new" if is_new else "old"
        return Outcome(state, (*wrongs, *problems), not problems, num_faults, num_faults, story)


def _drawn(world: World, pair: Pair, rng: random.Random) -> Script:
    first = rng.randrange(len(pair.sides))
    sides = _in_turn(pair, first)
    return Script(first, _hold(world, sides, rng), tuple(_trouble(world, side, rng) for side in sides))


def _in_turn(pair: Pair, first: int) -> tuple[Side, ...]:
    return pair.sides[first:] + pair.sides[:first]


def _run(
    world: World, folder: Path, sides: Sequence[Side], troubles: Sequence[Trouble], hold: Hold
) -> tuple[list[Ran], list[str]]:
    """Runs the commands and returns how they ended, and which did not."""
    plans = [
        world.plan(folder, (hold.at, *trouble.faults) if i == 0 and hold.at else trouble.faults, f"log-{i}", 2)
        for i, trouble in enumerate(troubles)
    ]
    started, kills = [], []
    for index in range(len(sides)):
        started.append(world.start(sides[index].arguments, plans[index]))
        if (kill_s := troubles[index].kill_s) is not None:
            kills.append((time.monotonic() + kill_s, started[index]))
        if index == 0 and hold.at is not None:
            wait_for_operation(started[0], Path(plans[0].log), _MET)
    if hold.at is not None:
        # What waits for the first one, such as a commit for a cleaning, never comes so far.
        wait_for_operation(started[1], Path(plans[1].log), re.compile(hold.until or _NEVER), _HELD_S)
        join_meeting(plans[0].log)
    killed = []
    for at, conversion in sorted(kills, key=lambda kill: kill[0]):
        if not conversion.has_ended(max(0.0, at - time.monotonic())):
            conversion.signal_all(signal.SIGKILL)
            killed.append(conversion)
    ran, wrongs = [], []
    for side, conversion, plan in zip(sides, started, plans, strict=True):
        try:
            ended = conversion.end()
        except Hung as error:
            ended = Ended(KILLED, str(error))
            wrongs.append(f"HUNG: {side.kind}: {error}")
        ran.append(Ran(side, ended, read_log(Path(plan.log)), was_killed=conversion in killed))
    return ran, wrongs


def _operations(world: World, side: Side) -> int:
    """Returns about how many operations of a command are numbered: of local disks only those that change something."""
    is_stored = bool(world.store.protocols)
    return _NUM_OPERATIONS.get(side.kind, (0, _READS))[is_stored]


def _hold(world: World, sides: Sequence[Side], rng: random.Random) -> Hold:
    """Returns an order: half of all times the first one waits at a place that the protocol of commits is about."""
    first, second = (_operations(world, side) for side in sides[:2])
    if not first or rng.random() < 0.3:
        return Hold(None, "")
    until = f'"number": {rng.randint(1, second)},' if second and rng.random() < 0.5 else ""
    if sides[0].kind in _CRITICAL and rng.random() < 0.5:
        return Hold(rng.choice(_CRITICAL[sides[0].kind]), until)
    return Hold(Fault(("meet",), at=rng.randint(1, first)), until)


def _trouble(world: World, side: Side, rng: random.Random) -> Trouble:
    kind = rng.choices(("none", "faults", "kill"), (4, 4, 3))[0]
    num_operations = _operations(world, side)
    if kind == "kill":
        if num_operations and rng.random() < 0.6:
            return Trouble((Fault((rng.choice(_KILLS),), since=rng.randint(1, num_operations)),))
        return Trouble(kill_s=rng.uniform(0.05, 2 * world.clean_s))
    if kind == "none" or not num_operations:
        return Trouble()
    if world.store.protocols:
        seed = rng.randrange(2**32)
        return Trouble((Fault(ALL_OF_STORES, probability=FAULT_SHARE, seed=seed, path=r"set/|set$"),))
    some = (rng.randint(1, num_operations) for _ in range(rng.randint(1, 2)))
    return Trouble(tuple(Fault((rng.choice(_OF_DISKS),), at=number) for number in some))


def _clean_and_convert(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    scenario = SCENARIOS[rng.choice(("fresh", "next", "append"))]
    before = world.prepare(place, scenario)
    if rng.random() < 0.6:
        world.leave_data(place)
    convert = _conversion(world, place, folder / "work", world.new_input, world.new_rows, *scenario.options)
    # A cleaning that knows the work folder sees the lock; another one is as on another host.
    options = ["--work-dir", str(folder / rng.choice(("work", "elsewhere")))]
    if rng.random() < 0.8:
        options += _EVERYTHING
        if drops_old := scenario.has_old and rng.random() < 0.3:
            options += _ONE_VERSION
    else:
        drops_old = False
    return Pair((_cleaning(place, *options), convert), before, may_drop_old=drops_old)


def _two_appends(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    before = world.prepare(place, SCENARIOS["append"])
    first = _conversion(world, place, folder / "work", world.new_input, world.new_rows, "--append")
    if rng.random() < 0.2:
        twin = _conversion(world, place, folder / "work-2", world.new_input, world.new_rows, "--append")
        return Pair((first, twin), before, are_twins=True)
    return Pair((first, _other_append(world, place, folder)), before)


def _clean_and_two_appends(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    before = world.prepare(place, SCENARIOS["append"])
    if rng.random() < 0.5:
        world.leave_data(place)
    first = _conversion(world, place, folder / "work", world.new_input, world.new_rows, "--append")
    drops_old = rng.random() < 0.4
    options = (*_EVERYTHING, *(_ONE_VERSION if drops_old else ()))
    clean = _cleaning(place, "--work-dir", str(folder / rng.choice(("work", "elsewhere"))), *options)
    return Pair((clean, first, _other_append(world, place, folder)), before, may_drop_old=drops_old)


def _drop_broken_and_append(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    """One command or two that drop what cannot be read, of which there is nothing sometimes, beside an append."""
    before = world.prepare(place, SCENARIOS["append"])
    assert before is not None
    broken = (before.number + 1, _broken_manifest(place, before, rng)) if rng.random() < 0.75 else None
    if broken is not None:
        place.write(f"manifests/{broken[0]:08d}.json", broken[1])
    drops = (_cleaning(place, "--drop-broken-version"),) * rng.choice((1, 1, 2))
    append = _conversion(world, place, folder / "work", world.new_input, world.new_rows, "--append")
    return Pair((append, *drops), before, broken=broken)


def _broken_manifest(place: Place, version: Version, rng: random.Random) -> bytes:
    """Returns a manifest that is cut off, or one whose shard table is gone."""
    content = place.read(f"manifests/{version.number:08d}.json")
    if rng.random() < 0.5:
        return content[: len(content) // 2]
    document = json.loads(content)
    del document["sha256"]
    document["shard_table"]["path"] = f"manifests/{version.number + 1:08d}-{'e' * 16}.shards.parquet"
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**document, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _two_cleanings(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    before, older = world.prepare(place, SCENARIOS["next"]), ()
    if rng.random() < 0.6:
        assert before is not None
        ended = world.start(world.command(world.new_input, place, folder / "work-0", "--overwrite")).end()
        assert ended.code == 0, ended.said
        older, before = (before,), newest(place)
    else:
        world.leave_data(place)
    options = [(*_EVERYTHING, *rng.choice(((), _ONE_VERSION))) for _ in range(2)]
    works = [str(folder / rng.choice(("work", "elsewhere"))) for _ in range(2)]
    cleanings = (_cleaning(place, "--work-dir", w, *o) for w, o in zip(works, options, strict=True))
    return Pair(tuple(cleanings), before, older, may_drop_old=any(_ONE_VERSION[0] in o for o in options))


def _verify_and_overwrite(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    return _beside_overwrite(world, place, folder, Side("verify", ("verify", place.url), Counter()))


def _train_and_overwrite(world: World, place: Place, folder: Path, rng: random.Random) -> Pair:
    training = ("train", place.url, "--label", "x", "--epochs", "1", "--output", str(folder / "run"))
    is_real = rng.randrange(_TRAININGS) == 0
    reads = Side("train", training, Counter()) if is_real else Side("read", (READ, place.url), Counter())
    return _beside_overwrite(world, place, folder, reads)


def _beside_overwrite(world: World, place: Place, folder: Path, side: Side) -> Pair:
    before = world.prepare(place, SCENARIOS["next"])
    convert = _conversion(world, place, folder / "work", world.new_input, world.new_rows, "--overwrite")
    return Pair((side, convert), before)


def _other_append(world: World, place: Place, folder: Path) -> Side:
    source, rows = write_input(folder / "other.csv", _OTHER_FIRST)
    return _conversion(world, place, folder / "work-2", source, rows, "--append")


def _cleaning(place: Place, *options: str) -> Side:
    return Side("clean", ("clean", place.url, "--delete", *options), Counter())


def _conversion(
    world: World, place: Place, work: Path, source: Path, rows: Counter[tuple[object, ...]], *options: str
) -> Side:
    command = world.command(source, place, work, *options)
    return Side("convert", command, rows, is_append="--append" in options)


PAIRS = {
    "clean and convert": _clean_and_convert,
    "append and append": _two_appends,
    "verify and overwrite": _verify_and_overwrite,
    "train and overwrite": _train_and_overwrite,
    "clean and two appends": _clean_and_two_appends,
    "drop a broken version and append": _drop_broken_and_append,
    "clean and clean": _two_cleanings,
}

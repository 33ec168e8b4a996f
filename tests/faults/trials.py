"""One trial: a conversion that something happens to, a reader, the same command undisturbed, and a reader."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.faulty.conversion_process import LIMIT_S, Conversion, Ended, Hung
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.operations import read_log
from tests.faults.judges.durability import unsynced
from tests.faults.judges.oracle import Version, newest, read_version, version_numbers
from tests.faults.judges.records import Damaged, Row
from tests.faults.places import Place
from tests.faults.worlds import Scenario, World

KILLED = -signal.SIGKILL
CONFLICT = 4
# Of a store that kept failing, a full disk, and signals: nothing is promised then but that nothing is torn.
GIVING_UP = (5, 6, 129, 130, 143)
_UPLOADS = "uploads"
_NOTHING = "Nothing was committed"


class Outcome(NamedTuple):
    """What became of a trial.

    Attributes:
        state: What a reader saw right afterwards: `old`, `new`, or `conflict` where another one was first.
        wrongs: What is never allowed: TORN, MIXED, LIE, LOST, or a rerun that does not put all right.
        is_recovered: Whether the same command, run again undisturbed, ended well with the same bytes.
        num_faults: That happened.
        num_operations: That were begun.
        story: What was done, to do it again.
        code: How the conversion ended, None where there were several.
        seconds: That it took.
    """

    state: str
    wrongs: tuple[str, ...]
    is_recovered: bool
    num_faults: int
    num_operations: int
    story: str
    code: int | None = None
    seconds: float = 0.0


Interference = Callable[[Conversion, Path], None]


def disturb(
    world: World,
    scenario: Scenario,
    faults: Sequence[Fault] = (),
    *,
    interfere: Interference | None = None,
    meddle: Callable[[Place, Path], None] | None = None,
    must_finish: bool = False,
    is_input_stored: bool = False,
) -> Outcome:
    """Makes one trial.

    Args:
        world: Where.
        scenario: What is there before.
        faults: What happens to operations.
        interfere: What happens to the processes, given the conversion and the log of its operations.
        meddle: What happens to the files before the second run.
        must_finish: Whether the first run may not give up.
        is_input_stored: Whether the input, too, lies in the store.
    """
    with world.store.trial() as (place, folder):
        before = world.prepare(place, scenario)
        expected = world.reference_of(scenario)
        source = world.new_input
        if is_input_stored:
            beside = place.beside("new.csv")
            beside.write("", source.read_bytes())
            source = beside.url
        command = world.command(source, place, folder / "work", *scenario.options)
        plan = world.plan(folder, faults, num_parties=2, is_in_parts=scenario.is_in_parts)
        wrongs: list[str] = []
        started = time.monotonic()
        try:
            conversion = world.start(command, plan)
            if interfere is not None:
                interfere(conversion, Path(plan.log))
            ended = conversion.end()
        except Hung as error:
            ended = Ended(KILLED, str(error))
            wrongs.append(f"HUNG: {error}")
        seconds = time.monotonic() - started
        log = read_log(Path(plan.log))
        fired = [line for line in log if line["fault"]]
        wrongs += [f"UNSYNCED: {path}" for path in unsynced(log)]
        state, _ = state_of(place, before, expected.rows)
        wrongs += find_wrongs(state, ended, before, place)
        if must_finish and ended.code != 0:
            wrongs.append(f"GAVE UP with {ended.code}: {ended.said[-300:]}")
        if meddle is not None:
            meddle(place, folder)
        again = world.start(command, world.plan_of_bug(folder, is_in_parts=scenario.is_in_parts)).end()
        left = _not_allowed(leftovers(place, folder), ended, again, fired)
        problems = _problems_of_rerun(expected, place, before, again, left, is_new=state == "new")
        faults = [f"{line['fault']} at {line['number']} {line['name']} {line['path']}" for line in fired]
        story = f"{world.store.name} {scenario.name}: {'; '.join(faults)} -> {ended.code}, {state}; {again.code}"
        if wrongs or problems or ended.code not in (0, KILLED):
            story += f"\n{ended.said[-600:]}\n--- again:\n{again.said[-600:]}"
        shown = "conflict" if ended.code == CONFLICT else state
        return Outcome(shown, (*wrongs, *problems), not problems, len(fired), len(log), story, ended.code, seconds)


def state_of(place: Place, before: Version | None, rows: Counter[Row]) -> tuple[str, Version | None]:
    """Returns `old`, `new`, TORN, MIXED or LOST, and the newest version."""
    try:
        found = newest(place)
    except Damaged as error:
        return f"TORN: {error}", None
    if found is None:
        return ("old", None) if before is None else ("LOST: no dataset is left", None)
    if before is not None and not _is_kept(place, before):
        return f"LOST: version {before.number} is no longer what it was", found
    if before is not None and found.commit_id == before.commit_id:
        return "old", found
    return ("new" if found.rows == rows else "MIXED: rows of neither dataset"), found


def find_wrongs(state: str, ended: Ended, before: Version | None, place: Place) -> list[str]:
    """Returns what is wrong with what a conversion said and left."""
    wrongs = [] if state in ("old", "new") else [state]
    if ended.code == 0 and state != "new":
        wrongs.append(f"LIE: exit code 0, but {state}")
    elif ended.code == CONFLICT and state == "new":
        wrongs.append("LIE: a conflict, but with itself")
    elif ended.code in GIVING_UP and state == "new" and _NOTHING in ended.said:
        wrongs.append("LIE: it says that nothing was committed")
    elif ended.code not in (0, KILLED, CONFLICT, *GIVING_UP):
        wrongs.append(f"CODE {ended.code}")
    return wrongs


def _is_kept(place: Place, before: Version) -> bool:
    try:
        return read_version(place, before.number) == before
    except Damaged:
        return False


def _problems_of_rerun(
    expected: Version, place: Place, before: Version | None, again: Ended, left: Sequence[str], *, is_new: bool
) -> list[str]:
    state, found = state_of(place, before, expected.rows)
    problems = []
    # Where all is done and tidied up, there is a dataset already.
    if again.code != 0 and not (again.code == CONFLICT and is_new and before is None):
        problems.append(f"RERUN: exit code {again.code}")
    if state != "new":
        problems.append(f"RERUN: {state}")
    elif found is not None and (found.shards, found.document) != (expected.shards, expected.document):
        problems.append("BYTES: the rerun made others")
    if left:
        problems.append(f"LEFT: {', '.join(left[:4])}")
    return problems


def _not_allowed(left: Sequence[str], ended: Ended, again: Ended, fired: Sequence[Mapping[str, Any]]) -> list[str]:
    # What could not be removed stays where nothing else is to be done.
    is_removal_failed = any(o["name"].startswith("delete") and o["fault"] in ("error", "timeout") for o in fired)
    if again.code == CONFLICT and is_removal_failed:
        return []
    # Nobody sees an upload that was never ended: `shardkit clean` removes it.
    may_be_open = ended.code == KILLED or any(o["name"] == "abort-upload" for o in fired)
    return [name for name in left if not (may_be_open and name == _UPLOADS)]


def leftovers(place: Place, folder: Path) -> list[str]:
    """Returns what should no longer be there when all has ended well."""
    work = folder / "work"
    found = [str(path) for path in work.rglob("*") if path.is_file()] if work.exists() else []
    found += [name for name in place.names() if name.rpartition("/")[2].startswith(".")]
    if hasattr(place, "num_open_uploads") and place.num_open_uploads():
        found.append(_UPLOADS)
    return found


def operations_of(world: World, scenario: Scenario, *, is_input_stored: bool = False) -> list[dict[str, Any]]:
    """Returns the operations of a conversion to which nothing happens."""
    found = world.operations.setdefault((scenario.name, world.bug, is_input_stored), [])
    if found:
        return found

    def read(conversion: Conversion, log: Path) -> None:
        conversion.has_ended(LIMIT_S)
        found.extend(read_log(log))

    disturb(world, scenario, interfere=read, is_input_stored=is_input_stored)
    return found


def disturb_one(
    world: World,
    scenario: Scenario,
    kind: str,
    name: str,
    pattern: str,
    *,
    index: int = 0,
    after: str = "",
    is_input_stored: bool = False,
    must_finish: bool = False,
) -> Outcome:
    """Makes a trial in which one fault happens once: asked again, all is well.

    Args:
        world: Where.
        scenario: What is there before.
        kind: Of fault.
        name: Of the operation.
        pattern: Text in its path.
        index: Which of those.
        after: Name of an operation on such a path that comes before.
        is_input_stored: Whether the input, too, lies in the store.
        must_finish: Whether the conversion may not give up.
    """
    lines = [o for o in operations_of(world, scenario, is_input_stored=is_input_stored) if pattern in o["path"]]
    first = next(i for i, line in enumerate(lines) if line["name"] == after) if after else 0
    numbers = [line["number"] for line in lines[first:] if line["name"] == name]
    fault = Fault((kind,), at=numbers[index])
    return disturb(world, scenario, (fault,), is_input_stored=is_input_stored, must_finish=must_finish)


def kinds_of(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    """Returns how often each word that begins a wrong occurs."""
    return Counter(wrong.partition(":")[0].split()[0] for outcome in outcomes for wrong in outcome.wrongs)


def flip_a_bit(place: Place, rng: random.Random) -> None:
    """Damages one shard, unless it was committed: nobody makes that one anew."""
    names = [name for name in place.names() if ".tfrecord" in name]
    if names and not version_numbers(place.names()):
        name = rng.choice(names)
        content = bytearray(place.read(name))
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        place.write(name, bytes(content))

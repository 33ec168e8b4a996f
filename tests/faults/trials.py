"""One trial: a conversion that something happens to, a reader, the same command undisturbed, and a reader."""

from __future__ import annotations

import copy
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from durability import unsynced
from fault_plan import Fault, FaultPlan
from fork_server import LIMIT_S, Conversion, Ended, ForkServer, Hung
from operations import read_log
from oracle import Version, newest, read_version, version_numbers
from places import Place, Store
from records import Damaged, Row

KILLED = -signal.SIGKILL
CONFLICT = 4
# Of a store that kept failing, a full disk, and signals: nothing is promised then but that nothing is torn.
GIVING_UP = (5, 6, 129, 130, 143)
_NOTHING = "Nothing was committed"
_NUM_ROWS = 300
_DEADLINE_S = "60"


class Scenario(NamedTuple):
    """What is there before a conversion.

    Attributes:
        name: `fresh`, `next` where another dataset is there, `same` where that very one is.
        has_old: Whether a dataset is there.
        is_same: Whether it holds what the conversion will make.
    """

    name: str
    has_old: bool
    is_same: bool = False


SCENARIOS = {s.name: s for s in (Scenario("fresh", False), Scenario("next", True), Scenario("same", True, True))}


class Outcome(NamedTuple):
    """What became of a trial.

    Attributes:
        state: What a reader saw right afterwards: `old`, `new`, or `conflict` where another one was first.
        wrongs: What is never allowed: TORN, MIXED, LIE, LOST, or a rerun that does not put all right.
        is_recovered: Whether the same command, run again undisturbed, ended well with the same bytes.
        num_faults: That happened.
        num_operations: That were begun.
        story: What was done, to do it again.
    """

    state: str
    wrongs: tuple[str, ...]
    is_recovered: bool
    num_faults: int
    num_operations: int
    story: str


class World:
    """What all trials of one store have in common.

    Args:
        store: Makes places.
        server: Starts conversions.
        folder: For inputs.
        num_shards: Of each of two splits.
    """

    def __init__(self, store: Store, server: ForkServer, folder: Path, num_shards: int = 1) -> None:
        self.store = store
        self.server = server
        self.bug = ""
        self.options = (
            "--split",
            "train=0.7",
            "--split",
            "test=0.3",
            "--num-shards",
            str(num_shards),
            "--workers",
            "1",
        )
        self.old_input, self.old_rows = write_input(folder / "old.csv", 0)
        self.new_input, self.new_rows = write_input(folder / "new.csv", 5_000)
        self.operations: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
        self._template: dict[bool, dict[str, bytes]] = {}
        self.reference = self._make_reference()

    def with_bug(self, bug: str) -> World:
        """Returns the same, with a bug planted in every conversion of a trial."""
        found = copy.copy(self)
        found.bug = bug
        return found

    def with_workers(self, num_workers: int) -> World:
        """Returns the same, with so many workers."""
        found = copy.copy(self)
        found.options = (*self.options, "--workers", str(num_workers))
        return found

    def command(self, source: Path | str, place: Place, work: Path, *options: str) -> tuple[str, ...]:
        """Returns the arguments of a conversion."""
        return ("convert", str(source), place.url, "--work-dir", str(work), *self.options, *options)

    def start(self, command: Sequence[str], plan: FaultPlan | None = None) -> Conversion:
        """Starts a conversion."""
        environment = {"SHARDKIT_STORAGE_DEADLINE": _DEADLINE_S, **self.store.environment}
        return self.server.start(command, {**environment, **(plan.to_environment() if plan else {})})

    def prepare(self, place: Place, scenario: Scenario) -> Version | None:
        """Puts what is there before into a place."""
        if not scenario.has_old:
            return None
        for name, content in self._template[scenario.is_same].items():
            place.write(name, content)
        return newest(place)

    def plan(self, folder: Path, faults: Sequence[Fault] = (), log: str = "log", num_parties: int = 0) -> FaultPlan:
        """Returns a plan whose operations are those of the store, or below a folder."""
        folders = () if self.store.protocols else (str(folder),)
        return FaultPlan(str(folder / log), tuple(faults), folders, self.store.protocols, num_parties, self.bug)

    def plan_of_bug(self, folder: Path) -> FaultPlan | None:
        """Returns a plan for a conversion that nothing happens to but a planted bug, if there is one."""
        return self.plan(folder, log="log-again") if self.bug else None

    def _make_reference(self) -> Version:
        for is_same, source in ((False, self.old_input), (True, self.new_input)):
            with self.store.trial() as (place, folder):
                ended = self.start(self.command(source, place, folder / "work")).end()
                assert ended.code == 0, ended.said
                self._template[is_same] = {name: place.read(name) for name in place.names()}
                found = newest(place)
        assert found is not None
        assert found.rows == self.new_rows, "a clean conversion does not hold the rows of its input"
        return found


def write_input(path: Path, first: int, num_rows: int = _NUM_ROWS) -> tuple[Path, Counter[Row]]:
    """Writes a table whose rows are numbered from `first`, and returns them as a reader will find them."""
    rows = [(i, i / 8) for i in range(first, first + num_rows)]
    path.write_text("id,x\n" + "".join(f"{i},{x}\n" for i, x in rows))
    return path, Counter((("id", (i,)), ("x", (x,))) for i, x in rows)


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
        options = ("--overwrite",) if scenario.has_old else ()
        source = world.new_input
        if is_input_stored:
            beside = place.beside("new.csv")
            beside.write("", source.read_bytes())
            source = beside.url
        command = world.command(source, place, folder / "work", *options)
        plan = world.plan(folder, faults, num_parties=2)
        wrongs: list[str] = []
        try:
            conversion = world.start(command, plan)
            if interfere is not None:
                interfere(conversion, Path(plan.log))
            ended = conversion.end()
        except Hung as error:
            ended = Ended(KILLED, str(error))
            wrongs.append(f"HUNG: {error}")
        log = read_log(Path(plan.log))
        fired = [line for line in log if line["fault"]]
        wrongs += [f"UNSYNCED: {path}" for path in unsynced(log)]
        state, _ = state_of(place, before, world.new_rows)
        wrongs += verdict(state, ended, before, place)
        if must_finish and ended.code != 0:
            wrongs.append(f"GAVE UP with {ended.code}: {ended.said[-300:]}")
        if meddle is not None:
            meddle(place, folder)
        again = world.start(command, world.plan_of_bug(folder)).end()
        # What could not be removed stays where nothing else is to be done.
        may_leave = again.code == CONFLICT and any(_is_failed_removal(line) for line in fired)
        problems = _problems_of_rerun(world, place, folder, before, again, is_new=state == "new", may_leave=may_leave)
        told = [f"{line['fault']} at {line['number']} {line['name']} {line['path']}" for line in fired[:5]]
        story = f"{world.store.name} {scenario.name}: {'; '.join(told)} -> {ended.code}, {state}; {again.code}"
        if wrongs or problems:
            story += f"\n{ended.said[-600:]}\n--- again:\n{again.said[-600:]}"
        shown = "conflict" if ended.code == CONFLICT else state
        return Outcome(shown, (*wrongs, *problems), not problems, len(fired), len(log), story)


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


def verdict(state: str, ended: Ended, before: Version | None, place: Place) -> list[str]:
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
    world: World, place: Place, folder: Path, before: Version | None, again: Ended, *, is_new: bool, may_leave: bool
) -> list[str]:
    state, found = state_of(place, before, world.new_rows)
    problems = []
    # Where all is done and tidied up, there is a dataset already.
    if again.code != 0 and not (again.code == CONFLICT and is_new and before is None):
        problems.append(f"RERUN: exit code {again.code}")
    if state != "new":
        problems.append(f"RERUN: {state}")
    elif found is not None and (found.shards, found.document) != (world.reference.shards, world.reference.document):
        problems.append("BYTES: the rerun made others")
    left = leftovers(place, folder)
    if left and not may_leave:
        problems.append(f"LEFT: {', '.join(left[:4])}")
    return problems


def _is_failed_removal(line: Mapping[str, Any]) -> bool:
    return line["name"].startswith("delete") and line["fault"] in ("error", "timeout")


def leftovers(place: Place, folder: Path) -> list[str]:
    """Returns what should no longer be there when all has ended well."""
    work = folder / "work"
    found = [str(path) for path in work.rglob("*") if path.is_file()] if work.exists() else []
    found += [name for name in place.names() if name.rpartition("/")[2].startswith(".")]
    if hasattr(place, "num_open_uploads") and place.num_open_uploads():
        found.append("uploads")
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

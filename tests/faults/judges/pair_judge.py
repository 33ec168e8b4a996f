"""What is wrong with what two commands at once said, and with what they left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.faulty.conversion_process import Ended
from tests.faults.judges.durability import unsynced
from tests.faults.judges.oracle import Version, read_version, read_versions, version_numbers
from tests.faults.judges.records import Row
from tests.faults.places import Place
from tests.faults.read_epochs import NUM_EPOCHS, epochs_in
from tests.faults.trials import CONFLICT, KILLED
from tests.faults.worlds import World

_VERSION = re.compile(r"version (\d+) of")
_MADE_NONE = "Nothing to append"
_NOTHING = ("Nothing was committed", "Nothing was appended")
_GAVE_UP, _NO_SPACE, _UNSAFE, _DAMAGED, _NOT_THERE = 5, 6, 7, 1, 2
_MARK, _NONE = ".cleaning-", "there is no dataset"
# A cleaning held the lock, or had removed what a dead conversion had left to this one.
_REFUSALS = re.compile("is not there any more|is running already")


class Side(NamedTuple):
    """One of two commands.

    Attributes:
        kind: `convert`, `clean`, `verify`, `read` or `train`.
        arguments: Of the command.
        rows: Of the input of a conversion; none of other commands.
        is_append: Whether these come to the rows of the newest version.
    """

    kind: str
    arguments: tuple[str, ...]
    rows: Counter[Row]
    is_append: bool = False


class Pair(NamedTuple):
    """Two commands at once.

    Attributes:
        sides: Both.
        before: The version that was there before.
        may_drop_old: Whether one of them may remove that version when there is another.
        are_twins: Whether both append the same file, which may be appended once.
    """

    sides: tuple[Side, Side]
    before: Version | None
    may_drop_old: bool = False
    are_twins: bool = False


class Ran(NamedTuple):
    """A command that has ended."""

    side: Side
    ended: Ended
    log: Sequence[Mapping[str, Any]]

    @property
    def num_faults(self) -> int:
        """How many of its operations failed."""
        return len(self.faults)

    @property
    def is_killed(self) -> bool:
        """Whether it was killed."""
        return self.ended.code == KILLED

    @property
    def is_calm(self) -> bool:
        """Whether nothing happened to it."""
        return not self.num_faults and not self.is_killed

    @property
    def is_misled(self) -> bool:
        """Whether a listing lacked a file, so that the dataset may have seemed not to be there."""
        return any(line["fault"] == "stale-listing" for line in self.log)

    @property
    def fault_notes(self) -> str:
        """What happened to it."""
        return "".join(f"[{o['fault']} at {o['number']} {o['name']}] " for o in self.faults)

    @property
    def faults(self) -> list[Mapping[str, Any]]:
        """Its operations that failed."""
        return [line for line in self.log if line["fault"] not in (None, "meet")]


def judge(place: Place, pair: Pair, ran: Sequence[Ran]) -> list[str]:
    """Returns what is wrong with what two commands said, and with what is there when they have ended."""
    versions, wrongs = _versions(place, pair)
    for one in ran:
        wrongs += _JUDGES[one.side.kind](one, pair, versions)
        if one.side.kind == "convert":
            wrongs += [f"UNSYNCED: {path}" for path in unsynced(one.log)]
    converted = [one for one in ran if one.side.kind == "convert"]
    if len(converted) == 2 and not pair.are_twins and any(one.is_calm and one.ended.code != 0 for one in converted):
        wrongs.append("CONFLICT: an append beside another one was refused")
    if converted and all(one.is_calm for one in ran) and not any(one.ended.code == 0 for one in converted):
        wrongs += [] if _REFUSALS.search(converted[0].ended.said) else ["LOST: all were refused"]
    legal = _legal_rows(pair)
    known = set() if pair.before is None else {pair.before.number}
    wrongs += [f"MIXED: version {n}" for n, v in versions.items() if n not in known and v.rows not in legal]
    made = [one.ended for one in converted if _MADE_NONE not in one.ended.said]
    numbers = [number for ended in made if (number := _number(ended)) is not None]
    wrongs += [f"LOST: two were told of version {numbers[0]}"] if len(set(numbers)) < len(numbers) else []
    return wrongs


def judge_reruns(world: World, place: Place, folder: Path, pair: Pair, ran: Sequence[Ran]) -> list[str]:
    """Runs what did not end well again, undisturbed, and returns what is wrong then."""
    problems = []
    for one in ran:
        if one.ended.code == 0 or one.side.kind == "train":
            continue
        again = world.start(one.side.arguments, world.plan_of_bug(folder)).end()
        if (again.code == CONFLICT and _is_there(place, one.side)) or _saw_none(Ran(one.side, again, ()), pair):
            continue
        problems += _JUDGES[one.side.kind](Ran(one.side, again, ()), pair, _versions(place, pair)[0])
        problems += [] if again.code == 0 else [f"RERUN: {one.side.kind} ends with {again.code}: {again.said[-300:]}"]
    problems += _wrong_at_the_end(world, place, pair)
    for command in (("verify", place.url), ("clean", place.url, "--delete", "--older-than", "0")):
        ended = world.start(command, world.plan_of_bug(folder)).end()
        problems += [] if ended.code == 0 else [f"RERUN: {command[0]} at the end: {ended.code}: {ended.said[-300:]}"]
    problems += _wrong_at_the_end(world, place, pair)
    may_have_marks = any(one.side.kind == "clean" and not one.is_calm for one in ran)
    left = [name for name in place.names() if name.rpartition("/")[2].startswith(".")]
    left = [name for name in left if not (may_have_marks and _MARK in name)]
    return [*problems, *([f"LEFT: {', '.join(left[:4])}"] if left else [])]


def _versions(place: Place, pair: Pair) -> tuple[dict[int, Version], list[str]]:
    versions, wrongs = read_versions(place)
    before = pair.before
    if before is not None and versions.get(before.number) != before:
        is_dropped = pair.may_drop_old and before.number not in versions and any(n > before.number for n in versions)
        wrongs += [] if is_dropped else [f"LOST: version {before.number} is no longer what it was"]
    return versions, wrongs


def _legal_rows(pair: Pair) -> list[Counter[Row]]:
    """Returns all contents that a version may have which these commands made."""
    old = Counter() if pair.before is None else pair.before.rows
    appended = [side.rows for side in pair.sides if side.is_append]
    appended = appended[:1] if pair.are_twins else appended
    legal = [side.rows for side in pair.sides if side.kind == "convert" and not side.is_append]
    for number in range(1, len(appended) + 1):
        legal += [sum(some, old) for some in combinations(appended, number)]
    return legal


def _wrong_at_the_end(world: World, place: Place, pair: Pair) -> list[str]:
    versions, wrongs = _versions(place, pair)
    expected = _legal_rows(pair)[-1]
    if not versions or versions[max(versions)].rows != expected:
        return [*wrongs, "RERUN: the newest version has other rows than all inputs"]
    made = [side for side in pair.sides if side.kind == "convert"]
    reference = world.appended if made[0].is_append else world.reference
    if len(made) == 1 and versions[max(versions)].shards != reference.shards:
        wrongs.append("BYTES: the rerun made others")
    return wrongs


def _of_conversion(one: Ran, pair: Pair, versions: Mapping[int, Version]) -> list[str]:
    side, (code, said) = one.side, one.ended
    allowed = (0, CONFLICT) if one.is_calm else (0, CONFLICT, _GAVE_UP, _NO_SPACE, KILLED)
    wrongs = [] if code in allowed or _saw_none(one, pair) else [f"CODE {code} of a conversion"]
    old = pair.before.number if pair.before is not None else 0
    holding = [n for n, v in versions.items() if n > old and side.rows <= v.rows]
    if code == 0:
        number = _number(one.ended)
        if number not in holding:
            wrongs.append(f"LOST: version {number} was acknowledged, and is another one's or not there")
        if not versions or max(versions) not in holding:
            wrongs.append("LOST: the newest version lacks acknowledged rows")
    elif holding and not pair.are_twins and any(text in said for text in _NOTHING):
        wrongs.append(f"LIE: nothing was committed, it says, but version {holding[0]}")
    return wrongs


def _of_cleaning(one: Ran, pair: Pair, versions: Mapping[int, Version]) -> list[str]:
    # A listing that lacks a manifest, or a version that cannot be read: then nothing is known of what is needed.
    allowed = (0,) if one.is_calm else (0, _GAVE_UP, _NO_SPACE, _UNSAFE, KILLED)
    if _saw_none(one, pair):
        return []
    return [] if one.ended.code in allowed else [f"CODE {one.ended.code} of a cleaning"]


def _of_reading(one: Ran, pair: Pair, versions: Mapping[int, Version]) -> list[str]:
    code = one.ended.code
    if code == _DAMAGED:
        return [f"FALSE: {one.side.kind} reports damage that is not there"]
    if code not in ((0,) if one.is_calm else (0, _GAVE_UP, KILLED)) and not _saw_none(one, pair):
        return [f"CODE {code} of {one.side.kind}"]
    if one.side.kind == "read" and code == 0:
        epochs = epochs_in(one.ended.said)
        if len(epochs) != NUM_EPOCHS or not any(all(e == v.rows for e in epochs) for v in versions.values()):
            return ["MIXED: a reader had other rows than any version"]
    return []


def _saw_none(one: Ran, pair: Pair) -> bool:
    """Whether a command rightly says that there is no dataset."""
    said_so = one.ended.code == _NOT_THERE and _NONE in one.ended.said
    return said_so and (one.is_misled or pair.before is None)


def _is_there(place: Place, side: Side) -> bool:
    numbers = version_numbers(place.names())
    return bool(numbers) and side.rows <= read_version(place, numbers[-1]).rows


def _number(ended: Ended) -> int | None:
    match = _VERSION.search(ended.said) if ended.code == 0 else None
    return int(match.group(1)) if match else None


_JUDGES = {
    "convert": _of_conversion,
    "clean": _of_cleaning,
    "verify": _of_reading,
    "read": _of_reading,
    "train": _of_reading,
}

"""What is wrong with what commands at once said, and with what they left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from tests.faults.faulty.conversion_process import Ended
from tests.faults.judges.durability import unsynced
from tests.faults.judges.excuses import DAMAGED, MARK, NOT_THERE, Pair, Ran, Side, excuse, excuse_of_mark
from tests.faults.judges.oracle import Version, read_version, read_versions, version_numbers
from tests.faults.judges.records import Row
from tests.faults.places import Place
from tests.faults.read_epochs import NUM_EPOCHS, epochs_in
from tests.faults.trials import CONFLICT
from tests.faults.worlds import World

_VERSION = re.compile(r"version (\d+) of")
_MADE_NONE = "Nothing to append"
_NOTHING = ("Nothing was committed", "Nothing was appended")


def judge(place: Place, pair: Pair, ran: Sequence[Ran]) -> list[str]:
    """Returns what is wrong with what commands said, and with what is there when they have ended."""
    versions, wrongs = _versions(place, pair)
    for index, one in enumerate(ran):
        wrongs += _of_end(one, pair, [*ran[:index], *ran[index + 1 :]], versions)
        if one.side.kind == "convert":
            wrongs += [*_of_conversion(one, pair, versions), *(f"UNSYNCED: {path}" for path in unsynced(one.log))]
        if one.side.kind == "read":
            wrongs += _of_reader(one, versions)
        if one.side.drops_broken and one.ended.code == 0 and _is_broken(place, pair):
            wrongs.append("LEFT: a version that cannot be read, and was to be dropped")
    converted = [one for one in ran if one.side.kind == "convert"]
    known = {version.number for version in _before(pair)}
    legal = _legal_rows(pair)
    wrongs += [f"MIXED: version {n}" for n, v in versions.items() if n not in known and v.rows not in legal]
    made = [one.ended for one in converted if _MADE_NONE not in one.ended.said]
    numbers = [number for ended in made if (number := _number(ended)) is not None]
    wrongs += [f"LOST: two were told of version {numbers[0]}"] if len(set(numbers)) < len(numbers) else []
    num_cut_off = sum(one.ended.code not in (0, CONFLICT) for one in converted)
    unclaimed = versions.keys() - known - set(numbers)
    wrongs += [f"LIE: version {max(unclaimed)} is none's"] if len(unclaimed) > num_cut_off else []
    return wrongs


def judge_reruns(world: World, place: Place, folder: Path, pair: Pair, ran: Sequence[Ran]) -> list[str]:
    """Runs what did not end well again, undisturbed, and returns what is wrong then."""
    problems = []
    # An append is refused until the version that cannot be read is dropped.
    for one in sorted(ran, key=lambda one: one.side.kind == "convert"):
        if one.ended.code == 0:
            continue
        # A training that has begun goes on when it is told so.
        goes_on = ("--resume",) if one.side.kind == "train" and (folder / "run").exists() else ()
        ended = world.start((*one.side.arguments, *goes_on), world.plan_of_bug(folder)).end()
        again, is_empty = Ran(one.side, ended), not version_numbers(place.names())
        if ended.code == CONFLICT and _is_done(place, one.side):
            continue
        if is_empty and ended.code == NOT_THERE and excuse(again, pair, (), {}):
            continue
        if one.side.kind == "convert":
            problems += _of_conversion(again, pair, _versions(place, pair)[0])
        if one.side.kind == "read":
            problems += _of_reader(again, _versions(place, pair)[0])
        problems += [] if ended.code == 0 else [f"RERUN: {one.side.kind} ends with {ended.code}: {ended.said[-300:]}"]
    pair = pair._replace(broken=None)
    problems += _wrong_at_the_end(world, place, pair)
    for command in (("verify", place.url), ("clean", place.url, "--delete", "--older-than", "0")):
        ended = world.start(command, world.plan_of_bug(folder)).end()
        problems += [] if ended.code == 0 else [f"RERUN: {command[0]} at the end: {ended.code}: {ended.said[-300:]}"]
    problems += _wrong_at_the_end(world, place, pair)
    left = [name for name in place.names() if name.rpartition("/")[2].startswith(".")]
    left = [name for name in left if not (MARK in name and excuse_of_mark(name, ran))]
    return [*problems, *([f"LEFT: {', '.join(left[:4])}"] if left else [])]


def _before(pair: Pair) -> tuple[Version, ...]:
    return pair.older if pair.before is None else (*pair.older, pair.before)


def _is_broken(place: Place, pair: Pair) -> bool:
    """Whether the version that could not be read before is there as it was."""
    if pair.broken is None:
        return False
    name = f"manifests/{pair.broken[0]:08d}.json"
    return name in place.names() and place.read(name) == pair.broken[1]


def _versions(place: Place, pair: Pair) -> tuple[dict[int, Version], list[str]]:
    versions, wrongs = read_versions(place)
    if pair.broken is not None and _is_broken(place, pair):
        wrongs = [wrong for wrong in wrongs if not wrong.startswith(f"TORN: version {pair.broken[0]}:")]
    for before in _before(pair):
        if versions.get(before.number) != before:
            is_old = pair.may_drop_old and any(n > before.number for n in versions)
            is_dropped = is_old and before.number not in versions
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
    legal = _legal_rows(pair) or [version.rows for version in _before(pair)]
    if not versions or versions[max(versions)].rows != legal[-1]:
        return [*wrongs, "RERUN: the newest version has other rows than all inputs"]
    made = [side for side in pair.sides if side.kind == "convert"]
    reference = world.appended if made and made[0].is_append else world.reference
    if len(made) == 1 and versions[max(versions)].shards != reference.shards:
        wrongs.append("BYTES: the rerun made others")
    return wrongs


def _of_end(one: Ran, pair: Pair, beside: Sequence[Ran], versions: Mapping[int, Version]) -> list[str]:
    code, kind = one.ended.code, one.side.kind
    if code == 0 or excuse(one, pair, beside, versions) is not None:
        return []
    if code == DAMAGED and kind in ("verify", "read", "train"):
        return [f"FALSE: {kind} reports damage that is not there"]
    if code == CONFLICT:
        return [f"CONFLICT: {kind} was refused, and none was faster"]
    return [f"CODE {code} of {kind}, which no fault explains"]


def _of_conversion(one: Ran, pair: Pair, versions: Mapping[int, Version]) -> list[str]:
    side, (code, said) = one.side, one.ended
    wrongs = []
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


def _of_reader(one: Ran, versions: Mapping[int, Version]) -> list[str]:
    if one.ended.code != 0:
        return []
    epochs = epochs_in(one.ended.said)
    if len(epochs) == NUM_EPOCHS and any(all(e == v.rows for e in epochs) for v in versions.values()):
        return []
    return ["MIXED: a reader had other rows than any version"]


def _is_done(place: Place, side: Side) -> bool:
    """Whether a conversion that may be made once has been made."""
    if side.kind != "convert" or {"--append", "--overwrite"} & set(side.arguments):
        return False
    numbers = version_numbers(place.names())
    return bool(numbers) and side.rows <= read_version(place, numbers[-1]).rows


def _number(ended: Ended) -> int | None:
    match = _VERSION.search(ended.said) if ended.code == 0 else None
    return int(match.group(1)) if match else None

"""What explains that a command did not end well, by name: a fault of its own, or what a command beside it did. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.faults.faulty.conversion_process import Ended
from tests.faults.judges.oracle import Version
from tests.faults.judges.records import Row
from tests.faults.trials import CONFLICT, KILLED

GAVE_UP, NO_SPACE, UNSAFE, DAMAGED, NOT_THERE = 5, 6, 7, 1, 2
MARK = ".cleaning-"
# Which faults lead to an exit code. A store that keeps failing ends a command; a fault that passes leads to none.
_LEADS_TO: Mapping[int, frozenset[str]] = {
    GAVE_UP: frozenset({"error", "timeout", "lost-answer", "asked-again", "short-put", "short-read", "flip"}),
    NO_SPACE: frozenset({"full"}),
    # What is needed is unknown where a listing lacks a manifest, or a version cannot be read.
    UNSAFE: frozenset({"stale-listing", "short-read", "flip"}),
    KILLED: frozenset({"kill-before", "kill-after", "torn"}),
}
_NONE = "there is no dataset"
_IS_LOCKED, _IS_GONE, _GIVE_UP = "is running already", "is not there any more", "--drop-broken-version"
_OF_LISTINGS = re.compile(r"set(/manifests)?/?$")


class Side(NamedTuple):
    """One of some commands.

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

    @property
    def drops_broken(self) -> bool:
        """Whether it removes the manifests of versions that cannot be read."""
        return _GIVE_UP in self.arguments

    @property
    def work_dir(self) -> str | None:
        """Where it keeps locks, if it says so."""
        at = self.arguments.index("--work-dir") if "--work-dir" in self.arguments else None
        return None if at is None else self.arguments[at + 1]


class Pair(NamedTuple):
    """Commands at once.

    Attributes:
        sides: Two of them, or three.
        before: The newest version that was there before and can be read.
        older: Those before it.
        broken: The number and the manifest of a version behind it that cannot be read.
        may_drop_old: Whether one of the commands may remove a version when there is a newer one.
        are_twins: Whether all append the same file, which may be appended once.
    """

    sides: tuple[Side, ...]
    before: Version | None
    older: tuple[Version, ...] = ()
    broken: tuple[int, bytes] | None = None
    may_drop_old: bool = False
    are_twins: bool = False


class Ran(NamedTuple):
    """A command that has ended; `was_killed` if the trial itself sent it a signal."""

    side: Side
    ended: Ended
    log: Sequence[Mapping[str, Any]] = ()
    was_killed: bool = False

    @property
    def faults(self) -> list[Mapping[str, Any]]:
        """Its operations that failed."""
        return [line for line in self.log if line["fault"] not in (None, "meet")]

    @property
    def num_faults(self) -> int:
        """How many of its operations failed."""
        return len(self.faults)

    @property
    def is_killed(self) -> bool:
        """Whether it was killed."""
        return self.ended.code == KILLED

    @property
    def fault_notes(self) -> str:
        """What happened to it."""
        return "".join(f"[{o['fault']} at {o['number']} {o['name']}] " for o in self.faults)


def excuse(one: Ran, pair: Pair, beside: Sequence[Ran], versions: Mapping[int, Version]) -> str | None:
    """Returns what explains that a command did not end with 0, None if nothing does.

    Args:
        one: The command.
        pair: All commands, and what was there before.
        beside: The other ones.
        versions: That are there now.
    """
    code = one.ended.code
    if code == KILLED and one.was_killed:
        return "the trial killed it"
    if code == CONFLICT:
        return _winner(one, pair, beside, versions) if one.side.kind == "convert" else None
    if code == NOT_THERE and _NONE in one.ended.said:
        stale = next((f for f in one.faults if f["fault"] == "stale-listing" and _OF_LISTINGS.search(f["path"])), None)
        return "nothing was there" if pair.before is None else _named(stale)
    if code == DAMAGED and one.side.is_append and pair.broken is not None and _GIVE_UP in one.ended.said:
        return f"version {pair.broken[0]} cannot be read"
    kinds = _LEADS_TO.get(code, frozenset())
    # A message tells where it failed, and a killed command tells nothing.
    said = "".join(one.ended.said.split())
    faults = (fault for fault in one.faults if fault["fault"] in kinds)
    return _named(next((f for f in faults if code == KILLED or _last_name(f["path"]) in said), None))


def excuse_of_mark(name: str, ran: Sequence[Ran]) -> str | None:
    """Returns what explains that a mark of a cleaning is left, None if nothing does."""
    for one in ran:
        own = [line for line in one.log if line["path"].endswith(name)]
        if own and one.is_killed:
            return f"{one.side.kind} was killed"
        if fault := next(
            (line for line in own if line["name"] == "delete" and line["fault"] in _LEADS_TO[GAVE_UP]), None
        ):
            return _named(fault)
    return None


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _named(fault: Mapping[str, Any] | None) -> str | None:
    return None if fault is None else f"{fault['fault']} at {fault['number']} {fault['name']} {fault['path']}"


def _winner(one: Ran, pair: Pair, beside: Sequence[Ran], versions: Mapping[int, Version]) -> str | None:
    """Returns which command made that a conversion was refused."""
    if _IS_LOCKED in one.ended.said:
        holder = next((other for other in beside if other.side.work_dir == one.side.work_dir), None)
        return holder and f"{holder.side.kind} held the lock"
    if _IS_GONE in one.ended.said:
        deleted = (line["path"] for other in beside if other.side.kind == "clean" for line in _deletions(other))
        path = next((path for path in deleted if path.rpartition("/")[2] in one.ended.said), None)
        return path and f"a cleaning deleted {path}"
    # Appends of different files go behind each other.
    others = [other for other in beside if other.side.kind == "convert" and (pair.are_twins or not one.side.is_append)]
    old = 0 if pair.before is None else pair.before.number
    made = (n for n, v in versions.items() if n > old and any(other.side.rows <= v.rows for other in others))
    number = next(made, None)
    return None if number is None else f"another one made version {number}"


def _deletions(one: Ran) -> list[Mapping[str, Any]]:
    return [line for line in one.log if line["name"] == "delete"]

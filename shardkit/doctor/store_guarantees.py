"""The promises of a store that shardkit relies on, and the verdict on a store from trials. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from shardkit.units import format_count, format_number

State = Literal["kept", "broken", "not checked"]
Observation = Literal["right", "old", "missing", "wrong", "seen"]
"""What a reader met: the expected file, the one from before, nothing, another one, or one that should not be there."""


class Promise(NamedTuple):
    """Something that shardkit relies on.

    Attributes:
        breach: The finding where a store breaks the promise, and its consequence.
    """

    title: str
    breach: str
    advice: str


_ONE_AT_A_TIME = "Let only one conversion at a time write there, or use a store that keeps conditional writes"
_NO_DATASETS = "Do not write datasets there; use another store, or another gateway to this one"

PROMISES = {
    "exclusive_create": Promise(
        "of writers who create one file, one wins",
        "Two writers both got the answer that they had won: concurrent conversions to one place may lose a commit",
        _ONE_AT_A_TIME,
    ),
    "refused_create": Promise(
        "a file that is there is not created again",
        "A file that must not be replaced was: a conversion may replace the commit of another one",
        _ONE_AT_A_TIME,
    ),
    "large_exclusive_create": Promise(
        "of writers who create one file of 6 MiB, one wins",
        "Two writers of a large file both got the answer that they had won: concurrent conversions with such manifests "
        "may lose a commit",
        _ONE_AT_A_TIME,
    ),
    "read_after_write": Promise(
        "a written file is read at once",
        "A written file was not read right after: a dataset may look damaged or missing for a while",
        _NO_DATASETS,
    ),
    "list_after_write": Promise(
        "a written file is listed at once",
        "A written file was not listed right after: a new version of a dataset may not be seen, and a conversion may "
        "take its number",
        "Let one conversion at a time write to a destination there, and wait between them; better, use another store",
    ),
    "overwrite": Promise(
        "a replaced file is read anew at once",
        "A replaced file was still read with its old content: a shard that was put right may look damaged for a while",
        "After a conversion that replaces damaged shards, wait before the dataset is read; better, use another store",
    ),
    "ranges": Promise(
        "a range has the bytes and the length that were asked for",
        "Ranges came back short or with other bytes: blocks of shards cannot be read by themselves",
        "Read datasets from another store; wrong bytes from this one are refused by checksum or length",
    ),
    "range_past_end": Promise(
        "a range over the end stops at the end",
        "A range over the end of a file had bytes that are not in the file, or lacked some that are",
        "Read datasets from another store; wrong bytes from this one are refused by checksum or length",
    ),
    "large_put": Promise(
        "a file in several parts arrives whole",
        "A large file did not arrive as it was sent: shards would be damaged",
        _NO_DATASETS,
    ),
    "given_up_upload": Promise(
        "an upload that is given up is never seen",
        "A part of a file was seen under its name: a conversion that is killed leaves shards that are cut off, which "
        "only the same conversion writes again",
        "Run `shardkit verify` after every conversion there; better, use another store",
    ),
    "delete": Promise(
        "a deleted file is gone at once",
        "A deleted file was still there right after: `shardkit clean` has to be run again until nothing is left",
        "Leave a while between deleting and listing there",
    ),
    "lock": Promise(
        "a lock is held by one process",
        "Two processes were both given one lock: two equal conversions to one place may disturb each other",
        "Keep the intermediate files on another file system with --work-dir",
    ),
    "power_cut": Promise("a written file survives a power cut", "", ""),
    "other_places": Promise("other hosts and regions see the same", "", ""),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one promise.

    Attributes:
        promise: Key of `PROMISES`.
    """

    promise: str
    state: State
    num_trials: int
    num_broken: int
    result: str

    @property
    def title(self) -> str:
        """What the store promises."""
        return PROMISES[self.promise].title


class Race(NamedTuple):
    """One round of writers who all created the same file.

    Attributes:
        winners: Writers to which the store said that they had made it.
        found: The writer whose content was read back; None if nothing was there, -1 if no writer wrote it.
    """

    num_writers: int
    winners: tuple[int, ...]
    found: int | None


class RangeTrial(NamedTuple):
    """A range that was asked for.

    Attributes:
        there: The bytes of the file in that range; fewer where it goes over the end.
        found: What came back; None for an error.
    """

    start: int
    num_bytes: int
    there: bytes
    found: bytes | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a store."""

    keeps_promises: bool
    sentences: tuple[str, ...]


def judge_races(promise: str, races: Sequence[Race]) -> Finding:
    """Returns the finding from rounds of writers that create the same file.

    A round may have no winner, because a lost answer makes the client ask twice. Then the content of one of the
    writers has to be found.
    """
    several = sum(len(race.winners) > 1 for race in races)
    # Two winners are one fault, whichever of them is read.
    others = sum(len(race.winners) <= 1 and not _is_settled(race) for race in races)
    num_writers = max((race.num_writers for race in races), default=0)
    if several:
        result = f"two or more won in {several} of {format_number(len(races), 'round')}"
    elif others:
        result = f"the winner's file was not there in {others} of {format_number(len(races), 'round')}"
    else:
        result = f"{num_writers} writers, one winner in every round"
        unclear = sum(not race.winners for race in races)
        result += f"; {format_number(unclear, 'answer')} lost on the way" if unclear else ""
    return _finding(promise, len(races), several + others, result)


def _is_settled(race: Race) -> bool:
    if race.winners:
        return race.found == race.winners[0]
    return race.found is not None and 0 <= race.found < race.num_writers


def observe(found: bytes | None, expected: bytes | None, before: bytes | None = None) -> Observation:
    """Returns what a reader saw.

    Args:
        found: What was read; None if nothing was there.
        expected: What should be there; None if nothing should.
    """
    if found == expected:
        return "right"
    if expected is None:
        return "seen"
    if found is None:
        return "missing"
    return "old" if found == before else "wrong"


def judge_observations(promise: str, observations: Iterable[Observation], kept: str) -> Finding:
    """Returns the finding from what readers saw."""
    counts = Counter(observations)
    num_trials = sum(counts.values())
    num_broken = num_trials - counts["right"]
    words: dict[Observation, str] = {
        "missing": "not there",
        "old": "as it had been before",
        "wrong": "with other content",
        "seen": "there, though it should not be",
    }
    parts = [f"{format_count(counts[key])} times {word}" for key, word in words.items() if counts[key]]
    return _finding(promise, num_trials, num_broken, ", ".join(parts) if parts else kept)


def judge_ranges(promise: str, trials: Sequence[RangeTrial]) -> Finding:
    """Returns the finding from ranges. One that goes over the end may be refused, one within a file may not."""
    counts: Counter[str] = Counter()
    for trial in trials:
        goes_over = len(trial.there) < trial.num_bytes
        if trial.found == trial.there or (goes_over and trial.found is None):
            continue
        if trial.found is None:
            counts["refused"] += 1
        elif len(trial.found) < len(trial.there):
            counts["too short"] += 1
        elif len(trial.found) > len(trial.there):
            counts["too long"] += 1
        else:
            counts["with other bytes"] += 1
    parts = [f"{format_count(number)} {word}" for word, number in sorted(counts.items())]
    return _finding(promise, len(trials), sum(counts.values()), ", ".join(parts) if parts else "every byte right")


def not_checked(promise: str, why: str) -> Finding:
    """Returns the finding for a promise that was not tried."""
    return Finding(promise=promise, state="not checked", num_trials=0, num_broken=0, result=why)


def give_verdict(findings: Sequence[Finding]) -> Verdict:
    """Returns the verdict: all broken promises, in the order of `PROMISES`, each advice once."""
    order = list(PROMISES)
    broken = sorted((f.promise for f in findings if f.state == "broken"), key=order.index)
    if not broken:
        return Verdict(
            keeps_promises=True, sentences=("This store keeps every promise that shardkit relies on and can check.",)
        )
    breaches = [f"{PROMISES[name].breach}." for name in broken]
    advice = dict.fromkeys(f"{PROMISES[name].advice}." for name in broken)
    return Verdict(keeps_promises=False, sentences=(*breaches, *advice))


def _finding(promise: str, num_trials: int, num_broken: int, result: str) -> Finding:
    if not num_trials:
        return not_checked(promise, "nothing was tried")
    state: State = "broken" if num_broken else "kept"
    return Finding(promise=promise, state=state, num_trials=num_trials, num_broken=num_broken, result=result)

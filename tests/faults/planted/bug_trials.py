"""Of each planted bug the trial that finds it, and a program that lists who finds which.

    python -m tests.faults.planted.bug_trials --seed 1 --trials 20

draws trials of the campaign that looks for a bug, until one finds it. Where none of so many does, the trial that is
aimed at the bug has to. The bugs of the model of commits are looked for by the model. Exits with 1 if one is not found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from tests.faults.campaign import CAMPAIGNS
from tests.faults.faulty.fault_plan import Fault
from tests.faults.faulty.full_disk import fill_at
from tests.faults.pairs import AT_DELETION, AT_MANIFEST, AT_TABLE, Hold, Script, Trouble, meet
from tests.faults.places import Place, open_store
from tests.faults.planted.planted_pair_bugs import ALL_BUGS
from tests.faults.races import outlive, race
from tests.faults.refusals import forbid
from tests.faults.trials import Outcome, disturb, disturb_one, flip_a_bit, kinds_of
from tests.faults.worlds import SCENARIOS, Scenario, World
from tests.model.test_commit_model import BUGS as MODEL_BUGS
from tests.model.test_commit_model import explored_with
from tests.support import fork_server

FRESH, NEXT, SAME = SCENARIOS["fresh"], SCENARIOS["next"], SCENARIOS["same"]


class Aim(NamedTuple):
    """How a bug is looked for.

    Attributes:
        where: `local` or `stored`.
        campaign: Whose trials are of this kind.
        trial: That finds it.
        expected: The word that begins what it finds.
    """

    where: str
    campaign: str
    trial: Callable[[World], Outcome]
    expected: str


def damage(place: Place, folder: Path) -> None:
    """Damages a shard."""
    flip_a_bit(place, random.Random(1))


def fault(kind: str, name: str, path: str) -> tuple[Fault, ...]:
    """Returns a plan of one fault."""
    return (Fault((kind,), names=(name,), path=path),)


def tried(scenario: Scenario, faults: tuple[Fault, ...] = (), **more: Any) -> Callable[[World], Outcome]:
    """Returns a conversion with faults."""
    return lambda world: disturb(world, scenario, faults, **more)


def at_one(*what: str, **more: Any) -> Callable[[World], Outcome]:
    """Returns a first conversion with a fault at one operation."""
    return lambda world: disturb_one(world, FRESH, *what, **more)


def at_pair(name: tuple[str, int], first: int, at: Fault | None, *faults: Fault) -> Callable[[World], Outcome]:
    """Returns a pair of which the first stops at a place while the other one runs to its end."""
    script = Script(first, Hold(at, ""), (Trouble(faults), Trouble()))
    return lambda world: meet(world, *name, script)


# With seeds that draw data of a dead conversion and a cleaning of all that is not locked; two different inputs.
CLEANING, APPENDS, VERIFYING = ("clean and convert", 16), ("append and append", 0), ("verify and overwrite", 1)
FLIPPED = Fault(("flip",), names=("get",), path=r"\.tfrecord")
AT_FULL = {"scenario": NEXT, "num_bytes": 8 * 2**20, "stage": "table", "free_bytes": 0}
AT_COMMIT = fault("kill-before", "link", r"manifests/.*\.json$")
UNANSWERED = fault("lost-answer", "create", r"\.json$")
BEHIND_COMMIT = fault("error", "rename", r"/committed\.msgpack")
# The commit compares sizes, so that a conversion with such a bug ends in vain.
SHORT_PUT = at_one("short-put", "put", "/data/", must_finish=True)
CUT_INPUT = at_one("short-read", "get", ".csv", index=-1, is_input_stored=True)
CLEAN = tried(FRESH)
CUT_OFF = tried(FRESH, AT_COMMIT)
LOOKED_FOR = {
    "commit_by_rename": Aim("local", "writers", partial(race, scenario=FRESH), "LIE"),
    "commit_after_a_look": Aim("local", "writers", partial(race, scenario=FRESH), "LIE"),
    "manifest_before_shards": Aim("local", "sweep", tried(FRESH, fault("kill-before", "rename", "/data/")), "TORN"),
    "old_deleted_first": Aim("local", "sweep", tried(NEXT, AT_COMMIT), "LOST"),
    "cleanup_after_an_unknown_answer": Aim("stored", "lost", tried(FRESH, UNANSWERED), "TORN"),
    "existing_is_a_conflict": Aim("stored", "lost", tried(FRESH, fault("asked-again", "create", r"\.json$")), "LIE"),
    "first_answer_is_believed": Aim("stored", "faults", at_one("short-read", "get", ".json", after="create"), "LIE"),
    "nothing_is_asked_again": Aim("stored", "sweep", at_one("error", "put", "/data/", must_finish=True), "GAVE"),
    "short_put_is_believed": Aim("stored", "sweep", SHORT_PUT, "GAVE"),
    "stored_size_is_not_compared": Aim("stored", "sweep", SHORT_PUT, "GAVE"),
    "no_length_check": Aim("stored", "faults", CUT_INPUT, "LIE"),
    "no_checksum_check": Aim("local", "kills", tried(FRESH, AT_COMMIT, meddle=damage), "RERUN"),
    "off_by_one": Aim("local", "sweep", CLEAN, "TORN"),
    "swallowed_put": Aim("stored", "faults", at_one("error", "put", "/data/", must_finish=True), "GAVE"),
    "put_in_place": Aim("local", "sweep", tried(SAME, fault("torn", "write", "/data/")), "TORN"),
    "one_folder_for_all": Aim("local", "zombies", partial(outlive, scenario=FRESH, moment=0.1, is_twin=False), "TORN"),
    "exit_code_0": Aim("local", "sweep", tried(FRESH, fault("full", "open", "/spool/")), "LIE"),
    "no_fsync": Aim("local", "sweep", CLEAN, "UNSYNCED"),
    "no_fsync_of_folders": Aim("local", "sweep", CLEAN, "UNSYNCED"),
    "leftovers_stay": Aim("local", "kills", CUT_OFF, "LEFT"),
    "nothing_was_committed": Aim("local", "sweep", tried(FRESH, BEHIND_COMMIT), "LIE"),
    "no_look_for_marks": Aim("local", "pairs", at_pair(CLEANING, 0, AT_DELETION), "TORN"),
    "no_look_at_the_files": Aim("local", "pairs", at_pair(CLEANING, 1, AT_TABLE), "TORN"),
    "no_look_for_tables": Aim("local", "pairs", at_pair(CLEANING, 1, AT_MANIFEST), "TORN"),
    "mark_stays": Aim("local", "pairs", at_pair(CLEANING, 1, None), "LEFT"),
    "rebase_with_the_old_rows": Aim("local", "pairs", at_pair(APPENDS, 0, AT_TABLE), "LOST"),
    "no_rebase": Aim("local", "pairs", at_pair(APPENDS, 0, AT_TABLE), "CONFLICT"),
    "verify_asks_once": Aim("stored", "pairs", at_pair(VERIFYING, 0, None, FLIPPED), "FALSE"),
    "full_disk_is_overlooked": Aim("local", "sizes", partial(fill_at, **AT_FULL), "CODE"),
    "refusal_is_a_bug": Aim("local", "refusals", partial(forbid, name="set/manifests", has_old=True), "CODE"),
}


def main() -> int:
    """Looks for every bug and prints who found it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=20, help="that are drawn before the aimed one")
    parser.add_argument("--bug", action="append", choices=sorted(ALL_BUGS))
    options = parser.parse_args()
    console = Console(highlight=False, width=160)
    fork_server.install()
    num_found = num_all = 0
    with tempfile.TemporaryDirectory(prefix="faults.") as folder:
        for where, kind in (("local", "local"), ("stored", "moto")):
            own = [bug for bug, aim in LOOKED_FOR.items() if aim.where == where and bug in (options.bug or ALL_BUGS)]
            with open_store(kind, Path(folder)) as store:
                world = World(store, Path(folder))
                for bug in own:
                    words, outcome = _look_for(world, bug, options.seed, options.trials)
                    num_all, num_found = num_all + 1, num_found + bool(words)
                    console.print(f"{bug:34}{LOOKED_FOR[bug].campaign} on {kind}: {outcome} {' '.join(words)}")
    for bug, scene in MODEL_BUGS.items() if not options.bug else ():
        found = explored_with(bug)
        num_all, num_found = num_all + 1, num_found + (found.broken is not None)
        console.print(f"{bug:34}model, {scene}: state {found.num_states}, {found.broken or 'not found'}")
    console.print(f"{num_found} of {num_all} planted bugs were found")
    return int(num_found < num_all)


def _look_for(world: World, bug: str, seed: int, num_trials: int) -> tuple[list[str], str]:
    """Returns the words that begin what was found, none if nothing was, and in which trial."""
    aim, planted = LOOKED_FOR[bug], world.with_bug(bug)
    rng = random.Random(f"{seed}/{aim.campaign}/{world.store.name}")
    for number, trial in enumerate(CAMPAIGNS[aim.campaign].trials(planted, rng, num_trials) if num_trials else (), 1):
        if words := sorted(kinds_of([trial()])):
            return words, f"trial {number}:"
    sound, found = aim.trial(world), aim.trial(planted)
    words = [] if sound.wrongs else sorted(kinds_of([found]))
    return (words if aim.expected in words else []), f"aimed trial after {num_trials}:"


if __name__ == "__main__":
    sys.exit(main())

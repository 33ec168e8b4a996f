"""Breaks conversions in every way there is, and prints what a reader found afterwards.

    python -m tests.faults.campaign all --seed 1 --trials 200 --store local --store moto

`sweep` puts every fault at every storage operation, `kills` kills at random times, `writers` races eight conversions,
`zombies` lets one go on after another's commit, `lost` loses every fifth answer, `faults` spoils every tenth request,
`disk` fills the disk, `signals` sends signals. `pairs` runs two commands at once with faults and kills of either,
`sizes` has disks of 8 to 40 MiB that others fill, `refusals` places that may not be written.

`old`, `new` and `conflict` count what was found right after the fault; `torn`, `mixed`, `lie` and `lost` what never may
be, `other` what else is wrong, `recovered` the reruns that ended with the same bytes. Below, a line says how many of
`faults` finished, and how long they took beside one without faults. Exits with 1 if anything is wrong, if more than a
hundredth of `faults` gave up, or if nothing was tried. The same seed draws the same trials. `--bug` plants a bug, which
the campaign has to find.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.faults.campaigns import Trial, faults, kills, lost, signals, sweep
from tests.faults.faulty.full_disk import disks, sizes
from tests.faults.pairs import pairs
from tests.faults.places import is_there, open_store
from tests.faults.planted.planted_pair_bugs import ALL_BUGS
from tests.faults.races import writers, zombies
from tests.faults.refusals import refusals
from tests.faults.trials import Outcome, kinds_of
from tests.faults.worlds import World
from tests.support import fork_server
from tests.support.stores.servers import KINDS

# How many trials of each are made at a time: races are many processes each.
LANES = 2
_STATES = ("old", "new", "conflict")
_FORBIDDEN = ("TORN", "MIXED", "LIE", "LOST")
# A conversion of a second waits for longer than it works, and other work on the machine disturbs it.
_MOST_TIMES = 10.0


class Campaign(NamedTuple):
    """One kind of trouble.

    Attributes:
        trials: Yields what is tried, given the world, the source of all that is random, and how many.
        is_local, is_stored: Where it makes sense.
        lanes: How many at a time.
        may_give_up: The share of conversions that may end with an error; None if that is judged trial by trial.
    """

    trials: Callable[[World, random.Random, int], Iterator[Trial]]
    is_local: bool = True
    is_stored: bool = True
    lanes: int = LANES
    may_give_up: float | None = None


CAMPAIGNS = {
    "sweep": Campaign(sweep),
    "kills": Campaign(kills),
    "writers": Campaign(writers, lanes=1),
    "zombies": Campaign(zombies),
    "lost": Campaign(lost),
    "faults": Campaign(faults, is_local=False, may_give_up=0.01),
    "disk": Campaign(disks, is_stored=False),
    "signals": Campaign(signals),
    "pairs": Campaign(pairs),
    "sizes": Campaign(sizes, is_stored=False),
    "refusals": Campaign(refusals, is_stored=False),
}


class Result(NamedTuple):
    """What a campaign found on a store, in how long; `clean_s` is what one conversion takes without faults."""

    name: str
    store: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    clean_s: float


def run(name: str, world: World, seed: int, num_trials: int) -> Result:
    """Runs one campaign on one store; 0 trials means all that there are, for a sweep."""
    campaign, started = CAMPAIGNS[name], time.monotonic()
    rng = random.Random(f"{seed}/{name}/{world.store.name}")
    with ThreadPoolExecutor(campaign.lanes) as lanes:
        outcomes = tuple(lanes.map(lambda trial: trial(), campaign.trials(world, rng, num_trials)))
    return Result(name, world.store.name, outcomes, time.monotonic() - started, world.clean_s)


def table_of(results: list[Result]) -> Table:
    """Returns the figures."""
    table = Table(box=None, pad_edge=False)
    for column in ("campaign", "store"):
        table.add_column(column)
    for column in ("trials", "faults", *_STATES, *(k.lower() for k in _FORBIDDEN), "other", "recovered", "seconds"):
        table.add_column(column, justify="right")
    for result in results:
        states = [sum(o.state == state for o in result.outcomes) for state in _STATES]
        wrongs = kinds_of(result.outcomes)
        others = sum(count for kind, count in wrongs.items() if kind not in _FORBIDDEN)
        figures = [len(result.outcomes), sum(o.num_faults for o in result.outcomes), *states]
        figures += [*(wrongs.get(kind, 0) for kind in _FORBIDDEN), others, sum(o.is_recovered for o in result.outcomes)]
        table.add_row(result.name, result.store, *map(str, figures), f"{result.seconds:.0f}")
    return table


class Finishing(NamedTuple):
    """How many conversions of a campaign finished, and in how many times the time of one without faults."""

    num_finished: int
    num_trials: int
    times: float
    summary: str
    is_enough: bool


def finishing(result: Result) -> Finishing | None:
    """Returns how many conversions finished, None where that is judged trial by trial. Pure."""
    share, num_trials = CAMPAIGNS[result.name].may_give_up, len(result.outcomes)
    if share is None or not num_trials:
        return None
    num_finished = sum(o.code == 0 for o in result.outcomes)
    # Of fewer than 1 / share conversions, none.
    most = int(share * num_trials)
    times = statistics.median(o.seconds for o in result.outcomes) / result.clean_s
    summary = (
        f"{result.name} on {result.store}: {num_finished} of {num_trials} finished ({num_finished / num_trials:.1%}; "
        f"{most} may give up), each in {times:.1f} times the time of one without faults (median; "
        f"{_MOST_TIMES:.0f} is too long)"
    )
    is_enough = num_trials - num_finished <= most and times <= _MOST_TIMES
    return Finishing(num_finished, num_trials, times, summary, is_enough)


def has_failed(result: Result) -> bool:
    """Returns whether anything is wrong, nothing having been tried or hit included."""
    finished = finishing(result)
    return (
        (finished is not None and not finished.is_enough)
        or not any(o.num_faults or o.code or o.state != "new" for o in result.outcomes)
        or any(o.wrongs for o in result.outcomes)
    )


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", nargs="*", choices=[*CAMPAIGNS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--trials", type=int, default=20, help="of each campaign and store; 0 makes sweeps whole")
    parser.add_argument("--store", action="append", choices=["local", *KINDS.keys() - {"hdfs"}])
    parser.add_argument("--shards", type=int, default=1, help="of each of two splits")
    parser.add_argument("--bug", choices=sorted(ALL_BUGS), default="", help="to see that it is found")
    options = parser.parse_args()
    names = list(CAMPAIGNS) if "all" in options.campaign else options.campaign
    console = Console(highlight=False, width=160 if not sys.stdout.isatty() else None)
    console.print(f"seed {options.seed}")
    results = []
    fork_server.install()
    with tempfile.TemporaryDirectory(prefix="faults.") as folder:
        for store_name in options.store or ["local"]:
            if not is_there(store_name):
                console.print(f"{store_name} is not installed: {KINDS[store_name].install}")
                return 1
            with open_store(store_name, Path(folder)) as store:
                world = World(store, Path(folder), options.shards).with_bug(options.bug)
                for name in names:
                    if not (CAMPAIGNS[name].is_stored if store.protocols else CAMPAIGNS[name].is_local):
                        continue
                    results.append(run(name, world, options.seed, options.trials))
                    counts_ends = CAMPAIGNS[name].may_give_up is not None
                    for outcome in results[-1].outcomes:
                        if outcome.wrongs or (counts_ends and outcome.code):
                            reason = "; ".join(outcome.wrongs) or f"ended with {outcome.code}"
                            console.print(f"{name}: {reason}\n  {outcome.story}", markup=False)
    console.print(table_of(results))
    for result in results:
        if (finished := finishing(result)) is not None:
            console.print(finished.summary, soft_wrap=True)
    missed = sorted({*names} - {result.name for result in results} if "all" not in options.campaign else ())
    if missed:
        console.print(f"not tried, as they need another --store: {', '.join(missed)}")
    return int(bool(missed) or not results or any(has_failed(result) for result in results))


if __name__ == "__main__":
    sys.exit(main())

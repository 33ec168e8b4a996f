"""The campaigns whose trials are one conversion each: what they do to it, drawn by a seed."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.faults.faulty.conversion_process import Conversion
from tests.faults.faulty.fault_plan import KINDS, Fault
from tests.faults.trials import Interference, Outcome, disturb, flip_a_bit, operations_of
from tests.faults.worlds import Scenario, World

Trial = Callable[[], Outcome]

CHANGING = frozenset(
    {"open", "write", "link", "rename", "delete", "make-folder", "delete-folder", "sync", "put", "create"}
    | {"start-upload", "put-part", "end-upload"}
)
_LOST = ("lost-answer", "asked-again")
# Of a store: each passes when it is asked again, and ends no conversion.
_PASSING = ("error", "short-put", "timeout", *_LOST, "short-read", "flip", "stale-listing")
ALL_OF_STORES = (*_PASSING, "lag")
_LOST_SHARE, FAULT_SHARE = 0.2, 0.1
_STOPPED_S = 1.0
_POLL_S = 0.001


def sweep(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """Every fault that can happen, at every operation, or as many of those as are asked for, of each kind as many."""
    is_stored = bool(world.store.protocols)
    kinds = ("kill-before", "kill-after", "torn", *(_PASSING if is_stored else ("error", "full")))
    points: dict[str, list[tuple[Scenario, Fault]]] = {kind: [] for kind in kinds}
    for scenario in world.scenarios:
        for line in operations_of(world, scenario):
            for kind in kinds:
                if (not KINDS[kind] or line["name"] in KINDS[kind]) and (
                    kind != "kill-after" or line["name"] in CHANGING
                ):
                    points[kind].append((scenario, Fault((kind,), at=line["number"])))
    for some in points.values():
        rng.shuffle(some)
    in_turn = [point for turn in zip_longest(*points.values()) for point in turn if point is not None]
    for scenario, fault in in_turn[: num_trials or None]:
        must_finish = is_stored and fault.kinds[0] in _PASSING
        yield partial(disturb, world, scenario, (fault,), must_finish=must_finish)


def kills(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """SIGKILL to all processes at any time, half of them at the commit; of some, a shard is damaged then."""
    for _ in range(num_trials):
        scenario = rng.choice(world.scenarios)
        interfere = _at_random_time(world, scenario, rng, lambda conversion: conversion.signal_all(signal.SIGKILL))
        damage = random.Random(rng.random())
        meddle = (lambda place, folder, own=damage: flip_a_bit(place, own)) if rng.random() < 0.25 else None
        yield partial(disturb, world, scenario, interfere=interfere, meddle=meddle)


def lost(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """One of five requests that change something is applied, and its answer lost."""
    kinds = _LOST if world.store.protocols else ("asked-again",)
    for _ in range(num_trials):
        fault = Fault(kinds, probability=_LOST_SHARE, seed=rng.randrange(2**32))
        scenario = rng.choice(world.scenarios)
        yield partial(disturb, world, scenario, (fault,), must_finish=True)


def faults(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """One of ten requests of any kind fails, in all ways there are; half of the inputs lie in the store, too."""
    for _ in range(num_trials):
        seed, scenario = rng.randrange(2**32), rng.choice(world.scenarios)
        is_input_stored = bool(world.store.protocols) and rng.random() < 0.5
        # Nothing tells what the bits of a table that somebody else wrote should be.
        kinds = tuple(k for k in ALL_OF_STORES if k != "flip")
        of_input = Fault(kinds, probability=FAULT_SHARE, seed=seed, path=r"\.csv$")
        of_all = Fault(ALL_OF_STORES, probability=FAULT_SHARE, seed=seed, path=r"set/|set$")
        yield partial(disturb, world, scenario, (of_input, of_all), is_input_stored=is_input_stored)


def signals(world: World, rng: random.Random, num_trials: int) -> Iterator[Trial]:
    """SIGTERM, SIGINT, SIGHUP, two of them, and SIGSTOP for a second, at any time."""
    for _ in range(num_trials):
        first, second = (rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) for _ in range(2))
        ways = (
            lambda conversion, n=first: conversion.signal(n),
            lambda conversion, n=first, m=second: (conversion.signal(n), conversion.signal(m)),
            _stop_for_a_while,
        )
        way = rng.choices(ways, (3, 2, 1))[0]
        scenario = rng.choice(world.scenarios)
        yield partial(disturb, world, scenario, interfere=_at_random_time(world, scenario, rng, way))


def _at_random_time(
    world: World, scenario: Scenario, rng: random.Random, act: Callable[[Conversion], object]
) -> Interference:
    # Between two operations that are drawn, not after a time that is drawn: how fast a machine is moves no trial behind
    # the end. Before the first operation, what a signal does is the command's own business.
    lines = operations_of(world, scenario)
    commit = next(i for i, line in enumerate(lines) if _is_commit(line))
    number = rng.randrange(commit if rng.random() < 0.5 else 0, len(lines)) + 1
    pause_s = rng.uniform(0, world.clean_s / len(lines))

    def interfere(conversion: Conversion, log: Path) -> None:
        if wait_for_operation(conversion, log, re.compile(f'"number": {number},')):
            conversion.has_ended(pause_s)
            act(conversion)

    return interfere


def _is_commit(line: Mapping[str, Any]) -> bool:
    return line["name"] in ("link", "create") and line["path"].endswith(".shards.parquet")


def wait_for_operation(
    conversion: Conversion, log: Path, pattern: re.Pattern[str], limit_s: float | None = None
) -> bool:
    """Waits until an operation is logged; returns whether it was before the conversion ended, and the limit."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while not (log.exists() and pattern.search(log.read_text())):
        if conversion.has_ended(_POLL_S) or (end is not None and time.monotonic() > end):
            return False
    return True


def _stop_for_a_while(conversion: Conversion) -> None:
    conversion.signal_all(signal.SIGSTOP)
    time.sleep(_STOPPED_S)
    conversion.signal_all(signal.SIGCONT)

"""Decides the next step when something happens to a worker, from values alone, without processes or clocks.

The shell around it (`train.distribution.supervisor`) calls `decide` for each event and takes the action.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import msgspec

from shardkit.errors import (
    BadInputError,
    ConflictError,
    DamageError,
    OutOfSpaceError,
    StorageError,
    UnsafeError,
    UsageError,
)
from shardkit.runtime.early_signals import WORDS
from shardkit.runtime.signals import signal_name
from shardkit.units import format_number
from train.distribution.cluster import SERVER, WORKER, name_of, task_of
from train.distribution.exit_codes import EXIT_BUG, PEER_LOST_CODES

# Another start would end the same way.
FINAL_CODES = frozenset(
    kind.exit_code for kind in (DamageError, UsageError, BadInputError, ConflictError, OutOfSpaceError, UnsafeError)
)
STOP_CODES = {128 + number: number for number in WORDS}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a supervised run.

    Attributes:
        worker_counts: Numbers of workers that can share the run; None if any can.
        ended: Exit codes of this generation's workers that ended.
        failed_before: Whether a generation before this one failed.
        furthest_step: Completed steps of the furthest generation that failed; None if none began.
        bug_steps: Completed steps of the workers that ended with a bug; None for one that had not begun.
        stopping: The signal that was passed on to the workers; None while they are to go on.
        num_servers: Parameter servers among all workers; with them, the others do without one that is lost.
        num_replaced: Workers that were started again while the others went on.
        given_up: Workers that the others go on without.
        is_saved: Whether there is a checkpoint to go on from.
    """

    num_workers: int
    count: int
    max_restarts: int
    is_elastic: bool = False
    worker_counts: tuple[int, ...] | None = None
    generation: int = 0
    ended: dict[int, int] = {}
    failed_before: bool = False
    furthest_step: int | None = None
    bug_steps: frozenset[int | None] = frozenset()
    stopping: int | None = None
    num_servers: int = 0
    num_replaced: int = 0
    given_up: frozenset[int] = frozenset()
    is_saved: bool = True


class WorkerEnded(msgspec.Struct, frozen=True):
    """A worker ended; `code` is negative for a signal, as in `subprocess`."""

    index: int
    code: int
    step: int | None = None


class WorkerFroze(msgspec.Struct, frozen=True):
    """A worker gave no sign of life for too long.

    Attributes:
        others: Workers that are silent too. One waits for another; which one for which cannot be seen.
    """

    index: int
    silent_s: float
    phase: str
    step: int | None = None
    is_stopped: bool = False
    others: tuple[int, ...] = ()


class StartFailed(msgspec.Struct, frozen=True):
    """The system refused to start a worker."""

    index: int
    why: str


class Signalled(msgspec.Struct, frozen=True):
    """The supervisor was asked to stop."""

    number: int


class GraceOver(msgspec.Struct, frozen=True):
    """The workers had their time to stop."""


Event = WorkerEnded | WorkerFroze | StartFailed | Signalled | GraceOver


class Wait(msgspec.Struct, frozen=True):
    """Nothing is to be done."""


class Stop(msgspec.Struct, frozen=True):
    """Pass a signal on to all workers, and give them time."""

    number: int


class Restart(msgspec.Struct, frozen=True):
    """End all workers of this host, and start `count` of them from the last checkpoint, or from the beginning."""

    count: int
    sentence: str


class Replace(msgspec.Struct, frozen=True):
    """End one worker, and start it again while the others go on."""

    index: int
    sentence: str


class GiveUp(msgspec.Struct, frozen=True):
    """End one worker; the others go on without it."""

    index: int
    sentence: str


class Finish(msgspec.Struct, frozen=True):
    """End all workers that are left, and end with this exit code.

    Attributes:
        culprit: The worker whose own words say why; None where none has any.
        sentence: Why, where there is a reason that no worker gave.
    """

    code: int
    culprit: int | None = None
    sentence: str | None = None


Action = Wait | Stop | Restart | Replace | GiveUp | Finish


def decide(state: State, event: Event) -> tuple[State, Action]:
    """Returns the state after an event, and the action to take."""
    if isinstance(event, Signalled):
        if state.stopping is not None:
            return state, Finish(128 + state.stopping)
        return msgspec.structs.replace(state, stopping=event.number), Stop(event.number)
    if isinstance(event, GraceOver):
        return state, Finish(128 + (state.stopping or signal.SIGTERM))
    if isinstance(event, WorkerEnded):
        state = msgspec.structs.replace(state, ended=state.ended | {event.index: event.code})
        if state.stopping is not None:
            return state, _while_stopping(state, event)
        if event.code == 0:
            # A chief has dismissed all others; one that is just starting again would wait for it in vain.
            is_dismissed = state.num_servers > 0 and event.index == 0
            return state, Finish(0) if is_dismissed or _are_all_done(state) else Wait()
        if event.code in STOP_CODES:
            # A signal stopped this worker without the supervisor; the others have to stop at the same step.
            number = STOP_CODES[event.code]
            after = msgspec.structs.replace(state, stopping=number)
            return after, Finish(event.code) if _have_all_ended(state) else Stop(number)
        if event.code in FINAL_CODES or (event.code == StorageError.exit_code and event.step is None):
            return state, Finish(event.code, culprit=event.index)
        if event.code == EXIT_BUG:
            if event.step in state.bug_steps:
                what = describe(event, state.num_servers)
                sentence = f"{what}, where a worker did before; another start would end the same way"
                return state, Finish(event.code, culprit=event.index, sentence=sentence)
            state = msgspec.structs.replace(state, bug_steps=state.bug_steps | {event.step})
    elif state.stopping is not None:
        return state, Wait()  # The grace period ends workers that do not end by themselves.
    return _without_one(state, event) or _after_failure(state, event)


def causes_first(events: Sequence[Event]) -> list[Event]:
    """Returns simultaneous events in the order in which they are to be decided on: causes before consequences."""

    def rank(event: Event) -> int:
        if isinstance(event, WorkerEnded):
            if event.code in FINAL_CODES:
                return 1
            return 5 if event.code in PEER_LOST_CODES else 4 if event.code == 0 else 2
        return {Signalled: 0, StartFailed: 2, WorkerFroze: 3}.get(type(event), 6)

    return sorted(events, key=rank)


def describe(event: Event, num_servers: int = 0) -> str:
    """Returns the event of a worker in words, as the beginning of a sentence."""
    assert isinstance(event, WorkerEnded | WorkerFroze | StartFailed)
    who = name_of(event.index, num_servers)
    if isinstance(event, StartFailed):
        return f"{who} could not be started ({event.why})"
    when = "before its first step" if event.step is None else f"after step {event.step:,}"
    if task_of(event.index, num_servers)[0] == SERVER:
        when = "while it served"
    if isinstance(event, WorkerFroze):
        how = "was stopped" if event.is_stopped else "gave no sign of life"
        if event.others and not event.is_stopped:
            names = [name_of(index, num_servers) for index in sorted((event.index, *event.others))]
            who = f"workers {', '.join(n.removeprefix('worker ') for n in names)}"
        return f"{who} {how} for {event.silent_s:.0f} s {when}, during {event.phase}"
    if event.code in PEER_LOST_CODES:
        return f"{who} lost another worker {when}"
    if event.code < 0:
        return f"{who} was killed by {signal_name(-event.code)} {when}"
    return f"{who} ended with exit code {event.code} {when}"


def _while_stopping(state: State, event: WorkerEnded) -> Action:
    assert state.stopping is not None
    if event.code in FINAL_CODES:
        return Finish(event.code, culprit=event.index)
    # What a chief commands has nothing left to do, and would wait to see that it is gone.
    is_chief = state.num_servers > 0 and event.index == 0
    if not (is_chief or _have_all_ended(state)):
        return Wait()
    is_done = event.code == 0 if is_chief else _are_all_done(state)
    return Finish(0) if is_done else Finish(128 + state.stopping)


def _without_one(state: State, event: WorkerEnded | WorkerFroze | StartFailed) -> tuple[State, Action] | None:
    """Returns how the others go on without a worker for now or for good; None if they cannot."""
    index = event.index
    has_lost_others = isinstance(event, WorkerEnded) and event.code in PEER_LOST_CODES
    if not state.num_servers or task_of(index, state.num_servers)[0] != WORKER or has_lost_others:
        return None
    ended = {i: code for i, code in state.ended.items() if i != index}
    what = describe(event, state.num_servers)
    if state.generation + state.num_replaced < state.max_restarts:
        after = msgspec.structs.replace(state, ended=ended, num_replaced=state.num_replaced + 1)
        number = f"restart {after.generation + after.num_replaced} of {state.max_restarts}"
        return after, Replace(index, f"{what}; the others go on while it starts again, {number}")
    num_left = state.num_workers - 2 - state.num_servers - len(state.given_up)
    # A host without processes has nothing to wait for.
    if num_left < 1 or state.count - len(state.given_up) == 1:
        return None
    after = msgspec.structs.replace(state, ended=ended, given_up=state.given_up | {index})
    workers = "1 worker is" if num_left == 1 else f"{num_left} workers are"
    return after, GiveUp(index, f"{what}; the others go on, {workers} left")


def _after_failure(state: State, event: WorkerEnded | WorkerFroze | StartFailed) -> tuple[State, Action]:
    what = describe(event, state.num_servers)
    step = None if isinstance(event, StartFailed) else event.step
    got_further = step is not None and (state.furthest_step is None or step > state.furthest_step)
    is_same_spot = isinstance(event, StartFailed) or (state.failed_before and not got_further)
    if state.generation + state.num_replaced >= state.max_restarts:
        were = "was" if state.max_restarts == 1 else "were"
        restarts = format_number(state.max_restarts, "restart")
        allowed = f"{restarts} {were} allowed" if state.max_restarts else "no restart is allowed"
        return state, Finish(StorageError.exit_code, sentence=f"{what}; {allowed}")
    count = state.count
    fewer = [n for n in range(1, count) if state.worker_counts is None or n in state.worker_counts]
    if is_same_spot and state.is_elastic and fewer and count == state.num_workers:
        count = max(fewer)
    elif isinstance(event, StartFailed):
        return state, Finish(StorageError.exit_code, sentence=what)
    after = msgspec.structs.replace(
        state,
        num_workers=state.num_workers - state.count + count,
        count=count,
        generation=state.generation + 1,
        ended={},
        given_up=frozenset(),
        failed_before=True,
        furthest_step=step if got_further else state.furthest_step,
    )
    workers = "1 worker" if count == 1 else f"{count} workers"
    how = "going on with" if count < state.count else "restarting"
    number = f"restart {after.generation + after.num_replaced} of {state.max_restarts}"
    where = "the last checkpoint" if state.is_saved else "the beginning"
    return after, Restart(count, f"{what}; {how} {workers} from {where}, {number}")


def _have_all_ended(state: State) -> bool:
    return len(state.ended) == state.count - len(state.given_up)


def _are_all_done(state: State) -> bool:
    return _have_all_ended(state) and not any(state.ended.values())

"""The supervisor's decisions: whatever happens in whatever order, it keeps within its limits and comes to an end."""

from __future__ import annotations

import signal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.distribution.exit_codes import EXIT_BUG, EXIT_PEER_LOST, WATCHDOG_SIGNAL
from train.distribution.restart_policy import (
    FINAL_CODES,
    Event,
    Finish,
    GiveUp,
    GraceOver,
    Replace,
    Restart,
    Signalled,
    StartFailed,
    State,
    Stop,
    Wait,
    WorkerEnded,
    WorkerFroze,
    causes_first,
    decide,
)

CODES = st.sampled_from([*range(8), 70, EXIT_PEER_LOST, 130, 143, -WATCHDOG_SIGNAL, -signal.SIGKILL, -signal.SIGSEGV])
STEPS = st.none() | st.integers(0, 1000)


def states(**settings) -> st.SearchStrategy[State]:
    return st.builds(
        lambda count, others, max_restarts, is_elastic: State(
            num_workers=count + others, count=count, max_restarts=max_restarts, is_elastic=is_elastic
        ),
        st.integers(1, 5), settings.get("others", st.integers(0, 3)), st.integers(0, 4), st.booleans(),
    )  # fmt: skip


def events(count: int) -> st.SearchStrategy[Event]:
    index = st.integers(0, count - 1)
    return st.one_of(
        st.builds(WorkerEnded, index, CODES, STEPS),
        st.builds(WorkerFroze, index, st.floats(1, 100), st.just("training"), STEPS, st.booleans()),
        st.builds(StartFailed, index, st.just("no memory")),
        st.builds(Signalled, st.sampled_from([signal.SIGINT, signal.SIGTERM])),
    )


@pytest.mark.full
@given(states(), st.data())
def test_it_stays_within_its_limits_whatever_happens(state, data) -> None:
    begun = state
    for _ in range(40):
        event = data.draw(events(state.count))
        before, (state, action) = state, decide(state, event)
        assert 1 <= state.count <= before.count
        assert state.num_workers - state.count == begun.num_workers - begun.count
        assert state.generation <= begun.max_restarts
        if isinstance(action, Restart):
            assert state.generation == before.generation + 1
            assert before.stopping is None
            assert action.count == state.count
            assert not state.ended
            assert begun.is_elastic or state.count == begun.count
            assert begun.num_workers == begun.count or state.count == begun.count
        elif isinstance(action, Finish):
            assert 0 <= action.code < 256
            break


@given(states(), st.permutations(range(5)), st.data())
def test_it_ends_well_when_and_only_when_all_ended_well(state, order, data) -> None:
    order = [i for i in order if i < state.count]
    for number, index in enumerate(order):
        state, action = decide(state, WorkerEnded(index, 0, 10))
        assert action == (Finish(0) if number == len(order) - 1 else Wait())


@given(states(), st.sampled_from(sorted(FINAL_CODES)), STEPS)
def test_what_would_fail_again_is_not_tried_again(state, code, step) -> None:
    assert decide(state, WorkerEnded(0, code, step))[1] == Finish(code, culprit=0)


@pytest.mark.full
@given(states(), STEPS, STEPS)
def test_a_bug_is_tried_again_once_at_the_same_step(state, step, other) -> None:
    begun, (state, action) = state, decide(state, WorkerEnded(0, EXIT_BUG, step))
    assert isinstance(action, Restart) == (begun.max_restarts > 0)
    if isinstance(action, Restart):
        _, again = decide(state, WorkerEnded(state.count - 1, EXIT_BUG, step))
        assert isinstance(again, Finish)
        assert (again.code, again.culprit) == (EXIT_BUG, state.count - 1)
        _, elsewhere = decide(state, WorkerEnded(0, EXIT_BUG, other))
        assert other == step or not isinstance(elsewhere, Finish) or elsewhere.code != EXIT_BUG
        _, killed = decide(state, WorkerEnded(0, -signal.SIGKILL, step))
        assert not isinstance(killed, Finish) or killed.code != EXIT_BUG


@given(states(), STEPS)
def test_a_store_that_fails_is_tried_again_once_it_had_worked(state, step) -> None:
    _, action = decide(state, WorkerEnded(0, 5, step))
    assert isinstance(action, Restart) == (step is not None and state.max_restarts > 0)


@given(states(), st.sampled_from([signal.SIGINT, signal.SIGTERM]), st.data())
def test_once_asked_to_stop_it_starts_nothing(state, number, data) -> None:
    state, action = decide(state, Signalled(number))
    assert action == Stop(number)
    codes = data.draw(st.lists(CODES, min_size=state.count, max_size=state.count))
    for index, code in enumerate(codes):
        state, action = decide(state, WorkerEnded(index, code, 3))
        if code in FINAL_CODES:
            assert action == Finish(code, culprit=index)
            return
    assert action == Finish(0 if not any(codes) else 128 + number)
    assert decide(state, GraceOver())[1] == Finish(128 + number)
    assert decide(state, Signalled(number))[1] == Finish(128 + number)


@pytest.mark.parametrize("code", [0, 143])
def test_once_a_chief_has_stopped_nothing_waits_for_what_it_commanded(code) -> None:
    servers = State(num_workers=4, count=4, max_restarts=3, num_servers=1, stopping=signal.SIGTERM)
    assert decide(servers, WorkerEnded(2, 143, 3))[1] == Wait()
    assert decide(servers, WorkerEnded(0, code, 3))[1] == Finish(code)
    assert decide(msgspec.structs.replace(servers, num_servers=0), WorkerEnded(0, code, 3))[1] == Wait()


@given(states(others=st.just(0)), st.lists(st.integers(0, 100), min_size=1, max_size=6))
def test_only_an_elastic_run_that_comes_no_further_loses_workers(state, steps) -> None:
    furthest = -1
    for number, step in enumerate(steps):
        count = state.count
        state, action = decide(state, WorkerEnded(0, -signal.SIGKILL, step))
        if not isinstance(action, Restart):
            assert state.generation == state.max_restarts
            return
        is_smaller = state.is_elastic and number > 0 and step <= furthest and count > 1
        assert state.count == count - is_smaller
        furthest = max(furthest, step)


@pytest.mark.parametrize(("is_saved", "where"), [(True, "the last checkpoint"), (False, "the beginning")])
def test_it_says_where_workers_start_again(is_saved, where) -> None:
    begun = State(num_workers=2, count=2, max_restarts=1, is_saved=is_saved)
    state, action = decide(begun, WorkerEnded(1, -signal.SIGKILL, 3))
    assert isinstance(action, Restart)
    assert f"restarting 2 workers from {where}, restart 1 of 1" in action.sentence
    _, action = decide(state, WorkerEnded(1, -signal.SIGKILL, 3))
    assert isinstance(action, Finish)
    assert action.sentence is not None
    assert action.sentence.endswith("; 1 restart was allowed")


def test_an_elastic_run_takes_numbers_of_workers_that_can_share_it() -> None:
    state = State(num_workers=8, count=8, max_restarts=9, is_elastic=True, worker_counts=(1, 2, 4, 8))
    counts = []
    for _ in range(5):
        state, _ = decide(state, WorkerEnded(0, -signal.SIGKILL, 3))
        counts.append(state.count)
    assert counts == [8, 4, 2, 1, 1]


def test_a_worker_of_a_chief_is_replaced_while_the_others_go_on_and_given_up_after_that() -> None:
    state = State(num_workers=5, count=5, max_restarts=1, num_servers=1)
    state, action = decide(state, WorkerEnded(3, -signal.SIGKILL, 7))
    assert isinstance(action, Replace)
    assert action.index == 3
    assert action.sentence.startswith("worker 1 was killed by SIGKILL after step 7; the others go on")
    state, action = decide(state, WorkerFroze(4, 9.0, "training", 8))
    assert isinstance(action, GiveUp)
    assert "worker 2 gave no sign of life" in action.sentence
    assert "2 workers are left" in action.sentence
    for index in (0, 1, 2, 3):
        state, action = decide(state, WorkerEnded(index, 0, 10))
    assert action == Finish(0)


@pytest.mark.parametrize(("num_workers", "count", "index"), [(3, 3, 2), (4, 1, 3)])
def test_the_last_worker_of_a_chief_or_of_a_host_is_not_given_up(num_workers, count, index) -> None:
    state = State(num_workers=num_workers, count=count, max_restarts=0, num_servers=1)
    assert decide(state, WorkerEnded(index, -signal.SIGKILL, 7))[1] == Finish(
        5, sentence=f"worker {index - 2} was killed by SIGKILL after step 7; no restart is allowed"
    )


def test_nobody_waits_for_a_worker_that_starts_again_when_its_chief_is_done() -> None:
    state = State(num_workers=4, count=4, max_restarts=3, num_servers=1)
    state, action = decide(state, WorkerEnded(3, -signal.SIGKILL, 7))
    assert isinstance(action, Replace)
    assert decide(state, WorkerEnded(0, 0, 90))[1] == Finish(0)


@given(st.integers(0, 1), st.booleans(), STEPS)
def test_all_start_again_without_a_chief_or_a_server(index, froze, step) -> None:
    state = State(num_workers=4, count=4, max_restarts=2, num_servers=1)
    event = WorkerFroze(index, 9.0, "training", step) if froze else WorkerEnded(index, -signal.SIGKILL, step)
    after, action = decide(state, event)
    assert isinstance(action, Restart)
    assert action.sentence.startswith("the chief" if index == 0 else "parameter server 0")
    assert after.generation == 1


@given(st.integers(1, 3), STEPS)
def test_those_that_lost_the_chief_start_again_together(index, step) -> None:
    state = State(num_workers=6, count=3, max_restarts=2, num_servers=1)
    assert isinstance(decide(state, WorkerEnded(2 + index, EXIT_PEER_LOST, step))[1], Restart)


def test_causes_are_reported_before_their_effects() -> None:
    lost, killed, wrong = WorkerEnded(0, EXIT_PEER_LOST), WorkerEnded(1, -9), WorkerEnded(2, 2)
    froze, asked = WorkerFroze(3, 9.0, "training"), Signalled(15)
    assert causes_first([lost, froze, killed, wrong, asked]) == [asked, wrong, killed, froze, lost]

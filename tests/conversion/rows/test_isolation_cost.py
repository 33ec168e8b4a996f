"""What a row without end costs, and that no other row is left out with it, with processes that are only counted."""

from hypothesis import given
from hypothesis import strategies as st

from shardkit.conversion.rows.attempts import READING, TRANSFORMING, Place
from shardkit.conversion.rows.crash_records import CUT_INTO, CrashRecord, narrow, narrow_at_first, next_slice

FOREVER = float("inf")
MANY = 1 << 20  # Rows that are transformed together where nothing is known.


def run_process(crash_record, durations, max_row_seconds):
    """Returns the rows that are left out and the seconds until the end, and where it was ended if it was."""
    left_out, seconds, start = [], 0.0, 0
    while start < len(durations):
        piece = next_slice(crash_record.crashes, 0, start, len(durations), MANY)
        assert start == piece.start < piece.stop
        if piece.how is not None:
            left_out.append(start)
        else:
            allowed = piece.seconds(max_row_seconds)
            taken = sum(durations[piece.start : piece.stop])
            if taken > allowed:
                return left_out, seconds + allowed, Place(0.0, TRANSFORMING, 0, piece.start, piece.stop)
            seconds += taken
        start = piece.stop
    return left_out, seconds, None


def isolate(crash_record, durations, max_row_seconds):
    """Returns the rows that are left out in the end, the seconds that it takes, and the number of processes."""
    total, num_processes = 0.0, 0
    while True:
        left_out, seconds, place = run_process(crash_record, durations, max_row_seconds)
        total, num_processes = total + seconds, num_processes + 1
        if place is None:
            return left_out, total, num_processes
        crash_record = narrow(crash_record, place, "took longer", 1)


def held_up(durations, max_row_seconds):
    """Returns what is known when the first process, which also does other things, was held up."""
    crash_record = CrashRecord(versions=("v",))
    _, seconds, place = run_process(crash_record, durations, max_row_seconds)
    assert place is not None
    return narrow_at_first(crash_record, place), seconds


@given(st.integers(1, 200_000), st.data(), st.sampled_from([1.0, 20.0, 60.0, 600.0]))
def test_a_row_without_end_costs_its_time_about_twice(num_rows, data, max_row_seconds):
    bad = data.draw(st.integers(0, num_rows - 1))
    durations = [0.0] * num_rows
    durations[bad] = FOREVER
    crash_record, at_first = held_up(durations, max_row_seconds)
    left_out, seconds, num_processes = isolate(crash_record, durations, max_row_seconds)
    assert left_out == [bad]
    assert num_processes <= 4
    assert at_first + seconds <= 2 * max_row_seconds + 2 * max(1.0, max_row_seconds / 20)


@given(
    st.lists(st.sampled_from([0.0, 0.0, 0.01, 2.0, 15.0, 19.0]), min_size=1, max_size=150),
    st.sets(st.integers(0, 149), max_size=3),
)
def test_rows_that_are_slow_are_never_left_out(durations, bad):
    bad = {b for b in bad if b < len(durations)}
    durations = [FOREVER if i in bad else d for i, d in enumerate(durations)]
    left_out, _, num_processes = isolate(CrashRecord(versions=("v",)), durations, 20.0)
    assert left_out == sorted(bad)
    assert num_processes <= 2 * len(durations) + 2


def test_haste_ends_where_every_row_is_slow():
    durations = [3.0] * 640
    durations[-1] = FOREVER
    left_out, _, num_processes = isolate(CrashRecord(versions=("v",)), durations, 60.0)
    assert left_out == [639]
    assert num_processes < CUT_INTO + 40, "not a process for every slow row"


def test_what_held_up_the_first_process_is_never_condemned_by_it():
    crash_record = CrashRecord(versions=("v",))
    assert narrow_at_first(crash_record, Place(0.0, TRANSFORMING, 0, 7, 8)) == crash_record
    assert narrow_at_first(crash_record, Place(0.0, READING, 0)) == crash_record
    known = narrow(crash_record, Place(0.0, TRANSFORMING, 0, 0, 64), "ended", 1)
    assert narrow_at_first(known, Place(0.0, TRANSFORMING, 0, 64, 128)) == known

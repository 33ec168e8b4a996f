"""Narrowing: whatever rows end a process, only those are left out, after few processes."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.rows.attempts import OTHER, READING, TRANSFORMING, Place
from shardkit.conversion.rows.crash_records import CUT_INTO, CrashRecord, narrow, next_slice

NEVER = float("inf")


def try_once(crash_record, num_rows, most, poison):
    """Goes through batch 3 as a process would; returns the rows that came through and the place of its end."""
    done, start = [], 0
    while start < num_rows:
        piece = next_slice(crash_record.crashes, 3, start, num_rows, most)
        assert piece.start == start < piece.stop <= num_rows
        assert piece.stop - piece.start <= most
        if piece.how is None:
            if any(piece.start <= p < piece.stop for p in poison):
                return done, Place(NEVER, TRANSFORMING, 3, piece.start, piece.stop)
            done += range(piece.start, piece.stop)
        start = piece.stop
    return done, None


@settings(deadline=None)
@given(st.integers(1, 300_000), st.sets(st.integers(0, 299_999), max_size=3), st.integers(100, 400_000))
def test_only_the_rows_that_end_a_process_are_left_out(num_rows, numbers, most):
    poison = {n for n in numbers if n < num_rows}
    crash_record, processes = CrashRecord(versions=("1",)), 0
    while True:
        done, place = try_once(crash_record, num_rows, most, poison)
        processes += 1
        if place is None:
            break
        crash_record = narrow(crash_record, place, "ended", num_files=1)
    assert set(range(num_rows)) - set(done) == poison
    steps = 2 + math.ceil(math.log(max(2, min(num_rows, most)), CUT_INTO))
    assert processes <= 1 + steps * max(1, len(poison))


def test_other_batches_are_not_cut():
    crash_record = narrow(CrashRecord(versions=("1",)), Place(NEVER, TRANSFORMING, 3, 0, 1_000), "ended", 1)
    assert next_slice(crash_record.crashes, 2, 0, 1_000, 10_000).stop == 1_000
    assert next_slice(crash_record.crashes, 3, 0, 1_000, 10_000).stop == 1_000 // CUT_INTO


def test_reading_many_files_is_narrowed_to_one():
    crash_record = narrow(CrashRecord(versions=("1", "2")), Place(NEVER, READING, 0), "ended", num_files=2)
    assert crash_record.is_by_file
    crash_record = narrow(crash_record, Place(NEVER, READING, 0, file_index=7), "ended", num_files=2)
    assert crash_record.files == {7: "ended"}


def test_reading_one_file_damages_it_and_nothing_else_is_blamed_on_rows():
    empty = CrashRecord(versions=("1",))
    assert narrow(empty, Place(NEVER, READING, 5), "ended", num_files=1).damage == "ended"
    assert narrow(empty, Place(NEVER, OTHER), "ended", num_files=1) is None

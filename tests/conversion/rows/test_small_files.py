"""Small files put together: every part is read once, in order, and rows keep their names."""

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.rows.small_files import group_small_files, join_batches
from shardkit.sources.base import ArchiveMember, InputSplit, RawFile, RejectedRow, RowBatch, row_identities
from shardkit.units import KiB, MiB


def file_of(number, size, member=None):
    path = f"/in/{number:05d}" if member is None else "/in/a.zip"
    return RawFile(path=path, name=f"{number:05d}", num_bytes=size, version="1", member=member)


def inputs(sizes, max_split_bytes=8 * MiB):
    files = tuple(file_of(i, size) for i, size in enumerate(sizes))
    splits = [
        InputSplit(index=0, file_start=i, file_stop=i + 1, start=start, stop=stop, num_bytes=stop - start)
        for i, size in enumerate(sizes)
        for start, stop in itertools.pairwise([*range(0, size, max_split_bytes), size])
    ]
    return files, splits


def parts_of(groups):
    return [part for group in groups for part in group.parts or (group,)]


def without_index(split):
    return (split.file_start, split.file_stop, split.start, split.stop, split.num_bytes)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 300 * KiB), st.integers(0, 40 * MiB)), min_size=1, max_size=300))
def test_every_part_is_read_once_and_in_order(sizes):
    files, splits = inputs(sizes)
    groups = group_small_files(splits, files)
    assert [without_index(p) for p in parts_of(groups)] == [without_index(s) for s in splits]
    assert [g.index for g in groups] == list(range(len(groups)))
    for group in groups:
        assert group.num_bytes == sum(p.num_bytes for p in group.parts or (group,))
        assert all(p.index == group.index and p.start == 0 for p in group.parts)
        # A file of which a part is damaged is rejected as a whole.
        assert all(files[p.file_start].num_bytes == p.num_bytes for p in group.parts)
        assert not group.parts or group.num_bytes <= 10 * MiB + sum(sizes) // 16


def test_many_small_files_become_few_splits_but_enough_for_all_cores():
    files, splits = inputs([100 * KiB] * 2000)
    assert 16 <= len(group_small_files(splits, files)) <= 40
    files, splits = inputs([KiB] * 2000)
    assert 8 <= len(group_small_files(splits, files)) <= 40


def test_few_files_stay_apart():
    files, splits = inputs([500 * KiB] * 12)
    assert list(group_small_files(splits, files)) == [s for s in group_small_files(splits, files) if not s.parts]


def test_what_lies_in_an_archive_is_not_put_together_with_what_does_not():
    member = ArchiveMember(kind="zip", start=0, num_stored_bytes=KiB, archive_num_bytes=MiB)
    files = tuple(file_of(i, KiB, member if 100 <= i < 200 else None) for i in range(300))
    splits = [InputSplit(index=i, file_start=i, file_stop=i + 1, num_bytes=KiB) for i in range(300)]
    for group in group_small_files(splits, files):
        assert len({files[i].member is None for i in range(group.file_start, group.file_stop)}) == 1


def values_of(batches):
    return [value for rows in batches for value in rows.batch.column("x").to_pylist()]


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 2000))
def test_joined_batches_hold_the_same_rows(counts, batch_bytes):
    def batches():
        for i, count in enumerate(counts):
            batch = pa.record_batch({"x": pa.array(np.arange(count) + 100 * i)})
            rejected = [RejectedRow(file_index=i, position="", first_byte=None, reason="", raw=b"")]
            indices = i if i % 2 else np.full(count, i)
            yield RowBatch(batch, row_identities(file_of(i, 1), 0, 0, count), indices, {"x": count}, rejected[i % 3 :])

    joined, parts = list(join_batches(batches(), batch_bytes)), list(batches())
    assert values_of(joined) == values_of(parts)
    assert [i for j in joined for i in j.identities.tolist()] == [i for p in parts for i in p.identities.tolist()]
    rows = [
        (index, value)
        for j in joined
        for index, value in zip(
            np.broadcast_to(j.file_indices, j.batch.num_rows).tolist(), j.batch.column("x").to_pylist(), strict=True
        )
    ]
    assert all(value // 100 == index for index, value in rows)
    assert sum(sum(j.num_rounded.values()) for j in joined) == sum(counts)
    assert [r.file_index for j in joined for r in j.rejected] == list(range(0, len(counts), 3))
    assert all(rows_of.batch.nbytes <= max(batch_bytes, 400) for rows_of in joined)

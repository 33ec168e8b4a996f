"""A conversion as a whole: nothing lost, nothing twice, even shards, the same bytes however the work is dealt out."""

import hashlib
import itertools
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.conversion.commit.commit import forbid_commit
from shardkit.conversion.extract import extract
from shardkit.conversion.layout_math import form_groups
from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.shards import layout
from shardkit.dataset.manifest import encode_manifest
from shardkit.encoding.codec import inflate_block
from shardkit.encoding.tfrecord import iter_records
from shardkit.errors import BadInputError, ConflictError, StorageError, UsageError
from tests.support.examples import draws
from tests.support.in_process import read_rows, run_plan


def make_table(num_rows, first=0):
    rng = np.random.default_rng(first)
    return pa.table(
        {
            "id": np.arange(first, first + num_rows),
            "x": rng.normal(size=num_rows).astype(np.float32),
            "word": pa.array([f"w{v}" for v in rng.integers(0, 50, num_rows)]),
            "tags": pa.array([list(range(v)) for v in rng.integers(0, 6, num_rows)]),
        }
    )


@pytest.fixture
def parquet_files(tmp_path):
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(3):
        pq.write_table(make_table(1000, 1000 * number), folder / f"part-{number}.parquet")
    return folder


@pytest.fixture
def small_groups(monkeypatch):
    """Groups and runs of a few kilobytes, so that small inputs take every path."""

    def set_to(group_bytes, run_bytes):
        monkeypatch.setattr(layout, "form_groups", lambda t, b: form_groups(t, min(b, group_bytes)))
        monkeypatch.setattr(extract, "RUN_BYTES", run_bytes)

    return set_to


def all_rows(dataset):
    return [row for split in dataset.manifest.splits for row in read_rows(dataset, split.name)]


def digests(dataset):
    return {s.path: s.sha256 for s in dataset.shards}


@pytest.mark.full
def test_every_row_comes_out_once_in_a_random_order(convert, parquet_files):
    shares = (SplitShare(name="train", fraction=0.8), SplitShare(name="test", fraction=0.2))
    dataset = convert(parquet_files, splits=shares, num_shards=4)
    rows = all_rows(dataset)
    assert sorted(r["id"] for r in rows) == list(range(3000))
    wanted = {r["id"]: r for n in range(3) for r in make_table(1000, 1000 * n).to_pylist()}
    assert all(wanted[r["id"]] == r for r in rows)
    train = [r["id"] for r in read_rows(dataset, "train")]
    assert abs(len(train) - 2400) < 120
    # Neighbours in a random order come from anywhere: their mean distance is a third of the range.
    assert abs(np.mean(np.abs(np.diff(train))) - 1000) < 100
    accounting = dataset.manifest.accounting
    assert (accounting.num_rows, accounting.num_examples) == (3000, 3000)
    assert [(i.name, i.num_rows) for i in accounting.inputs] == [(f"part-{n}.parquet", 1000) for n in range(3)]


@pytest.mark.full
@given(
    num_rows=st.integers(1, 400),
    num_shards=st.integers(1, 12),
    group_bytes=st.sampled_from([1, 700, 5000, 10**7]),
    run_bytes=st.sampled_from([1, 3000, 10**7]),
    shuffle=st.booleans(),
    compression=st.sampled_from(["gzip", "none"]),
)
@settings(max_examples=draws(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_gives_even_shards_that_hold_everything(
    tmp_path_factory, small_groups, num_rows, num_shards, group_bytes, run_bytes, shuffle, compression
):
    num_shards = min(num_shards, num_rows)
    small_groups(group_bytes, run_bytes)
    folder = tmp_path_factory.mktemp("cut")
    table = make_table(num_rows)
    pq.write_table(table, folder / "a.parquet", row_group_size=97)
    options = ConvertRequest(
        inputs=(str(folder / "a.parquet"),),
        destination=str(folder / "out"),
        num_shards=num_shards,
        shuffle=shuffle,
        compression=compression,
    )
    dataset = run_plan(prepare(options).plan)
    rows = read_rows(dataset, "train")
    if shuffle:
        rows.sort(key=lambda r: r["id"])
    assert rows == table.to_pylist()
    assert len(dataset.shards) == num_shards
    largest = max(b - a for a, b in _record_spans(dataset))
    sizes = [s.num_uncompressed_bytes for s in dataset.shards]
    assert min(s.num_examples for s in dataset.shards) > 0
    if sum(sizes) // num_shards >= largest:
        assert all(abs(size - sum(sizes) / num_shards) <= largest for size in sizes)


def _record_spans(dataset):
    for shard in dataset.shards:
        data = b"".join(_blocks(dataset, shard))
        lengths = [len(r) + 16 for r in iter_records(data, "x")]
        yield from itertools.pairwise([0, *itertools.accumulate(lengths)])


def _blocks(dataset, shard):
    raw = Path(dataset.shard_url(shard)).read_bytes()
    position = 10 if shard.path.endswith(".gz") else 0
    for size, uncompressed in zip(shard.block_num_bytes, shard.block_num_uncompressed_bytes, strict=True):
        block = raw[position : position + size]
        yield bytes(inflate_block(block, uncompressed, "x")) if shard.path.endswith(".gz") else block
        position += size


@pytest.mark.full
def test_the_block_index_opens_every_block_alone(convert, parquet_files):
    dataset = convert(parquet_files, num_shards=2)
    for shard in dataset.shards:
        counts = [len(list(iter_records(b, "x"))) for b in _blocks(dataset, shard)]
        assert counts == list(shard.block_num_examples)
        trailer = 10
        assert shard.num_bytes == 10 + sum(shard.block_num_bytes) + trailer


@pytest.mark.full
def test_groups_and_runs_change_no_record_and_no_order(convert, parquet_files, small_groups):
    whole = convert(parquet_files, "whole", num_shards=5)
    small_groups(20_000, 10_000)
    cut = convert(parquet_files, "cut", num_shards=5)
    assert all_rows(cut) == all_rows(whole)
    assert [s.num_examples for s in cut.shards] == [s.num_examples for s in whole.shards]


@pytest.mark.full
def test_the_same_conversion_gives_the_same_manifest_but_for_when_it_was_made(convert, parquet_files):
    first = convert(parquet_files, "a/set", seed=3)
    second = convert(parquet_files, "b/set", seed=3)
    assert digests(first) == digests(second)
    # Each attempt at a commit has its own table, of equal content.
    assert second.manifest.shard_table.sha256 == first.manifest.shard_table.sha256
    same = {"created": first.manifest.created, "shard_table": first.manifest.shard_table}
    made_at_once = msgspec.structs.replace(second.manifest, **same)
    assert encode_manifest(made_at_once) == encode_manifest(first.manifest)


@pytest.mark.full
@pytest.mark.parametrize("change", [{"seed": 4}, {"shuffle": False}, {"num_shards": 2}, {"compression": "none"}])
def test_every_option_that_changes_bytes_changes_the_fingerprint(convert, parquet_files, change):
    base = {"seed": 3, "num_shards": 3}
    first, second = convert(parquet_files, "a", **base), convert(parquet_files, "b", **(base | change))
    assert first.manifest.fingerprint != second.manifest.fingerprint
    assert set(digests(first).values()) != set(digests(second).values())


@pytest.mark.full
def test_no_shuffle_keeps_the_order_of_the_inputs(convert, parquet_files):
    dataset = convert(parquet_files, shuffle=False, num_shards=7)
    assert [r["id"] for r in read_rows(dataset, "train")] == list(range(3000))


@pytest.mark.full
def test_a_row_stays_in_its_split_when_files_are_added(convert, parquet_files, tmp_path):
    shares = (SplitShare(name="train", fraction=0.5), SplitShare(name="test", fraction=0.5))
    before = convert(parquet_files, "before", splits=shares)
    pq.write_table(make_table(500, 9000), parquet_files / "part-9.parquet")
    after = convert(parquet_files, "after", splits=shares)
    old = {r["id"] for r in read_rows(before, "test")}
    new = {r["id"] for r in read_rows(after, "test")}
    assert {i for i in new if i < 3000} == old


@pytest.mark.full
def test_shard_size_is_met_on_disk(convert, tmp_path):
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"text": [rng.bytes(300).hex() for _ in range(20_000)]}), tmp_path / "t.parquet")
    dataset = convert(tmp_path / "t.parquet", shard_bytes=256 * 1024)
    sizes = [s.num_bytes for s in dataset.shards]
    assert len(sizes) >= 20
    assert all(abs(size / (256 * 1024) - 1) < 0.05 for size in sizes)


@pytest.mark.full
def test_uncompressed_shards_come_with_an_index_of_their_records(convert, parquet_files):
    dataset = convert(parquet_files, compression="none", num_shards=2)
    for shard in dataset.shards:
        raw = Path(dataset.shard_url(shard)).read_bytes()
        lines = Path(dataset.shard_url(shard) + ".idx").read_text().splitlines()
        spans = [tuple(map(int, line.split())) for line in lines]
        assert len(spans) == shard.num_examples
        assert [start for start, _ in spans] == [0, *itertools.accumulate(size for _, size in spans[:-1])]
        for start, size in spans:
            assert len(list(iter_records(raw[start : start + size], "x"))) == 1
        assert hashlib.sha256(raw).hexdigest() == shard.sha256


@pytest.mark.full
def test_a_dataset_that_is_there_is_kept(convert, parquet_files):
    first = convert(parquet_files)
    with pytest.raises(ConflictError, match="--overwrite"):
        convert(parquet_files)
    with pytest.raises(ConflictError, match="--overwrite"):
        convert(parquet_files, seed=9)
    assert digests(first) == {
        s.path: hashlib.sha256(Path(first.shard_url(s)).read_bytes()).hexdigest() for s in first.shards
    }


@pytest.mark.full
def test_overwrite_makes_the_next_version_and_leaves_the_old_one_whole(convert, parquet_files):
    first = convert(parquet_files, seed=1)
    second = convert(parquet_files, seed=2, overwrite=True)
    assert (first.version, second.version) == (1, 2)
    assert [r["id"] for r in all_rows(first)] != [r["id"] for r in all_rows(second)]
    assert sorted(r["id"] for r in all_rows(first)) == sorted(r["id"] for r in all_rows(second))


@pytest.mark.full
def test_overwrite_with_the_same_recipe_repairs_a_damaged_shard(convert, parquet_files):
    first = convert(parquet_files, num_shards=2)
    path = Path(first.shard_url(first.shards[1]))
    good = path.read_bytes()
    path.write_bytes(good[:-20] + bytes(20))
    convert(parquet_files, num_shards=2, overwrite=True)
    assert path.read_bytes() == good


@pytest.mark.full
def test_changed_content_under_the_same_name_and_size_never_changes_a_committed_version(convert, tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n2\n")
    first = convert(source)
    source.write_text("x\n3\n4\n")
    with pytest.raises(ConflictError, match="kept its name and size"):
        convert(source, overwrite=True)
    assert sorted(r["x"] for r in all_rows(first)) == [1, 2]


@pytest.mark.full
def test_nothing_is_left_behind_but_the_dataset(convert, parquet_files):
    dataset = convert(parquet_files, num_shards=2)
    names = sorted(p.name for p in Path(dataset.url).iterdir())
    assert names == ["data", "manifests"]
    assert len(list(Path(dataset.url).rglob("*"))) == 3 + 2 + 1 + len(dataset.shards)


@pytest.mark.full
def test_a_shard_that_was_lost_on_the_way_is_never_committed(convert, parquet_files, monkeypatch):
    from shardkit.conversion import steps

    real = steps.commit_dataset
    monkeypatch.setattr(steps, "commit_dataset", lambda p, layout, e, shards: real(p, layout, e, shards[1:]))
    with pytest.raises(StorageError, match="do not hold what was read"):
        convert(parquet_files, num_shards=3)


@pytest.mark.full
def test_no_commit_follows_once_it_was_said_that_there_is_none(convert, parquet_files, monkeypatch):
    from shardkit.conversion import steps

    real, answers = steps.commit_dataset, []

    def stopped_before(plan, *others):
        answers.append(forbid_commit(plan))
        return real(plan, *others)

    monkeypatch.setattr(steps, "commit_dataset", stopped_before)
    with pytest.raises(StorageError, match="was stopped"):
        convert(parquet_files, num_shards=3)
    assert answers == [True]


@pytest.mark.full
def test_once_there_may_be_a_commit_nobody_says_that_there_is_none(convert, parquet_files, monkeypatch):
    from shardkit.conversion import steps

    real, answers = steps.commit_dataset, []

    def stopped_behind(plan, *others):
        committed = real(plan, *others)
        answers.append(forbid_commit(plan))
        return committed

    monkeypatch.setattr(steps, "commit_dataset", stopped_behind)
    assert convert(parquet_files, num_shards=3).version == 1
    assert answers == [False]


@pytest.mark.full
def test_more_shards_than_rows_are_refused_and_nothing_is_committed(convert, tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    with pytest.raises(UsageError, match="--num-shards 2 or less"):
        convert(tmp_path / "a.csv", num_shards=3)
    assert not (tmp_path / "dataset" / "manifests").exists()


@pytest.mark.full
def test_an_input_without_rows_is_refused(convert, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n")
    with pytest.raises(BadInputError, match="no rows"):
        convert(tmp_path / "a.csv")


def test_the_output_may_not_lie_among_the_inputs(convert, parquet_files, tmp_path):
    with pytest.raises(UsageError, match="inside of an input"):
        convert(parquet_files, "input/dataset")
    assert not (tmp_path / "input" / "dataset").exists()

"""TFRecord files of others become a dataset where they lie: every record can be read, and no file is touched."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import read_block
from shardkit.dataset.open import open_dataset
from shardkit.encoding.codec import BLOCK_BYTES
from shardkit.encoding.tfrecord import frame
from shardkit.errors import ConflictError, DamageError
from shardkit.features import make_feature
from shardkit.statistics.collector import StatisticsCollector
from shardkit.testing import write_dataset
from shardkit.verify.shards import verify_dataset
from tests.support.examples import draws
from tests.support.files.index_makers import contents, framed, index, plain_values, rows, write_gzip, write_plain
from tests.support.files.tfrecord_makers import example


def covered(split, **settings_):
    """Returns the numbers of the examples that three workers together get."""
    found = []
    for worker in range(3):
        reader = split.batches(
            global_batch_size=12, num_workers=3, worker_index=worker, remainder="pad", num_threads=0, **settings_
        )
        for batch in reader:
            numbers = batch["number"]
            found += (numbers if batch.mask is None else numbers[batch.mask]).tolist()
    return sorted(found)


@pytest.mark.parametrize("write", [write_plain, write_gzip])
def test_files_are_read_as_they_are_and_stay_so(tmp_path, write):
    write(tmp_path / "train-00000-of-00002.tfrecord", rows(50))
    write(tmp_path / "train-00001-of-00002.tfrecord", rows(31, 50))
    write(tmp_path / "test-00000-of-00001.tfrecord", rows(9, 81))
    before = contents(tmp_path)
    made = index(tmp_path)
    assert made.is_new
    dataset = shardkit.open(str(tmp_path))
    assert list(dataset) == ["train", "test"]
    assert plain_values(dataset["train"]) == rows(81)
    assert plain_values(dataset["test"]) == rows(9, 81)
    assert dataset["train"][80]["number"] == 80
    assert covered(dataset["train"]) == list(range(81))
    assert verify_dataset(made.dataset).is_whole
    assert verify_dataset(made.dataset).num_other_files == 0
    assert contents(tmp_path) == before


def test_plain_files_are_cut_at_records_into_blocks_of_about_a_mebibyte(tmp_path):
    records = [frame(example(number=i, blob=bytes([i % 251]) * 70_001)) for i in range(70)]
    records.append(frame(example(number=70, blob=b"x" * (3 * BLOCK_BYTES))))
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
    (shard,) = index(tmp_path).dataset.shards
    dataset = open_dataset(str(tmp_path))
    refs = list_blocks(shard)
    assert [ref.num_examples for ref in refs] == [14] * 5 + [1]
    assert b"".join(read_block(dataset, ref) for ref in refs) == b"".join(records)
    assert all(ref.num_bytes <= BLOCK_BYTES for ref in refs[:-1])
    assert verify_dataset(dataset).is_whole


@pytest.mark.parametrize(
    ("num_members", "tail"), [(1, b""), (4, b""), (2, b"\0" * 500), (3, gzip.compress(b"", mtime=0)), (40, b"")]
)
def test_a_gzip_file_is_one_block_whatever_it_is_made_of_and_called(tmp_path, num_members, tail):
    write_gzip(tmp_path / "records.tfrecord", rows(40), num_members, tail)
    (shard,) = index(tmp_path).dataset.shards
    dataset = open_dataset(str(tmp_path))
    assert dataset.manifest.compression == "gzip"
    assert shard.block_num_bytes == (shard.num_bytes,)
    assert plain_values(shardkit.open(str(tmp_path))["train"]) == rows(40)
    assert verify_dataset(dataset).is_whole


def test_a_dataset_of_shardkit_that_lost_its_manifest(tmp_path):
    features = (make_feature("number", "int64"),)
    import pyarrow as pa

    batch = pa.record_batch([pa.array(range(100))], names=["number"])
    lost = write_dataset(tmp_path, features, {"train": batch, "test": batch.slice(90)}, block_examples=7)
    paths = {s.path for s in lost.shards}
    shutil.rmtree(tmp_path / "manifests")
    made = index(tmp_path)
    assert {s.path for s in made.dataset.shards} == paths
    assert {len(s.block_num_bytes) for s in made.dataset.shards} == {1}
    found = shardkit.open(str(tmp_path))
    assert [row["number"] for row in found["train"]] == list(range(100))
    assert [row["number"] for row in found["test"]] == list(range(90, 100))
    assert verify_dataset(made.dataset).is_whole


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adopted")
    write_plain(folder / "plain" / "a.tfrecord", rows(20))
    write_gzip(folder / "gzip" / "a.tfrecord.gz", rows(20), num_members=2)
    return {name: index(folder / name).dataset for name in ("plain", "gzip")}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["plain", "gzip"])
@settings(max_examples=draws(150), deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_by_verify_and_none_is_read(adopted, kind, position, bit):
    dataset = adopted[kind]
    path = Path(dataset.shard_url(dataset.shards[0]))
    whole = path.read_bytes()
    data = bytearray(whole)
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    try:
        report = verify_dataset(dataset)
        assert report.num_damaged_shards == 1
        with pytest.raises(DamageError):
            shardkit.open(dataset.url)["train"][7]
    finally:
        path.write_bytes(whole)


def test_a_damage_between_plain_blocks_is_named_with_its_record_and_byte(tmp_path):
    path = write_plain(tmp_path / "a.tfrecord", rows(20))
    dataset = index(tmp_path).dataset
    data = bytearray(path.read_bytes())
    place = len(b"".join(framed(rows(5))))
    data[place + 20] ^= 1
    path.write_bytes(data)
    (damage,) = verify_dataset(dataset).damages
    assert (damage.record, damage.byte) == (5, place)


@pytest.mark.full
def test_features_are_those_of_all_records_and_statistics_too(tmp_path):
    late = [{"number": 1, "word": "a", "size": [1.0, 2.0], "odd": b"text"} for _ in range(30_000)]
    late.append({"number": 2, "size": [1.0, 2.0, 3.0], "odd": b"\xff\0"})
    late.append({"number": 3, "word": "b", "size": [1.0, 2.0], "odd": b"", "rare": 7})
    write_plain(tmp_path / "a.tfrecord", late)
    write_plain(tmp_path / "b.tfrecord", late[:100])
    manifest = index(tmp_path).dataset.manifest
    assert [(f.name, f.dtype, f.shape, f.nullable) for f in manifest.features] == [
        ("number", "int64", (), False),
        ("odd", "bytes", (), False),
        ("rare", "int64", (), True),
        ("size", "float32", (None,), False),
        ("word", "string", (), True),
    ]
    found = manifest.split("train").statistics
    assert (found["rare"].count, found["rare"].num_nulls, found["rare"].max) == (1, 30_101, 7)
    assert (found["word"].num_nulls, found["word"].num_distinct) == (1, 2)
    assert (found["size"].num_values, found["size"].max_length) == (60_205, 3)
    assert found["number"].mean == pytest.approx((30_100 + 2 + 3) / 30_102)


@pytest.mark.full
def test_neither_threads_nor_guesses_change_what_is_written(tmp_path):
    # The first file looks like another than it is, and the others show it before or after it was read.
    for number in range(12):
        odd = [{**row, "parts": [1]} for row in rows(400, 400 * number)] if number % 3 else rows(400, 400 * number)
        write_gzip(tmp_path / "one" / f"{number:02}.tfrecord.gz", odd)
    for name in ("two", "three"):
        shutil.copytree(tmp_path / "one", tmp_path / name)
    manifests = []
    for name, num_threads in (("one", 1), ("two", 3), ("three", 8)):
        index(tmp_path / name, num_threads=num_threads)
        document = json.loads((tmp_path / name / "manifests" / "00000001.json").read_bytes())
        for key in ("created", "name", "sha256"):
            document.pop(key)
        document["shard_table"].pop("path")
        manifests.append(document)
    assert manifests[0] == manifests[1] == manifests[2]


def test_statistics_are_those_of_a_collector_that_saw_all_rows(tmp_path):
    write_plain(tmp_path / "a.tfrecord", rows(300))
    write_plain(tmp_path / "b.tfrecord", rows(300, 300))
    made = index(tmp_path)
    import pyarrow as pa

    features = made.dataset.manifest.features
    collector = StatisticsCollector(features)
    collector.update(
        pa.RecordBatch.from_pylist(rows(600), schema=pa.schema([pa.field(f.name, f.arrow_type) for f in features]))
    )
    found = made.dataset.manifest.split("train").statistics
    for name, expected in collector.finish().items():
        assert found[name].quantiles == expected.quantiles
        assert found[name].top_values == expected.top_values
        assert found[name].mean == pytest.approx(expected.mean) if expected.mean is not None else True
        assert (found[name].count, found[name].num_values) == (expected.count, expected.num_values)


def test_unchanged_files_get_no_new_version_and_others_the_next(tmp_path):
    first = write_plain(tmp_path / "train.tfrecord", rows(10))
    index(tmp_path)
    manifests = {p: p.read_bytes() for p in sorted((tmp_path / "manifests").iterdir())}
    again = index(tmp_path)
    assert not again.is_new
    assert {p: p.read_bytes() for p in sorted((tmp_path / "manifests").iterdir())} == manifests
    write_plain(tmp_path / "test.tfrecord", rows(5, 10))
    assert index(tmp_path).dataset.version == 2
    num_bytes = first.stat().st_size
    first.write_bytes(b"".join(framed([{**row, "word": "WORD 0"} for row in rows(10)])))
    assert first.stat().st_size == num_bytes
    assert index(tmp_path).dataset.version == 3
    assert not index(tmp_path).is_new
    assert index(tmp_path, splits=(("all", "*"),)).dataset.version == 4
    assert [s.name for s in open_dataset(str(tmp_path)).manifest.splits] == ["all"]
    assert [s.name for s in open_dataset(str(tmp_path), 1).manifest.splits] == ["train"]
    assert {p: p.read_bytes() for p in manifests} == manifests


def test_the_dataset_of_a_conversion_is_not_indexed_over(tmp_path):
    import pyarrow as pa

    batch = pa.record_batch([pa.array([1, 2])], names=["number"])
    write_dataset(tmp_path, (make_feature("number", "int64"),), {"train": batch}, num_shards=1)
    with pytest.raises(ConflictError, match="there is a dataset already"):
        index(tmp_path)
    assert len(list((tmp_path / "manifests").iterdir())) == 2


def test_features_without_a_value_in_any_record_are_left_out_and_verify_knows(tmp_path):
    write_plain(tmp_path / "a.tfrecord", [{"number": i, "never": None} for i in range(10)])
    made = index(tmp_path)
    assert [f.name for f in made.dataset.manifest.features] == ["number"]
    assert any("'never' is empty in all records" in note for note in made.notes)
    assert verify_dataset(made.dataset).is_whole


def test_files_without_records_and_files_of_other_kinds_are_left_out_and_named(tmp_path):
    write_gzip(tmp_path / "a.tfrecord.gz", rows(3))
    (tmp_path / "b.tfrecord.gz").write_bytes(b"")
    (tmp_path / "c.tfrecord.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "a.tfrecord.gz.idx").write_text("0 12\n")
    (tmp_path / "notes.txt").write_text("by hand\n")
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    made = index(tmp_path)
    assert [s.path for s in made.dataset.shards] == ["a.tfrecord.gz"]
    assert made.notes == (
        "a.tfrecord.gz.idx, notes.txt, table.csv.gz hold no TFRecords and are left out",
        "b.tfrecord.gz, c.tfrecord.gz hold no records and are left out",
    )
    assert not index(tmp_path).is_new


def test_paths_are_taken_as_text_is(tmp_path):
    first, second = write_plain(tmp_path / "a.tfrecord", rows(5)), write_plain(tmp_path / "b.tfrecord", rows(5, 5))
    assert plain_values(shardkit.open_tfrecords(first)) == rows(5)
    assert plain_values(shardkit.open_tfrecords([first, second])) == rows(10)
    assert plain_values(shardkit.open_tfrecords(tmp_path)) == rows(10)
    index(tmp_path)
    assert plain_values(shardkit.open(tmp_path)["train"]) == rows(10)
    with pytest.raises(TypeError, match="PathLike"):
        shardkit.open(7)


def test_open_tfrecords_has_the_features_of_all_files(tmp_path):
    write_plain(tmp_path / "a.tfrecord", [{"x": 1, "y": 2.5}])
    write_plain(tmp_path / "b.tfrecord", [{"x": 3, "z": "word"}])
    split = shardkit.open_tfrecords(tmp_path)
    assert [(f.name, f.nullable) for f in split.features] == [("x", False), ("y", True), ("z", True)]
    assert plain_values(split) == [{"x": 1, "y": 2.5, "z": None}, {"x": 3, "y": None, "z": "word"}]


def test_open_tfrecords_says_what_to_run_where_a_file_is_not_what_it_was(tmp_path):
    path = write_plain(tmp_path / "my records" / "a.tfrecord", rows(50))
    split = shardkit.open_tfrecords(path)
    content = path.read_bytes()
    for damaged in (content[:-1] + b"?", content[:100]):
        path.write_bytes(damaged)
        with pytest.raises(DamageError, match=r"a\.tfrecord, block 0") as caught:
            split.take(range(50))
        assert caught.value.next_step.endswith(f"shardkit index '{path.parent}'")
        assert "verify" not in str(caught.value)


def test_open_tfrecords_reads_without_writing_whatever_the_files_are_called(tmp_path):
    write_gzip(tmp_path / "my records" / "träin (1).gz", rows(30), num_members=2)
    write_gzip(tmp_path / "my records" / "test-00000-of-00001", rows(12, 30))
    before = contents(tmp_path)
    split = shardkit.open_tfrecords(f"{tmp_path}/my records/*")
    assert (split.name, len(split)) == ("train", 42)
    assert sorted(row["number"] for row in split) == list(range(42))
    assert covered(split) == list(range(42))
    assert contents(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["my records"]


def test_the_state_of_a_reader_goes_on_after_the_files_were_opened_anew(tmp_path):
    write_plain(tmp_path / "a.tfrecord", rows(60))
    settings_ = {"global_batch_size": 10, "seed": 3, "num_threads": 0}
    reader = shardkit.open_tfrecords(str(tmp_path)).batches(**settings_)
    batches = iter(reader)
    seen = [number for _ in range(2) for number in next(batches)["number"].tolist()]
    other = shardkit.open_tfrecords(str(tmp_path)).batches(**settings_)
    other.restore(reader.state())
    seen += [number for batch in other for number in batch["number"].tolist()]
    assert sorted(seen) == list(range(60))


def test_a_store_is_read_and_indexed_like_a_folder(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    folder = f"bucket/{tmp_path.name}"
    for name, first in (("train-0.tfrecord", 0), ("test-0.tfrecord", 10)):
        store.pipe_file(f"/{folder}/{name}", b"".join(framed(rows(10, first))))
    assert len(shardkit.open_tfrecords(f"memory://{folder}/*.tfrecord")) == 20
    assert shardkit.open_tfrecords(f"memory://{folder}")[0]["word"] is not None
    assert index(f"memory://{folder}").dataset.version == 1
    assert not index(f"memory://{folder}").is_new
    dataset = shardkit.open(f"memory://{folder}")
    assert plain_values(dataset["test"]) == rows(10, 10)
    assert verify_dataset(dataset.dataset).is_whole


VALUES = {
    "whole": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    "half": st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
    "text": st.lists(st.text(max_size=4), min_size=1, max_size=2),
    "one": st.lists(st.integers(0, 9), min_size=1, max_size=1),
}
EXAMPLES = st.fixed_dictionaries({"id": st.lists(st.integers(0, 5), min_size=1, max_size=1)}, optional=VALUES)


@pytest.mark.full
@settings(max_examples=draws(60), deadline=None)
@given(
    files=st.lists(st.lists(EXAMPLES, min_size=1, max_size=6), min_size=1, max_size=4),
    is_gzip=st.booleans(),
    num_threads=st.integers(1, 3),
)
def test_any_examples_come_back_value_by_value(tmp_path_factory, files, is_gzip, num_threads):
    folder = tmp_path_factory.mktemp("any")
    for number, examples in enumerate(files):
        data = b"".join(frame(example(**row)) for row in examples)
        (folder / f"{number}.tfrecord").write_bytes(gzip.compress(data) if is_gzip else data)
    dataset = index(folder, num_threads=num_threads).dataset
    expected = [row for examples in files for row in examples]
    split = shardkit.open(str(folder))["train"]
    for row, found in zip(expected, plain_values(split), strict=True):
        for feature in split.features:
            value = found[feature.name]
            values = None if value is None else value if isinstance(value, list) else [value]
            # Text with control characters is bytes.
            assert values is None or [v.decode() if isinstance(v, bytes) else v for v in values] == row[feature.name]
            assert (values is None) == (feature.name not in row)
    (info,) = dataset.manifest.splits
    for name, statistics in info.statistics.items():
        assert statistics.count == sum(name in row for row in expected)
        assert statistics.num_values == sum(len(row.get(name, ())) for row in expected)
    assert verify_dataset(dataset).is_whole
    shutil.rmtree(folder)

"""Batches of a dataset: the stored values as NumPy columns, the same for any threads and workers, resumed anywhere."""

import datetime
import inspect
import subprocess
import sys
from decimal import Decimal
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.dataset.block_index import list_blocks
from shardkit.errors import DamageError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.batch import Ragged
from shardkit.reading.mixture import Mixture
from shardkit.reading.settings import BatchKeywords, BatchSettings
from shardkit.reading.split import Split
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.support.examples import draws
from tests.support.forked import exit_codes, fork

UTC = datetime.UTC
FEATURES = (
    make_feature("id", "int64"),
    make_feature("small", "int8", nullable=True),
    make_feature("big", "uint64"),
    make_feature("flag", "bool", nullable=True),
    make_feature("half", "float16"),
    make_feature("single", "float32", nullable=True),
    make_feature("double", "float64", nullable=True),
    make_feature("word", "string", nullable=True),
    make_feature("noise", "bytes", nullable=True),
    make_feature("price", "decimal(9,2)", nullable=True),
    make_feature("day", "date", nullable=True),
    make_feature("at", "timestamp[us]", nullable=True, timezone="UTC"),
    make_feature("took", "duration[ms]", nullable=True),
    make_feature("clock", "time[s]", nullable=True),
    make_feature("point", "float32", (2, 3), nullable=True),
    make_feature("names", "string", (2,), nullable=True),
    make_feature("tokens", "int32", (None,), nullable=True),
    make_feature("words", "string", (None,)),
    make_feature("pixels", "uint8", (2, 2), nullable=True),
    make_feature("steps", "int8", (None,), nullable=True),
)


def rows_of(num_rows):
    def some(i, value):
        return None if i % 5 == 3 else value

    return [
        {
            "id": i,
            "small": some(i, i % 100 - 50),
            "big": 2**64 - 1 - i,
            "flag": some(i, i % 2 == 0),
            "half": i / 2 % 7,
            "single": some(i, i / 8),
            "double": some(i, i / 3),
            "word": some(i, f"wörd {i % 7}"),
            "noise": some(i, bytes([i % 256] * (i % 9))),
            "price": some(i, Decimal(i) / 100),
            "day": some(i, datetime.date(2020, 1, 1) + datetime.timedelta(i)),
            "at": some(i, datetime.datetime(2020, 1, 1, tzinfo=UTC) + datetime.timedelta(seconds=i)),
            "took": some(i, datetime.timedelta(milliseconds=i)),
            "clock": some(i, datetime.time(i % 24, 1, 2)),
            "point": some(i, [i + k / 4 for k in range(6)]),
            "names": some(i, [f"a{i}", ""]),
            "tokens": some(i, list(range(i % 4))),
            "words": [f"w{k}" for k in range(i % 3)],
            "pixels": some(i, [i, 255 - i, 0, 255]),
            "steps": some(i, [-i % 128 - 128 + k for k in range(i % 4)]),
        }
        for i in range(num_rows)
    ]


def write(folder, num_rows, features=FEATURES, **options):
    rows = rows_of(num_rows)
    arrays = [pa.array([row[f.name] for row in rows], f.arrow_type) for f in features]
    batch = pa.record_batch(arrays, arrow_schema(features))
    return Splits(write_dataset(folder, features, {"train": batch}, **options))


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    return write(tmp_path_factory.mktemp("reading") / "set", 203, num_shards=3, block_examples=8)["train"]


@pytest.fixture
def ids(tmp_path):
    """Splits of many small blocks that hold nothing but an id."""
    return write(tmp_path / "ids", 1000, FEATURES[:1], num_shards=7, block_examples=6)


def read_ids(reader):
    return [batch["id"].tolist() for batch in reader]


def as_row(batch, i):
    """One row of a batch as the Python values it was written from, None where it says that nothing is present."""
    found = {}
    for feature in FEATURES:
        column = batch[feature.name]
        value = column.row(i) if isinstance(column, Ragged) else column[i]
        is_present = feature.name not in batch.present or batch.present[feature.name][i]
        found[feature.name] = to_python(value, feature) if is_present else None
    return found


def to_python(value, feature):
    if feature.dtype == "time[s]":
        return (datetime.datetime(1, 1, 1) + value.item()).time()
    if feature.dtype == "timestamp[us]":
        return value.item().replace(tzinfo=UTC)
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist()
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_type_comes_back_as_it_was_written(train, num_threads, shuffle):
    reader = train.batches(global_batch_size=20, remainder="pad", shuffle=shuffle, num_threads=num_threads)
    found = [as_row(batch, i) for batch in reader for i in range(20) if batch.mask is None or batch.mask[i]]
    assert sorted(found, key=lambda row: row["id"]) == rows_of(203)
    assert (found == rows_of(203)) is not shuffle


def test_columns_have_the_dtypes_and_shapes_of_the_features(train):
    batch = next(iter(train.batches(global_batch_size=16)))
    dtypes = {name: c.values.dtype if isinstance(c, Ragged) else c.dtype for name, c in batch.items()}
    assert {name: str(dtype) for name, dtype in dtypes.items()} == {
        "id": "int64", "small": "int8", "big": "uint64", "flag": "bool", "half": "float16", "single": "float32",
        "double": "float64", "word": "object", "noise": "object", "price": "object", "day": "datetime64[D]",
        "at": "datetime64[us]", "took": "timedelta64[ms]", "clock": "timedelta64[s]", "point": "float32",
        "names": "object", "tokens": "int32", "words": "object", "pixels": "uint8", "steps": "int8",
    }  # fmt: skip
    assert batch["point"].shape == (16, 2, 3)
    assert batch["names"].shape == (16, 2)
    assert batch["tokens"].num_rows == 16
    assert batch["tokens"].row_lengths().sum() == len(batch["tokens"].values)
    assert batch.mask is None
    assert set(batch.present) == {f.name for f in FEATURES if f.nullable}


def test_a_null_is_zero_nan_nat_or_empty(train):
    batch = train[[3]]
    assert not any(bools[0] for bools in batch.present.values())
    assert (batch["small"][0], batch["flag"][0], batch["word"][0], batch["noise"][0]) == (0, False, "", b"")
    assert np.isnan([batch["single"][0], batch["double"][0]]).all()
    assert np.isnan(batch["point"]).all()
    assert all(np.isnat(batch[name][0]) for name in ("day", "at", "took", "clock"))
    assert (batch["price"][0], batch["names"][0].tolist()) == (Decimal(0), ["", ""])
    assert len(batch["tokens"].row(0)) == 0


def test_the_last_batch_is_filled_up_and_says_so(train):
    for num_workers in (1, 2, 4):
        readers = [
            train.batches(global_batch_size=120, remainder="pad", worker_index=i, num_workers=num_workers)
            for i in range(num_workers)
        ]
        last = [list(reader)[-1] for reader in readers]
        assert [len(batch["id"]) for batch in last] == [120 // num_workers] * num_workers
        assert sum(batch.mask.sum() for batch in last) == 203 - 120
        for batch in last:
            assert batch["words"].num_rows == batch["point"].shape[0] == len(batch["id"])
            assert (batch.mask[:-1] >= batch.mask[1:]).all()
            assert not batch.present["word"][~batch.mask].any()
            assert batch["word"][~batch.mask].tolist() == [""] * (~batch.mask).sum()


def test_examples_are_found_by_position(train):
    expected = rows_of(203)
    assert len(train) == train.num_examples == 203
    for position in (0, 7, 100, 202, -1, -203):
        assert train[position]["id"] == expected[position]["id"]
        assert train[position]["word"] == expected[position]["word"]
    assert train[np.int64(8)]["names"] is None
    assert [as_row(train[[77, 9, 200, 9]], i) for i in range(4)] == [expected[i] for i in (77, 9, 200, 9)]
    assert train[190:]["id"].tolist() == list(range(190, 203))
    assert train[[]]["id"].tolist() == []
    assert [row["id"] for row in train] == list(range(203))
    for position in (203, -204, [1, 203]):
        with pytest.raises(IndexError, match="0 to 202"):
            train[position]


def test_chosen_features_are_decoded_alone(train):
    batch = next(iter(train.batches(global_batch_size=16, features=["word", "id"])))
    assert list(batch) == ["word", "id"]
    with pytest.raises(UsageError, match="no feature 'nope'"):
        train.batches(global_batch_size=16, features=["nope"])
    with pytest.raises(UsageError, match="no feature is chosen"):
        train.batches(global_batch_size=16, features=[])


@given(st.data())
@settings(max_examples=draws(25), deadline=None)
def test_threads_and_looking_ahead_change_no_batch(tmp_path_factory, data):
    dataset = write(tmp_path_factory.mktemp("threads") / "set", 150, FEATURES[:1], num_shards=3, block_examples=5)
    settings_ = {"global_batch_size": data.draw(st.integers(1, 60)), "seed": data.draw(st.integers(0, 9))}
    expected = read_ids(dataset["train"].batches(**settings_, num_threads=0, num_ahead=0))
    reader = dataset["train"].batches(
        **settings_, num_threads=data.draw(st.integers(1, 4)), num_ahead=data.draw(st.integers(0, 9))
    )
    assert read_ids(reader) == expected


def test_damage_is_named_where_it_is_met_and_shortens_nothing(ids):
    shard = ids.dataset.shards[4]
    block = list_blocks(shard)[3]
    path = Path(ids.dataset.shard_url(shard))
    whole = path.read_bytes()
    damages = {
        "block 3": whole[: block.start + 5] + b"\xff\xff\xff" + whole[block.start + 8 :],
        "cut off": whole[: block.start],
        "missing": None,
        "block 0": Path(ids.dataset.shard_url(ids.dataset.shards[5])).read_bytes()[::-1],
    }
    for words, content in damages.items():
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DamageError) as error:
            read_ids(shardkit.open(ids.dataset.url)["train"].batches(global_batch_size=40, shuffle=False))
        assert shard.path in str(error.value)
        assert words in str(error.value)


def test_an_empty_split_has_no_batches(tmp_path):
    empty = write(tmp_path / "empty", 0, FEATURES[:1])["train"]
    assert len(empty) == 0
    assert list(empty.batches(global_batch_size=4)) == []
    assert list(empty.batches(global_batch_size=4, remainder="pad", num_epochs=3)) == []
    assert list(empty) == []


def test_opening_reads_the_manifest_alone(ids):
    for path in (Path(ids.dataset.url) / "data").rglob("*.gz"):
        path.unlink()
    opened = shardkit.open(ids.dataset.url)
    assert list(opened) == ["train"]
    assert opened["train"].num_examples == 1000
    with pytest.raises(UsageError, match="no split 'test'"):
        opened["test"]


@pytest.mark.full
def test_forked_processes_read_through_the_files_that_their_parent_opened(tmp_path):
    """As the workers of a PyTorch `DataLoader` do: the position of an open file is shared with the parent."""
    features = (make_feature("id", "int64"), make_feature("noise", "bytes"))
    noise = np.random.default_rng(0).bytes(4_000_000)
    arrays = [pa.array(range(1000)), pa.array([noise[i * 4000 :][:4000] for i in range(1000)])]
    batch = pa.record_batch(arrays, arrow_schema(features))
    train = Splits(write_dataset(tmp_path / "set", features, {"train": batch}, num_shards=1, block_examples=6))["train"]
    assert train[500]["id"] == 500

    def reads_every_row(seed):
        readers = [train.batches(global_batch_size=50, seed=seed, epoch=epoch, num_threads=0) for epoch in range(5)]
        return all(sorted(chain.from_iterable(read_ids(reader))) == list(range(1000)) for reader in readers)

    assert exit_codes([fork(reads_every_row, seed) for seed in range(4)]) == [0] * 4


@pytest.mark.full
def test_what_nobody_reads_any_more_closes_its_files(ids):
    program = (
        "import shardkit, sys, gc\n"
        "train = shardkit.open(sys.argv[1])['train']\n"
        "batches = iter(train.batches(global_batch_size=4))\n"
        "next(batches), train[3]\n"
        "del train, batches\n"
        "gc.collect()\n"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", program, ids.dataset.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_where_a_batch_is_filled_up_every_worker_has_a_mask(ids, num_workers):
    """Workers that run one compiled step must be given the same keys, whoever has the rows that are none."""
    last = []
    for worker in range(num_workers):
        options = {"worker_index": worker, "num_workers": num_workers, "remainder": "pad", "shuffle": False}
        *others, batch = ids["train"].batches(global_batch_size=28, **options)
        assert all(other.mask is None for other in others)
        last.append(batch)
    assert all(batch.mask is not None and len(batch.mask) == 28 // num_workers for batch in last)
    assert sum(int(batch.mask.sum()) for batch in last) == 1000 % 28


@pytest.mark.parametrize("positions", [1.5, [1.5, 2.0], np.array([True, False]), ["1"], [None]])
def test_what_is_no_position_is_not_taken_for_one(ids, positions):
    with pytest.raises(TypeError, match="positions are whole numbers"):
        ids["train"][positions]


@pytest.mark.parametrize("positions", [10**30, -(2**63), [2**63], np.array([2**64 - 1], np.uint64), 1000, -1001])
def test_positions_that_are_not_there(ids, positions):
    with pytest.raises(IndexError, match="0 to 999"):
        ids["train"][positions]


def test_splits_are_asked_for_like_keys(ids):
    assert "train" in ids
    assert "nope" not in ids
    assert ids.get("nope") is None
    assert ids.get("train") is ids["train"]
    with pytest.raises(UsageError, match="no split 'nope'"):
        ids["nope"]


@pytest.mark.parametrize("source", [Split, Mixture])
def test_help_shows_every_setting_of_batches(source):
    names = [field.name for field in msgspec.structs.fields(BatchSettings)]
    assert sorted(names) == sorted(BatchKeywords.__annotations__)
    parameters = inspect.signature(source.batches).parameters
    assert {name: parameters[name].default for name in names} == msgspec.structs.asdict(BatchSettings())
    text = inspect.getdoc(source.batches)
    assert all(f"\n    {name}: " in text for name in parameters if name != "self")
    assert "**settings" not in text
    with pytest.raises(TypeError, match="unknown"):
        source.batches(None, global_batch_size=1, unknown=1)

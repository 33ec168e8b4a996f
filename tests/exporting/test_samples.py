"""WebDataset, MDS and ArrayRecord hold the very values, as each tool's own reader sees them."""

import decimal
import importlib
import io
import itertools
import json
import struct
import tarfile
from importlib.util import find_spec
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.exporting.mds import encoding_of
from shardkit.features import make_feature
from tests.exporting.conftest import COLUMNS, LISTS, PHOTOS, SCALARS, columns_of, export, make_dataset, same, tables
from tests.support.wire.example_values import decode_record

MDS_COLUMNS = tuple(f.name for f, _ in COLUMNS)


def as_written(name, value):
    """Returns a value of a column as JSON has it here."""
    texts = {"price": str, "day": str, "clock": str, "days": lambda days: list(map(str, days))}
    if value is None:
        return None
    if name == "span":
        return 1001
    if name in ("when", "nanos"):
        return "-".join(map(str, (value.year, f"{value.month:02d}", f"{value.day:02d}")))
    if name == "messages":
        return json.loads(value)
    return texts.get(name, lambda v: v)(value)


def test_a_tar_holds_the_samples(dataset, tmp_path):
    export(dataset, tmp_path / "out", "webdataset", rows_per_file=2)
    wanted, rows = columns_of(dataset["train"]), {}
    for path in sorted((tmp_path / "out").glob("train-*.tar")):
        with tarfile.open(path) as tar:
            for info in tar:
                key, _, extension = info.name.partition(".")
                rows.setdefault(key, {})[extension] = tar.extractfile(info).read()
                assert (info.mtime, info.uid, info.uname, info.mode) == (0, 0, "", 0o644)
    assert list(rows) == [f"{i:09d}" for i in range(3)]
    for i, row in enumerate(rows.values()):
        values = json.loads(row["json"])
        for name in ("flag", "small", "low", "big", "single", "text", "price", "day", "span", "words", "messages"):
            assert same(values[name], as_written(name, wanted[name][i])), name
        assert row["bin"] == wanted["raw"][i]
        assert int(row["cls"]) == wanted["label"][i]
        for feature, _ in LISTS[:3]:
            array = row.get(f"{feature.name}.npy")
            if array is None:
                assert wanted[feature.name][i] is None
                continue
            found = np.load(io.BytesIO(array), allow_pickle=False)
            assert found.dtype == feature.dtype
            assert same(found.tolist(), wanted[feature.name][i])


@pytest.mark.full
def test_webdataset_reads_the_samples(dataset, tmp_path):
    wds = pytest.importorskip("webdataset")
    export(dataset, tmp_path / "out", "webdataset", rows_per_file=2)
    wanted = columns_of(dataset["train"])
    rows = list(wds.WebDataset(f"{tmp_path}/out/train-{{000000..000001}}.tar", shardshuffle=False).decode())
    assert [row["__key__"] for row in rows] == [f"{i:09d}" for i in range(3)]
    assert [row["cls"] for row in rows] == wanted["label"]
    assert [row["bin"] for row in rows] == wanted["raw"]
    assert same([row["grid.npy"].tolist() for row in rows], wanted["grid"])
    assert same([row["json"]["big"] for row in rows], wanted["big"])


@pytest.mark.full
def test_webdataset_decodes_images_of_several_kinds(tmp_path):
    wds = pytest.importorskip("webdataset")
    dataset = make_dataset(tmp_path / "set", PHOTOS)
    export(dataset, tmp_path / "out", "webdataset")
    rows = list(wds.WebDataset(f"{tmp_path}/out/train-000000.tar", shardshuffle=False).decode("pil"))
    assert rows[1]["jpg"].getpixel((0, 0)) == (7, 2, 3)
    assert [tuple(row["jpg"].size) for row in rows] == [(4, 3)] * 3
    assert [row["json"] for row in rows] == [{"filename": name} for name in PHOTOS[1][1]]


@pytest.mark.full
def test_datasets_reads_tars_of_images(tmp_path):
    datasets = pytest.importorskip("datasets")
    export(make_dataset(tmp_path / "set", PHOTOS), tmp_path / "out", "webdataset")
    files = {"train": str(tmp_path / "out" / "train-*.tar")}
    rows = list(datasets.load_dataset("webdataset", data_files=files, streaming=True)["train"])
    assert [(row["cls"], row["json"]["filename"]) for row in rows] == [
        (0, "cats/1.jpg"),
        (1, "dogs/ü.png"),
        (1, "dogs/2.jpg"),
    ]
    assert rows[1]["jpg"].getpixel((0, 0)) == (7, 2, 3)


def test_rows_of_nulls_are_samples(tmp_path):
    raw = make_feature("raw", "bytes", nullable=True)
    dataset = make_dataset(tmp_path / "set", ((raw, [None, b"x", None]),))
    export(dataset, tmp_path / "out", "webdataset")
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as tar:
        assert tar.getnames() == ["000000000.json", "000000001.bin", "000000002.json"]


@pytest.mark.parametrize("names", [("a/b", "c"), ("Raw", "raw")])
def test_names_that_members_cannot_have_are_refused(tmp_path, names):
    dataset = make_dataset(tmp_path / "set", [(make_feature(name, "bytes"), [b"1", b"2", b"3"]) for name in names])
    with pytest.raises(UsageError, match="WebDataset cannot hold"):
        export(dataset, tmp_path / "out", "webdataset")


def read_shard(path):
    """Returns the samples of an MDS shard by its documented layout, as bytes by column."""
    data = path.read_bytes()
    (number,) = struct.unpack_from("<I", data)
    offsets = struct.unpack_from(f"<{number + 1}I", data, 4)
    settings = json.loads(data[8 + 4 * number : offsets[0]])
    rows = []
    for start, stop in itertools.pairwise(offsets):
        num_sizes = settings["column_sizes"].count(None)
        given = iter(struct.unpack_from(f"<{num_sizes}I", data, start))
        at, row = start + 4 * num_sizes, {}
        for name, size in zip(settings["column_names"], settings["column_sizes"], strict=True):
            length = next(given) if size is None else size
            row[name], at = data[at : at + length], at + length
        assert at == stop
        rows.append(row)
    return settings, rows


def test_an_mds_shard_is_as_documented(dataset, tmp_path):
    done = export(dataset, tmp_path / "out", "mds", rows_per_file=2)
    index = json.loads((tmp_path / "out" / "train" / "index.json").read_text())
    assert [s["samples"] for s in index["shards"]] == [1, 2]
    assert [s["raw_data"]["bytes"] for s in index["shards"]] == [f.num_bytes for f in done.files["train"]]
    wanted, rows = columns_of(dataset["train"]), []
    for shard in index["shards"]:
        settings, found = read_shard(tmp_path / "out" / "train" / shard["raw_data"]["basename"])
        assert settings.items() <= shard.items()
        rows += found
    assert [struct.unpack("<Q", row["big"])[0] for row in rows] == wanted["big"]
    assert [row["raw"] for row in rows] == wanted["raw"]
    assert [json.loads(row["text"]) for row in rows] == wanted["text"]


def shard_rows(folder):
    mds = importlib.import_module("streaming.base.format.mds")
    shards = json.loads((folder / "index.json").read_text())["shards"]
    readers = [mds.MDSReader.from_json(str(folder), "", shard) for shard in shards]
    for reader in readers:
        reader.validate(False)
    return [reader[i] for reader in readers for i in range(len(reader))]


def dataset_rows(folder):
    streaming = importlib.import_module("streaming")
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder), batch_size=1)
    return [dataset[i] for i in range(len(dataset))], list(dataset)


def streamed(read, folder):
    """Returns the rows that MosaicML's reader reads from a folder.

    The reader imports torchvision, which crashes a process that has loaded JAX, so it has a new process.
    """
    if not (find_spec("streaming") and find_spec("torch")):
        pytest.skip("could not import 'streaming'")
    # A pool ends its process where this one fails, also one that hangs.
    with get_context("spawn").Pool(1) as pool:
        return pool.apply_async(read, (folder,)).get(timeout=300)


@pytest.mark.full
def test_streaming_reads_mds(tmp_path):
    dataset = make_dataset(tmp_path / "set")
    export(dataset, tmp_path / "out", "mds", rows_per_file=2)
    rows, wanted = streamed(shard_rows, tmp_path / "out" / "train"), columns_of(dataset["train"])
    for name in ("small", "low", "text", "label", "words", "counts", "raw"):
        assert same([plain(row[name]) for row in rows], wanted[name]), name
    for name in ("flag", "big", "half", "single"):
        assert [row[name] for row in rows] == wanted[name], name
    assert [row["grid"].tolist() for row in rows] == wanted["grid"]
    assert [row["messages"] for row in rows] == [json.loads(text) for text in wanted["messages"]]
    assert [row["price"] and decimal.Decimal(row["price"]) for row in rows] == wanted["price"]


def plain(value):
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.full
def test_streaming_reads_lists_of_any_length(tmp_path):
    lists = [[], [1] * 300, [-1, 2**62]]
    dataset = make_dataset(tmp_path / "set", ((make_feature("n", "int64", (None,)), lists),))
    export(dataset, tmp_path / "out", "mds")
    assert [row["n"].tolist() for row in streamed(shard_rows, tmp_path / "out" / "train")] == lists


@pytest.mark.full
def test_a_streaming_dataset_opens_the_folder(tmp_path):
    dataset = make_dataset(tmp_path / "set", PHOTOS, 20)
    export(dataset, tmp_path / "out", "mds", rows_per_file=7)
    indexed, iterated = streamed(dataset_rows, tmp_path / "out" / "train")
    assert [row["image"] for row in indexed] == PHOTOS[0][1] * 20
    assert sorted(row["label"] for row in iterated) == [0] * 20 + [1] * 40


def test_mds_refuses_nulls_among_bytes(tmp_path):
    raw = make_feature("raw", "bytes", nullable=True)
    dataset = make_dataset(tmp_path / "set", ((raw, [None, b"x", b""]), (make_feature("id", "int64"), [1, 2, 3])))
    with pytest.raises(UsageError, match="MDS cannot hold the column 'raw'"):
        export(dataset, tmp_path / "out", "mds")
    no_nulls = make_dataset(tmp_path / "other", ((raw, [b"y", b"x", b""]),))
    export(no_nulls, tmp_path / "out", "mds")
    assert encoding_of(make_feature("raw", "bytes")) == ("bytes", None)


def test_array_records_are_the_examples(dataset, tmp_path):
    source = pytest.importorskip("array_record.python.array_record_data_source").ArrayRecordDataSource
    export(dataset, tmp_path / "out", "array-record", rows_per_file=2)
    records = source(sorted(map(str, (tmp_path / "out").glob("train-*"))))
    features = tuple(f for f, _ in COLUMNS)
    rows = [decode_record(records[i], features, "here") for i in range(len(records))]
    wanted = columns_of(dataset["train"])
    for feature, _ in SCALARS[:12]:
        assert [row[feature.name] for row in rows] == wanted[feature.name], feature.name


def test_a_package_that_is_missing_is_named(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.exporting.run.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"shardkit\[array-record\]"):
        export(dataset, tmp_path / "out", "array-record")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@given(columns=tables(), rows_per_file=st.integers(1, 9))
def test_any_rows_come_back(tmp_path_factory, columns, rows_per_file):
    folder = tmp_path_factory.mktemp("any")
    dataset = make_dataset(folder / "set", columns)
    wanted, features = columns_of(dataset["train"]), tuple(f for f, _ in columns)
    num_rows = len(columns[0][1])
    export(dataset, folder / "tar", "webdataset", rows_per_file=rows_per_file, num_threads=1)
    rows = [{} for _ in range(num_rows)]
    for path in (folder / "tar").glob("train-*.tar"):
        with tarfile.open(path) as tar:
            for info in tar:
                key, _, extension = info.name.partition(".")
                rows[int(key)][extension] = tar.extractfile(info).read()
    assert all(rows)
    mds = [feature for feature, _ in columns if not (feature.nullable and feature.dtype == "bytes")]
    if mds:
        export(dataset, folder / "mds", "mds", columns=tuple(f.name for f in mds), rows_per_file=rows_per_file)
        samples = [row for path in sorted((folder / "mds" / "train").glob("*.mds")) for row in read_shard(path)[1]]
    for feature in features:
        values = wanted[feature.name]
        if feature.shape and feature.dtype in ("int64", "uint64", "float64", "float32"):
            members = [row.get(f"{feature.name}.npy") for row in rows]
            assert same([m and np.load(io.BytesIO(m)).tolist() for m in members], values)
        elif feature.dtype in ("int64", "uint64", "string"):
            assert same([json.loads(row["json"])[feature.name] for row in rows], values)
        if feature in mds and feature.shape and feature.dtype == "string":
            assert [json.loads(row[feature.name]) for row in samples] == values
        elif feature in mds and not feature.shape and not feature.nullable and feature.dtype != "timestamp[ns]":
            decode = {"string": bytes.decode, "bytes": bytes}.get(feature.dtype)
            decode = decode or (lambda raw, dtype=feature.dtype: np.frombuffer(raw, dtype)[0].item())
            assert same([decode(row[feature.name]) for row in samples], values)

"""Rows that a program holds become Arrow batches with the types of the values."""

import datetime
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import shardkit
from shardkit.conversion.memory.batches import BATCH_ROWS, batches_of
from shardkit.errors import UsageError

VALUES = st.none() | st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), min_size=1, max_size=40)


def rows_of(data):
    return [row for batch in batches_of(data) for row in batch.to_pylist()]


@given(ROWS)
def test_dicts_keep_their_values_and_lack_what_they_lack(rows):
    names = {name for row in rows for name in row}
    expected = [{name: row.get(name) for name in names} for row in rows]
    assert rows_of(rows) == rows_of(iter(rows)) == expected


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"x": [1, 2, 3]}),
        pa.record_batch({"x": [1, 2, 3]}),
        pa.table({"x": [1, 2, 3]}).to_reader(),
        {"x": [1, 2, 3]},
        {"x": np.array([1, 2, 3])},
        [pa.record_batch({"x": [1, 2]}), pa.table({"x": [3]})],
        ({"x": np.int64(i)} for i in (1, 2, 3)),
    ],
    ids=["table", "batch", "reader", "lists", "arrays", "batches", "generator"],
)
def test_all_forms_of_the_same_rows(data):
    assert rows_of(data) == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1, 2], "s": ["a", None]})
    assert rows_of(frame) == [{"x": 1, "s": "a"}, {"x": 2, "s": None}]


def test_a_data_set_that_is_indexed():
    class Squares:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": index, "y": index**2}

    assert rows_of(Squares()) == [{"x": i, "y": i * i} for i in range(4)]


def test_arrays_keep_type_and_shape():
    (batch,) = batches_of([{"v": np.full((2, 3), i, np.float32), "w": np.arange(i, dtype=np.int16)} for i in range(5)])
    assert batch.schema.field("v").type == pa.list_(pa.list_(pa.float32(), 3), 2)
    assert batch.schema.field("w").type == pa.list_(pa.int16())
    (batch,) = batches_of(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    assert batch.schema.names == ["value"]
    assert batch.to_pylist() == [{"value": [[0, 1, 2], [3, 4, 5]]}, {"value": [[6, 7, 8], [9, 10, 11]]}]


def test_images_become_png():
    image = Image.new("RGB", (3, 2), (9, 8, 7))
    (row,) = rows_of([{"image": image}])
    assert Image.open(io.BytesIO(row["image"])).getpixel((1, 1)) == (9, 8, 7)


def test_batches_are_small():
    sizes = [batch.num_rows for batch in batches_of({"i": i} for i in range(2 * BATCH_ROWS + 5))]
    assert sizes == [BATCH_ROWS, BATCH_ROWS, 5]
    large = [batch.num_rows for batch in batches_of({"b": bytes(30 << 20)} for _ in range(5))]
    assert large == [3, 2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "of type int holds no rows"),
        ([1, 2], "a row is of type int, and not a dict"),
        ([("a", 1)], "a row is of type tuple"),
        ({"x": [1, 2], "y": [1]}, "'x' 2, 'y' 1"),
        ({"train": pa.table({"x": [1]}), "test": pa.table({"x": [2]})}, "'train' is a table, and not a column"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns are called 'a'"),
        (np.array(3), "holds no rows"),
        ([{"x": 1}, {"x": "a"}], "the values of column 'x' have no common type"),
        ([{"x": object()}], "the values of column 'x' have no common type"),
    ],
)
def test_what_is_no_rows_is_refused(data, said):
    with pytest.raises(UsageError) as caught:
        rows_of(data)
    assert said in str(caught.value)


# Polars looks for torch.
@pytest.mark.full
def test_rows_of_libraries_with_types_of_their_own():
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    frames = [pandas.DataFrame({"c": pandas.Categorical([c])}, index=[i]) for i, c in enumerate("xy")]
    expected = [{"c": "x"}, {"c": "y"}]
    assert (
        rows_of(frames)
        == rows_of(polars.DataFrame({"c": polars.Series(["x", "y"], dtype=polars.Categorical)}))
        == expected
    )
    chunks = pa.chunked_array([pa.array(["x"]).dictionary_encode(), pa.array(["y"]).dictionary_encode()])
    assert rows_of(pa.table({"c": chunks})) == expected


def test_values_lose_nothing():
    noon, day = datetime.datetime(2020, 1, 2, 12), datetime.date(2020, 1, 1)
    assert rows_of([{"t": day}, {"t": noon}]) == [{"t": datetime.datetime(2020, 1, 1)}, {"t": noon}]
    assert rows_of([{"x": 2**63 + 1}, {"x": None}]) == [{"x": 2**63 + 1}, {"x": None}]
    assert rows_of([{0: 1, 1: "a"}]) == [{"0": 1, "1": "a"}]
    (batch,) = batches_of([{"v": np.ones((2, 2), np.float32)}, {"v": None}])
    assert batch.schema.field("v").type == pa.list_(pa.list_(pa.float32(), 2), 2)
    assert batch.to_pylist() == [{"v": [[1, 1], [1, 1]]}, {"v": None}]
    times = rows_of([{"t": np.datetime64("2020-01-01T00:00:00.000000001")}])
    assert times[0]["t"].value == 1_577_836_800_000_000_001


@pytest.mark.parametrize(
    "values",
    [
        [datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)],
        ["\ud800"],
        [2**70],
        [np.datetime64("2020-01-01"), None],
        [b"x", 1.5],
    ],
    ids=["zones", "surrogate", "large", "numpy dates", "kinds"],
)
def test_values_that_would_lose_something_are_refused(values):
    with pytest.raises(UsageError, match="'x' have no common type"):
        rows_of([{"x": value} for value in values])


@pytest.mark.parametrize("data", [{"s": 3}, {"s": np.array(3)}, {"s": "text"}, pa.array([1, 2, 3])])
def test_data_without_columns_is_refused(data):
    with pytest.raises(UsageError):
        rows_of(data)


@pytest.mark.full
def test_an_index_of_words_is_a_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [1, 2]}, index=["a", "b"])
    assert rows_of(frame) == [{"n": 1, "index_level_0": "a"}, {"n": 2, "index_level_0": "b"}]
    assert rows_of(pandas.DataFrame({"n": [1, 2, 3]})[1:]) == [{"n": 2}, {"n": 3}]


@pytest.mark.full
def test_hugging_face_datasets_keep_types_and_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"]), "n": datasets.Value("int8")})
    rows = datasets.Dataset.from_dict({"label": [0, 1, 1, 0], "n": [1, 2, 3, 4]}, features=features).select([3, 1])
    assert rows_of(rows) == [{"label": 0, "n": 4}, {"label": 1, "n": 2}]
    for number, data in enumerate((rows, rows.to_iterable_dataset())):
        shardkit.convert(data, tmp_path / str(number))
        label, n = shardkit.open(tmp_path / str(number))["train"].features
        assert (label.vocabulary, n.dtype) == (("cat", "dog"), "int8")
    with pytest.raises(UsageError, match="'train' is a table"):
        rows_of(datasets.DatasetDict({"train": rows, "test": rows}))

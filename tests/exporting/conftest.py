"""Datasets of every type, and exports of them."""

import datetime
import decimal
import io
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from PIL import Image

from shardkit.exporting.options import ExportRequest
from shardkit.exporting.run import Export
from shardkit.features import arrow_schema, make_feature
from shardkit.reading.splits import open_splits
from shardkit.testing import write_dataset

DAY = datetime.date(2020, 2, 29)
MOMENT = datetime.datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)
PRICE = decimal.Decimal("1.10")
NAN, INFINITY = float("nan"), float("inf")
SCALARS = (
    (make_feature("flag", "bool"), [True, False, True]),
    (make_feature("small", "int8", nullable=True), [1, None, -128]),
    (make_feature("low", "int64"), [-(2**63), 0, 2**63 - 1]),
    (make_feature("big", "uint64"), [2**64 - 1, 0, 2**53 + 1]),
    (make_feature("half", "float16"), [np.float16(0.1), np.float16(1.0), np.float16(-2.0)]),
    (make_feature("single", "float32"), [np.float32(0.1), np.float32(1e38), -0.0]),
    (make_feature("double", "float64", nullable=True), [0.1, None, INFINITY]),
    (make_feature("text", "string", nullable=True), ['é "a", b\r\nc', None, ""]),
    (make_feature("price", "decimal(9,2)", nullable=True), [PRICE, None, decimal.Decimal("-7.00")]),
    (make_feature("day", "date", nullable=True), [DAY, None, DAY]),
    (make_feature("when", "timestamp[us]", nullable=True, timezone="Europe/Berlin"), [MOMENT, None, MOMENT]),
    (make_feature("nanos", "timestamp[ns]"), [1_582_938_123_000_000_001, 0, -1]),
    (make_feature("clock", "time[s]"), [datetime.time(1, 2, 3)] * 3),
    (make_feature("span", "duration[ms]"), [datetime.timedelta(milliseconds=1001)] * 3),
    (make_feature("label", "int64", vocabulary=("cat", "dog")), [0, 1, 1]),
    (make_feature("messages", "json"), ['{"a": [1, null]}', '"x"', "[\n1.5]"]),
)
LISTS = (
    (make_feature("vector", "float32", (2,), nullable=True), [[0.1, 2.0], None, [3.0, NAN]]),
    (make_feature("grid", "uint8", (2, 3)), [list(range(6))] * 3),
    (make_feature("counts", "int64", (None,), nullable=True), [[1], None, []]),
    (make_feature("words", "string", (None,)), [["a", "bc"], [], ["d"]]),
    (make_feature("days", "date", (2,)), [[DAY, DAY]] * 3),
)
BYTES = (
    (make_feature("raw", "bytes"), [b"\0\xff", b"", b"x"]),
    (make_feature("parts", "bytes", (None,)), [[b"\0"], [], [b"", b"y"]]),
)
COLUMNS = (*SCALARS, *LISTS, *BYTES)
NUMBERS = ((make_feature("id", "int64"), list(range(20))),)


def image(kind, value):
    """Returns the bytes of a small image."""
    sink = io.BytesIO()
    Image.new("RGB", (4, 3), (value, 2, 3)).save(sink, kind)
    return sink.getvalue()


PHOTOS = (
    (make_feature("image", "bytes", media_type="image/*"), [image("JPEG", 9), image("PNG", 7), image("JPEG", 1)]),
    (make_feature("filename", "string"), ["cats/1.jpg", "dogs/ü.png", "dogs/2.jpg"]),
    (make_feature("label", "int64", vocabulary=("cat", "dog")), [0, 1, 1]),
)


def make_dataset(folder, columns=COLUMNS, num_times=1, version=1, **options):
    """Writes the columns, so many times one after the other, as the split `train`, and its first row as `test`."""
    features = tuple(feature for feature, _ in columns)
    arrays = [pa.array([v for _ in range(num_times) for v in values], f.arrow_type) for f, values in columns]
    rows = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(features))
    write_dataset(folder, features, {"train": rows, "test": rows.slice(0, 1)}, version=version, **options)
    return open_splits(folder)


def export(dataset, target, format, *, overwrite=False, num_threads=2, **request):
    """Exports a dataset."""
    request = ExportRequest(format, **request)
    return Export(dataset, str(target), request, overwrite=overwrite).write(num_threads=num_threads)


@pytest.fixture
def dataset(tmp_path):
    """Returns three rows with a column of every type."""
    return make_dataset(tmp_path / "set")


def columns_of(split):
    """Returns the values of a split by column."""
    table = split.to_arrow()
    return {name: table[name].to_pylist() for name in table.column_names}


def same(found, wanted):
    """Whether two values are equal, NaN being equal to itself and 0 not to -0."""
    if isinstance(wanted, float):
        is_nan = isinstance(found, float) and math.isnan(found) and math.isnan(wanted)
        return is_nan or (type(found), str(found)) == (float, str(wanted))
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and found == wanted


VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float64": st.floats(),
    "float32": st.floats(width=32),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "bytes": st.binary(max_size=20),
    "timestamp[ns]": st.integers(-(2**62), 2**62),
}


@st.composite
def tables(draw):
    """Draws features, and as many values of each."""
    num_rows = draw(st.integers(0, 9))
    columns = []
    for number, dtype in enumerate(draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))):
        shape = draw(st.sampled_from([(), (2,), (2, 2), (None,)]))
        size = {"max_size": 3} if shape == (None,) else {"min_size": math.prod(shape), "max_size": math.prod(shape)}
        value = st.lists(VALUES[dtype], **size) if shape else VALUES[dtype]
        feature = make_feature(f"f{number}", dtype, shape, nullable=draw(st.booleans()))
        one = st.none() | value if feature.nullable else value
        columns.append((feature, draw(st.lists(one, min_size=num_rows, max_size=num_rows))))
    return columns

"""Features: logical types, how they are stored, and their way through Arrow and JSON."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import UsageError
from shardkit.features import Feature, arrow_schema, feature_from_arrow, make_feature, stored_as

PLAIN = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "date"),
    *("float16", "float32", "float64", "string", "bytes"),
]
TEMPORAL = [f"{kind}[{unit}]" for kind in ("timestamp", "duration", "time") for unit in ("s", "ms", "us", "ns")]
DECIMALS = ["decimal(1,0)", "decimal(38,10)", "decimal(39,2)", "decimal(76,76)", "decimal(5,-3)"]
DTYPES = [*PLAIN, *TEMPORAL, *DECIMALS]
SHAPES = st.just(()) | st.just((None,)) | st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@st.composite
def features(draw):
    dtype = draw(st.sampled_from(DTYPES))
    counts_classes = dtype.startswith(("int", "uint"))
    return make_feature(
        draw(st.text(min_size=1).filter(lambda name: name.isprintable())),
        dtype,
        draw(SHAPES),
        nullable=draw(st.booleans()),
        media_type=draw(st.none() | st.sampled_from(["image/*", "text/plain"])),
        vocabulary=draw(st.none() | st.lists(st.text(), max_size=4).map(tuple)) if counts_classes else None,
        timezone=draw(st.none() | st.just("Europe/Vienna")) if dtype.startswith("timestamp") else None,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (None,)], ids=str)
def test_a_type_comes_back_from_arrow(dtype, shape):
    feature = make_feature("x", dtype, shape, nullable=True)
    assert feature_from_arrow("x", feature.arrow_type, nullable=True, where="a.parquet") == feature


@pytest.mark.parametrize(
    ("type_", "description"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "bytes"),
        (pa.binary_view(), "bytes"),
        (pa.binary(16), "bytes"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.list_(pa.dictionary(pa.int32(), pa.large_string())), "string[*]"),
        (pa.large_list(pa.float64()), "float64[*]"),
        (pa.list_view(pa.int8()), "int8[*]"),
        (pa.list_(pa.float32(), 3), "float32[3]"),
        (pa.date64(), "timestamp[ms]"),
        (pa.timestamp("us", tz="UTC"), "timestamp[us] UTC"),
        (pa.decimal256(10, 2), "decimal(10,2)"),
        (pa.null(), "string"),
    ],
    ids=str,
)
def test_what_other_arrow_types_become(type_, description):
    assert feature_from_arrow("x", type_, nullable=False, where="a.parquet").describe_type() == description


@pytest.mark.parametrize(
    "type_",
    [
        pa.struct([("a", pa.int8())]),
        pa.map_(pa.string(), pa.int8()),
        pa.list_(pa.list_(pa.int8())),
        pa.list_(pa.struct([("a", pa.int8())])),
        pa.list_(pa.int8(), 0),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_types_without_a_place_are_refused_by_column(type_):
    with pytest.raises(UsageError, match="'lot'"):
        feature_from_arrow("lot", type_, nullable=False, where="a.parquet")


@given(features())
def test_json_round_trip(feature):
    raw = msgspec.json.encode(feature)
    again = msgspec.json.decode(raw, type=Feature)
    assert again == feature
    assert msgspec.json.encode(again) == raw


@pytest.mark.full
@given(st.lists(features(), max_size=6, unique_by=lambda f: f.name))
def test_the_arrow_schema_keeps_names_and_order(columns):
    schema = arrow_schema(tuple(columns))
    assert schema.names == [f.name for f in columns]
    assert schema.types == [f.arrow_type for f in columns]


@pytest.mark.parametrize(
    ("shape", "num_values", "text"),
    [((), 1, "int8"), ((3,), 3, "int8[3]"), ((2, 3, 4), 24, "int8[2][3][4]"), ((None,), None, "int8[*]")],
)
def test_shapes(shape, num_values, text):
    feature = make_feature("x", "int8", shape)
    assert feature.num_values == num_values
    assert feature.is_scalar == (shape == ())
    assert feature.describe_type() == text


def test_a_description_names_what_matters():
    feature = make_feature("label", "int64", vocabulary=("cat", "dog"))
    assert feature.describe_type() == "int64 (2 classes)"
    assert make_feature("image", "bytes", media_type="image/jpeg").describe_type() == "bytes image/jpeg"


@pytest.mark.parametrize(
    "shape", [(None, 3), (3, None), (None, None), (0,), (3, 0), (-1,), (2**31,), (2**16, 2**16)], ids=str
)
def test_shapes_that_are_refused(shape):
    with pytest.raises(UsageError, match="'x' has shape"):
        make_feature("x", "int8", shape)


@pytest.mark.parametrize(
    "dtype",
    [
        "",
        "int",
        "int128",
        "Int64",
        "timestamp",
        "timestamp[m]",
        "time[s",
        "decimal(10)",
        "decimal(0,0)",
        "decimal(77,0)",
    ],
)
def test_types_that_nobody_knows_are_refused(dtype):
    with pytest.raises(UsageError, match="is not a dtype"):
        stored_as(dtype)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"name": ""}, "it is empty"),
        ({"stored_as": "float_list"}, "cannot be stored as float_list"),
        ({"timezone": "UTC"}, "int64 has none"),
    ],
)
def test_features_that_contradict_themselves_are_refused(parts, message):
    with pytest.raises(UsageError, match=message):
        Feature(**{"name": "x", "dtype": "int64", "stored_as": "int64_list", **parts})


def test_an_unknown_field_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.json.decode(b'{"name":"x","dtype":"int8","stored_as":"int64_list","colour":1}', type=Feature)

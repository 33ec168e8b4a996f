"""Casts, names and rows with nulls: against pandas and by hand, with every row accounted for."""

from __future__ import annotations

import datetime

import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.conversion.request import parse_request
from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RejectedRow, RowBatch, SourceOptions, row_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms
from tests.support.examples import draws

FILES = (
    RawFile(path="/a", name="a.csv", num_bytes=1, version=""),
    RawFile(path="/b", name="b.csv", num_bytes=1, version=""),
)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)


def run(features, values, options, *, tolerant=False, split=SPLIT, **more):
    plan = plan_transforms(features, options, SourceOptions(tolerates_bad_rows=tolerant, **more))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values[f.name], f.arrow_type) for f in features], schema=arrow_schema(features)
    )
    rows = RowBatch(batch, row_identities(FILES[0], split.start, 0, batch.num_rows), 0)
    applied = apply(plan, rows, FILES, split)
    assert applied.rows.batch.schema == arrow_schema(plan.output_features)
    applied.rows.batch.validate(full=True)
    return applied, plan


@pytest.mark.parametrize(
    ("before", "dtype", "values", "expected"),
    [
        (make_feature("a", "string", nullable=True), "int64", ["1", None, " 3 "], [1, None, 3]),
        (make_feature("a", "int64"), "float32", [1, 2, 3], [1.0, 2.0, 3.0]),
        (make_feature("a", "int64"), "string", [1, 2], ["1", "2"]),
        (make_feature("a", "float64"), "int8", [1.0, -3.0], [1, -3]),
        (make_feature("a", "string"), "date", ["2020-01-31"], [datetime.date(2020, 1, 31)]),
        (make_feature("a", "float64", (3,)), "float32", [[1, 2, 3]], [[1, 2, 3]]),
        (make_feature("a", "int64", (None,)), "string", [[1], [], [2, 3]], [["1"], [], ["2", "3"]]),
        (make_feature("a", "int64", vocabulary=("cat", "dog")), "string", [1, 0], ["dog", "cat"]),
        (make_feature("a", "int64", vocabulary=("cat", "dog")), "int8", [1, 0], [1, 0]),
    ],
)
def test_casts_keep_every_value(before, dtype, values, expected):
    applied, plan = run((before,), {"a": values}, TransformOptions(cast=(("a", dtype),)))
    assert applied.rows.batch["a"].to_pylist() == expected
    assert plan.output_features[0].dtype == dtype
    assert plan.output_features[0].shape == before.shape
    assert plan.output_features[0].vocabulary == (before.vocabulary if dtype == "int8" else None)


@pytest.mark.parametrize(
    ("before", "dtype", "values", "why"),
    [
        (make_feature("a", "string"), "int64", ["1", "2x", "3"], "expected int64, got '2x'"),
        (make_feature("a", "int64"), "int8", [1, 300], "expected int8, got 300"),
        (make_feature("a", "int64"), "float64", [1, 2**53 + 1], "expected float64, got 9007199254740993"),
        (make_feature("a", "float64"), "int64", [1.0, 1.5], "expected int64, got 1.5"),
        (make_feature("a", "float64"), "float32", [1.0, 1e300], "expected float32, got 1e+300"),
        (make_feature("a", "int64", (None,)), "int8", [[1], [1, 2, 999]], "expected int8[*], got 999"),
    ],
)
def test_a_value_that_does_not_fit_costs_its_row(before, dtype, values, why):
    options = TransformOptions(cast=(("a", dtype),))
    with pytest.raises(BadInputError) as caught:
        run((before,), {"a": values}, options)
    assert f"a.csv, row 2: {why}" in str(caught.value)
    applied, _ = run((before,), {"a": values}, options, tolerant=True)
    assert applied.rows.batch.num_rows == len(values) - 1
    assert [(r.position, r.file_index) for r in applied.rows.rejected] == [("row 2", 0)]
    assert why in applied.rows.rejected[0].reason
    assert applied.rows.rejected[0].raw == msgspec.json.encode({"a": values[1]})
    assert applied.num_filtered == {}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["1", "x", "2", None]), max_size=40))
def test_every_bad_row_is_found_among_any_number(values):
    feature = make_feature("a", "string", nullable=True)
    applied, _ = run((feature,), {"a": values}, TransformOptions(cast=(("a", "int64"),)), tolerant=True)
    assert applied.rows.batch["a"].to_pylist() == [None if v is None else int(v) for v in values if v != "x"]
    bad = [i for i, v in enumerate(values) if v == "x"]
    assert [r.position for r in applied.rows.rejected] == [f"row {i + 1}" for i in bad]


def test_rounded_floats_are_counted_under_their_final_names():
    features = (make_feature("a", "float64"), make_feature("b", "float64"))
    options = TransformOptions(
        cast=(("a", "float32"),), rename=(("a", "b"), ("b", "a")), select="SELECT a, b AS c FROM rows"
    )
    applied, _ = run(features, {"a": [0.1234567891, 0.5], "b": [1, 2]}, options)
    assert dict(applied.rows.num_rounded) == {"c": 1}


def test_names_may_be_swapped():
    features = (make_feature("a", "int64"), make_feature("b", "string", media_type="text/plain"))
    applied, plan = run(features, {"a": [1], "b": ["x"]}, TransformOptions(rename=(("a", "b"), ("b", "a"))))
    assert applied.rows.batch.to_pylist() == [{"b": 1, "a": "x"}]
    assert plan.output_features[1].media_type == "text/plain"


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=2), st.none() | st.floats()), max_size=9
    ),
    st.sampled_from([("*",), ("n",), ("n", "t"), ("v",)]),
)
def test_rows_with_nulls_go_as_pandas_drops_them(rows, names):
    features = tuple(make_feature(n, d, nullable=True) for n, d in (("n", "int64"), ("t", "string"), ("v", "float64")))
    values = {name: [row[i] for row in rows] for i, name in enumerate("ntv")}
    applied, plan = run(features, values, TransformOptions(drop_null=names))
    chosen = list("ntv") if names == ("*",) else list(names)
    frame = pd.DataFrame({name: [v is None for v in values[name]] for name in chosen})
    kept = [i for i in range(len(rows)) if not frame.loc[i].any()]
    assert (applied.rows.identities == row_identities(FILES[0], 0, 0, len(rows))[kept]).all()
    assert str(applied.rows.batch.to_pylist()) == str([{n: values[n][i] for n in "ntv"} for i in kept])
    assert sum(applied.num_filtered.values()) == len(rows) - len(kept)
    assert [f.nullable for f in plan.output_features] == [f.name not in chosen for f in features]


def test_rows_are_counted_by_their_files_and_earlier_rejections_stay():
    features = (make_feature("a", "string", nullable=True),)
    batch = pa.record_batch({"a": ["1", None, "x", None, "5", "y"]})
    earlier = RejectedRow(file_index=1, position="row 9", first_byte=None, reason="torn", raw=b"")
    identities = pa.concat_arrays([pa.array(row_identities(f, 0, 0, 3)) for f in FILES]).to_numpy()
    rows = RowBatch(batch, identities, pa.array([0, 0, 0, 1, 1, 1]).to_numpy(), {}, (earlier,))
    plan = plan_transforms(
        features, TransformOptions(cast=(("a", "int64"),), drop_null=("a",)), SourceOptions(tolerates_bad_rows=True)
    )
    applied = apply(plan, rows, FILES, SPLIT)
    assert applied.rows.batch["a"].to_pylist() == [1, 5]
    assert applied.rows.file_indices.tolist() == [0, 1]
    assert applied.num_filtered == {0: 1, 1: 1}
    assert [(r.file_index, r.position) for r in applied.rows.rejected] == [(1, "row 9"), (0, "row 3"), (1, "row 3")]


@pytest.mark.parametrize(
    ("format", "where"), [("csv", "row 2 counted from byte 4096"), ("parquet", "row 2 counted from row group 4096")]
)
def test_places_in_later_splits_say_what_they_count_from(format, where):
    split = InputSplit(index=1, file_start=0, file_stop=1, start=4096, stop=9999)
    options = TransformOptions(cast=(("a", "int64"),))
    with pytest.raises(BadInputError, match=where):
        run((make_feature("a", "string"),), {"a": ["1", "x"]}, options, split=split, format=format)


def test_the_error_names_the_first_bad_row_whichever_step_finds_it():
    features = (make_feature("a", "string"), make_feature("b", "string"))
    values = {"a": ["1", "2", "3", "x"], "b": ["1", "y", "3", "4"]}
    options = TransformOptions(cast=(("a", "int64"),), select="SELECT a, CAST(b AS INTEGER) AS b FROM rows")
    with pytest.raises(BadInputError, match="row 2: Could not convert string 'y'"):
        run(features, values, options)


@pytest.mark.parametrize(
    ("casts", "changed"),
    [
        ((("*", "float32"),), {"n": "float32", "x": "float32", "price_a": "float32"}),
        ((("*", "float32"), ("n", "int16")), {"n": "int16", "x": "float32", "price_a": "float32"}),
        ((("n", "int16"), ("*", "float32")), {"n": "int16", "x": "float32", "price_a": "float32"}),
        ((("float64", "float32"),), {"x": "float32", "price_a": "float32"}),
        ((("float64", "float32"), ("price_*", "string")), {"x": "float32", "price_a": "string"}),
        ((("price_?", "string"), ("float64", "float32")), {"x": "float32", "price_a": "float32"}),
        ((("string", "json"),), {"price_b": "string", "note": "string"}),
        ((("timestamp[us]", "timestamp[ms]"),), {"when": "timestamp[ms]"}),
        ((("float*", "int32"),), {"float_like": "int32"}),
    ],
)
def test_patterns_and_types_stand_for_columns(casts, changed):
    dtypes = {"n": "int64", "x": "float64", "price_a": "float64", "price_b": "string", "note": "string"}
    dtypes |= {"when": "timestamp[us]", "flag": "bool", "float_like": "bool"}
    features = (
        *(make_feature(name, dtype) for name, dtype in dtypes.items()),
        make_feature("label", "int64", vocabulary=("cat", "dog")),
        make_feature("chat", "json"),
    )
    after = plan_transforms(features, TransformOptions(cast=casts), SourceOptions()).output_features
    found = {f.name: f.dtype for f, before in zip(after, features, strict=True) if f != before}
    assert found == changed


def options_from_texts(**typed):
    return parse_request(typed).transforms


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cast": ("a=int65",)}, "'int65' is not a dtype"),
        ({"cast": ("z=int64",)}, "--cast names a column 'z'"),
        ({"cast": ("a=int64", "a=int8")}, "--cast names the column 'a' twice"),
        ({"cast": ("a",)}, "--cast a is not COLUMN=TYPE"),
        ({"cast": ("a=decimal(99,1)",)}, "is not a dtype"),
        ({"cast": ("blob=date",)}, "'blob' cannot become date"),
        ({"cast": ("price_*=string",)}, "--cast price_*=string takes no column"),
        ({"rename": ("z=y",)}, "--rename names a column 'z'"),
        ({"rename": ("a=b",)}, "--rename a=b would give two columns one name"),
        ({"rename": ("a=",)}, "--rename a= is not OLD=NEW"),
        ({"rename": ("a=b\0",)}, "cannot name a feature"),
        ({"drop_null": "z"}, "--drop-null names a column 'z'"),
        ({"cast": ("a=int8",), "rename": ("a=c",), "drop_null": "a"}, "The columns are by then: c, b, blob"),
        ({"unicode_form": ("a=NFX",)}, "Invalid enum value 'NFX'"),
        ({"image_size": "8x"}, "--image-size 8x is not a size"),
        ({"map_path": "rows.py"}, "--map rows.py names no function"),
    ],
)
def test_what_cannot_be_is_refused_before_work(options, why):
    features = (make_feature("a", "int64"), make_feature("b", "string"), make_feature("blob", "bytes"))
    with pytest.raises(UsageError) as caught:
        plan_transforms(features, options_from_texts(**options), SourceOptions())
    assert why in str(caught.value)


def test_texts_become_options():
    options = options_from_texts(rename=("a=b=c",), cast=("a=b=int8",), image_size="224", unicode_form=("t=NFC",))
    assert options.rename == (("a", "b=c"),)
    assert options.cast == (("a=b", "int8"),)
    assert options.image_size == (224, 224)
    assert options_from_texts(image_size="240x320").image_size == (240, 320)
    assert options_from_texts().changes_nothing
    assert options_from_texts(apply_exif=False).changes_nothing
    assert not options.changes_nothing
    assert msgspec.json.decode(msgspec.json.encode(options), type=TransformOptions) == options


CASTS = [
    ("string", "int64", ["1", " 3 ", "x", "", "99999999999999999999", "1.5", "0x1F", "007", "+5", "-", "\uff11"]),
    ("string", "uint8", ["1", "255", "256", "-1", "x"]),
    ("string", "float32", ["1", "1e30", "1e39", "nan", "x", ".5", "1.", "-inf", "1,5"]),
    ("string", "date", ["2020-01-31", "2020-02-30", "2020-1-1", "x", "20200131"]),
    ("string", "timestamp[us]", ["2020-01-31 10:00", "2020-01-31T10:00:61", "2020-01-31", "x"]),
    ("string", "decimal(4,1)", ["1.5", "123.4", "1234.5", "1.55", "x"]),
    ("string", "bool", ["true", "0", "yes", "FALSE", "x"]),
    ("float64", "int16", [1.0, 1.5, 40_000.0, float("nan"), float("inf"), -2.0]),
    ("float64", "float16", [1.0, 1e6, float("nan"), 65504.0]),
    ("float64", "int64", [1.0, 2.0**63, -(2.0**63), 2.0**62, 0.1]),
    ("int64", "int8", [1, 127, 128, -128, -129]),
    ("int64", "bool", [0, 1, 2]),
]


@pytest.mark.parametrize(("source", "dtype", "values"), CASTS)
@settings(max_examples=draws(15), deadline=None)
@given(data=st.data())
def test_what_cannot_be_cast_among_many_rows_is_what_cannot_alone(source, dtype, values, data):
    feature = make_feature("a", source, nullable=True)
    chosen = data.draw(st.lists(st.sampled_from([None, *values]), min_size=1, max_size=40))
    options = TransformOptions(cast=(("a", dtype),))
    applied, _ = run((feature,), {"a": chosen}, options, tolerant=True)
    kept, failed = [], []
    for row, value in enumerate(chosen):
        alone, _ = run((feature,), {"a": [value]}, options, tolerant=True)
        kept += alone.rows.batch["a"].to_pylist()
        failed += [(f"row {row + 1}", r.reason, r.raw) for r in alone.rows.rejected]
    assert repr(applied.rows.batch["a"].to_pylist()) == repr(kept)
    assert [(r.position, r.reason, r.raw) for r in applied.rows.rejected] == failed

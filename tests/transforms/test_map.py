"""--map: functions of the user's own, what they may give back, and how their rows keep their identities."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.transforms.options import TransformOptions, without_places
from shardkit.transforms.pipeline import apply, plan_transforms, transform_notes
from shardkit.transforms.user_files import with_hashes

FEATURES = (
    make_feature("n", "int64", nullable=True),
    make_feature("name", "string"),
    make_feature("label", "int64", vocabulary=("cat", "dog")),
    make_feature("grid", "float32", (2, 2)),
    make_feature("image", "bytes", media_type="image/png"),
)
NONE_OR_ROWS = """
import pyarrow as pa
import pyarrow.compute as pc

def some_or_none(batch):
    found = batch.filter(pc.greater(pc.fill_null(batch["n"], 0), 25))
    return found if found.num_rows else None

def renamed_or_none(batch):
    found = some_or_none(batch)
    return None if found is None else found.rename_columns(["m", *found.schema.names[1:]])
"""
FILES = (RawFile(path="/a", name="a.csv", num_bytes=1, version=""),)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)

CODE = """
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

def same(batch):
    return batch

def keep_even(batch):
    return batch.filter(pc.equal(pc.bit_wise_and(pc.fill_null(batch["n"], 1), 1), 0))

def as_table(batch):
    return pa.Table.from_batches([batch]).filter(pc.greater(pc.field("n"), 3))

def with_pandas(batch):
    frame = batch.to_pandas()
    frame["twice"] = frame["n"] * 2
    return pa.RecordBatch.from_pandas(frame[frame["n"] > 3])

def backwards(batch):
    return batch.take(pa.array(np.arange(batch.num_rows)[::-1]))

def from_scratch(batch):
    return pa.record_batch({"length": pc.utf8_length(batch["name"])})

def nothing(batch):
    return None

def none_when_empty(batch):
    return batch if batch.num_rows else None

def untyped(batch):
    return pa.record_batch({"upper": [v.upper() for v in batch["name"].to_pylist()]})

def fails_at_five(batch):
    for value in batch["n"].to_pylist():
        if value == 5:
            raise ValueError("five is right out")
    return batch

def exits(batch):
    raise SystemExit(3)

def not_a_batch(batch):
    return batch.to_pydict()

def more_rows(batch):
    return pa.concat_batches([batch, batch, batch.slice(0, 1)])

def shorter(batch):
    return batch.drop_columns(["__row__"]).slice(1)

def retagged(batch):
    return batch.set_column(batch.num_columns - 1, "__row__", pa.array([b"12345678"] * batch.num_rows, pa.binary(8)))

def centred(batch):
    return batch.set_column(0, "n", pc.subtract(batch["n"], pc.min(batch["n"])))

def first_of_batch(batch):
    return batch.slice(0, 2) if batch.num_rows > 20 else batch.slice(0, 1)

def other_columns(batch):
    return batch if batch.num_rows < 2 else batch.rename_columns(["m", *batch.schema.names[1:]])

def struct(batch):
    return pa.record_batch({"s": pa.array([{"a": 1}] * batch.num_rows, pa.struct([("a", pa.int64())]))})

def half_of_float(batch):
    return pa.record_batch({"n": pc.divide(pc.cast(batch["n"], pa.float64()), 2.0) if batch.num_rows else batch["n"]})

def with_media_type(batch):
    field = pa.field("photo", pa.binary(), nullable=False, metadata={"media_type": "image/jpeg"})
    return pa.RecordBatch.from_arrays([batch["image"]], schema=pa.schema([field]))

def sees(batch):
    assert batch.schema.field("label").metadata[b"vocabulary"] == b'["cat","dog"]'
    assert not batch.schema.field("name").nullable and batch.schema.field("n").nullable
    return batch

not_callable = 3
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "rows.py"
    path.write_text(CODE)
    return path


def rows(n=30):
    columns = [
        pa.array([None if i == 2 else i for i in range(n)], pa.int64()),
        pa.array([f"name {i}" for i in range(n)]),
        pa.array([i % 2 for i in range(n)]),
        pa.array([[i, 1, 2, 3] for i in range(n)], pa.list_(pa.float32(), 4)),
        pa.array([b"x" * i for i in range(n)]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(FEATURES))
    return RowBatch(batch, row_identities(FILES[0], 0, 0, n), 0)


def run(path, function, *, tolerant=False, given=None):
    plan = plan_transforms(
        FEATURES, TransformOptions(map_path=f"{path}:{function}"), SourceOptions(tolerates_bad_rows=tolerant)
    )
    given = rows() if given is None else given
    applied = apply(plan, given, FILES, SPLIT)
    found = applied.rows.batch
    assert found.schema == arrow_schema(plan.output_features)
    found.validate(full=True)
    assert found.num_rows == len(applied.rows.identities)
    total = found.num_rows + sum(applied.num_filtered.values()) + len(applied.rows.rejected)
    assert total == given.batch.num_rows
    return applied, plan


def numbers(applied):
    return (applied.rows.identities - rows().identities[0]).tolist()


def test_a_function_that_changes_nothing_loses_nothing(code):
    applied, plan = run(code, "same")
    assert plan.output_features == FEATURES
    assert applied.rows.batch.equals(rows().batch)
    assert numbers(applied) == list(range(30))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("keep_even", [i for i in range(0, 30, 2) if i != 2]),
        ("as_table", list(range(4, 30))),
        ("with_pandas", list(range(4, 30))),
        ("backwards", list(range(30))),
        ("from_scratch", list(range(30))),
        ("none_when_empty", list(range(30))),
        ("sees", list(range(30))),
    ],
)
def test_rows_that_stay_keep_their_identities_and_their_order(code, function, expected):
    applied, _ = run(code, function)
    assert numbers(applied) == expected
    if "n" in applied.rows.batch.schema.names:
        assert applied.rows.batch["n"].to_pylist() == [None if i == 2 else i for i in expected]


def test_new_columns_are_what_the_function_says(code):
    applied, plan = run(code, "with_pandas")
    assert [f.name for f in plan.output_features] == ["n", "name", "label", "grid", "image", "twice"]
    assert applied.rows.batch["twice"].to_pylist() == [2 * i for i in range(4, 30)]
    assert "'label' lost its class names" in " ".join(transform_notes(plan))
    _, plan = run(code, "with_media_type")
    assert plan.output_features == (make_feature("photo", "bytes", media_type="image/jpeg"),)
    _, plan = run(code, "untyped")
    assert plan.output_features == (make_feature("upper", "string", nullable=True),)


def test_a_function_need_not_take_a_batch_without_rows(code):
    path = code.with_name("picky.py")
    path.write_text("def f(batch):\n    batch['n'][0]\n    return batch\n")
    applied, _ = run(path, "f", given=rows(0))
    assert applied.rows.batch.num_rows == 0
    assert run(path, "f")[0].rows.batch.num_rows == 30


def test_none_is_no_row_at_all(code):
    applied, plan = run(code, "nothing")
    assert applied.rows.batch.num_rows == 0
    assert plan.output_features == FEATURES
    for function, option in (("some_or_none", "keep"), ("renamed_or_none", "rename")):
        path = code.with_name(f"{option}.py")
        path.write_text(NONE_OR_ROWS)
        if option == "keep":
            applied, _ = run(path, function)
            assert applied.rows.batch["n"].to_pylist() == list(range(26, 30))
            continue
        with pytest.raises(UsageError, match="other columns than it gets, though None") as caught:
            run(path, function)
        assert "empty batch with its columns, rather than None" in str(caught.value)


def test_a_row_that_the_function_fails_on_is_found(code):
    with pytest.raises(BadInputError) as caught:
        run(code, "fails_at_five")
    line = CODE.split("\n").index('            raise ValueError("five is right out")') + 1
    assert "a.csv, row 6" in str(caught.value)
    assert f"ValueError: five is right out (line {line})" in str(caught.value)
    applied, _ = run(code, "fails_at_five", tolerant=True)
    assert numbers(applied) == [i for i in range(30) if i != 5]
    assert [r.position for r in applied.rows.rejected] == ["row 6"]
    assert b'"name":"name 5"' in applied.rows.rejected[0].raw


def test_values_that_do_not_fit_the_planned_type_cost_their_row(code):
    applied, _ = run(code, "half_of_float", tolerant=True)
    assert numbers(applied) == [i for i in range(30) if i == 2 or i % 2 == 0]
    assert "expected int64, got 0.5" in applied.rows.rejected[0].reason


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("missing", "no function 'missing'"),
        ("not_callable", "no function 'not_callable'"),
        ("exits", "SystemExit: 3"),
        ("not_a_batch", "gives dict"),
        ("more_rows", "more rows than it gets"),
        ("shorter", "Let the column __row__ pass"),
        ("retagged", "changes the column __row__"),
        ("centred", "does not treat each row by itself"),
        ("first_of_batch", "does not treat each row by itself"),
        ("other_columns", "other columns than for a batch without rows"),
        ("struct", "column 's' that cannot be stored"),
    ],
)
def test_what_a_function_may_not_do_is_refused(code, function, why):
    given = rows()
    if function == "centred":
        given = given._replace(batch=given.batch.take(pa.array(range(29, -1, -1))))
    with pytest.raises(UsageError) as caught:
        run(code, function, given=given)
    assert why in str(caught.value)
    assert "--map" in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "why"),
    [("rows.py", "names no function"), ("none.py:f", "cannot be read"), (":f", "names no function")],
)
def test_a_reference_that_leads_nowhere_is_refused(tmp_path, monkeypatch, reference, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why):
        plan_transforms(FEATURES, TransformOptions(map_path=reference), SourceOptions())


def test_a_file_that_fails_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.py"
    for text, why in (("import os\nx = 1 / 0\n", "ZeroDivisionError"), ("def f(:\n", "SyntaxError")):
        path.write_text(text)
        with pytest.raises(UsageError, match=rf"{why}.*line \d") as caught:
            plan_transforms(FEATURES, TransformOptions(map_path=f"{path}:f"), SourceOptions())
        assert str(path) in str(caught.value)


def test_the_content_of_the_file_is_part_of_the_recipe_and_its_place_is_not(code, tmp_path):
    other = tmp_path / "elsewhere" / "x.py"
    other.parent.mkdir()
    other.write_text(CODE)
    one, two = (with_hashes(TransformOptions(map_path=f"{path}:same")) for path in (code, other))
    assert one.map_path != two.map_path
    assert without_places(one) == without_places(two)
    times = os.stat(code)
    code.write_text(CODE.replace("return batch\n", "return 12345\n", 1))
    os.utime(code, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert without_places(with_hashes(TransformOptions(map_path=f"{code}:same"))) != without_places(one)
    with pytest.raises(UsageError, match="not the one that the recipe was made with"):
        plan_transforms(FEATURES, one, SourceOptions())


def test_no_compiled_file_and_no_import_path_is_left_behind(code, monkeypatch):
    import sys

    before = list(sys.path)
    run(code, "same")
    assert sys.path == before
    assert [p.name for p in code.parent.iterdir()] == ["rows.py"]


def test_the_name_of_the_tag_is_taken():
    with pytest.raises(UsageError, match="--rename"):
        plan_transforms(
            (make_feature("__row__", "int64"),), TransformOptions(map_path=f"{__file__}:rows"), SourceOptions()
        )

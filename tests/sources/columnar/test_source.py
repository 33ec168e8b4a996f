"""What Parquet, Arrow, ORC and Avro have in common: cuts by rows, and schemas that differ."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs, source_for
from shardkit.sources.base import SourceOptions
from tests.support.campaign import in_campaign

pytestmark = pytest.mark.full

WRITERS = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=len(table), compression="none"),
    "orc": lambda table, path: orc.write_table(table, str(path), stripe_size=1 << 30, compression="uncompressed"),
    "arrow": lambda table, path: feather.write_feather(
        table, str(path), chunksize=len(table), compression="uncompressed"
    ),
}


def read(path, source, options, splits=None):
    files = list_inputs([str(path)]).files
    features = source.infer(files, options)
    splits = splits if splits is not None else source.split(files, options)
    return splits, [b for split in splits for b in source.read(split, files, features, options)]


@pytest.mark.parametrize("format_", ["parquet", "arrow", *in_campaign("orc")])
def test_one_huge_piece_is_cut_by_rows_and_names_its_rows_alike(tmp_path, format_):
    random = np.random.default_rng(0)
    values = pa.array(random.integers(0, 1 << 62, 9_000_000))
    path = tmp_path / f"a.{format_}"
    WRITERS[format_](pa.table({"a": values}), path)
    source, options = source_for(format_), SourceOptions(format=format_)
    splits, batches = read(path, source, options)
    assert len(splits) == 4
    assert sum(s.num_bytes for s in splits) == pytest.approx(path.stat().st_size, rel=0.01)
    assert pa.chunked_array([b.batch.column(0) for b in batches]).equals(pa.chunked_array([values]))
    uncut, whole = read(path, type(source)(split_bytes=1 << 40), options)
    assert len(uncut) == 1
    assert np.array_equal(*(np.concatenate([b.identities for b in found]) for found in (batches, whole)))


def test_bad_rows_of_a_part_have_their_number_in_the_file(tmp_path):
    values = np.random.default_rng(0).integers(0, 1 << 62, 3_000_000)
    values[:] |= 1 << 61
    values[[7, 1_600_000, 2_999_999]] = -1
    path = tmp_path / "a.parquet"
    WRITERS["parquet"](pa.table({"a": values}), path)
    source, options = source_for("parquet"), SourceOptions(format="parquet", tolerates_bad_rows=True)
    files = list_inputs([str(path)]).files
    features = tuple(
        type(f)(name=f.name, dtype="uint64", shape=f.shape, stored_as=f.stored_as) for f in source.infer(files, options)
    )
    splits = source.split(files, options)
    assert len(splits) == 2
    batches = [b for split in splits for b in source.read(split, files, features, options)]
    rejected = [r.position for b in batches for r in b.rejected]
    assert rejected == ["row 8", "row 1600001", "row 3000000"]
    assert sum(b.batch.num_rows for b in batches) == 3_000_000 - 3


def test_many_pieces_are_not_cut_by_rows(tmp_path):
    path = tmp_path / "a.parquet"
    values = np.random.default_rng(0).integers(0, 1 << 62, 9_000_000)
    pq.write_table(pa.table({"a": values}), path, row_group_size=1 << 21)
    splits, batches = read(path, source_for("parquet"), SourceOptions())
    assert len(splits) == 5
    assert all(s.row_stop == 0 for s in splits)
    assert sum(b.batch.num_rows for b in batches) == 9_000_000


@pytest.mark.parametrize("format_", WRITERS)
def test_the_two_files_that_differ_are_named(tmp_path, format_):
    for name, type_ in (("a", pa.int32()), ("b", pa.int64()), ("c", pa.int32()), ("d", pa.string())):
        table = pa.table({"x": pa.array([None], pa.string()), "n": pa.array([1], pa.int64()).cast(type_)})
        WRITERS[format_](table if name != "d" else table.append_column("more", [[1]]), tmp_path / f"{name}.{format_}")
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError) as caught:
        source_for(format_).infer(files, SourceOptions())
    assert f"a.{format_} and d.{format_} have different schemas" in str(caught.value)
    assert f"'n' is int32 in a.{format_} and string in d.{format_}" in str(caught.value)
    assert f"'more' is only in d.{format_}" in str(caught.value)


@pytest.mark.parametrize("format_", WRITERS)
def test_integers_and_floats_become_float64_as_pandas_joins_them(tmp_path, format_):
    parts = [pd.DataFrame({"n": [1, 2]}), pd.DataFrame({"n": [3.5, None]})]
    for name, part in zip("ab", parts, strict=True):
        WRITERS[format_](pa.Table.from_pandas(part, preserve_index=False), tmp_path / f"{name}.{format_}")
    _, batches = read(tmp_path, source_for(format_), SourceOptions())
    found = pd.Series([value for b in batches for value in b.batch["n"].to_pylist()], dtype="float64")
    assert found.equals(pd.concat(parts, ignore_index=True)["n"])


def test_an_integer_that_a_float_cannot_hold_is_no_value_of_such_a_column(tmp_path):
    WRITERS["parquet"](pa.table({"n": [1, 2**53 + 1]}), tmp_path / "a.parquet")
    WRITERS["parquet"](pa.table({"n": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(BadInputError, match=r"a\.parquet, row 2: expected float64, got 9007199254740993"):
        read(tmp_path, source_for("parquet"), SourceOptions())


def test_the_error_names_the_later_file_that_a_type_came_from(tmp_path):
    for name, type_ in (("a", pa.int32()), ("b", pa.int64()), ("c", pa.uint64())):
        WRITERS["parquet"](pa.table({"n": pa.array([1], type_)}), tmp_path / f"{name}.parquet")
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match=r"'n' is int32 in a\.parquet and uint64 in c\.parquet"):
        source_for("parquet").infer(files, SourceOptions())
    (tmp_path / "a.parquet").unlink()
    WRITERS["parquet"](pa.table({"n": pa.nulls(1)}), tmp_path / "a.parquet")
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match=r"'n' is int64 in b\.parquet and uint64 in c\.parquet"):
        source_for("parquet").infer(files, SourceOptions())


def test_numbers_beyond_their_type_are_an_error_without_pandas(tmp_path):
    path = tmp_path / "a.parquet"
    WRITERS["parquet"](pa.table({"n": [1, 1 << 40]}), path)
    code = (
        "import sys\n"
        "class NoPandas:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pandas': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoPandas())\n"
        "from shardkit.features import make_feature\n"
        "from shardkit.sources import list_inputs, source_for\n"
        "from shardkit.sources.base import SourceOptions\n"
        "files, options, source = list_inputs([sys.argv[1]]).files, SourceOptions(), source_for('parquet')\n"
        "(split,) = source.split(files, options)\n"
        "try:\n"
        "    list(source.read(split, files, (make_feature('n', 'int32'),), options))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert "BadInputError" in found.stdout
    assert "row 2" in found.stdout

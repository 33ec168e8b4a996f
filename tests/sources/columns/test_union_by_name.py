"""`--union-by-name`: files whose columns differ are joined as pandas joins them."""

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from shardkit.errors import UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.testing.reading import read_paths
from tests.support.in_process import read_rows

FRAMES = (
    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    pd.DataFrame({"b": ["z"], "c": [0.5]}),
    pd.DataFrame({"c": [1.5, 2.5, 3.5], "a": [7, 8, 9], "d": ["p", "q", "r"]}),
)
AVRO = {"int64": "long", "float64": "double"}


def write_avro(frame, path):
    fields = [{"name": name, "type": AVRO.get(str(dtype), "string")} for name, dtype in frame.dtypes.items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, frame.to_dict("records"))


def table(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "parquet": lambda frame, path: pyarrow.parquet.write_table(table(frame), path),
    "arrow": lambda frame, path: pyarrow.feather.write_feather(table(frame), path),
    "orc": lambda frame, path: pyarrow.orc.write_table(table(frame), path),
    "avro": write_avro,
}


@pytest.fixture(params=WRITERS)
def folder(request, tmp_path):
    for number, frame in enumerate(FRAMES):
        # A value of a folder stays beside columns that are missing.
        path = tmp_path / f"year={2000 + number}" / f"{number}.{request.param}"
        path.parent.mkdir()
        WRITERS[request.param](frame, path)
    return tmp_path


def read(folder, **given):
    options = SourceOptions(**given)
    return read_paths(choose_source(list_inputs([str(folder)]).files, options), [folder], options)


def test_rows_are_those_of_pandas(folder):
    found = read(folder, union_by_name=True)
    joined = pd.concat([f.assign(year=2000 + i) for i, f in enumerate(FRAMES)], ignore_index=True)
    assert {feature.name for feature in found.features} == {"a", "b", "c", "d", "year"}
    for name in joined:
        assert found.columns[name] == [None if pd.isna(value) else value for value in joined[name]]


def test_without_the_option_the_error_names_it(folder):
    with pytest.raises(UsageError) as caught:
        read(folder)
    assert "--union-by-name" in str(caught.value.next_step)


def test_columns_that_are_dropped_stay_away(folder):
    found = read(folder, union_by_name=True, drop_columns=("a", "d"))
    assert {feature.name for feature in found.features} == {"b", "c", "year"}
    assert found.columns["c"] == [None, None, 0.5, 1.5, 2.5, 3.5]


def test_types_that_do_not_go_together_are_refused(tmp_path):
    pyarrow.parquet.write_table(pa.table({"a": [1], "b": [1]}), tmp_path / "1.parquet")
    pyarrow.parquet.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(UsageError, match=r"'a' is int64 in 1\.parquet and string in 2\.parquet"):
        read(tmp_path, union_by_name=True)


def test_notes_tell_which_columns_files_lack(tmp_path):
    (tmp_path / "1.csv").write_text("a,X\n1,2\n")
    (tmp_path / "2.csv").write_text("a,x\n1,2\n")
    assert read(tmp_path, union_by_name=True).notes == (
        "of 2 files so many lack a column: 'X' 1, 'x' 1",
        "columns 'X' and 'x' differ in case only, and stay apart",
    )


@pytest.mark.full
def test_what_is_appended_may_lack_columns_too(tmp_path):
    (tmp_path / "in").mkdir()
    for name, text in (("a", "x,y\n1,a\n"), ("b", "x,z\n3,1.5\n")):
        (tmp_path / "in" / f"{name}.csv").write_text(text)
    command = ["convert", str(tmp_path / "in"), str(tmp_path / "out")]
    assert main([*command, "--union-by-name"]) == 0
    (tmp_path / "in/c.csv").write_text("x,y\n9,q\n")
    assert main([*command, "--append"]) == 0
    rows = read_rows(open_dataset(str(tmp_path / "out")), "train")
    assert sorted((row["x"], row["y"], row["z"]) for row in rows if row["y"]) == [(1, "a", None), (9, "q", None)]

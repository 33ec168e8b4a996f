"""Which files an append takes: those that the dataset does not have, known by their names and sizes."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardkit.conversion.inputs.append_check import NothingNew
from shardkit.dataset.open import list_versions
from shardkit.errors import BadInputError, UsageError
from shardkit.features import stored_as
from shardkit.transforms.options import TransformOptions
from shardkit.verify.shards import verify_dataset
from tests.support.appends import SPLITS, more, split_of, write
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full


@pytest.fixture
def data(tmp_path):
    """Returns a folder with one file; `more` adds others."""
    write(tmp_path / "data" / "a.csv", 0, 5_000)
    return tmp_path / "data"


def test_a_file_below_the_old_folder_keeps_the_name_it_had_been_given(convert, data):
    convert(data, splits=SPLITS)
    more(data)
    convert(data / "later" / "c.csv", append=True)
    dataset = convert(data / "b.csv", append=True)
    assert [i.name for i in dataset.manifest.accounting.inputs] == ["a.csv", "later/c.csv", "b.csv"]
    assert split_of(dataset) == split_of(convert(data, "whole", splits=SPLITS))


def test_a_folder_above_the_old_one_names_no_file_twice(convert, data, tmp_path):
    more(data)
    convert(data / "later", splits=SPLITS)
    dataset = convert(data, append=True)
    assert {i.name: i.num_rows for i in dataset.manifest.accounting.inputs} == {
        "c.csv": 1_000,
        "a.csv": 5_000,
        "b.csv": 3_000,
    }
    assert len(split_of(dataset)) == dataset.manifest.accounting.num_examples == 9_000


def test_inputs_are_known_again_on_another_machine_by_name_and_size(convert, data, tmp_path):
    convert(data, splits=SPLITS)
    data.rename(tmp_path / "elsewhere")
    write(tmp_path / "elsewhere" / "b.csv", 10_000, 3_000)
    dataset = convert(tmp_path / "elsewhere", append=True)
    assert [i.name for i in dataset.manifest.accounting.inputs] == ["a.csv", "b.csv"]


def test_another_file_of_the_same_name_is_not_taken_for_it(convert, data, tmp_path):
    convert(data)
    write(tmp_path / "more" / "a.csv", 0, 5_000)
    with pytest.raises(UsageError, match="another file of that name") as caught:
        convert(tmp_path / "more", append=True)
    assert "Name the folder that holds both" in str(caught.value)
    dataset = convert(tmp_path, append=True, source=include("data/*.csv", "more/*.csv"))
    assert [i.name for i in dataset.manifest.accounting.inputs] == ["a.csv", "more/a.csv"]


def include(*globs):
    from shardkit.sources.base import SourceOptions

    return SourceOptions(include=globs)


def test_a_file_that_nobody_can_tell_from_an_old_one_is_refused(convert, data, tmp_path):
    convert(data)
    (tmp_path / "elsewhere").mkdir()
    data.rename(tmp_path / "elsewhere" / "day")
    with pytest.raises(UsageError, match="it is unknown whether the dataset has a file already"):
        convert(tmp_path / "elsewhere", append=True)


def test_a_file_that_changed_is_refused(convert, data):
    first = convert(data)
    with (data / "a.csv").open("a") as file:
        file.write("5000,1.0,red,1\n")
    with pytest.raises(UsageError, match=r"a file changed since it was converted in a\.csv"):
        convert(data, append=True)
    assert list_versions(first.url) == [1]


def test_archives_are_known_by_their_members(convert, data, tmp_path):
    import zipfile

    def pack(name, *members):
        with zipfile.ZipFile(tmp_path / "zips" / name, "w") as packed:
            for member in members:
                packed.write(member, member.name)

    (tmp_path / "zips").mkdir()
    more(data)
    pack("1.zip", data / "a.csv")
    convert(tmp_path / "zips")
    pack("2.zip", data / "b.csv")
    dataset = convert(tmp_path / "zips", append=True)
    assert dataset.manifest.accounting.num_rows == 8_000
    with pytest.raises(NothingNew):
        convert([tmp_path / "zips" / "1.zip"], append=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,x,word\n1,2.0,red\n", "column 'group' is missing in b.csv: the dataset has it as int64"),
        ("id,x,word,group,y\n1,2.0,red,1,5\n", "column 'y' is not in the dataset in b.csv: the file has it as int64"),
        ("id,x,word,group\n1,2.0,red,none\n", "column 'group' does not fit in b.csv, line 2: expected int64"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(convert, data, content, words):
    first = convert(data)
    (data / "b.csv").write_text(content)
    with pytest.raises(BadInputError) as caught:
        convert(data, append=True)
    assert words in str(caught.value)
    assert list_versions(first.url) == [1]


@pytest.mark.parametrize("transforms", [TransformOptions(), TransformOptions(rename=(("v", "w"),))])
def test_a_dataset_that_stores_small_integers_as_older_ones_do_keeps_that(convert, tmp_path, monkeypatch, transforms):
    def write(name, rows):
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.table({"v": pa.array(rows, pa.list_(pa.int8()))}), tmp_path / "data" / name)

    write("a.parquet", [[-128, 127], []])
    with monkeypatch.context() as older:
        older.setattr("shardkit.features.stored_as", lambda dtype, shape=(): stored_as(dtype))
        before = convert(tmp_path / "data", transforms=transforms)
    assert [f.stored_as for f in before.manifest.features] == ["int64_list"]
    write("b.parquet", [[-1]])
    dataset = convert(tmp_path / "data", append=True)
    assert dataset.manifest.features == before.manifest.features
    assert verify_dataset(dataset).is_whole
    (name,) = (f.name for f in dataset.manifest.features)
    rows = [row[name] for row in read_rows(dataset, "train")]
    assert sorted(rows) == [[], [-128, 127], [-1]]
    again = convert(dataset.url, "again")
    assert [f.stored_as for f in again.manifest.features] == ["little_endian_bytes"]
    assert sorted(row[name] for row in read_rows(again, "train")) == [[], [-128, 127], [-1]]

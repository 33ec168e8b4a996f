"""A dry run shows how the inputs are understood, with the options that would change it, and writes nothing."""

import pytest

from shardkit.cli import main
from tests.support.folders import CASES

pytestmark = pytest.mark.full
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture
def page(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def show(name):
        BY_NAME[name].make(tmp_path / "in")
        code = main(["convert", "in", "--dry-run"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
        return captured.out.splitlines()

    return show


def test_images_with_splits_and_classes(page):
    lines = page("ImageFolder, train and test")
    assert lines[0].startswith("inputs   16 files, ")
    assert "classes  cat 8, dog 8  (--class-folder, --labels, --no-labels)" in lines
    assert "splits   train 8 files, test 8 files  (--split)" in lines
    assert "row 3" in lines
    assert any(line.startswith("  image     <") and line.endswith(" image/jpeg>") for line in lines)
    assert "  label     0 (cat)" in lines
    assert lines[-1] == "This was a dry run: nothing was written."
    assert not any("shardkit-dry-run" in line for line in lines)


def test_a_table_without_a_header(page):
    lines = page("iris.data, no header")
    assert "header   none: columns have numbers  (--header, --no-header, --columns)" in lines
    assert "columns  5 columns, see below  (--schema, --cast, --drop-columns)" in lines
    assert "  column_5  Iris-setosa" in lines


def test_labels_of_a_layout(page):
    lines = page("Pascal VOC")
    assert "labels   of files beside them, see the notes  (--labels, --no-labels)" in lines
    assert any(line.startswith("note: layout: Pascal VOC") for line in lines)
    assert "splits   train 3 files, validation 1 file, test 2 files  (--split)" in lines


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b"a,b\n1,2\n3\n"), ("a.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(99))]
)
def test_a_bad_row_ends_it_with_the_code_of_the_conversion(name, content, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main(["convert", str(tmp_path / name), "--dry-run"]) == 3
    dry = capsys.readouterr()
    assert "the conversion would end with the error below" in dry.out
    assert main(["convert", str(tmp_path / name), str(tmp_path / "out")]) == 3
    assert dry.err.splitlines()[0] in capsys.readouterr().err
    assert main(["convert", str(tmp_path / name), "--dry-run", "--on-bad-record", "skip"]) == 0


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("Hugging Face, Parquet of pictures", "layout: Hugging Face datasets, "),
        ("output of Spark", "layout: parts of Spark or Hadoop"),
        ("output of Hive, Parquet", "layout: folders of Hive, whose names are the columns 'label'"),
        ("sounds in Parquet", "layout: parts of Dask"),
    ],
)
def test_layouts_of_tables_are_named(page, name, layout):
    assert any(line.startswith(f"note: {layout}") for line in page(name))


def test_no_destination_is_an_error_without_a_dry_run(capsys):
    assert main(["convert", "in"]) == 2
    assert "Missing argument 'DESTINATION'" in capsys.readouterr().err

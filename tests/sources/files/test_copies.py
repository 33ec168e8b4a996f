"""Copies of files beside them, and archives beside what they hold."""

import zipfile

import pytest

from shardkit.errors import UsageError
from shardkit.sources import list_inputs

ROWS = "a,b\n1,2\n3,4\n"


def listed(folder):
    listing = list_inputs([str(folder)])
    return [file.name for file in listing.files], listing.notes


@pytest.mark.parametrize(
    "copy",
    [
        "data.csv~", "data.csv.bak", "data.csv.orig", "data - Copy.csv", "data - Copy (2).csv", "data copy.csv",
        "data copy 2.csv", "data (copy).csv", "data (1).csv", "Copy of data.csv",
    ],
)  # fmt: skip
def test_copies_are_left_out_with_a_note(tmp_path, copy):
    (tmp_path / "data.csv").write_text(ROWS)
    (tmp_path / copy).write_text(ROWS)
    assert listed(tmp_path) == (["data.csv"], (f"{copy} is a copy of the file beside it, and was left out",))


@pytest.mark.parametrize("content", ["a,b\n1,2\n", ROWS.replace("3", "5")])
def test_an_older_backup_is_left_out_and_another_copy_is_refused(tmp_path, content):
    (tmp_path / "data.csv").write_text(ROWS)
    (tmp_path / "data.csv~").write_text("a,b\n1,2\n")
    assert listed(tmp_path)[0] == ["data.csv"]
    (tmp_path / "data (1).csv").write_text(content)
    with pytest.raises(UsageError, match="is called like a copy of data") as caught:
        listed(tmp_path)
    assert "--exclude 'data (1).csv'" in caught.value.next_step


@pytest.mark.parametrize(
    "names", [("data (1).csv", "data (2).csv"), ("cat.jpg", "cat (1).jpg"), ("a.csv", "a copy of b.csv"), ("a.csv~",)]
)
def test_other_files_are_no_copies(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text(ROWS)
    assert listed(tmp_path)[0] == sorted(names)


@pytest.mark.parametrize("beside", ["data.csv", "data/data.csv"])
def test_an_archive_beside_what_it_holds_is_refused(tmp_path, beside):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data.csv", ROWS)
    (tmp_path / "other.csv").write_text(ROWS)
    assert listed(tmp_path)[0] == ["data.zip/data.csv", "other.csv"]
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).write_text(ROWS)
    with pytest.raises(UsageError, match="an archive lies beside a file that it holds") as caught:
        listed(tmp_path)
    assert "--exclude data.zip" in caught.value.next_step

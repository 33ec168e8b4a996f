"""A folder whose name is not UTF-8 is refused before anything is made: manifests hold text."""

import os

import pytest

from shardkit.cli import main

pytestmark = pytest.mark.full


@pytest.mark.parametrize("odd", ["destination", "work folder", "current folder", "folder of the input"])
def test_a_folder_that_is_not_utf_8_is_refused(tmp_path, monkeypatch, capsys, odd):
    folder = tmp_path / os.fsdecode(b"x\xff")
    source, destination, options = tmp_path / "0.csv", "out", ()
    if odd == "destination":
        destination = folder.name
    elif odd == "work folder":
        options = ("--work-dir", folder.name)
    else:
        folder.mkdir()
        source = folder / "0.csv" if odd == "folder of the input" else source
    source.write_text("a,b\n1,2\n")
    monkeypatch.chdir(folder if odd == "current folder" else tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code = main(["convert", str(source), destination, *options])
    said = capsys.readouterr().err
    assert code == 2, said
    assert "the name of a folder is not UTF-8 in" in said
    assert "x\\xff" in said
    assert sorted(tmp_path.rglob("*")) == before

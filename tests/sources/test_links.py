"""Files and folders that links give several names."""

from __future__ import annotations

import os

from shardkit.sources import list_inputs
from tests.support.files.listing_makers import write


def test_links_to_the_same_file_are_read_once_with_a_note(tmp_path):
    write(tmp_path, "x/m.csv")
    write(tmp_path, "y/far.csv")
    (tmp_path / "x/a.csv").symlink_to("m.csv")
    (tmp_path / "x/n.csv").symlink_to("m.csv")
    (tmp_path / "x/out.csv").symlink_to("../y/far.csv")
    os.link(tmp_path / "x/m.csv", tmp_path / "x/hard.csv")
    for pattern in ("x", "x/*.csv", "x/**/*.csv"):
        listing = list_inputs([str(tmp_path / pattern)])
        assert [f.name for f in listing.files] == ["hard.csv", "m.csv", "out.csv"]
        assert listing.notes == tuple(f"{n}.csv is another name of m.csv, which is read once" for n in "an")


def test_links_that_lead_back_do_not_multiply_files(tmp_path):
    write(tmp_path, "x/b.csv")
    write(tmp_path, "y/a.csv")
    (tmp_path / "x/sub").symlink_to("../y")
    for i in range(12):
        (tmp_path / f"x/s{i:02}").mkdir()
        (tmp_path / f"x/s{i:02}/up").symlink_to("..")
    for pattern in ("x", "x/**/*.csv", "x/**"):
        listing = list_inputs([str(tmp_path / pattern)])
        assert [f.name for f in listing.files] == ["b.csv", "sub/a.csv"]
        assert listing.notes[0] == f"s00/up is another name of {tmp_path}/x, which is read once"
        assert listing.notes[-1] == "and so with 7 more names"


def test_a_folder_and_a_link_to_it_are_read_once(tmp_path):
    write(tmp_path, "x/b/1.csv")
    (tmp_path / "x/a").symlink_to("b")
    note = "a is another name of b, which is read once"
    assert list_inputs([str(tmp_path / "x")]).notes[0].startswith("a is another name of")
    assert [f.name for f in list_inputs([str(tmp_path / "x")]).files] == ["b/1.csv"]
    listing = list_inputs([str(tmp_path / "x/a"), str(tmp_path / "x/b")])
    assert [f.name for f in listing.files] == ["b/1.csv"]
    assert listing.notes == (note.replace("a is", "a/1.csv is").replace("of b", "of b/1.csv"),)

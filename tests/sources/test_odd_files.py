"""Files that are something else than those beside them, and files that are damaged where nothing is beside them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shardkit.conversion.inputs.inspect_inputs import InspectedInputs, InspectOptions, inspect_inputs
from shardkit.errors import DamagedFileError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.listing import expand_inputs
from shardkit.sources.registry import choose
from tests.support.files.archive_makers import zip_of
from tests.support.files.listing_makers import parquet, png, write


@pytest.mark.parametrize(
    ("good", "odd", "expected"),
    [
        ({"a.csv": b"a,b\n1,2\n"}, {"b.pdf": b"%PDF-1.4\n1 0 obj\n"}, "the file is a PDF, which is not read"),
        ({"a.parquet": parquet()}, {"b.parquet": b"<html>\n404\n</html>\n"}, "is called .parquet but is text"),
        ({"a.csv": b"a,b\n1,2\n"}, {"b.csv": parquet()}, "is called .csv but is Parquet"),
    ],
)
def test_odd_files_are_refused_where_bad_rows_are_tolerated(tmp_path, good, odd, expected):
    for name, content in (good | odd).items():
        write(tmp_path, name, content)
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError):
        choose(files, SourceOptions())
    choice = choose(files, SourceOptions(tolerates_bad_rows=True))
    assert choice.source.format == next(iter(good)).rpartition(".")[2]
    assert [(f.name, reason) for f, reason in choice.refused] == [(name, expected) for name in odd]


def test_all_odd_files_of_a_kind_are_refused(tmp_path):
    for i in range(200):
        write(tmp_path, f"{i:03}.pdf", b"%PDF-1.4\n")
    write(tmp_path, "z.csv")
    files = list_inputs([str(tmp_path)]).files
    assert len(choose(files, SourceOptions(tolerates_bad_rows=True)).refused) == 200


def test_an_image_of_a_kind_that_is_not_read_is_left_to_be_a_row_among_others(tmp_path):
    write(tmp_path, "a.png", png())
    write(tmp_path, "b.psd", b"8BPS" + bytes(20))
    files = list_inputs([str(tmp_path)]).files
    with pytest.raises(UsageError, match="Photoshop"):
        choose(files, SourceOptions())
    choice = choose(files, SourceOptions(tolerates_bad_rows=True))
    assert (choice.source.format, choice.refused) == ("images", ())


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (bytes(3) + b"\x18ftypheic" + bytes(12), "is a HEIC image, which is not read.*Convert it to PNG or JPEG first"),
        (
            bytes(3) + b"\x1cftypM4A " + bytes(12),
            "is an M4A audio file, which is not read.*Convert it to WAV or FLAC first",
        ),
        (bytes(3) + b"\x0cjP  \r\n\x87\n" + bytes(12), "is a JPEG 2000 image"),
    ],
)
def test_images_and_sounds_that_are_not_read_are_named_as_what_they_are(tmp_path, head, expected):
    write(tmp_path, "a.bin", head)
    with pytest.raises(UsageError) as caught:
        choose(list_inputs([str(tmp_path)]).files, SourceOptions())
    assert re.search(expected, str(caught.value), re.DOTALL)


def test_a_zip_inside_of_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "n.zip", "w") as archive:
        archive.writestr("a.csv", "a,b\n1,2\n")
        archive.writestr("in.zip", zip_of([("a.csv", "a,b\n1,2\n")]))
    files = list_inputs([str(tmp_path / "n.zip")]).files
    refused = choose(files, SourceOptions(tolerates_bad_rows=True)).refused
    assert [f.name for f, _ in refused] == ["in.zip"]
    assert "ZIP archive" in refused[0][1]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: data[:100], "ended before the end-of-stream marker"),
        (lambda data: data[:1500], "ended before the end-of-stream marker"),
        (lambda data: data + b"xyz", "3 other bytes follow the end of its compressed content"),
        (lambda data: data + b"x", "1 other byte follows the end of its compressed content"),
    ],
)
@pytest.mark.parametrize("is_tolerant", [False, True])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_damage_of_a_lone_compressed_file_is_named(tmp_path, pack, damage, expected, is_tolerant):
    rows = b"".join(b"%d,%d\n" % (i, i * 7919 % 9973) for i in range(9000))
    files = list_inputs([write(tmp_path, "m.csv.x", damage(pack(b"a,b\n" + rows)))]).files
    options = SourceOptions(tolerates_bad_rows=is_tolerant)
    with pytest.raises(DamagedFileError) as caught:
        choose_source(files, options).infer(files, options)
    assert expected in str(caught.value)


def inspected(folder: Path, *, is_tolerant: bool) -> InspectedInputs:
    options = SourceOptions(tolerates_bad_rows=is_tolerant)
    asked = InspectOptions(allow_empty=False)
    return inspect_inputs(expand_inputs([str(folder)]), options, str(folder.parent / "work"), asked)


def test_files_that_no_option_can_read_are_rejected_whole(tmp_path):
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x/a.npy", np.arange(10))
    np.save(tmp_path / "x/b.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="holds Python objects"):
        inspected(tmp_path / "x", is_tolerant=False)
    found = inspected(tmp_path / "x", is_tolerant=True)
    assert [f.name for f in found.files] == ["a.npy"]
    assert [d.file.name for d in found.damaged_files] == ["b.npy"]
    assert "holds Python objects" in found.damaged_files[0].reason
    (tmp_path / "x/a.npy").unlink()
    with pytest.raises(UsageError, match="holds Python objects"):
        inspected(tmp_path / "x", is_tolerant=True)


def test_files_of_other_columns_are_no_odd_files(tmp_path):
    write(tmp_path, "x/a.csv", "a,b\n1,2\n")
    write(tmp_path, "x/b.csv", "c,d\n1,2\n")
    for is_tolerant in (False, True):
        with pytest.raises(UsageError):
            inspected(tmp_path / "x", is_tolerant=is_tolerant)


def test_odd_files_are_rejected_whole(tmp_path):
    write(tmp_path, "x/a.csv")
    write(tmp_path, "x/b.pdf", b"%PDF-1.4\n")
    with open(bytes(tmp_path) + b"/x/\xff.csv", "wb") as out:
        out.write(b"a,b\n3,4\n")
    found = inspected(tmp_path / "x", is_tolerant=True)
    assert [f.name for f in found.files] == ["a.csv"]
    assert {d.file.name: d.reason for d in found.damaged_files} == {
        "b.pdf": "the file is a PDF, which is not read",
        "\\xff.csv": "the file name is not UTF-8",
    }


def test_an_empty_image_is_a_row_and_an_empty_table_is_none(tmp_path):
    write(tmp_path, "images/a.png", png())
    write(tmp_path, "images/b.png", "")
    write(tmp_path, "tables/a.csv")
    write(tmp_path, "tables/b.csv", "")
    assert not any("0 rows" in note for note in inspected(tmp_path / "images", is_tolerant=True).notes)
    assert "b.csv is empty: 0 rows" in inspected(tmp_path / "tables", is_tolerant=True).notes

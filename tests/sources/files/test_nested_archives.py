"""Archives in archives: tars in a tar are folders of it, and others are refused."""

from __future__ import annotations

import gzip

import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.folders.class_folders import describe_classes
from tests.support.files.archive_makers import PACKERS, TABLES, png, rows_of, tar_of, zip_of
from tests.support.files.source_makers import write_file


def _class_tar(name, pack=tar_of):
    return pack([(f"{name}_{i}.png", png((i + 1, 2))) for i in range(3)])


@pytest.mark.parametrize("name", [name for name in PACKERS if not name.endswith(".zip")])
def test_tars_in_a_tar_are_class_folders(tmp_path, name):
    path = write_file(tmp_path, PACKERS[name]([(f"{c}.tar", _class_tar(c)) for c in ("n02", "n01")]), name)
    files = list_inputs([str(path)]).files
    rows, _ = rows_of(files)
    assert {(r["filename"], r["label"], r["width"]) for r in rows} == {
        (f"{c}.tar/{c}_{i}.png", label, i + 1) for i in range(3) for label, c in enumerate(("n01", "n02"))
    }
    assert {r["image"] for r in rows} == {png((i + 1, 2)) for i in range(3)}
    assert describe_classes(files, SourceOptions()) == "n01 3, n02 3"


def test_webdatasets_in_a_tar_stay_webdatasets(tmp_path):
    shard = tar_of([(f"{i}.{suffix}", b"1") for i in range(3) for suffix in ("txt", "cls")])
    path = write_file(tmp_path, tar_of([("0.tar", shard), ("1.tar", shard)]), "a.tar")
    assert [f.name for f in list_inputs([str(path)]).files] == ["0.tar", "1.tar"]


@pytest.mark.parametrize(
    "outer",
    [tar_of([("a.tar.gz", gzip.compress(_class_tar("a")))]), zip_of([("a.tar.gz", _class_tar("a"))])],
    ids=["tar", "zip"],
)
def test_what_cannot_be_read_in_an_archive_of_archives_is_refused(tmp_path, outer):
    path = write_file(tmp_path, outer, "outer")
    with pytest.raises(BadInputError, match="an archive is inside of an archive"):
        list_inputs([str(path)])


def test_an_archive_in_an_archive_is_not_opened(tmp_path):
    path = write_file(tmp_path, zip_of([("b.zip", zip_of(TABLES)), ("c.csv", b"a\n1\n")]), "a.zip")
    listing = list_inputs([str(path)])
    assert [f.name for f in listing.files] == ["b.zip", "c.csv"]
    with pytest.raises(UsageError, match="ZIP archive"):
        choose_source(listing.files[:1], SourceOptions())

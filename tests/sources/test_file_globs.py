"""Which of the listed files, and of the members of archives, are read."""

from __future__ import annotations

import gzip
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit import file_types
from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.file_globs import globs_of, matches
from tests.support.examples import draws
from tests.support.files.archive_makers import tar_of, zip_of

TABLE = b"a,b\n1,2\n"


def write(folder: Path, *names: str, content: bytes = TABLE) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def listed(folder: Path, include=(), exclude=(), **options) -> tuple[list[str], list[str]]:
    options = SourceOptions(include=tuple(include), exclude=tuple(exclude), **options)
    listing = list_inputs([str(folder)], options)
    return [f.name for f in listing.files], list(listing.notes)


def test_names_and_last_parts_are_compared(tmp_path):
    folder = write(tmp_path, "x.csv", "2013/x.csv", "2013/y.csv", "2014/x.json")
    assert listed(folder, ["*.csv"])[0] == ["2013/x.csv", "2013/y.csv", "x.csv"]
    assert listed(folder, ["x.csv"])[0] == ["2013/x.csv", "x.csv"]
    assert listed(folder, ["2013/*"])[0] == ["2013/x.csv", "2013/y.csv"]
    assert listed(folder, ["2013/*", "*.json"], ["y.*"])[0] == ["2013/x.csv", "2014/x.json"]
    assert listed(folder, exclude=["2013/*", "*.json"])[0] == ["x.csv"]
    assert listed(folder, ["[!x].csv"])[0] == ["2013/y.csv"]


def test_those_left_out_are_counted(tmp_path):
    folder = write(tmp_path, "x.csv", "y.csv", "z.json")
    assert listed(folder, ["*.csv"])[1] == ["1 of 3 files was left out by --include and --exclude"]
    assert listed(folder, exclude=["*.csv"])[1] == ["2 of 3 files were left out by --include and --exclude"]
    assert listed(folder, ["*"])[1] == []


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tgz"])
def test_members_of_archives_are_chosen(tmp_path, name):
    members = [("package/notes.txt", b"free"), ("package/a.csv", TABLE), ("package/package.json", b"{}")]
    members += [("package/deep/b.csv", TABLE)]
    pack = {"a.zip": zip_of, "a.tar": tar_of, "a.tgz": lambda m: gzip.compress(tar_of(m))}[name]
    (tmp_path / name).write_bytes(pack(members))
    names, notes = listed(tmp_path / name, ["*.csv"])
    assert sorted(names) == ["package/a.csv", "package/deep/b.csv"]
    assert notes[0] == "2 of 4 files were left out by --include and --exclude"
    assert sorted(listed(tmp_path / name, exclude=["*.json", "*.txt"])[0]) == sorted(names)
    write(tmp_path, "c.csv", "d.json")
    beside = sorted(listed(tmp_path, ["*.csv"])[0])
    assert beside == [f"{name}/package/a.csv", f"{name}/package/deep/b.csv", "c.csv"]
    assert len(listed(tmp_path, [name])[0]) == 4
    assert listed(tmp_path, [f"{name}/*/deep/*"])[0] == [f"{name}/package/deep/b.csv"]


def test_an_excluded_archive_is_not_opened(tmp_path):
    write(tmp_path, "a.csv")
    (tmp_path / "b.zip").write_bytes(zip_of([("c.csv", TABLE)])[:-30])
    with pytest.raises(BadInputError):
        listed(tmp_path)
    assert listed(tmp_path, exclude=["*.zip"])[0] == ["a.csv"]


def test_a_glob_that_includes_nothing_is_named(tmp_path):
    folder = write(tmp_path, "a.csv", "b.csv")
    with pytest.raises(UsageError, match=r"--include '\*\.json' matches no file") as caught:
        listed(folder, ["*.csv", "*.json"])
    assert caught.value.why == "the files are a.csv, b.csv"


def test_nothing_left_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no file is left"):
        listed(write(tmp_path, "a.csv", "b.csv"), ["a.csv"], ["*"])
    with pytest.raises(UsageError, match="no file is left"):
        listed(tmp_path, exclude=["*"])


@settings(max_examples=draws(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(glob=st.text("ab.*?/", min_size=1, max_size=6))
def test_included_and_excluded_files_are_all_there_are(tmp_path, glob):
    names = ["a.b", "b.a", "ab/a.a", "ab/b.b", "b/a/b"]
    folder = write(tmp_path / "in", *names)
    expected = [n for n in sorted(names) if fnmatchcase(n, glob) or fnmatchcase(Path(n).name, glob)]
    assert [n for n in sorted(names) if matches(n, glob)] == expected
    others = [n for n in sorted(names) if n not in expected]
    if expected:
        assert listed(folder, [glob])[0] == expected
    if others:
        assert listed(folder, exclude=[glob])[0] == others


@pytest.mark.parametrize(
    ("name", "is_document"),
    [
        ("NRO_LICENSE", True),
        ("x/font-LICENSE", True),
        ("x/mit_licence", True),
        ("NOTICE", True),
        ("COPYING", True),
        ("README", True),
        ("README.roboflow.txt", True),
        ("x/readme.dataset.txt", True),
        ("readme_rows.csv", False),
        ("NRO_LICENSE.csv", False),
        ("driver_license", True),
        ("license_plates", False),
        ("licenses", False),
    ],
)
def test_notices_without_an_extension_are_documents(name, is_document):
    assert file_types.is_document_name(name) == is_document


def test_of_a_dataset_whose_records_are_asked_for_nothing_but_its_shards_is_read(tmp_path):
    shard = "data/0f/train-00000-of-00001.tfrecord"
    documents = (f"{shard}.idx", "manifests/00000001-0123456789abcdef.shards.parquet", "manifests/00000001.json")
    names, notes = listed(write(tmp_path, shard, *documents), format="tfrecord")
    assert names == [shard]
    assert notes == [f"{name} belongs to a dataset beside its shards and was left out" for name in documents]
    assert listed(write(tmp_path / "other", "manifests/a.json"))[0] == ["manifests/a.json"]


_PARTS = st.sampled_from(["a", "b", "mask", "x_mask", "[1]", "a*", "1", "2"])
_PATHS = st.builds(
    lambda folders, stem, suffix: "/".join([*folders, f"{stem}{suffix}"]),
    st.lists(_PARTS, max_size=3),
    _PARTS,
    st.sampled_from(["", ".png", ".JPG", ".png"]),
)


@settings(max_examples=draws(300), deadline=None)
@given(st.sets(_PATHS, min_size=2, max_size=12), st.integers(1, 11))
def test_globs_match_the_files_that_are_wanted_and_none_of_the_others(names, number):
    files = [RawFile(path=f"/{name}", name=name, num_bytes=1, version="") for name in sorted(names)]
    wanted, others = files[:number], files[number:]
    globs = globs_of(wanted, others)
    assert all(any(matches(file.name, glob) for glob in globs) for file in wanted)
    # A name alone is that of a file in any folder.
    taken = [file.name for file in others if any(matches(file.name, glob) for glob in globs)]
    assert all(name.rpartition("/")[2] in names for name in taken)

"""Folders of images: bytes kept, classes from folders, sizes from headers, and what is refused."""

from __future__ import annotations

import os

import fsspec
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.image_source import ImageSource
from tests.support.files.image_makers import encoded, fails, read
from tests.support.files.source_makers import write_file


def test_bytes_classes_and_sizes(tmp_path):
    cat, dog = encoded("RGB", "JPEG"), encoded("L", "JPEG", (3, 4))
    write_file(tmp_path, cat, "cat/1.jpg")
    write_file(tmp_path, dog, "dog/deeper/2.jpg")
    features, rows = read(tmp_path)
    assert features["image"].media_type == "image/jpeg"
    assert features["label"].vocabulary == ("cat", "dog")
    assert not any(f.nullable for f in features.values())
    assert rows == [
        {"image": cat, "label": 0, "filename": "cat/1.jpg", "height": 5, "width": 7, "channels": 3},
        {"image": dog, "label": 1, "filename": "dog/deeper/2.jpg", "height": 4, "width": 3, "channels": 1},
    ]


def test_several_formats(tmp_path):
    write_file(tmp_path, encoded("RGB", "PNG"), "a/1.png")
    write_file(tmp_path, encoded("RGB", "JPEG"), "a/2.jpg")
    assert read(tmp_path)[0]["image"].media_type == "image/*"


def test_classes_given_as_folders(tmp_path):
    for name in ("cat", "dog"):
        write_file(tmp_path, encoded("L", "PNG"), f"{name}/1.png")
    _, rows = read(tmp_path / "dog", tmp_path / "cat")
    assert [(r["filename"], r["label"]) for r in rows] == [("cat/1.png", 0), ("dog/1.png", 1)]


def test_images_without_class_folders_have_no_label(tmp_path):
    write_file(tmp_path, encoded("L", "PNG"), "1.png")
    write_file(tmp_path, encoded("L", "PNG"), "2.png")
    features, rows = read(tmp_path)
    assert "label" not in features
    assert [r["filename"] for r in rows] == ["1.png", "2.png"]
    files = list_inputs([str(tmp_path)]).files
    assert "no label" in ImageSource().notes(files, SourceOptions())[0]


def test_images_of_which_some_lie_in_no_class_folder_are_refused(tmp_path):
    write_file(tmp_path, encoded("L", "PNG"), "1.png")
    write_file(tmp_path, encoded("L", "PNG"), "a/2.png")
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert "cats/1.jpg" in str(caught.value)
    assert "1.png" in str(caught.value)


def test_broken_images_are_handed_over_where_they_are_tolerated(tmp_path):
    good = encoded("RGB", "JPEG")
    bad = {"a/2.jpg": b"just text", "a/4.jpg": b"", "b/5.png": encoded("RGB", "PNG")[:17], "b/6.png": b"\0" * 5000}
    for name in ("a/1.jpg", "a/3.jpg", "b/7.jpg"):
        write_file(tmp_path, good, name)
    for name, content in bad.items():
        write_file(tmp_path, content, name)
    files = list_inputs([str(tmp_path)]).files
    for batch_bytes in (10**6, 500):
        source, options = (
            ImageSource(batch_bytes=batch_bytes),
            SourceOptions(tolerates_bad_rows=True, max_record_bytes=4096),
        )
        features = source.infer(files, options)
        parts = [p for s in source.split(files, options) for p in source.read(s, files, features, options)]
        rows = [name for p in parts for name in p.batch["filename"].to_pylist()]
        assert rows == ["a/1.jpg", "a/3.jpg", "b/7.jpg"]
        assert [files[i].name for p in parts for i in p.file_indices.tolist()] == rows
        assert sum(len(p.identities) for p in parts) == 3
        found = {files[r.file_index].name: r for p in parts for r in p.rejected}
        assert {name: r.raw for name, r in found.items()} == bad
        assert "not an image" in found["a/2.jpg"].reason
        assert "more than the" in found["b/6.png"].reason


def test_folder_without_one_whole_image(tmp_path):
    write_file(tmp_path, b"just text", "a/1.jpg")
    assert "there are no images" in fails(tmp_path, tolerates_bad_rows=True)


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"just text", "text"), (b"<!DOCTYPE html><p>404", "HTML text"), (b"", "empty"), (b"%PDF-1.4", "a PDF")],
)
def test_content_that_is_no_image(tmp_path, content, what):
    write_file(tmp_path, encoded("L", "PNG"), "a/1.png")
    write_file(tmp_path, content, "a/2.jpg")
    message = fails(tmp_path)
    assert f"content is {what}, not an image" in message
    assert "a/2.jpg" in message


def test_one_class_is_noted(tmp_path):
    write_file(tmp_path, encoded("L", "PNG"), "a/1.png")
    files = list_inputs([str(tmp_path)]).files
    assert "one class" in ImageSource().notes(files, ImageSource().settle(files, SourceOptions()))[0]


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_one_of_many_files_that_changes_before_it_is_read(tmp_path, change):
    for i in range(150):
        write_file(tmp_path, encoded("RGB", "JPEG"), f"a/{i:03}.jpg")
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(), SourceOptions()
    features = source.infer(files, options)
    path = tmp_path / "a" / "100.jpg"
    if change == "gone":
        path.unlink()
    else:
        modified = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes()[:-1] if change == "shorter" else path.read_bytes() + b"x")
        os.utime(path, ns=(modified, modified))
    num_open = len(os.listdir("/dev/fd"))
    with pytest.raises(BadInputError, match="changed during conversion") as caught:
        list(source.read(source.split(files, options)[0], files, features, options))
    assert "a/100.jpg" in str(caught.value)
    assert len(os.listdir("/dev/fd")) == num_open


def test_images_before_one_that_is_too_large_are_read(tmp_path):
    for i, size in enumerate([5, 6, 90, 7]):
        write_file(tmp_path, encoded("RGB", "PNG", (size, size)) + b"\0" * size * size, f"a/{i}.png")
    files = list_inputs([str(tmp_path)]).files
    source, options = ImageSource(), SourceOptions(max_record_bytes=4096)
    rows = source.read(source.split(files, options)[0], files, source.infer(files, options), options)
    assert next(rows).batch["width"].to_pylist() == [5, 6]
    with pytest.raises(BadInputError, match=r"more than the 4\.00 KiB") as caught:
        next(rows)
    assert "a/2.png" in str(caught.value)


def test_images_in_an_object_store(tmp_path):
    memory = fsspec.filesystem("memory")
    contents = {f"{'ab'[i % 2]}/{i}.jpg": encoded("RGB", "JPEG", (i + 1, 3)) for i in range(40)}
    try:
        for name, content in contents.items():
            memory.pipe(f"/images-test/{name}", content)
            write_file(tmp_path, content, name)
        remote = read("memory:///images-test", source=ImageSource(batch_bytes=4000))
        assert remote == read(tmp_path)
        assert {r["filename"]: r["image"] for r in remote[1]} == contents
        write_file(tmp_path, b"just text", "a/0.jpg")
        memory.pipe("/images-test/a/0.jpg", b"just text")
        assert fails("memory:///images-test") == fails(tmp_path)
    finally:
        memory.rm("/images-test", recursive=True)

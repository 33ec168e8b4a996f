"""Videos on the command line: found by content, converted in each way, looked at, checked, and what is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from shardkit.dataset.open import open_dataset
from tests.support.in_process import read_rows

pytest.importorskip("av")
from tests.support.files.video_makers import frames_of, sound_alone, video

pytestmark = pytest.mark.full


@pytest.fixture
def folder(tmp_path):
    """Two classes of videos, one of them called as no video is."""
    for name, kind in (("run/1.mp4", "mp4"), ("run/2.bin", "webm"), ("walk/1.mkv", "mkv"), ("walk/2.avi", "avi")):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(video(kind))
    return tmp_path / "in"


def rows_of(location, split="train"):
    return read_rows(open_dataset(str(location)), split)


def shards_of(location):
    return {path.name: path.read_bytes() for path in location.glob("data/*/*.gz")}


def test_a_folder_becomes_a_dataset_and_every_video_decodes(run, folder, tmp_path):
    code, out, err = run("convert", folder, "--dry-run")
    assert code == 0, err
    for text in ("4 files", "video  (--format)", "run 2, walk 2", "frame_rate  6.0", "<1."):
        assert text in out
    code, _, err = run("convert", folder, tmp_path / "out")
    assert code == 0, err
    for row in rows_of(tmp_path / "out"):
        assert row["video"] == (folder / row["filename"]).read_bytes()
    code, out, _ = run("verify", tmp_path / "out", "--decode")
    assert code == 0
    assert "all decoded" in out
    assert "video/webm>" in run("inspect", tmp_path / "out", "--examples", "4")[1]


def test_frames_are_resized_before_they_are_compressed(run, folder, tmp_path):
    options = ("--video", "frames", "--video-fps", "2", "--image-size", "24x32", "--image-format", "png")
    code, _, err = run("convert", folder, tmp_path / "out", *options)
    assert code == 0, err
    rows = rows_of(tmp_path / "out")
    assert sorted((r["filename"], r["frame"]) for r in rows) == sorted(
        (str(p.relative_to(folder)), frame) for p in folder.glob("*/*") for frame in (0, 3, 6, 9)
    )
    for row in rows:
        pixels = frames_of((folder / row["filename"]).read_bytes())[row["frame"]]
        expected = Image.fromarray(pixels).resize((32, 24), Image.Resampling.BILINEAR)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(row["image"]))), np.asarray(expected))
        assert (row["height"], row["width"]) == (24, 32)


def test_clips_are_the_same_bytes_on_other_engines_and_after_an_append(run, folder, tmp_path):
    options = ("--video", "clips", "--clip-frames", "4", "--clip-stride", "2", "--num-shards", "2")
    code, _, err = run("convert", folder, tmp_path / "a", *options, "--workers", "1")
    assert code == 0, err
    code, _, err = run("convert", folder, tmp_path / "b", *options, "--runner", "beam")
    assert code == 0, err
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")
    assert {len(row["clip"]) for row in rows_of(tmp_path / "a")} == {4}
    assert run("verify", tmp_path / "a", "--decode")[0] == 0
    (folder / "run" / "3.mp4").write_bytes(video(num_frames=4))
    code, _, err = run("convert", folder, tmp_path / "a", *options, "--append")
    assert code == 0, err
    assert len(rows_of(tmp_path / "a")) == 4 * 5 + 1


def test_frames_of_one_video_stay_in_one_split_where_that_is_asked_for(run, folder, tmp_path):
    splits = ("--video", "frames", "--split", "a=0.5", "--split", "b=0.5", "--seed", "3")
    _, out, _ = run("convert", folder, "--dry-run", *splits)
    assert "frames of one video fall into several splits; --group-by filename" in out
    code, _, err = run("convert", folder, tmp_path / "out", *splits, "--group-by", "filename")
    assert code == 0, err
    assert "fall into several splits" not in err
    splits = [split.name for split in open_dataset(str(tmp_path / "out")).manifest.splits]
    names = [{row["filename"] for row in rows_of(tmp_path / "out", split)} for split in splits]
    assert sorted(name for some in names for name in some) == sorted(
        str(path.relative_to(folder)) for path in folder.glob("*/*")
    )


@pytest.mark.parametrize("mode", ["bytes", "frames", "clips"])
def test_broken_videos_end_the_conversion_or_are_rejected(run, folder, tmp_path, mode):
    options = ("--video", mode, *(("--clip-frames", "4") if mode == "clips" else ()))
    (folder / "run" / "cut.mp4").write_bytes(video()[:-200])
    (folder / "walk" / "sound.mp4").write_bytes(sound_alone())
    code, _, err = run("convert", folder, tmp_path / "out", *options)
    assert code == 3
    assert "the video cannot be used in run/cut.mp4" in err
    assert "it is cut off" in err
    code, _, err = run("convert", folder, tmp_path / "out", *options, "--on-bad-record", "quarantine")
    assert code == 0, err
    found = {row["filename"] for row in rows_of(tmp_path / "out")}
    assert found == {str(p.relative_to(folder)) for p in folder.glob("*/[12].*")}
    code, out, _ = run("inspect", tmp_path / "out", "--rejected")
    assert code == 0
    assert "run/cut.mp4" in out
    assert "it has no stream of video that is read" in out


def test_columns_of_other_formats_are_checked(run, folder, tmp_path):
    import tarfile

    content = bytearray(video())
    start = content.index(b"mdat") + 1100
    content[start : start + 100] = bytes(100)
    (tmp_path / "2.mp4").write_bytes(content)
    (tmp_path / "1.json").write_text('{"n": 1}')
    with tarfile.open(tmp_path / "films.tar", "w") as tar:
        for number, path in enumerate((folder / "run/1.mp4", tmp_path / "2.mp4")):
            tar.add(path, f"{number}.mp4")
            tar.add(tmp_path / "1.json", f"{number}.json")
    code, _, err = run("convert", tmp_path / "films.tar", tmp_path / "out", "--check-media")
    assert code == 3
    assert "the video does not decode" in err

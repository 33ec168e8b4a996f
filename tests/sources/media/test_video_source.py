"""Videos: bytes kept, frames and clips, what headers say, and files that are broken."""

from __future__ import annotations

import contextlib
import io
import random

import numpy as np
import pytest
from PIL import Image

from shardkit.errors import BadInputError, UsageError
from shardkit.media import video_decoding
from shardkit.media.video_decoding import VideoError, read_frames, read_video_header
from shardkit.media.video_headers import fault_of, video_type_of
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.video_source import VideoSource
from tests.support.files.source_makers import read_all, write_file

pytest.importorskip("av")

from tests.support.files.video_makers import KINDS, MEDIA_TYPES, frames_of, sound_alone, turned, video, without_frames

MANY = 10**6


def read(folder, **options):
    """Returns features by name, rows, and the reasons of what was rejected by file name."""
    found = read_all(VideoSource(), folder, **options)
    rejected = {found.files[row.file_index].name: row.reason for row in found.rejected}
    assert len(set(found.identities)) == len(found.rows)
    return {f.name: f for f in found.features}, found.rows, rejected


def pixels_of(encoded):
    return np.asarray(Image.open(io.BytesIO(encoded)))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_classes_and_headers(tmp_path, kind):
    content = video(kind)
    write_file(tmp_path, content, f"run/1.{kind}")
    write_file(tmp_path, content, "walk/2")
    features, rows, _ = read(tmp_path)
    assert features["video"].media_type == MEDIA_TYPES[kind]
    assert features["label"].vocabulary == ("run", "walk")
    assert rows[0].pop("duration") == pytest.approx(2, abs=2e-3)  # Some count in milliseconds.
    numbers = {"num_frames": 12, "frame_rate": 6.0, "height": 48, "width": 64}
    assert rows[0] == {"video": content, "label": 0, "filename": f"run/1.{kind}", **numbers}
    assert (rows[1]["label"], rows[1]["filename"]) == (1, "walk/2")


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_those_of_pyav(tmp_path, kind):
    content = video(kind)
    write_file(tmp_path, content, f"1.{kind}")
    write_file(tmp_path, video(kind, num_frames=5), f"2.{kind}")
    _, rows, _ = read(tmp_path, video="frames")
    assert [(r["filename"], r["frame"]) for r in rows] == [
        *((f"1.{kind}", i) for i in range(12)), *((f"2.{kind}", i) for i in range(5)),
    ]  # fmt: skip
    assert [r["time"] for r in rows[:12]] == pytest.approx([i / 6 for i in range(12)], abs=1e-3)
    for row, expected in zip(rows, frames_of(content), strict=False):
        assert np.array_equal(pixels_of(row["image"]), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fps", "taken"), [(2, [0, 3, 6, 9]), (0.5, [0]), (4, [0, 2, 3, 5, 6, 8, 9, 11]), (90, None)])
def test_frames_at_a_rate(tmp_path, kind, fps, taken):
    write_file(tmp_path, video(kind), f"1.{kind}")
    _, rows, _ = read(tmp_path, video="frames", video_fps=fps)
    assert [row["frame"] for row in rows] == (list(range(12)) if taken is None else taken)


@pytest.mark.parametrize(
    ("length", "stride", "fps", "starts"),
    [(4, None, None, [0, 4, 8]), (5, None, None, [0, 5]), (4, 2, None, [0, 2, 4, 6, 8]), (2, 5, None, [0, 5, 10]),
     (2, 1, 2, [0, 3, 6]), (12, None, None, [0])],
)  # fmt: skip
def test_clips(tmp_path, length, stride, fps, starts):
    content = video()
    write_file(tmp_path, content, "1.mp4")
    features, rows, _ = read(tmp_path, video="clips", clip_frames=length, clip_stride=stride, video_fps=fps)
    assert features["clip"].shape == (length,)
    assert [row["frame"] for row in rows] == starts
    expected = frames_of(content)[:: 1 if fps is None else 3]
    for row in rows:
        first = row["frame"] // (1 if fps is None else 3)
        found = np.stack([pixels_of(encoded) for encoded in row["clip"]])
        assert np.array_equal(found, np.stack(expected[first : first + length]))


def test_a_video_that_is_shown_turned_is_upright(tmp_path):
    content = video()
    write_file(tmp_path, turned(content), "1.mp4")
    (header,) = read(tmp_path)[1]
    assert (header["height"], header["width"]) == (64, 48)
    first = read(tmp_path, video="frames")[1][0]
    assert (first["height"], first["width"]) == (64, 48)
    assert np.array_equal(pixels_of(first["image"]), np.rot90(frames_of(content)[0], -1))


BROKEN = {
    "cut off": video()[:-300],
    "cut off at the front": video(movflags="faststart")[:-300],
    "cut off inside": video("mkv")[:-300],
    "cut off in AVI": video("avi")[:-300],
    "garbage": b"\0\0\0\x18ftypmp42" + random.Random(1).randbytes(3000),
    "text": b"no video at all",
    "no frame": without_frames(video("mkv")),
    "a few bytes": video()[:40],
    "sound": sound_alone(),
    "too large": video(height=128, width=128),
}
REASONS = {
    **dict.fromkeys(("cut off", "cut off at the front", "cut off inside", "cut off in AVI"), "it is cut off: "),
    "garbage": "it is cut off: ",
    "text": "content is text, not a video",
    "no frame": "it ends too early",
    "a few bytes": "it cannot be decoded: invalid data found when processing input",
    "sound": "it has no stream of video that is read",
    "too large": "128x128 is more than the 10,000 pixels that --max-pixels allows",
}


@pytest.mark.parametrize("mode", ["bytes", "frames", "clips"])
def test_broken_files_are_rejected_with_a_reason(tmp_path, mode):
    write_file(tmp_path, video(num_frames=20), "whole.mp4")
    for name, content in BROKEN.items():
        write_file(tmp_path, content, f"{name}.mp4")
    _, rows, rejected = read(tmp_path, video=mode, max_pixels=10_000, tolerates_bad_rows=True)
    assert {row["filename"] for row in rows} == {"whole.mp4"}
    assert rejected.keys() == {f"{name}.mp4" for name in BROKEN}
    for name, reason in REASONS.items():
        assert reason in rejected[f"{name}.mp4"], name


def test_the_first_broken_file_ends_the_conversion(tmp_path):
    write_file(tmp_path, video()[:-1], "1.mp4")
    with pytest.raises(BadInputError) as caught:
        read(tmp_path)
    assert "1.mp4" in str(caught.value)
    assert "it is cut off: 1 of the" in str(caught.value)


def test_frames_before_a_damage_count(tmp_path):
    content = bytearray(video(num_frames=24))
    place = content.index(b"mdat") + 4
    # The last group of pictures is overwritten.
    end = place - 8 + int.from_bytes(content[place - 8 : place - 4], "big")
    content[end - 100 : end] = bytes(100)
    write_file(tmp_path, bytes(content), "1.mp4")
    _, rows, rejected = read(tmp_path, video="frames", tolerates_bad_rows=True)
    assert list(rejected) == ["1.mp4"]
    assert 12 <= len(rows) < 24
    assert [row["frame"] for row in rows] == list(range(len(rows)))


def test_a_video_shorter_than_a_clip_is_rejected(tmp_path):
    write_file(tmp_path, video(num_frames=3), "1.mp4")
    write_file(tmp_path, video(), "2.mp4")
    _, rows, rejected = read(tmp_path, video="clips", clip_frames=4, tolerates_bad_rows=True)
    assert len(rows) == 3
    assert "it has 3 frames, fewer than the 4 of a clip" in rejected["1.mp4"]
    _, rows, rejected = read(tmp_path, video="clips", clip_frames=4, video_fps=2, tolerates_bad_rows=True)
    assert "it has 1 frames at --video-fps 2, fewer than" in rejected["1.mp4"]


def test_clips_that_take_too_much_memory_are_rejected(tmp_path):
    write_file(tmp_path, video(), "1.mp4")
    _, rows, rejected = read(tmp_path, video="clips", max_record_bytes=100_000, tolerates_bad_rows=True)
    assert not rows
    assert "16 of its frames of 64x48 pixels take more than the 97.7 KiB of --max-record-size" in rejected["1.mp4"]


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_are_read_or_rejected(kind):
    content, generator = video(kind), random.Random(kind)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= generator.randrange(1, 256)
        media_type = video_type_of(bytes(damaged[:64]))
        if media_type is None:
            continue
        for decode in (
            lambda data, type_: read_video_header(memoryview(data), type_, MANY),
            lambda data, type_: list(read_frames(io.BytesIO(data), type_, MANY)),
        ):
            with contextlib.suppress(VideoError):
                decode(bytes(damaged), media_type)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_anywhere_is_seen_to_be(kind):
    content = video(kind)
    media_type = video_type_of(content[:64])
    assert fault_of(io.BytesIO(content), media_type) is None
    for length in range(100, len(content), 97):
        assert "cut off" in fault_of(io.BytesIO(content[:length]), media_type)


def test_old_quicktime_and_other_files_of_boxes():
    assert video_type_of(b"\0\0\0\x08wide\0\0\x12\x34mdat" + bytes(48)) == "video/quicktime"
    assert video_type_of(b"\0\0\0\x20ftypM4A " + bytes(48)) is None
    assert video_type_of(b"\0\0\0\x20ftypavif" + bytes(48)) is None
    assert video_type_of(b"the moov") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_frames": 4}, "--clip-frames is for clips of videos"),
        ({"video": "frames", "clip_stride": 4}, "--clip-stride is for clips of videos"),
        ({"video_fps": 2}, "--video-fps is for decoded videos"),
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path, options, message):
    write_file(tmp_path, video(), "1.mp4")
    with pytest.raises(UsageError, match=message):
        read(tmp_path, **options)


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch):
    write_file(tmp_path, video(), "1.mp4")

    def fails(name):
        raise ImportError(name)

    monkeypatch.setattr(video_decoding.importlib, "import_module", fails)
    with pytest.raises(UsageError) as caught:
        VideoSource().check_options(SourceOptions())
    assert "pip install 'shardkit[video]'" in str(caught.value)


@pytest.mark.parametrize("length", range(5))
def test_a_matroska_file_that_ends_within_its_segment_has_no_size(length):
    head = b"\x1a\x45\xdf\xa3\x80" + b"\x18\x53\x80\x67\x01\x00\x00"[:length]
    assert fault_of(io.BytesIO(head), "video/webm") is None

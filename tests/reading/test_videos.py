"""Videos and clips decoded in batches: pixels of PyAV, frames at even distances, sizes, and damage."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from PIL import Image

import shardkit
from shardkit.errors import BadInputError, UsageError
from shardkit.reading.batch import Batch
from tests.support.files.image_makers import encode

pytest.importorskip("av")
from tests.support.files.video_makers import KINDS, frames_of, video


def batch_of(*videos, **settings):
    column = np.empty(len(videos), object)
    column[:] = videos
    return Batch({"video": column, "n": np.arange(len(videos))}, {}, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_all_frames_are_those_of_pyav(kind):
    contents = [video(kind), video(kind, fps=9)]
    found = shardkit.decode_videos("video")(batch_of(*contents))
    assert found["video"].dtype == np.uint8
    assert np.array_equal(found["video"], np.stack([frames_of(content) for content in contents]))
    assert found["n"].tolist() == [0, 1]
    assert np.array_equal(ForkingPickler.loads(ForkingPickler.dumps(shardkit.decode_videos("video")))(
        batch_of(*contents))["video"], found["video"])  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({"num_frames": 3}, [2, 6, 10]),
        ({"num_frames": 1}, [6]),
        ({"fps": 2}, [0, 3, 6, 9]),
        ({"fps": 2, "num_frames": 2}, [3, 9]),
        ({"fps": 2, "num_frames": 8}, [0, 0, 3, 3, 6, 6, 9, 9]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_frames_at_even_distances(kind, settings, taken):
    content = video(kind)
    (found,) = shardkit.decode_videos("video", **settings)(batch_of(content))["video"]
    expected = frames_of(content)
    assert np.array_equal(found, np.stack([expected[number] for number in taken]))


def test_videos_of_several_sizes_and_lengths_become_alike():
    contents = [video(), video("webm", num_frames=5, height=32, width=32)]
    found = shardkit.decode_videos("video", size=(20, 30), num_frames=4)(batch_of(*contents))["video"]
    assert found.shape == (2, 4, 20, 30, 3)
    expected = Image.fromarray(frames_of(contents[1])[1]).resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(found[1, 1], np.asarray(expected))
    grey = shardkit.decode_videos("video", size=(20, 30), num_frames=4, mode="L")(batch_of(*contents))["video"]
    assert grey.shape == (2, 4, 20, 30, 1)
    with pytest.raises(UsageError, match="several sizes or lengths"):
        shardkit.decode_videos("video", num_frames=4)(batch_of(*contents))
    with pytest.raises(UsageError, match="num_frames=16"):
        shardkit.decode_videos("video", size=(20, 30))(batch_of(*contents))


def test_clips_of_images():
    frames = [[encode(Image.new("RGB", (6, 4), (40 * row, 9 * place, 0))) for place in range(4)] for row in range(2)]
    batch = Batch({"clip": np.array(frames, object)}, {})
    found = shardkit.decode_videos("clip")(batch)["clip"]
    assert found.shape == (2, 4, 4, 6, 3)
    assert found[1, :, 0, 0].tolist() == [[40, 9 * place, 0] for place in range(4)]
    assert shardkit.decode_videos("clip", num_frames=2)(batch)["clip"][0, :, 0, 0, 1].tolist() == [9, 27]
    frames[1][2] = frames[1][2][:-30]
    batch = Batch({"clip": np.array(frames, object)}, {})
    with pytest.raises(BadInputError, match="row 1 of the batch"):
        shardkit.decode_videos("clip")(batch)
    filled = shardkit.decode_videos("clip", on_error="fill")(batch)
    assert filled.present["clip"].tolist() == [True, False]
    assert not filled["clip"][1].any()


def test_damaged_and_absent_videos():
    contents = [video(), video()[:-200], b"text", b""]
    present = np.array([True, True, True, False])
    batch = batch_of(*contents)
    batch = Batch(dict(batch), {"video": present})
    with pytest.raises(BadInputError) as caught:
        shardkit.decode_videos("video")(batch)
    assert "row 1 of the batch" in str(caught.value)
    assert "it is cut off" in str(caught.value)
    found = shardkit.decode_videos("video", on_error="fill")(batch)
    assert found.present["video"].tolist() == [True, False, False, False]
    assert found["video"].shape == (4, 12, 48, 64, 3)
    assert not found["video"][1:].any()
    assert shardkit.decode_videos("video", (6, 8), num_frames=5)(batch_of())["video"].shape == (0, 5, 6, 8, 3)


@pytest.mark.parametrize(
    "settings", [{"num_frames": 0}, {"fps": 0}, {"fps": float("inf")}, {"fit": "squeeze"}, {"size": 5}]
)
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(UsageError):
        shardkit.decode_videos("video", **settings)


def test_other_columns_are_refused():
    with pytest.raises(UsageError, match="in decode_videos"):
        shardkit.decode_videos("film")(batch_of(b""))
    with pytest.raises(UsageError, match="no encoded videos"):
        shardkit.decode_videos("n")(batch_of(b""))


@pytest.mark.full
def test_what_convert_wrote_is_decoded_in_the_threads_of_the_reader(tmp_path):
    (tmp_path / "films").mkdir()
    contents = {f"{number}.mp4": video(num_frames=12 + number) for number in range(4)}
    for name, content in contents.items():
        (tmp_path / "films" / name).write_bytes(content)
    films = shardkit.convert(str(tmp_path / "films"), str(tmp_path / "out"))["train"]
    decode = shardkit.decode_videos("video", num_frames=6)
    for batch in films.batches(global_batch_size=2, shuffle=False).map(decode):
        for name, pixels in zip(batch["filename"].tolist(), batch["video"], strict=True):
            expected = frames_of(contents[name if isinstance(name, str) else name.decode()])
            assert np.array_equal(pixels, np.stack(expected)[[(2 * i + 1) * len(expected) // 12 for i in range(6)]])
    options = {"video": "clips", "clip_frames": 4, "clip_stride": 4, "image_format": "png"}
    clips = shardkit.convert(str(tmp_path / "films"), str(tmp_path / "clips"), **options)["train"]
    for batch in clips.batches(global_batch_size=4, shuffle=False).map(shardkit.decode_videos("clip")):
        assert batch["clip"].shape == (4, 4, 48, 64, 3)
        for name, first, pixels in zip(batch["filename"].tolist(), batch["frame"].tolist(), batch["clip"], strict=True):
            expected = frames_of(contents[name if isinstance(name, str) else name.decode()])
            assert np.array_equal(pixels, np.stack(expected[first : first + 4]))

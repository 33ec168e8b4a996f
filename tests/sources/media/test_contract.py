"""Images, audio files and videos keep the contract of sources."""

from __future__ import annotations

import functools
import importlib.util
import io
import wave

import numpy as np
import pytest

from shardkit.sources.base import SourceOptions
from tests.support.files.format_contract import FormatContract
from tests.support.files.image_makers import encoded
from tests.support.files.source_makers import write_file


class MediaContract(FormatContract):
    format = "images"
    reads_compressed = False

    def write(self, folder, name, rows):
        for place, row in enumerate(rows):
            if row is None:
                write_file(folder, b"just text", f"{place:04}{self.suffix}")
            else:
                write_file(folder, self.content(row), row["filename"])


class TestImages(MediaContract):
    suffix = ".png"

    def row(self, number):
        height, width = number % 7 + 1, number % 5 + 1
        image = encoded("RGB", "PNG", (width, height))
        name = f"{number:04}.png"
        return {"image": image, "filename": name, "height": height, "width": width, "channels": 3}

    def content(self, row):
        return row["image"]


@pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="soundfile is not installed")
class TestAudioBytes(MediaContract):
    format = "audio"
    suffix = ".wav"

    def sound(self, number):
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(b"\0\1" * (number % 9 + 1))
        return buffer.getvalue()

    def row(self, number):
        numbers = {"sample_rate": 8000, "num_frames": number % 9 + 1, "channels": 1}
        return {"audio": self.sound(number), "filename": f"{number:04}.wav", **numbers}

    def content(self, row):
        return row["audio"]


@pytest.mark.skipif(importlib.util.find_spec("soundfile") is None, reason="soundfile is not installed")
class TestAudioSamples(TestAudioBytes):
    def options(self):
        return SourceOptions(audio="samples")

    def row(self, number):
        return super().row(number) | {"audio": [1 / 128] * (number % 9 + 1)}

    def content(self, row):
        return self.sound(int(row["filename"][:4]))


@pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="av is not installed")
class TestVideoBytes(MediaContract):
    format = "video"
    suffix = ".mp4"

    def row(self, number):
        from tests.support.files.video_makers import video

        num_frames = number % 3 + 1
        numbers = {"num_frames": num_frames, "frame_rate": 4.0, "height": 16, "width": 16, "duration": num_frames / 4}
        content = cached(video)("mov", num_frames, 4, 16, 16)
        return {"video": content, "filename": f"{number:04}.mp4", **numbers}

    def content(self, row):
        return row["video"]


@functools.cache
def cached(function):
    return functools.cache(function)


class TestArrays(MediaContract):
    format = "numpy-files"
    suffix = ".npy"

    def options(self):
        # As they are settled.
        return SourceOptions(array_record="file", array_shape=(2, 2))

    def row(self, number):
        return {"array": [float(number), 1.0, 2.0, 3.5], "filename": f"{number:04}.npy"}

    def content(self, row):
        buffer = io.BytesIO()
        np.save(buffer, np.array(row["array"], np.float32).reshape(2, 2))
        return buffer.getvalue()


class TestListsOfAnyLength(TestArrays):
    def options(self):
        return SourceOptions(array_record="file", array_shape=(None,))

    def row(self, number):
        return {"array": [float(number)] * (number % 4 + 1), "filename": f"{number:04}.npy"}

    def content(self, row):
        buffer = io.BytesIO()
        np.save(buffer, np.array(row["array"], np.float32))
        return buffer.getvalue()

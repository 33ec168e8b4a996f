"""MP3 files are as long as their frames, whether or not their first frame says so."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.media.audio_decoding import AudioError, decode_audio, read_audio_header
from shardkit.media.mpeg_frames import count_frames
from tests.support.examples import draws

soundfile = pytest.importorskip("soundfile")

DELAY_FRAMES = 576  # What the first frame would tell a decoder to leave out.


def encoded(rate: int = 16_000, num_channels: int = 1, seconds: float = 2) -> bytes:
    """Returns an MP3 whose first half is quiet, so that the size of its first frames says nothing of the rest."""
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (int(rate * seconds), num_channels)).astype(np.float32)
    noise[: len(noise) // 2] = 0
    buffer = io.BytesIO()
    soundfile.write(buffer, noise, rate, format="MP3", bitrate_mode="VARIABLE")
    return buffer.getvalue()


def without_first_frame(content: bytes) -> bytes:
    return content[count_frames(memoryview(content)).end :]


def decoded(content: bytes):
    return decode_audio(memoryview(content), "audio/mpeg", None, 2**28)


@pytest.mark.parametrize(("rate", "num_channels"), [(8000, 1), (16_000, 2), (22_050, 1), (44_100, 2), (48_000, 1)])
def test_a_file_without_xing_header_is_whole(rate, num_channels):
    content = encoded(rate, num_channels)
    bare = without_first_frame(content)
    assert b"Xing" not in bare[:200]
    assert b"Info" not in bare[:200]
    with soundfile.SoundFile(io.BytesIO(bare)) as sound:
        assert abs(sound.frames - 2 * rate) > rate / 10, "the estimate is right, so this tests nothing"
    samples = decoded(bare).samples
    expected, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    found = samples[DELAY_FRAMES : DELAY_FRAMES + len(expected)]
    assert len(found) == len(expected)
    assert np.abs(found - expected).max() < 1e-3
    header = read_audio_header(memoryview(bare), "audio/mpeg")
    assert (header.num_frames, header.num_channels) == samples.shape


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_file_that_is_cut_off_is_refused_without_decoding(is_bare):
    content = without_first_frame(encoded()) if is_bare else encoded()
    with pytest.raises(AudioError, match="cut off"):
        read_audio_header(memoryview(content[: len(content) * 2 // 3 - 7]), "audio/mpeg")


def test_tags_around_the_frames_are_passed_over():
    bare = without_first_frame(encoded())
    tagged = b"ID3\4\0\0\0\0\1\0" + b"\xff\xfb" * 64 + bare + b"TAG".ljust(128, b"\0")
    assert np.array_equal(decoded(tagged).samples, decoded(bare).samples)


@settings(max_examples=draws(60), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 2**31))
def test_any_bytes_are_counted_or_refused(junk, cut, seed):
    content = bytearray(encoded(seconds=0.3)[cut:] + junk)
    content[np.random.default_rng(seed).integers(len(content))] ^= 0xFF
    frames = count_frames(memoryview(content))
    assert frames is None or frames.num_frames >= 0
    with contextlib.suppress(AudioError):
        decoded(bytes(content))

"""Audio: bytes kept or samples decoded, what headers say, labels, and files that are broken."""

from __future__ import annotations

import io
import random
import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from shardkit.conversion.inputs.schema_file import Schema, apply_schema
from shardkit.errors import BadInputError, ShardkitError, UsageError
from shardkit.media import audio_decoding
from shardkit.media.audio_headers import audio_type_of, fault_of
from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.media.audio_source import AudioSource
from tests.support.files.source_makers import read_all, write_file
from tests.support.paths import DATA

soundfile = pytest.importorskip("soundfile")

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not there")

SINE = (0.5 * np.sin(np.arange(4000) / 9)).astype(np.float32)
KINDS = {
    "WAV": "audio/wav",
    "FLAC": "audio/flac",
    "OGG": "audio/ogg",
    "MP3": "audio/mpeg",
    "AIFF": "audio/aiff",
    "AU": "audio/basic",
    "CAF": "audio/x-caf",
    "RF64": "audio/x-rf64",
    "RIFX": "audio/x-rifx",
    "W64": "audio/x-w64",
    "NIST": "audio/x-nist",
}


def encoded(kind: str = "WAV", samples: np.ndarray = SINE, rate: int = 8000, **settings) -> bytes:
    buffer = io.BytesIO()
    settings |= {"endian": "BIG"} if kind == "RIFX" else {}
    soundfile.write(buffer, samples, rate, format="WAV" if kind == "RIFX" else kind, **settings)
    return buffer.getvalue()


def read(folder: Path, source=None, **options):
    """Returns features by name, rows by file name, and what was rejected by file name."""
    found = read_all(source or AudioSource(), folder, **options)
    rows = {row.pop("filename"): row for row in found.rows}
    rejected = {found.files[row.file_index].name: row for row in found.rejected}
    assert len(rows) + len(rejected) == len(found.files)
    return {f.name: f for f in found.features}, rows, rejected


def fails(folder: Path, kind=BadInputError, **options) -> str:
    with pytest.raises(kind) as caught:
        read(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_headers(tmp_path, kind):
    content = encoded(kind, np.stack([SINE, -SINE], axis=1))
    write_file(tmp_path, content, f"yes/1.{kind.lower()}")
    write_file(tmp_path, content, f"no/2.{kind.lower()}")
    features, rows, _ = read(tmp_path)
    assert features["audio"].media_type == KINDS[kind]
    assert features["label"].vocabulary == ("no", "yes")
    row = rows[f"yes/1.{kind.lower()}"]
    assert row["audio"] == content
    assert (row["label"], row["sample_rate"], row["channels"]) == (1, 8000, 2)
    assert row["num_frames"] == soundfile.info(io.BytesIO(content)).frames


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_are_those_that_soundfile_reads(tmp_path, kind, channels):
    samples = SINE if channels == 1 else np.stack([SINE, -SINE], axis=1)
    path = write_file(tmp_path, encoded(kind, samples), f"1.{kind.lower()}")
    features, rows, _ = read(tmp_path, audio="samples")
    expected, rate = soundfile.read(path, dtype="float32", always_2d=True)
    (row,) = rows.values()
    assert (features["audio"].dtype, features["audio"].shape) == ("float32", (None,))
    found = np.array(row["audio"], np.float32).reshape(-1, channels)
    # MP3 decoded in pieces differs from MP3 decoded at once in the last bit.
    assert np.abs(found - expected).max() < 1e-6 if kind == "MP3" else np.array_equal(found, expected)
    assert (row["sample_rate"], row["num_frames"], row["channels"]) == (rate, len(expected), channels)
    assert "label" not in features


@pytest.mark.parametrize("rate", [4000, 8000, 16000, 11025])
def test_resampling(tmp_path, rate):
    write_file(tmp_path, encoded("WAV", np.stack([SINE, 0 * SINE], axis=1)), "1.wav")
    _, rows, _ = read(tmp_path, audio="samples", audio_rate=rate)
    row = rows["1.wav"]
    assert row["sample_rate"] == rate
    assert row["num_frames"] == pytest.approx(4000 * rate / 8000, abs=1)
    samples = np.array(row["audio"], np.float32).reshape(-1, 2)
    assert not samples[:, 1].any()
    times = np.arange(len(samples)) * 8000 / rate
    middle = slice(len(samples) // 4, -len(samples) // 4)
    assert np.abs(samples[middle, 0] - 0.5 * np.sin(times[middle] / 9)).max() < 0.01


def test_wide_samples_that_float32_does_not_hold_are_counted(tmp_path):
    write_file(tmp_path, encoded("WAV", np.array([1 / 3, 0.5, 0.25]), subtype="DOUBLE"), "1.wav")
    files = list_inputs([str(tmp_path)]).files
    source, options = AudioSource(), SourceOptions(audio="samples")
    features = source.infer(files, options)
    (part,) = source.read(source.split(files, options)[0], files, features, options)
    assert part.num_rounded == {"audio": 1}
    wide = apply_schema(features, Schema(features={"audio": "float64"}))
    (part,) = source.read(source.split(files, options)[0], files, wide, options)
    assert part.num_rounded == {}
    assert part.batch["audio"].to_pylist() == [[1 / 3, 0.5, 0.25]]


def test_options_that_do_not_go_together(tmp_path):
    write_file(tmp_path, encoded(), "1.wav")
    assert "--audio samples" in fails(tmp_path, kind=UsageError, audio_rate=8000)
    assert "no rate" in fails(tmp_path, kind=UsageError, audio="samples", audio_rate=0)


def test_several_formats_and_a_file_without_sound(tmp_path):
    write_file(tmp_path, encoded(), "1.wav")
    write_file(tmp_path, encoded("FLAC"), "2.flac")
    write_file(tmp_path, encoded("WAV", SINE[:0]), "3.wav")
    features, rows, _ = read(tmp_path)
    assert features["audio"].media_type == "audio/*"
    assert rows["3.wav"]["num_frames"] == 0
    assert read(tmp_path, audio="samples")[1]["3.wav"]["audio"] == []


def test_labels_beside_the_files(tmp_path):
    for name in ("a.wav", "b.wav"):
        write_file(tmp_path, encoded(), f"sound/{name}")
    write_file(tmp_path, b"file,word\nb,no\na,yes\n", "labels.csv")
    _, rows, _ = read(tmp_path / "sound", labels=str(tmp_path / "labels.csv"))
    assert {n: r["word"] for n, r in rows.items()} == {"a.wav": "yes", "b.wav": "no"}


def broken(kind: str) -> list[tuple[bytes, bool]]:
    """Returns contents, and whether only decoding can tell that they are broken."""
    whole = encoded(kind, np.random.default_rng(0).uniform(-0.5, 0.5, 40_000).astype(np.float32))
    return [(whole[: len(whole) * 2 // 3], kind == "FLAC"), (whole[:30], False), (whole[:12], False)]


@pytest.mark.parametrize("kind", [*KINDS, "SVX"])
def test_files_that_are_cut_off(tmp_path, kind):
    for content, only_decoding in broken(kind):
        path = write_file(tmp_path, content, f"1.{kind.lower()}")
        write_file(tmp_path, encoded(), "2.wav")
        for audio in ("samples",) if only_decoding else ("bytes", "samples"):
            message = fails(tmp_path, audio=audio)
            assert path.name in message
            _, rows, rejected = read(tmp_path, audio=audio, tolerates_bad_rows=True)
            assert list(rows) == ["2.wav"]
            assert rejected[path.name].raw == content


@pytest.mark.parametrize(("content", "what"), [(b"<!DOCTYPE html>", "HTML text"), (b"", "empty"), (b"text", "text")])
def test_content_that_is_no_audio(tmp_path, content, what):
    write_file(tmp_path, content, "1.wav")
    assert f"content is {what}, not audio" in fails(tmp_path)
    assert "no file holds audio" in fails(tmp_path, tolerates_bad_rows=True)
    write_file(tmp_path, encoded(), "2.wav")
    _, rows, rejected = read(tmp_path, tolerates_bad_rows=True)
    assert list(rows) == ["2.wav"]
    assert rejected["1.wav"].raw == content


def test_sound_that_takes_up_too_much_room(tmp_path):
    write_file(tmp_path, encoded("FLAC", np.zeros(2_000_000, np.float32)), "1.flac")
    write_file(tmp_path, encoded("FLAC"), "2.flac")
    assert "more than the 1.00 MiB" in fails(tmp_path, audio="samples", max_record_bytes=2**20)
    _, rows, rejected = read(tmp_path, audio="samples", max_record_bytes=2**20, tolerates_bad_rows=True)
    assert (list(rows), list(rejected)) == (["2.flac"], ["1.flac"])
    assert len(read(tmp_path)[1]) == 2


def test_wav_of_unknown_length_and_odd_chunks():
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\1\0" * 100)
    content = bytearray(buffer.getvalue())
    assert fault_of(memoryview(content), "audio/wav") is None
    content[40:44] = struct.pack("<I", 201)
    assert "201 bytes" in fault_of(memoryview(content), "audio/wav")
    content[40:44] = b"\xff" * 4
    assert fault_of(memoryview(content), "audio/wav") is None
    odd = content[:36] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + content[36:]
    assert fault_of(memoryview(odd), "audio/wav") is None
    assert "before its sound" in fault_of(memoryview(content[:36]), "audio/wav")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"data_size": 0}, "0 bytes of sound, 200 are there"),
        ({"rate": 0}, "1 channels at 0 frames a second"),
        ({"rate": 2**32 - 1}, "4,294,967,295 frames a second"),
        ({"channels": 0}, "0 channels"),
        ({"bits": 3}, "contradicts itself: 1 channels of 3 bits in 2 bytes"),
        ({"channels": 2}, "contradicts itself: 2 channels of 16 bits in 2 bytes"),
        ({"channels": 2, "frame_bytes": 4}, None),
        ({"bits": 12}, None),
        ({"bits": 24, "frame_bytes": 4}, None),
        ({"data_size": 0xFFFFFFFF}, None),
    ],
)
def test_headers_of_wav_that_make_no_sense(tmp_path, change, what):
    fields = {"channels": 1, "rate": 8000, "frame_bytes": 2, "bits": 16, "data_size": 200} | change
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, *list(fields.values())[:2], 16000, *list(fields.values())[2:4])
    content = header + struct.pack("<4sI", b"data", fields["data_size"]) + b"\1\0" * 100
    content = struct.pack("<4sI4s", b"RIFF", 4 + len(content), b"WAVE") + content
    found = fault_of(memoryview(content), "audio/wav")
    assert found is None if what is None else what in found


def test_an_empty_wav_with_notes_behind_is_empty():
    content = bytearray(encoded("WAV", np.zeros(0)))
    assert fault_of(memoryview(content), "audio/wav") is None
    assert fault_of(memoryview(content + b"LIST" + struct.pack("<I", 4) + b"abcd"), "audio/wav") is None


def test_a_flac_that_is_cut_off_is_refused_without_decoding_it(tmp_path):
    content = encoded("FLAC", np.sin(np.arange(50_000) / 9))
    for num_bytes in (len(content) - 100, len(content) // 2, 100):
        write_file(tmp_path, content[:num_bytes], "1.flac")
        files, source = list_inputs([str(tmp_path)]).files, AudioSource()
        features = source.infer(files, SourceOptions())
        with pytest.raises(BadInputError, match="cut off"):
            list(source.read(source.split(files, SourceOptions())[0], files, features, SourceOptions()))


@pytest.mark.parametrize("kind", ["AU", "CAF"])
def test_sizes_that_a_writer_left_open_are_no_cut(kind):
    content = bytearray(encoded(kind))
    place, size = (8, 4) if kind == "AU" else (content.index(b"data") + 4, 8)
    content[place : place + size] = b"\xff" * size
    assert fault_of(memoryview(content), KINDS[kind]) is None


def test_a_little_endian_au_is_read(tmp_path):
    content = encoded("AU", endian="LITTLE")
    write_file(tmp_path, content, "1.au")
    assert read(tmp_path)[1]["1.au"]["num_frames"] == 4000
    write_file(tmp_path, content[:-9], "1.au")
    assert "8,000 bytes of sound, 7,991 are there" in fails(tmp_path)


def test_wav_that_tensorflow_does_not_decode_is_noted(tmp_path):
    write_file(tmp_path, encoded("WAV"), "1.wav")
    source = AudioSource()

    def notes(**options):
        return source.notes(list_inputs([str(tmp_path)]).files, SourceOptions(**options))

    assert not any("TensorFlow" in n for n in notes())
    for subtype in ("PCM_24", "FLOAT", "PCM_U8", "ULAW"):
        write_file(tmp_path, encoded("WAV", subtype=subtype), "2.wav")
        assert any("2.wav has others" in n for n in notes())
        assert not any("TensorFlow" in n for n in notes(audio="samples"))


def test_what_is_taken_for_audio():
    assert all(audio_type_of(encoded(k)[:16], f"x.{k.lower()}") == t for k, t in KINDS.items())
    assert audio_type_of(b"RIFF\0\0\0\0WEBPVP8 ") is None
    assert audio_type_of(b"\xff\xfb\x90\0", "a.bin") is None
    assert AudioSource().recognizes(b"ID3\4" + bytes(20), "x")


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    write_file(tmp_path, encoded(), "1.wav")
    monkeypatch.setitem(__import__("sys").modules, "soxr", None)
    assert "shardkit[audio]" in fails(tmp_path, kind=UsageError, audio="samples", audio_rate=4000)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    assert "shardkit[audio]" in fails(tmp_path, kind=UsageError)
    with pytest.raises(UsageError):
        audio_decoding.load_soundfile()


@pytest.mark.full
def test_mutations_are_read_or_refused(tmp_path):
    rng = random.Random(5)
    write_file(tmp_path, encoded(), "0.wav")
    outcomes = [0, 0]
    for number in range(300):
        kind = list(KINDS)[number % len(KINDS)]
        content = bytearray(encoded(kind, SINE[:500]))
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(min(len(content), 120 if rng.random() < 0.7 else len(content)))] = rng.randrange(256)
        write_file(tmp_path, bytes(content), "1.wav")
        try:
            _, rows, _ = read(tmp_path, audio=rng.choice(["bytes", "samples"]), tolerates_bad_rows=True)
        except ShardkitError as error:
            pytest.fail(f"a broken file is a bad row, not {error}")
        outcomes[len(rows) - 1] += 1
    assert min(outcomes) > 20


@pytest.mark.full
@pytest.mark.data
@needs_data
def test_real_recordings():
    folder = DATA / "spoken-digits" / "recordings"
    _, rows, _ = read(folder, audio="samples")
    _, contents, _ = read(folder)
    assert len(rows) == len(contents) == 600
    for name, row in rows.items():
        with wave.open(str(folder / name)) as sound:
            expected = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768
            assert row["sample_rate"] == sound.getframerate() == 8000
        assert np.array_equal(np.array(row["audio"]), expected)
        assert contents[name]["audio"] == (folder / name).read_bytes()

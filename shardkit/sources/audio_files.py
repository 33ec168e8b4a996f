"""Audio: the bytes of the files or their samples; a class folder each, with labels beside them, or without any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.sources.audio_decoding import (
    AudioError,
    AudioHeader,
    Decoded,
    decode_audio,
    load_soundfile,
    load_soxr,
    read_audio_header,
)
from shardkit.sources.audio_headers import audio_type_of
from shardkit.sources.base import BATCH_BYTES, MAX_RAW_BYTES, InputSplit, RawFile, RowBatch, SourceOptions
from shardkit.sources.class_folders import (
    class_notes,
    class_of,
    classes_of,
    cut_batches,
    max_file_bytes,
    split_files,
    too_large,
)
from shardkit.sources.image_labels import FileLabels, load_labels
from shardkit.sources.sniff import HEAD_BYTES, text_kind
from shardkit.sources.streams import place, read_head
from shardkit.sources.whole_files import read_heads, read_whole_files
from shardkit.sources.whole_rows import WholeRows

_TYPE_BYTES = 16
_OWN = ("audio", "filename", "sample_rate", "num_frames", "channels")


@dataclass(frozen=True)
class AudioSource:
    """Audio files: WAV, FLAC, Ogg and what else of MP3 libsndfile reads.

    Samples are float32 from -1 to 1, of several channels frame by frame. Classes and labels are as for images.

    Attributes:
        format: `audio`.
        split_bytes: Wanted size of a split; None chooses by the size of all files.
        batch_bytes: Wanted size of a batch.
    """

    format: str = "audio"
    split_bytes: int | None = None
    batch_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is WAV, FLAC, Ogg or MP3."""
        return audio_type_of(head, name) is not None

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of an audio file and its labels.

        Raises:
            UsageError: If some files lie in class folders and others do not, labels and files do not go together, or
                an optional package is not installed.
            BadInputError: If a file is no audio, unless bad rows are tolerated.
        """
        if not files:
            raise BadInputError("there are no audio files")
        _check_options(options)
        labels = _labels(files, options)
        classes = classes_of(files, "an audio file") if labels is None else ()
        return (
            _audio_feature(files, options),
            *((make_feature("label", "int64", vocabulary=classes),) if classes else ()),
            make_feature("filename", "string"),
            make_feature("sample_rate", "int64"),
            make_feature("num_frames", "int64"),
            make_feature("channels", "int64"),
            *(labels.features if labels is not None else ()),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on classes, and on labels and files that do not go together."""
        labels = _labels(files, options)
        return class_notes(files, "audio files") if labels is None else labels.notes

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the list of files."""
        return split_files(files, self.split_bytes)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the sound of one split.

        Raises:
            BadInputError: At the first file that cannot be decoded, unless bad rows are tolerated; or that changed
                since it was listed.
        """
        reader = _Reader(files, _labels(files, options, features), features, options, self.batch_bytes)
        limit = max_file_bytes(options.max_record_bytes, self.batch_bytes)
        for start, stop in cut_batches(split, files, self.batch_bytes, limit):
            if files[start].num_bytes > limit:
                yield reader.refuse(start, too_large(limit))
            else:
                yield from reader.read(start, stop)


class _Reader:
    """Reads audio files of one split.

    Args:
        files: All files.
        labels: Theirs, if any.
        features: What is wanted.
        options: Say how audio is read, and what is refused.
        batch_bytes: Wanted size of a batch of samples.
    """

    def __init__(
        self,
        files: tuple[RawFile, ...],
        labels: FileLabels | None,
        features: Features,
        options: SourceOptions,
        batch_bytes: int,
    ) -> None:
        self._files = files
        self._labels = labels
        self._options = options
        self._batch_bytes = batch_bytes
        self._rows = WholeRows(files, features, options)

    def refuse(self, index: int, why: str) -> RowBatch:
        """Returns a batch without rows, of one file that is not read."""
        file = self._files[index]
        self._rows.reject(index, _no_audio(file, why), read_head(file, MAX_RAW_BYTES))
        return self._rows.nothing()

    def read(self, start: int, stop: int) -> Iterator[RowBatch]:
        """Yields the sound of some files; in several batches where it takes up much more room than the files."""
        data, offsets = read_whole_files(self._files[start:stop])
        content, bounds = memoryview(data).cast("B"), offsets.tolist()

        def raw_of(index: int) -> bytes:
            first, last = bounds[index - start], bounds[index - start + 1]
            return bytes(content[first : min(last, first + MAX_RAW_BYTES)])

        sounds: list[memoryview | Decoded] = []
        headers: list[AudioHeader] = []
        indices: list[int] = []
        num_bytes = 0
        for index, first, last in zip(range(start, stop), bounds, bounds[1:], strict=False):
            file, one = self._files[index], content[first:last]
            try:
                sound, header = self._read_one(one, file)
            except AudioError as error:
                self._rows.reject(index, _no_audio(file, str(error)), raw_of(index))
                continue
            num_bytes += sound.samples.nbytes if isinstance(sound, Decoded) else len(sound)
            sounds.append(sound)
            headers.append(header)
            indices.append(index)
            if num_bytes >= self._batch_bytes and index + 1 < stop:
                yield self._batch(sounds, headers, indices, raw_of)
                sounds, headers, indices, num_bytes = [], [], [], 0
        yield self._batch(sounds, headers, indices, raw_of)

    def _read_one(self, content: memoryview, file: RawFile) -> tuple[memoryview | Decoded, AudioHeader]:
        media_type = audio_type_of(bytes(content[:_TYPE_BYTES]), file.name)
        if media_type is None:
            raise AudioError(f"content is {text_kind(bytes(content[:HEAD_BYTES]))}, not audio")
        if self._options.audio == "bytes":
            return content, read_audio_header(content, media_type)
        options = self._options
        decoded = decode_audio(content, media_type, options.audio_rate, options.max_record_bytes)
        num_frames, num_channels = decoded.samples.shape
        return decoded, AudioHeader(decoded.sample_rate, num_frames, num_channels)

    def _batch(
        self,
        sounds: Sequence[memoryview | Decoded],
        headers: Sequence[AudioHeader],
        indices: list[int],
        raw_of: Callable[[int], bytes],
    ) -> RowBatch:
        batch = self._rows.batch(self._columns(sounds, headers, indices), indices, raw_of)
        num_rounded = sum(s.num_rounded for s in sounds if isinstance(s, Decoded))
        return batch._replace(num_rounded={**batch.num_rounded, "audio": num_rounded}) if num_rounded else batch

    def _columns(
        self, sounds: Sequence[memoryview | Decoded], headers: Sequence[AudioHeader], indices: list[int]
    ) -> Mapping[str, pa.Array]:
        columns = {
            "audio": _sound_column(sounds, self._options),
            "label": pa.array([class_of(self._files[i]) for i in indices], pa.string()),
            "filename": pa.array([self._files[i].name for i in indices], pa.string()),
            "sample_rate": pa.array([h.sample_rate for h in headers], pa.int64()),
            "num_frames": pa.array([h.num_frames for h in headers], pa.int64()),
            "channels": pa.array([h.num_channels for h in headers], pa.int64()),
        }
        if self._labels is not None:
            columns |= self._labels.take(np.array(indices, np.int64))
        return columns


def _sound_column(sounds: Sequence[memoryview | Decoded], options: SourceOptions) -> pa.Array:
    if options.audio == "bytes":
        return pa.array([bytes(s) for s in sounds if isinstance(s, memoryview)], pa.binary())
    samples = [s.samples.reshape(-1) for s in sounds if isinstance(s, Decoded)]
    offsets = np.cumsum([0, *map(len, samples)])
    values = np.concatenate([np.zeros(0, np.float32), *samples])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def _labels(files: tuple[RawFile, ...], options: SourceOptions, known: Features | None = None) -> FileLabels | None:
    return load_labels(files, options, _OWN, "audio files", known)


def _check_options(options: SourceOptions) -> None:
    load_soundfile()
    if options.audio_rate is None:
        return
    if options.audio != "samples":
        raise UsageError("--audio-rate is for decoded sound", next_step="Add --audio samples, or leave it out")
    if options.audio_rate < 1:
        raise UsageError(f"--audio-rate {options.audio_rate} is no rate", why="it must be at least 1")
    load_soxr()


def _audio_feature(files: tuple[RawFile, ...], options: SourceOptions) -> Feature:
    found: set[str] = set()
    for file, head in zip(files, read_heads(files, _TYPE_BYTES), strict=True):
        media_type = audio_type_of(head, file.name)
        if media_type is not None:
            found.add(media_type)
        elif not options.tolerates_bad_rows:
            raise _no_audio(file, f"content is {text_kind(read_head(file, HEAD_BYTES))}, not audio")
    if not found:
        raise BadInputError("there are no audio files", why="no file holds audio")
    if options.audio == "samples":
        return make_feature("audio", "float32", (None,))
    return make_feature("audio", "bytes", media_type=found.pop() if len(found) == 1 else "audio/*")


def _no_audio(file: RawFile, why: str) -> BadInputError:
    return BadInputError(
        "the audio cannot be used", where=place(file), why=why, next_step="Remove the file or replace it"
    )

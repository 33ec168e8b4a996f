"""WebDataset: tar archives whose neighbouring members, called alike up to the first dot, are one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import BadInputError, NarrowTypesError, NoRowsError, UnsafeInputError, UsageError
from shardkit.features import Features
from shardkit.messages import printable, shown
from shardkit.sources.base import (
    BATCH_BYTES,
    InputSplit,
    RawFile,
    RejectedRow,
    RowBatch,
    SourceOptions,
    place,
    rejected_row,
    row_identities,
)
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.halving import parse_parts
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.streams import guard_unchanged, open_stream, read_head
from shardkit.sources.files.tar_headers import BLOCK_BYTES, ZERO_BLOCK, is_tar
from shardkit.sources.files.tar_stream import TarDamageError, TarStream, tar_error, unsafe_name
from shardkit.sources.webdataset.columns import build_batch, extension_of, infer_columns, required_extensions
from shardkit.sources.webdataset.samples import MAX_EXTENSIONS, Sample, SeenKeys, read_samples
from shardkit.units import MiB

_PIECE_SAMPLES, _PIECE_BYTES = 1_000, 32 * MiB
# Each sample that no features hold costs an inference over the first ones.
_MAX_BAD_SAMPLES = 64

# Samples with their rows, their columns, and how many values were rounded, by column.
_Built = tuple[list[tuple[int, Sample]], pa.RecordBatch, dict[str, int]]

_HEAD_SAMPLES = 1_000
_HEAD_BYTES, _MIN_HEAD_BYTES = 32 * MiB, MiB
_MAX_BATCH_ROWS = 65_536
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.


@dataclass(frozen=True)
class WebDatasetSource:
    """WebDataset shards, read from front to back, one split a file.

    Attributes:
        format: `webdataset`.
    """

    format: str = "webdataset"
    batch_bytes: int = BATCH_BYTES

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file begins like a tar archive."""
        return is_tar(head, name)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns `__key__` and a feature an extension, from the first samples of the files.

        `jpg`, `jpeg`, `png` and `webp` are images; `cls` and `index` integers; `txt` text; `npy` arrays; of `json`
        the fields are columns, called `json/a/b`, if all samples have the same, and else its text is one. What ends
        in `.gz` in front of one of these is decompressed. `flac`, `wav`, `mp3` and `ogg` are bytes of audio, and all
        else are bytes.

        Raises:
            UsageError: If an extension holds what no example can.
        """
        filled = [f for f in files if f.num_bytes]
        filled = filled if options.types_of_all_rows else sample_files(filled)
        found = [_head_samples(f, options, max(_MIN_HEAD_BYTES, _HEAD_BYTES // len(filled))) for f in filled]
        found = [samples for samples in found if samples]
        usable = [[s for s in samples if s.problem is None] for samples in found]
        if not any(usable):
            if found:
                raise _refuse(found[0][0], 0, filled[0], found[0][0].problem or "")
            raise NoRowsError(why="all archives are empty")
        return infer_columns([samples for samples in usable if samples], options.max_record_bytes)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns which of a sample of the archives are empty."""
        looked_at = sample_files([f for f in files if f.num_bytes])
        empty = [f for f in looked_at if read_head(f, BLOCK_BYTES) == ZERO_BLOCK]
        return tuple(f"{printable(f.name)} is an empty archive: 0 rows" for f in empty)

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Returns a split a file."""
        filled = [(i, f) for i, f in enumerate(files) if f.num_bytes]
        return [
            InputSplit(index=index, file_start=i, file_stop=i + 1, num_bytes=f.num_bytes)
            for index, (i, f) in enumerate(filled)
        ]

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the samples of one archive. Raises DamagedFileError if the archive is cut off or damaged."""
        file = files[split.file_start]
        batcher = _Batcher(file, split.file_start, features, options, self.batch_bytes)
        known = {extension_of(f) for f in features}
        with guard_unchanged(file), _opened(file) as tar:
            for sample in read_samples(tar, options, known):
                if batcher.add(sample):
                    yield batcher.take()
            if batcher.num_held:
                yield batcher.take()


class _Batcher:
    """Takes samples in order and makes batches of them."""

    def __init__(
        self, file: RawFile, file_index: int, features: Features, options: SourceOptions, batch_bytes: int
    ) -> None:
        self._file = file
        self._file_index = file_index
        self._features = features
        self._options = options
        self._batch_bytes = min(batch_bytes, _MAX_COLUMN_BYTES - options.max_record_bytes)
        self._required = required_extensions(features)
        self._keys = SeenKeys()
        self._first_row = 0
        self._num_bytes = 0
        self._samples: list[tuple[int, Sample]] = []
        self._rejected: list[tuple[int, RejectedRow]] = []

    @property
    def num_held(self) -> int:
        """Samples that no batch has taken yet."""
        return len(self._samples) + len(self._rejected)

    def add(self, sample: Sample) -> bool:
        """Takes a sample, and returns whether there are enough for a batch.

        Raises:
            BadInputError: If it cannot be used and that is not tolerated.
        """
        row = self._first_row + self.num_held
        problem = sample.problem
        if self._keys.add(sample.key):
            problem = problem or f"the key {shown(sample.key)} appears twice, and not side by side"
        missing = next((e for e in self._required if e not in sample.data), None)
        if missing is not None:
            problem = problem or f"group {shown(sample.key)} is incomplete: it has no {shown(missing)}"
        if problem is None:
            self._samples.append((row, sample))
            self._num_bytes += sample.num_bytes
        else:
            if not self._options.tolerates_bad_rows:
                # One of those before it may be the first that does not fit.
                self._build(self._samples)
            self._reject(row, sample, problem)
        return self._num_bytes >= self._batch_bytes or self.num_held >= _MAX_BATCH_ROWS

    def take(self) -> RowBatch:
        """Returns a batch of the held samples. Raises BadInputError if a value does not fit and is not tolerated."""
        num_rows = self.num_held
        built = self._build(self._samples)
        self._samples = [sample for samples, _, _ in built for sample in samples]
        batch = built[0][1] if len(built) == 1 else pa.concat_batches(batch for _, batch, _ in built)
        rounded = sum((Counter(counts) for _, _, counts in built), Counter[str]())
        identities = row_identities(self._file, 0, self._first_row, num_rows)
        own = np.array([row - self._first_row for row, _ in self._samples], dtype=np.int64)
        rejected = [row for _, row in sorted(self._rejected, key=lambda item: item[0])]
        self._first_row += num_rows
        self._samples, self._rejected, self._num_bytes = [], [], 0
        return RowBatch(batch, identities[own], self._file_index, rounded, rejected)

    def _build(self, samples: list[tuple[int, Sample]]) -> list[_Built]:
        """Returns the columns of the samples that fit, in pieces of which there is at least one."""
        max_pixels, max_bytes = self._options.max_pixels, self._options.max_record_bytes

        def build(start: int, stop: int) -> tuple[pa.RecordBatch, dict[str, int]]:
            return build_batch([s for _, s in samples[start:stop]], self._features, max_pixels, max_bytes)

        built: list[_Built] = []
        for start, stop, found in parse_parts(build, len(samples), BadValueError):
            if isinstance(found, BadValueError):
                problem = f"{shown(found.column)} does not fit: expected {found.expected}, got {found.got}"
                self._reject(*samples[start], problem, NarrowTypesError)
            else:
                built.append((samples[start:stop], *found))
        return built or [([], *build(0, 0))]

    def _reject(self, row: int, sample: Sample, problem: str, kind: type[BadInputError] = BadInputError) -> None:
        error = _refuse(sample, row, self._file, problem, kind)
        if not self._options.tolerates_bad_rows:
            raise error
        raw = b"".join(sample.raw)
        self._num_bytes += min(len(raw), MiB)
        position = f"sample {shown(sample.key)}, row {row + 1}"
        self._rejected.append(
            (
                row,
                rejected_row(
                    error, file_index=self._file_index, position=position, first_byte=sample.first_byte, raw=raw
                ),
            )
        )


def _head_samples(file: RawFile, options: SourceOptions, max_bytes: int) -> list[Sample]:
    samples: list[Sample] = []
    num_bytes = 0
    with _opened(file, is_head=True) as tar:
        found = read_samples(tar, options)
        for sample in found:
            sample.raw.clear()
            samples.append(sample)
            num_bytes += sample.num_bytes
            if num_bytes >= max_bytes or len(samples) == _HEAD_SAMPLES:
                break
        if options.types_of_all_rows:
            samples += find_others(samples, found, options)
    return samples


@contextmanager
def _opened(file: RawFile, *, is_head: bool = False) -> Iterator[TarStream]:
    try:
        with open_stream(file, is_read_through=not is_head) as stream:
            yield TarStream(stream, num_bytes=file.num_bytes if file.compression is None else None)
    except TarDamageError as error:
        raise tar_error(error, file) from error


def _refuse(
    sample: Sample, row: int, file: RawFile, problem: str, kind: type[BadInputError] = BadInputError
) -> BadInputError:
    next_step = None
    if "incomplete" in problem:
        next_step = "Put the members of a sample side by side (tar --sort=name), or declare the column nullable"
    elif "is no column" in problem:
        next_step = "Declare the column in a --schema file, with dtype and nullable = true, or correct the file"
    elif f"more than {MAX_EXTENSIONS}" in problem:
        next_step = "Rename the members, or read the archive as a folder of files with another --format"
    if "is no column" in problem:
        kind = NarrowTypesError
    if unsafe_name(sample.key) is not None:
        kind = UnsafeInputError
    return kind(
        "the sample cannot be used",
        where=f"{place(file)}, sample {shown(sample.key)} (row {row + 1})",
        why=problem,
        next_step=next_step,
    )


def find_others(first: Sequence[Sample], rest: Iterator[Sample], options: SourceOptions) -> list[Sample]:
    """Returns the samples that have other extensions than those before them, or values of other types.

    Where bad rows are tolerated, values of another kind are bad rows, and only numbers of other types count.

    Args:
        first: The first samples of an archive.
        options: What a value may be.
    """
    known = [sample for sample in first if sample.problem is None]
    features = infer_columns([known], options.max_record_bytes)
    others: list[Sample] = []
    num_bad = 0
    for piece in _pieces(rest):
        if _holds(features, piece, options):
            continue
        for sample in piece:
            is_new = not _extensions(features) >= sample.data.keys()
            if (num_bad == _MAX_BAD_SAMPLES and not is_new) or _holds(features, [sample], options):
                continue
            try:
                wider = infer_columns([[*known, sample]], options.max_record_bytes)
            except UsageError:
                wider = features
            is_kind = not options.tolerates_bad_rows or _are_numbers_wider(features, wider)
            if is_new or (is_kind and _holds(wider, [sample], options)):
                known.append(sample)
                others.append(sample)
                features = wider
            else:
                num_bad += 1
    return others


def _pieces(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    piece: list[Sample] = []
    num_bytes = 0
    for sample in samples:
        sample.raw.clear()
        if sample.problem is None:
            piece.append(sample)
            num_bytes += sample.num_bytes
        if len(piece) == _PIECE_SAMPLES or num_bytes > _PIECE_BYTES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _extensions(features: Features) -> set[str]:
    return {extension_of(f) for f in features}


def _holds(features: Features, samples: Sequence[Sample], options: SourceOptions) -> bool:
    extensions = _extensions(features)
    if not all(extensions >= sample.data.keys() for sample in samples):
        return False
    try:
        _, rounded = build_batch(samples, features, options.max_pixels, options.max_record_bytes)
    except BadValueError:
        return False
    return not any(rounded.values())


def _are_numbers_wider(features: Features, wider: Features) -> bool:
    after = {f.name: f.dtype for f in wider}
    return all(f.dtype == after.get(f.name) or _are_numbers(f.dtype, after.get(f.name, "")) for f in features)


def _are_numbers(*dtypes: str) -> bool:
    return all(dtype.startswith(("int", "float")) for dtype in dtypes)

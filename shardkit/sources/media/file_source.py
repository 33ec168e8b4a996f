"""The sources whose files are a row each, such as images: in class folders, with labels beside them, or neither."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.errors import BadInputError, StorageError
from shardkit.features import Feature, Features, make_feature
from shardkit.file_types import HEAD_BYTES, text_kind
from shardkit.media.audio_decoding import Samples
from shardkit.media.image_codec import orientation_of
from shardkit.sources.base import (
    BATCH_BYTES,
    MAX_RAW_BYTES,
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    place,
)
from shardkit.sources.columns.whole_rows import WholeRows
from shardkit.sources.files.streams import guard_unchanged, open_raw, read_head
from shardkit.sources.files.whole_files import WholeFiles, read_heads, read_whole_files, split_files
from shardkit.sources.folders.class_folders import class_notes, class_of, classes_of, find_class_level
from shardkit.sources.media.file_columns import as_bytes, as_lists, cut_batches, in_pixels
from shardkit.sources.media.label_tables import DECLARED_SIZE
from shardkit.sources.media.labels import FileLabels, load_labels, unlabelled_notes
from shardkit.units import format_size

_TYPE_BYTES = 64
# Rows are large and few: of smaller batches the statistics and the like would cost as much as their bytes.
_BATCH_BYTES = 2 * BATCH_BYTES
_MIN_SPLIT_FILES = 512
_REPLACE = "Remove the file or replace it; --on-bad-record skip leaves all such files out and names them"
_MAX_COLUMN_BYTES = 2**31 - 1  # Arrow counts the bytes of a batch with 32 bits.


class Words(NamedTuple):
    """What messages call the files of a source.

    Attributes:
        one: Such as `an image`.
        many: Such as `images`.
        content: What they hold, such as `the image`.
        expected: What they should hold, such as `an image`.
        none: What is said if no file does.
    """

    one: str
    many: str
    content: str
    expected: str
    none: str


class Found(NamedTuple):
    """What a file turned out to hold.

    Attributes:
        numbers: What its header says, in the order of the source's `numbers`.
        samples: Its content, decoded to numbers; None leaves its bytes as they are.
        parts: Encoded images, of a part of a file that is a row.
    """

    numbers: Sequence[float]
    samples: Samples | None = None
    parts: Sequence[bytes] = ()


@dataclass(frozen=True)
class MediaSource(SourceSettings, ABC):
    """One of these formats.

    The class of a file is the first folder below the input. Files that all lie in one folder have none, and where
    labels are given, those take the place of the folders.
    """

    batch_bytes: int = _BATCH_BYTES

    words: ClassVar[Words]
    content: ClassVar[str]
    """Name of the feature that holds the files, and of their media types."""
    numbers: ClassVar[tuple[str, ...]]
    """Names of the features behind the file name: int64, but for those of `fractions`."""
    fractions: ClassVar[frozenset[str]] = frozenset()
    """Which of these are float32."""
    is_cut: ClassVar[bool] = False
    """Whether a file is several rows, which `cut` gives."""
    unusable: ClassVar[type[Exception]]
    """What `examine` raises where a file is of no use; its text says why."""

    @abstractmethod
    def media_type(self, head: bytes, name: str) -> str | None:
        """Returns the media type by the first bytes, None if the source does not read such files."""

    @abstractmethod
    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the content of a file."""

    def cut(self, content: BinaryIO, name: str, options: SourceOptions) -> Iterator[Found]:
        """Yields the rows of a file that is several, each as soon as it is read."""
        raise NotImplementedError

    def check_options(self, options: SourceOptions) -> None:
        """Raises a UsageError if the options cannot be met."""
        return

    def content_feature(self, media_type: str, options: SourceOptions) -> Feature:
        """Returns the feature that holds the files."""
        return make_feature(self.content, "bytes", media_type=media_type)

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options with the level of the class folders."""
        return msgspec.structs.replace(options, class_level=find_class_level(files, options))

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the features of a file and its labels.

        Raises:
            UsageError: If some files lie in class folders and others do not, labels and files do not go together, or
                an optional package is not installed.
            BadInputError: If a file is of another kind, unless bad rows are tolerated.
        """
        if not files:
            raise BadInputError(f"there are no {self.words.many}")
        self.check_options(options)
        labels = self._labels(files, options)
        classes = classes_of(files, self.words.one, options) if labels is None else ()
        media_types = self._media_types(files, options)
        media_type = media_types.pop() if len(media_types) == 1 else f"{self.content}/*"
        return (
            self.content_feature(media_type, options),
            *((make_feature("label", "int64", vocabulary=classes),) if classes else ()),
            make_feature("filename", "string"),
            *(make_feature(name, "float32" if name in self.fractions else "int64") for name in self.numbers),
            *(labels.features if labels is not None else ()),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on classes, and on labels and files that do not go together."""
        labels = self._labels(files, options)
        if labels is None:
            return class_notes(files, self.words.many, options)
        return (*labels.notes, *unlabelled_notes(files, labels.matching.positions, self.words.many))

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the list of files."""
        return split_files(files, self.split_bytes, _MIN_SPLIT_FILES)

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the files of one split."""
        reader = _Reader(self, files, self._labels(files, options, features), features, options)
        if self.is_cut:
            for index in range(split.file_start, split.file_stop):
                yield from reader.read_cut(index)
            return
        limit = min(options.max_record_bytes, _MAX_COLUMN_BYTES - self.batch_bytes)
        for start, stop in cut_batches(split, files, self.batch_bytes, limit):
            if files[start].num_bytes > limit:
                yield reader.refuse(start, f"it has more than the {format_size(limit)} that a record may have")
            else:
                yield from reader.read(start, stop)

    def refusal(self, file: RawFile, why: str) -> BadInputError:
        """Returns the error for a file that is of no use."""
        what = f"{self.words.content} cannot be used"
        return BadInputError(what, where=place(file), why=why, next_step=_REPLACE)

    def _labels(
        self, files: tuple[RawFile, ...], options: SourceOptions, known: Features | None = None
    ) -> FileLabels | None:
        return load_labels(files, options, (self.content, "filename", *self.numbers), self.words.many, known)

    def _media_types(self, files: tuple[RawFile, ...], options: SourceOptions) -> set[str]:
        found: set[str] = set()
        for file, head in zip(files, read_heads(files, _TYPE_BYTES), strict=True):
            media_type = self.media_type(head, file.name)
            if media_type is not None:
                found.add(media_type)
            elif not options.tolerates_bad_rows:
                raise self.refusal(file, not_expected(read_head(file, HEAD_BYTES), self.words.expected))
        if not found:
            raise BadInputError(f"there are no {self.words.many}", why=self.words.none)
        return found


def not_expected(head: bytes, expected: str) -> str:
    """Returns the fault of a file of another kind, by its first bytes."""
    return f"content is {text_kind(head)}, not {expected}"


class _Reader:
    """Reads the files of one split.

    Args:
        options: Say how they are read, and what is refused.
    """

    def __init__(
        self,
        source: MediaSource,
        files: tuple[RawFile, ...],
        labels: FileLabels | None,
        features: Features,
        options: SourceOptions,
    ) -> None:
        self._source = source
        self._files = files
        self._labels = labels
        self._options = options
        self._rows = WholeRows(files, features, options)

    def refuse(self, index: int, why: str) -> RowBatch:
        """Returns a batch without rows, of one file that is not read."""
        file = self._files[index]
        self._rows.reject(index, self._source.refusal(file, why), read_head(file, MAX_RAW_BYTES))
        return self._rows.nothing()

    def read(self, start: int, stop: int) -> Iterator[RowBatch]:
        """Yields some files; in several batches where their content takes up much more room than they do."""
        whole = read_whole_files(self._files[start:stop])
        content, bounds = memoryview(whole.data).cast("B"), whole.offsets.tolist()

        def raw_of(index: int) -> bytes:
            first, last = bounds[index - start], bounds[index - start + 1]
            return bytes(content[first : min(last, first + MAX_RAW_BYTES)])

        found: list[Found] = []
        indices: list[int] = []
        num_bytes = 0
        for index, first, last in zip(range(start, stop), bounds, bounds[1:], strict=False):
            file = self._files[index]
            try:
                one = self._source.examine(content[first:last], file.name, self._options)
            except self._source.unusable as error:
                self._rows.reject(index, self._source.refusal(file, str(error)), raw_of(index))
                continue
            num_bytes += last - first if one.samples is None else one.samples.nbytes
            found.append(one)
            indices.append(index)
            if num_bytes >= self._source.batch_bytes and index + 1 < stop:
                yield self._batch(whole, start, found, indices, raw_of)
                found, indices, num_bytes = [], [], 0
        yield self._batch(whole, start, found, indices, raw_of)

    def read_cut(self, index: int) -> Iterator[RowBatch]:
        """Yields the rows of a file that is several; those before a damage count."""
        file, found, num_rows, num_bytes = self._files[index], list[Found](), 0, 0
        try:
            with guard_unchanged(file), open_raw(file) as content:
                for row in self._source.cut(content, file.name, self._options):
                    found.append(row)
                    num_bytes += sum(map(len, row.parts))
                    if num_bytes >= self._source.batch_bytes:
                        yield self._cut_batch(index, num_rows, found)
                        num_rows, num_bytes, found = num_rows + len(found), 0, []
        except self._source.unusable as error:
            self._rows.reject(index, self._source.refusal(file, str(error)), read_head(file, MAX_RAW_BYTES))
        except OSError as error:
            raise StorageError("the file cannot be read", where=place(file), why=str(error)) from error
        yield self._cut_batch(index, num_rows, found)

    def _cut_batch(self, index: int, first_row: int, found: Sequence[Found]) -> RowBatch:
        if not found:
            return self._rows.nothing()
        positions = np.full(len(found), index, np.int64)
        labels = {} if self._labels is None else self._labels.take(positions)
        content = pa.array([row.parts for row in found], pa.list_(pa.binary()))
        content = content.flatten() if self._source.content_feature("", self._options).is_scalar else content
        return self._rows.batch(
            self._columns(content, found, positions, labels),
            positions.tolist(),
            lambda index: read_head(self._files[index], MAX_RAW_BYTES),
            first_row + np.arange(len(found), dtype=np.uint64),
        )

    def _batch(
        self,
        whole: WholeFiles,
        start: int,
        found: Sequence[Found],
        indices: Sequence[int],
        raw_of: Callable[[int], bytes],
    ) -> RowBatch:
        if not found:
            return self._rows.nothing()
        positions = np.array(indices, np.int64)
        labels = {} if self._labels is None else self._labels.take(positions)
        if DECLARED_SIZE[0] in labels and "width" in self._source.numbers:
            fits = self._reject_other_sizes(found, labels, indices, raw_of)
            if not fits.any():
                return self._rows.nothing()
            positions, labels = positions[fits], {name: c.filter(pa.array(fits)) for name, c in labels.items()}
            found, indices = [one for one, is_kept in zip(found, fits, strict=True) if is_kept], positions.tolist()
        samples = [one.samples.reshape(-1) for one in found if one.samples is not None]
        column = as_lists(samples) if samples else as_bytes(whole, positions - start)
        return self._rows.batch(self._columns(column, found, positions, labels), indices, raw_of)

    def _reject_other_sizes(
        self,
        found: Sequence[Found],
        labels: Mapping[str, pa.Array],
        indices: Sequence[int],
        raw_of: Callable[[int], bytes],
    ) -> npt.NDArray[np.bool_]:
        """Returns which images have the size that their boxes were drawn on, turned or not, and rejects the others."""
        places = [self._source.numbers.index(name) for name in ("width", "height")]
        sizes = np.array([[one.numbers[i] for i in places] for one in found], np.float64)
        declared = np.stack([labels[name].fill_null(np.nan).to_numpy() for name in DECLARED_SIZE], axis=1)
        # Some tools are a pixel off, leave a size out, or write one side alone.
        differs = [(np.abs(declared - of) > 1).any(axis=1) for of in (sizes, sizes[:, ::-1])]
        fits = np.logical_not(differs[0] & differs[1])
        for row in np.flatnonzero(~fits).tolist():
            said, real = (f"{int(width)}x{int(height)}" for width, height in (declared[row], sizes[row]))
            error = BadInputError(
                "the boxes are of an image of another size",
                where=place(self._files[indices[row]]),
                why=f"the labels say {said} pixels, and it has {real}",
                next_step="Give the labels of these images, or take the size out of the labels if the boxes fit",
            )
            self._rows.reject(indices[row], error, raw_of(indices[row]))
        return fits

    def _columns(
        self,
        content: pa.Array,
        found: Sequence[Found],
        positions: npt.NDArray[np.int64],
        labels: Mapping[str, pa.Array],
    ) -> Mapping[str, pa.Array]:
        files = [self._files[i] for i in positions.tolist()]
        columns = {
            self._source.content: content,
            "label": pa.array([class_of(f, self._options) for f in files], pa.string()),
            "filename": pa.array([f.name for f in files], pa.string()),
        }
        for position, name in enumerate(self._source.numbers):
            type_ = pa.float32() if name in self._source.fractions else pa.int64()
            columns[name] = pa.array([one.numbers[position] for one in found], type_)
        if self._labels is not None:
            columns |= labels
            if self._labels.is_relative:
                # The boxes of YOLO are parts of the upright image.
                turned = pa.array([orientation_of(value.as_py()) >= 5 for value in content])
                width, height = columns["width"], columns["height"]
                sides = pc.if_else(turned, height, width), pc.if_else(turned, width, height)
                columns["boxes"] = in_pixels(columns["boxes"], *sides)
        return columns

"""libsvm and SVMlight text: `LABEL [qid:N] INDEX:VALUE ...`, a row a line, as a sparse or a dense vector."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit import file_types
from shardkit.errors import NoRowsError, UsageError
from shardkit.features import Feature, Features, make_feature
from shardkit.messages import shown
from shardkit.sources.base import BATCH_BYTES, RawFile, SourceOptions
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.columns.sampling import HEAD_BYTES, sample_files
from shardkit.sources.files.streams import open_stream, read_head
from shardkit.sources.text.blocks import as_array
from shardkit.sources.text.decoding_errors import find_decoding_errors, other_encoding
from shardkit.sources.text.records import LINES, read_parts, take_texts
from shardkit.sources.text.source import TextSource
from shardkit.sources.text.type_inference import examine, fits_float32
from shardkit.units import MiB, format_count

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_INTEGER = r"[-+]?\d{1,18}"
_PAIRS = rf"(?:\s+qid:\d{{1,18}})?(?:\s+\d{{1,18}}:{_NUMBER})*\s*(?:#.*)?$"
_NAME = re.compile(r"\.(csv|tsv|jsonl?|ndjson)(\.\w+)?$", re.IGNORECASE)
_OWN_NAME = re.compile(rf"\.(libsvm|svmlight|svm)({file_types.COMPRESSED_PATTERN})?$", re.IGNORECASE)
_MAX_SIZE = 2**16
_DENSE_BYTES = 64 * MiB
# A line of fewer bytes has one pair or two.
_LINE_BYTES = 16


class _Rows(NamedTuple):
    """Parsed lines.

    Attributes:
        labels: Text of each row's labels, with commas between several.
        queries: The number behind `qid:`, null where a row has none.
        counts: Pairs of each row.
        indices, values: Of all pairs, one row behind the other; values are text.
    """

    labels: pa.Array
    queries: pa.Array
    counts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    values: pa.Array


@dataclass(frozen=True)
class LibsvmSource(TextSource):
    """libsvm text.

    Attributes:
        format: `libsvm`.
    """

    format: str = "libsvm"

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is called so, or nearly all its lines are a label and pairs with ascending indices."""
        is_called_so = _OWN_NAME.search(name) is not None and file_types.format_of(head, name) == "csv"
        return is_called_so or (file_types.is_libsvm(head) and _NAME.search(name) is None)

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options with the size of a dense vector, for which all lines are read."""
        if options.vector == "sparse":
            return options
        least, largest = 1, 0
        for file in files:
            for rows in _good_rows(file, None):
                found = rows.indices
                least, largest = int(min(found.min(initial=1), least)), int(max(found.max(initial=0), largest))
        size = largest - least + 1
        if size > _MAX_SIZE:
            raise UsageError(
                f"a dense vector would have {format_count(size)} values",
                why=f"{format_count(_MAX_SIZE)} are the most",
                next_step="Leave --vector dense out",
            )
        return msgspec.structs.replace(options, vector_size=max(1, size), first_index=least)

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns `label`, `qid` if there is one, and `indices` and `values`, or `features` for a dense vector.

        The types are those of the first MiB of the files.
        """
        filled = [file for file in files if file.num_bytes]
        if not filled:
            raise NoRowsError(why="all input files are empty")
        parts = [_parsed(pa.array([], pa.string()), _NUMBER)]
        for file in sample_files(filled):
            if error := other_encoding(read_head(file, file_types.HEAD_BYTES), file):
                raise error
            parts += _good_rows(file, HEAD_BYTES)
        labels = pa.concat_arrays([part.labels for part in parts])
        single = pc.list_flatten(pc.split_pattern(labels, ","))
        are_several = bool(pc.any(pc.match_substring(labels, ",")).as_py())
        values = pa.concat_arrays([part.values for part in parts])
        number = "float32" if fits_float32(values) else "float64"
        kinds = examine(pc.utf8_ltrim(single, "+"))
        label_type = "int64" if kinds.kinds <= {"int"} else "float32" if kinds.fits_float32 else "float64"
        has_queries = any(part.queries.null_count < len(part.queries) for part in parts)
        return (
            make_feature("label", label_type, (None,) if are_several else ()),
            *((make_feature("qid", "int64", nullable=True),) if has_queries else ()),
            *(
                (make_feature("features", number, (options.vector_size,)),)
                if options.vector == "dense"
                else (make_feature("indices", "int64", (None,)), make_feature("values", number, (None,)))
            ),
        )

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns a note on the form of the vector."""
        if options.vector == "dense":
            number, first = format_count(options.vector_size), options.first_index
            return (f"dense vectors, values in each: {number}, the first of index {first}; 0 where a line has none",)
        return ("sparse vectors: indices as in the files, and values; --vector dense gives one vector a row",)

    def columns_of(self, texts: pa.Array, features: Features, options: SourceOptions) -> Mapping[str, pa.Array]:
        """Returns the columns of some lines. Raises BadValueError if a line is no libsvm."""
        by_name = {feature.name: feature for feature in features}
        label = by_name["label"]
        rows = _parsed(texts, _INTEGER if label.dtype == "int64" else _NUMBER)
        columns = {"label": _as_labels(rows.labels, label), "qid": rows.queries}
        values = rows.values.cast(pa.float64())
        if options.vector == "dense":
            columns["features"] = _as_dense(rows, values.to_numpy(), options)
        else:
            _check_unique(rows, "indices")
            offsets = pa.array(np.concatenate([[0], np.cumsum(rows.counts)]), pa.int32())
            columns["indices"] = pa.ListArray.from_arrays(offsets, pa.array(rows.indices))
            columns["values"] = pa.ListArray.from_arrays(offsets, values)
        return columns

    def block_bytes_of(self, options: SourceOptions) -> int:
        """Returns how much text makes a batch: less where dense vectors take up far more room."""
        if options.vector == "sparse":
            return self.batch_bytes
        return min(self.batch_bytes, max(4096, _DENSE_BYTES // (8 * options.vector_size) * _LINE_BYTES))


def _line(number: str) -> str:
    return rf"^\s*{number}(?:,{number})*{_PAIRS}"


def _good_rows(file: RawFile, num_bytes: int | None) -> Iterator[_Rows]:
    """Yields the rows of a file, up to so many bytes, without lines that are none: reading names those."""
    if not file.num_bytes:
        return
    with open_stream(file, is_read_through=num_bytes is None) as stream:
        for part in read_parts(
            stream, LINES, offset=0, stop=num_bytes, max_record_bytes=BATCH_BYTES, block_bytes=BATCH_BYTES
        ):
            data = as_array(part.data)
            texts = take_texts(data, LINES.find(data))
            if num_bytes is not None and part.offset + len(data) >= num_bytes:
                texts = texts[:-1]  # The last line may be cut off.
            faults = find_decoding_errors(texts, BATCH_BYTES, np.zeros(len(texts), np.int64))
            texts = texts.take(pa.array(np.delete(np.arange(len(texts)), list(faults)))).cast(pa.string())
            yield _parsed(texts.filter(pc.match_substring_regex(texts, _line(_NUMBER))), _NUMBER)


def _parsed(texts: pa.Array, number: str) -> _Rows:
    fits = np.asarray(pc.match_substring_regex(texts, _line(number)).to_numpy(zero_copy_only=False), bool)
    if not fits.all():
        row = int(np.argmin(fits))
        raise _fault(row, texts[row].as_py(), number)
    texts = pc.replace_substring_regex(texts, r"\s*#.*$", "")
    tokens = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(texts))
    lengths = tokens.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    flat = tokens.flatten()
    starts = np.cumsum(lengths) - lengths
    is_query = np.asarray(pc.starts_with(flat, "qid:").to_numpy(zero_copy_only=False), bool)
    is_pair = ~is_query
    is_pair[starts] = False
    rows = np.repeat(np.arange(len(texts)), lengths)
    queries = np.zeros(len(texts), np.int64)
    queries[rows[is_query]] = pc.utf8_slice_codeunits(flat.filter(pa.array(is_query)), 4).cast(pa.int64()).to_numpy()
    lacks = np.ones(len(texts), bool)
    lacks[rows[is_query]] = False
    halves = pc.list_flatten(pc.split_pattern(flat.filter(pa.array(is_pair)), ":"))
    return _Rows(
        labels=flat.take(pa.array(starts)),
        queries=pa.array(queries, mask=lacks),
        counts=np.bincount(rows[is_pair], minlength=len(texts)),
        indices=halves.take(pa.array(np.arange(0, len(halves), 2))).cast(pa.int64()).to_numpy(),
        values=pc.utf8_ltrim(halves.take(pa.array(np.arange(1, len(halves), 2))), "+"),
    )


def _fault(row: int, line: str, number: str) -> BadValueError:
    """Returns the error about the first word of a line that is not as it should be."""
    label, *words = line.partition(" #")[0].split()
    if line.startswith("#"):
        return BadValueError("label", row, "a number (--comment '#' leaves comments out)", shown(line))
    if re.fullmatch(rf"{number}(?:,{number})*", label) is None:
        kind = "a whole number" if number == _INTEGER else "a number"
        return BadValueError("label", row, f"{kind}, and pairs such as 3:0.5 behind it", shown(label))
    bad = next((word for word in words if re.fullmatch(rf"\d{{1,18}}:{_NUMBER}", word) is None), line)
    return BadValueError("values", row, "pairs of an index and a number such as 3:0.5", shown(bad))


def _as_labels(labels: pa.Array, feature: Feature) -> pa.Array:
    type_ = pa.int64() if feature.dtype == "int64" else pa.float64()
    if not feature.is_scalar:
        several = pc.split_pattern(labels, ",")
        single = pc.utf8_ltrim(several.flatten(), "+").cast(type_)
        return pa.ListArray.from_arrays(several.offsets, single)
    have_several = pc.match_substring(labels, ",")
    if pc.any(have_several).as_py():
        row = pc.index(have_several, True).as_py()
        raise BadValueError("label", row, "one label", shown(labels[row].as_py()))
    return pc.utf8_ltrim(labels, "+").cast(type_)


def _as_dense(rows: _Rows, values: npt.NDArray[np.float64], options: SourceOptions) -> pa.Array:
    size, num_rows = options.vector_size, len(rows.counts)
    owners = np.repeat(np.arange(num_rows), rows.counts)
    places = rows.indices - options.first_index
    is_outside = (places < 0) | (places >= size)
    if is_outside.any():
        pair = int(np.argmax(is_outside))
        last = options.first_index + size - 1
        expected = f"indices from {options.first_index} to {last}"
        raise BadValueError("features", int(owners[pair]), expected, str(rows.indices[pair]))
    _check_unique(rows, "features")
    flat = np.zeros(num_rows * size)
    flat[owners * size + places] = values
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), size)


def _check_unique(rows: _Rows, column: str) -> None:
    owners = np.repeat(np.arange(len(rows.counts)), rows.counts)
    if (np.diff(rows.indices)[np.diff(owners) == 0] > 0).all():
        return
    order = np.lexsort((rows.indices, owners))
    indices, owners = rows.indices[order], owners[order]
    twice = np.flatnonzero((np.diff(indices) == 0) & (np.diff(owners) == 0))
    if len(twice):
        pair = int(twice[0])
        raise BadValueError(column, int(owners[pair]), "each index once", f"{indices[pair]} twice")

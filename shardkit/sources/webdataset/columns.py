"""What the extensions of a WebDataset hold: features from the first samples, and columns from the rest."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardkit.encoding.gzip_files import GzipStream
from shardkit.errors import UsageError
from shardkit.features import Feature, Features, arrow_schema, make_feature
from shardkit.file_types import image_type_of
from shardkit.media.image_headers import ImageHeaderError, read_header
from shardkit.messages import shown
from shardkit.sources.arrays.npy_bytes import NpyError, NpyHeader, parse_npy_header, read_npy
from shardkit.sources.columns.casting import BadValueError, cast_column
from shardkit.sources.files.streams import read_exactly
from shardkit.sources.json.decoder import LINE_ERRORS, RowDecoder
from shardkit.sources.json.keys import repeated_keys
from shardkit.sources.json.seen_values import MixedColumn
from shardkit.sources.json.type_inference import MAX_DEPTH, ShapeObserver, is_too_deep
from shardkit.sources.webdataset.samples import Sample
from shardkit.units import format_size

KEY = "__key__"

Kind = Literal["bytes", "image", "integer", "text", "json", "npy"]

_IMAGES = frozenset({"jpg", "jpeg", "png", "webp"})
_MEDIA_TYPES = {"flac": "audio/flac", "wav": "audio/wav", "mp3": "audio/mpeg", "ogg": "audio/ogg"}
_MEDIA_TYPES |= {"mp4": "video/mp4", "mov": "video/quicktime", "mkv": "video/x-matroska", "webm": "video/webm"}
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_IMAGES, "image"),
    **dict.fromkeys(("cls", "index"), "integer"),
    **dict.fromkeys(("txt", "text", "transcript"), "text"),
    "json": "json",
    "npy": "npy",
}
_INTEGER = re.compile(rb"\s*-?(0|[1-9][0-9]{0,18})\s*")
_MAX_INTEGER = 2**63
_NPY_MEDIA_TYPE = "application/x-npy"
_KEYS = re.compile(rb'"\s*:')


def kind_of(extension: str) -> Kind:
    """Returns how the content behind an extension is read; its last part says so, in front of `.gz`."""
    kind = _KINDS.get(extension.removesuffix(".gz").rpartition(".")[2], "bytes")
    return "bytes" if kind == "image" and extension.endswith(".gz") else kind


def extension_of(feature: Feature) -> str:
    """Returns the extension that a feature's values come from."""
    return feature.name.partition("/")[0]


def infer_columns(samples_by_file: Sequence[Sequence[Sample]], max_record_bytes: int) -> Features:
    """Returns the features that samples show: the key, then the extensions as they are first met.

    An extension is nullable if some file has it in less than half of its samples; otherwise a sample without it is
    incomplete.

    Args:
        samples_by_file: The first samples of some files.
        max_record_bytes: What a compressed value may become.

    Raises:
        UsageError: If an extension holds what no example can.
    """
    samples = [s for file_samples in samples_by_file for s in file_samples]
    extensions = list(dict.fromkeys(e for s in samples for e in s.data))
    features: list[Feature] = [make_feature(KEY, "string")]
    for extension in extensions:
        if extension == KEY or "\0" in extension:
            raise UsageError(
                f"the extension {shown(extension)} cannot name a column",
                next_step="Rename such members in the tar, or leave them out of it",
            )
        nullable = any(
            2 * sum(extension in s.data for s in file_samples) < len(file_samples) for file_samples in samples_by_file
        )
        values = [(s.key, s.data[extension]) for s in samples if extension in s.data]
        features += _infer_extension(extension, _unpacked(extension, values, max_record_bytes), nullable)
    return tuple(features)


def required_extensions(features: Features) -> tuple[str, ...]:
    """Returns the extensions that every sample must have."""
    return tuple(dict.fromkeys(extension_of(f) for f in features if not f.nullable and f.name != KEY))


def build_batch(
    samples: Sequence[Sample], features: Features, max_pixels: int, max_record_bytes: int
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Returns the columns of samples, and how many values were rounded, by column.

    Raises:
        BadValueError: If a sample does not fit; not necessarily the first one.
    """
    columns: list[pa.Array] = []
    rounded: dict[str, int] = {}
    of_json: dict[str, pa.RecordBatch] = {}
    for feature in features:
        extension = extension_of(feature)
        if feature.name == KEY:
            columns.append(pa.array([s.key for s in samples], pa.string()))
            continue
        if extension in of_json:
            columns.append(of_json[extension].column(feature.name))
            continue
        blobs = [_plain(extension, s.data.get(extension), row, max_record_bytes) for row, s in enumerate(samples)]
        if feature.name != extension:
            batch, own_rounded = _json_columns(extension, blobs, features)
            of_json[extension] = batch
            rounded.update(own_rounded)
            columns.append(batch.column(feature.name))
            continue
        column, num_rounded = _column(feature, blobs, max_pixels)
        columns.append(column)
        if num_rounded:
            rounded[feature.name] = num_rounded
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(features)), rounded


def _infer_extension(extension: str, values: list[tuple[str, bytes]], nullable: bool) -> list[Feature]:
    kind = kind_of(extension)
    blobs = [value for _, value in values]
    if kind == "image":
        found = {image_type_of(blob) for blob in blobs} - {None}
        media_type = found.pop() if len(found) == 1 else "image/*"
        return [make_feature(extension, "bytes", nullable=nullable, media_type=media_type)]
    if kind == "integer":
        dtype = "int64" if blobs and all(map(_is_integer, blobs)) else "string"
        return [make_feature(extension, dtype, nullable=nullable)]
    if kind == "text":
        return [make_feature(extension, "string", nullable=nullable)]
    if kind == "json":
        return _json_features(extension, values) or [make_feature(extension, "json", nullable=nullable)]
    if kind == "npy":
        return [_npy_feature(extension, values, nullable)]
    media_type = _MEDIA_TYPES.get(extension.rpartition(".")[2])
    return [make_feature(extension, "bytes", nullable=nullable, media_type=media_type)]


def _is_integer(blob: bytes) -> bool:
    return _INTEGER.fullmatch(blob) is not None and -_MAX_INTEGER <= int(blob) < _MAX_INTEGER


def _json_features(extension: str, values: list[tuple[str, bytes]]) -> list[Feature]:
    # Returns none unless all are objects with the same keys, whose values go together.
    observer = ShapeObserver()
    rows: list[tuple[str, dict[str, Any]]] = []
    try:
        for key, blob in values:
            if is_too_deep(blob) or _repeats_a_key(blob):
                return []
            rows.append((key, msgspec.json.decode(blob, type=dict[str, Any])))
        if not rows or any(set(row) != set(rows[0][1]) for _, row in rows):
            return []
        observer.add(rows)
        # Text of large integers would be one more type of the same key.
        found = () if observer.has_large_integers() else observer.features()
    except (msgspec.DecodeError, MixedColumn, UsageError, UnicodeError, RecursionError):
        return []
    return [msgspec.structs.replace(f, name=f"{extension}/{f.name}") for f in found]


def _npy_feature(extension: str, values: list[tuple[str, bytes]], nullable: bool) -> Feature:
    headers: list[NpyHeader] = []
    for key, blob in values:
        try:
            headers.append(parse_npy_header(blob))
        except NpyError as error:
            if error.is_pickled:
                raise UsageError(
                    f"the extension {shown(extension)} holds pickled objects",
                    where=f"sample {shown(key)}",
                    why="which run code when they are read",
                    next_step="Write arrays of numbers",
                ) from error
    dtypes = {h.dtype for h in headers}
    shapes = {h.shape for h in headers}
    dtype = _common_dtype(dtypes)
    if dtype is not None and len(shapes) == 1 and 0 not in (shape := next(iter(shapes))):
        return make_feature(extension, dtype, shape, nullable=nullable)
    if dtype is not None and all(len(shape) == 1 for shape in shapes):
        return make_feature(extension, dtype, (None,), nullable=nullable)
    return make_feature(extension, "bytes", nullable=nullable, media_type=_NPY_MEDIA_TYPE)


def _common_dtype(dtypes: set[str]) -> str | None:
    """Returns the least numeric type that holds all values of some, None if there is none."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    kinds = {dtype.rstrip("0123456789") for dtype in dtypes}
    if not kinds or not kinds <= {"int", "uint", "float"} or ("float" in kinds and dtypes & {"int64", "uint64"}):
        return None
    common = np.result_type(*dtypes).name
    return common if "float" in kinds or not common.startswith("float") else None


def _unpacked(extension: str, values: list[tuple[str, bytes]], limit: int) -> list[tuple[str, bytes]]:
    # Reading reports the values that cannot be unpacked.
    found = []
    for row, (key, blob) in enumerate(values):
        try:
            found.append((key, _plain(extension, blob, row, limit) or b""))
        except BadValueError:
            continue
    return found


def _plain(extension: str, blob: bytes | None, row: int, limit: int) -> bytes | None:
    if blob is None or not extension.endswith(".gz") or kind_of(extension) == "bytes":
        return blob
    try:
        found = read_exactly(GzipStream(io.BytesIO(blob)), limit + 1)
    except (zlib.error, EOFError) as error:
        raise BadValueError(extension, row, "a gzip file", f"one that is cut off or damaged ({error})") from error
    if len(found) > limit:
        raise BadValueError(extension, row, f"at most {format_size(limit)} (--max-record-bytes)", "more")
    return found


def _column(feature: Feature, blobs: list[bytes | None], max_pixels: int) -> tuple[pa.Array, int]:
    if feature.dtype == "bytes":
        if (feature.media_type or "").startswith("image/"):
            _check_images(feature, blobs, max_pixels)
        return cast_column(pa.array(blobs, pa.binary()), feature)
    if kind_of(feature.name) == "npy":
        return _npy_column(feature, blobs)
    texts = cast_column(pa.array(blobs, pa.binary()), make_feature(feature.name, "string", nullable=True)).column
    if feature.dtype == "string":
        if feature.is_json:
            for row, blob in enumerate(blobs):
                _check_depth(feature.name, row, blob or b"")
        return cast_column(texts, feature)
    return cast_column(pc.utf8_trim_whitespace(texts), feature)


def _check_images(feature: Feature, blobs: list[bytes | None], max_pixels: int) -> None:
    for row, blob in enumerate(blobs):
        if blob is None:
            continue
        try:
            media_type = read_header(blob, max_pixels).media_type
        except ImageHeaderError as error:
            raise BadValueError(feature.name, row, "an image that can be used", str(error)) from error
        if feature.media_type not in ("image/*", media_type):
            raise BadValueError(feature.name, row, feature.media_type or "", media_type)


def _json_columns(
    extension: str, blobs: list[bytes | None], features: Features
) -> tuple[pa.RecordBatch, dict[str, int]]:
    prefix = f"{extension}/"
    own = tuple(f for f in features if f.name.startswith(prefix))
    bare = tuple(msgspec.structs.replace(f, name=f.name.removeprefix(prefix)) for f in own)
    lines = []
    for row, blob in enumerate(blobs):
        _check_depth(extension, row, blob or b"")
        # A tab is white space wherever a line feed is, and as wrong inside of a string.
        line = b"{}" if blob is None else blob.replace(b"\n", b"\t")
        if not line.strip():
            raise BadValueError(extension, row, "a JSON object", "nothing")
        lines.append(line)
    decoder = RowDecoder(bare)
    data = b"\n".join(lines)
    try:
        batch, rounded = decoder.decode(data)
    except BadValueError as error:
        raise BadValueError(f"{extension}/{error.column}", error.row, error.expected, error.got) from error
    except LINE_ERRORS as error:
        raise BadValueError(extension, 0, "keys and types like those of the others", _reason(error)) from error
    if decoder.may_repeat_keys(data, batch):
        for row, line in enumerate(lines):
            if _repeats_a_key(line):
                raise BadValueError(extension, row, "each key once", "a key twice")
    named = pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema(own))
    return named, {f"{prefix}{name}": count for name, count in rounded.items()}


def _check_depth(extension: str, row: int, blob: bytes) -> None:
    if is_too_deep(blob):
        raise BadValueError(extension, row, f"at most {MAX_DEPTH} levels of nesting", "more")


def _repeats_a_key(blob: bytes) -> bool:
    # Counted in the text first: parsing with an eye on the keys takes ten times as long.
    value = msgspec.json.decode(blob)
    return len(_KEYS.findall(blob)) != _count_keys(value) and bool(repeated_keys(blob))


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if isinstance(value, list) else 0


def _npy_column(feature: Feature, blobs: list[bytes | None]) -> tuple[pa.Array, int]:
    arrays: list[npt.NDArray[Any] | None] = []
    for row, blob in enumerate(blobs):
        try:
            array = None if blob is None else read_npy(blob)
        except NpyError as error:
            raise BadValueError(feature.name, row, "a NumPy array of numbers", str(error)) from error
        is_vector = feature.shape == (None,)
        if array is not None and (array.ndim != 1 if is_vector else array.shape != feature.shape):
            got = f"shape {list(array.shape)}"
            raise BadValueError(feature.name, row, feature.describe_type(), got)
        arrays.append(array)
    if len({a.dtype for a in arrays if a is not None}) <= 1:
        return cast_column(_arrow_column(feature, arrays), feature)
    pieces, num_rounded = [], 0
    for row, array in enumerate(arrays):
        try:
            piece, count = cast_column(_arrow_column(feature, [array]), feature)
        except BadValueError as error:
            raise BadValueError(feature.name, row, error.expected, error.got) from error
        pieces.append(piece)
        num_rounded += count
    return pa.concat_arrays(pieces), num_rounded


def _arrow_column(feature: Feature, arrays: list[npt.NDArray[Any] | None]) -> pa.Array:
    present = [a.reshape(-1) for a in arrays if a is not None]
    values = pa.array(np.concatenate(present)) if present else pa.nulls(0, feature.value_type)
    mask = np.array([a is None for a in arrays])
    if feature.is_scalar:
        positions = np.where(mask, -1, np.cumsum(~mask) - 1)
        return values.take(pa.array(positions, pa.int64(), mask=mask))
    offsets = np.cumsum([0, *(0 if a is None else a.size for a in arrays)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(mask) if mask.any() else None)


def _reason(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "an integer beyond int64"
    return str(error).removeprefix("JSON is malformed: ").replace("`$[0]", "`$")

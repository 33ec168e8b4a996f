"""Measures the sizes of rows on a few of them: bytes in the spool and in shards for each byte of input."""

from __future__ import annotations

import lzma
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.conversion.plan import Plan
from shardkit.encoding.codec import compress_block
from shardkit.encoding.encoder import encode_batch
from shardkit.encoding.example import EncodedRows
from shardkit.encoding.kernel import gather
from shardkit.errors import ShardkitError
from shardkit.features import Features
from shardkit.sources import source_of
from shardkit.sources.base import InputSplit, RawFile, RowBatch
from shardkit.sources.files.streams import new_xz, open_stored
from shardkit.units import KiB, MiB

_NUM_SPLITS = 3
_SPLIT_BYTES = 2 * MiB
_ENCODED_BYTES = 4 * MiB
_BLOCK_BYTES = MiB
_MAX_SECONDS = 1.0
# bzip2 gives whole blocks of 900 kB or nothing.
_HEAD_BYTES = {"gzip": 512 * KiB, "zstd": 512 * KiB, "bz2": 4 * MiB, "xz": 4 * MiB}
_PIECE_BYTES = 16 * KiB
_MAX_EXPANDED_BYTES = 64 * MiB


class Sample(NamedTuple):
    """What a byte of input becomes.

    Attributes:
        compressed_fraction: What is left of framed bytes in the shards.
    """

    num_rows: float
    num_framed_bytes: float
    compressed_fraction: float


def measure_sample(plan: Plan) -> Sample | None:
    """Returns the sizes of a few rows of the inputs before transformations, None if they cannot be read.

    Nothing of the user's runs here, and nothing is decoded that would not be read anyway.
    """
    filled = [s for s in plan.input_splits if s.num_bytes]
    if not filled:
        return None
    found = [f for s in _spread(filled) if (f := _measure_split(plan, s)) is not None]
    num_bytes = sum(f.num_bytes for f in found)
    if num_bytes <= 0:
        return None
    return Sample(
        num_rows=sum(f.num_rows for f in found) / num_bytes,
        num_framed_bytes=sum(f.num_framed_bytes for f in found) / num_bytes,
        compressed_fraction=_compressed_fraction(plan, [f.block for f in found if f.block]),
    )


def measure_expansion(file: RawFile) -> float:
    """Returns how many times as large a file becomes when it is decompressed, judged by its head."""
    if file.compression not in _HEAD_BYTES or file.num_bytes == 0:
        return 1.0
    try:
        with open_stored(file) as stream:
            head = stream.read(_HEAD_BYTES[file.compression])
    except ShardkitError:
        return 1.0
    return max(_expanded_size(head, file.compression) / max(1, len(head)), 1e-3)


def _compressed_fraction(plan: Plan, blocks: Sequence[bytes]) -> float:
    if not blocks:
        return 1.0
    recipe = plan.recipe
    sizes = (len(compress_block(b, recipe.compression, recipe.compression_level)) for b in blocks)
    return sum(sizes) / sum(map(len, blocks))


def _spread(splits: list[InputSplit]) -> list[InputSplit]:
    # Evenly over the bytes: of files of several kinds the large ones count.
    ends = np.cumsum([s.num_bytes for s in splits])
    wanted = (np.arange(_NUM_SPLITS) + 0.5) / _NUM_SPLITS * ends[-1]
    return [splits[i] for i in np.unique(np.searchsorted(ends, wanted, side="right")).tolist()]


class _Measured(NamedTuple):
    """Input bytes of a stretch, the sizes of their rows, and some of the records for compression."""

    num_bytes: float
    num_rows: int
    num_framed_bytes: float
    block: bytes


def _measure_split(plan: Plan, split: InputSplit) -> _Measured | None:
    for narrowed, num_bytes in (_narrowed(plan, split), (split, float(split.num_bytes))):
        try:
            return _measure(plan, narrowed, num_bytes)
        except (ShardkitError, pa.ArrowException, OSError, ValueError):
            continue
    return None


def _narrowed(plan: Plan, split: InputSplit) -> tuple[InputSplit, float]:
    # Bytes of text and of the like may be cut anywhere for this; whole files and rows of arrays are whole.
    if split.parts:
        ends = np.cumsum([part.num_bytes for part in split.parts])
        stop = int(np.searchsorted(ends, _SPLIT_BYTES)) + 1
        return msgspec.structs.replace(split, parts=split.parts[:stop]), float(ends[:stop][-1])
    file = plan.files[split.file_start]
    if split.file_stop - split.file_start > 1:
        stop, num_bytes = split.file_start, 0
        while stop < split.file_stop and (stop == split.file_start or num_bytes < _SPLIT_BYTES):
            num_bytes += plan.files[stop].num_bytes
            stop += 1
        return msgspec.structs.replace(split, file_stop=stop, num_bytes=num_bytes), float(num_bytes)
    if file.compression is not None and split.start == split.stop == 0:
        return msgspec.structs.replace(split, stop=_SPLIT_BYTES), min(
            float(split.num_bytes), _SPLIT_BYTES / measure_expansion(file)
        )
    if split.stop - split.start == split.num_bytes > _SPLIT_BYTES:
        return msgspec.structs.replace(split, stop=split.start + _SPLIT_BYTES), float(_SPLIT_BYTES)
    units = split.stop - split.start
    if units > 1 and split.num_bytes > _SPLIT_BYTES:
        kept = max(1, units * _SPLIT_BYTES // split.num_bytes)
        return msgspec.structs.replace(split, stop=split.start + kept), split.num_bytes * kept / units
    return split, float(split.num_bytes)


def _measure(plan: Plan, split: InputSplit, num_bytes: float) -> _Measured:
    features = plan.transforms.input_features
    num_rows = num_encoded_rows = num_framed_bytes = 0
    block = b""
    until = time.monotonic() + _MAX_SECONDS
    for rows in _read(plan, split, features):
        num_rows += rows.batch.num_rows
        if num_framed_bytes < _ENCODED_BYTES and rows.batch.num_rows:
            encoded = encode_batch(rows.batch, features)
            num_encoded_rows += rows.batch.num_rows
            num_framed_bytes += len(encoded.data)
            block = block or _block_of(encoded, shuffle=plan.recipe.shuffle)
        if time.monotonic() > until:
            break  # The real size is larger than this estimate then.
    # Rows that were only counted are taken to be as large as the encoded ones.
    framed = num_framed_bytes * num_rows / max(1, num_encoded_rows)
    return _Measured(num_bytes, num_rows, framed, block)


def _block_of(encoded: EncodedRows, *, shuffle: bool) -> bytes:
    # Rows in a random order compress less than those of one stretch.
    sizes = encoded.sizes
    order = np.random.default_rng(0).permutation(len(sizes)) if shuffle else np.arange(len(sizes))
    stop = int(np.searchsorted(np.cumsum(sizes[order]), _BLOCK_BYTES)) + 1
    starts = np.cumsum(sizes) - sizes
    return bytes(gather(encoded.data, starts[order[:stop]], sizes[order[:stop]]))


def _read(plan: Plan, split: InputSplit, features: Features) -> Iterator[RowBatch]:
    # The cut may be in the middle of a row.
    options = msgspec.structs.replace(plan.recipe.source, tolerates_bad_rows=True)
    source = source_of(options)
    for part in split.parts or (split,):
        yield from source.read(part, plan.files, features, options)


def _expanded_size(head: bytes, compression: str) -> int:
    if compression == "xz":
        try:
            return len(new_xz().decompress(head, _MAX_EXPANDED_BYTES))
        except lzma.LZMAError:
            return 0
    num_bytes = 0
    stream = pa.CompressedInputStream(pa.BufferReader(head), compression)
    try:
        while (found := len(stream.read(_PIECE_BYTES))) and num_bytes < _MAX_EXPANDED_BYTES:
            num_bytes += found
    except (OSError, pa.ArrowException):
        pass  # The head ends in the middle.
    return num_bytes

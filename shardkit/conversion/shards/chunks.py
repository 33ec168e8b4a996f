"""Chunks: records on their way through an engine's shuffle, where workers share no disk.

A chunk holds pieces of runs that one unit of shards needs, about 1 MiB of them. Beam's own advice is elements of
that size: single records cost an engine more than their bytes, and 80 MB are the most that some take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from shardkit.conversion.extract.runs import Segment, loaded_segments
from shardkit.conversion.layout_math import Layout, block_bounds
from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.shards.layout import segments_of_run
from shardkit.storage import files as storage
from shardkit.units import MiB

UnitKey = tuple[int, int]

CHUNK_BYTES = MiB
# Key and size of a record.
ROW_BYTES = 12
# Bytes that wait for more of the same unit, all units together.
_MAX_WAITING_BYTES = 64 * MiB


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    group: int
    order: int
    piece: int
    num_records: int
    num_bytes: int


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Pieces, and for one after the other: framed records, keys of 8 bytes each, framed sizes of 4 bytes each."""

    pieces: list[_Piece]
    payload: bytes


class _Waiting(NamedTuple):
    pieces: list[_Piece]
    payload: bytearray


def cut_chunks(plan: Plan, layout: Layout, runs: Iterable[tuple[int, str]]) -> Iterator[tuple[UnitKey, bytes]]:
    """Yields pieces of runs for the units of shards, each with the position of its dataset split and of the unit.

    Args:
        plan: Of a conversion that hands over its files in a store.
        runs: Order and location of each.

    Raises:
        StorageError: If the store kept failing.
        OutOfSpaceError, UsageError: If a run does not fit on this machine.
    """
    waiting: dict[UnitKey, _Waiting] = {}
    num_waiting = 0
    for order, url in runs:
        for key, piece, payload in _pieces_of_run(plan, layout, order, url):
            held = waiting.setdefault(key, _Waiting([], bytearray()))
            held.pieces.append(piece)
            held.payload.extend(payload)
            num_waiting += len(payload)
            if len(held.payload) >= CHUNK_BYTES:
                num_waiting -= len(held.payload)
                yield key, _encode(waiting.pop(key))
        if num_waiting >= _MAX_WAITING_BYTES:
            yield from ((key, _encode(held)) for key, held in waiting.items())
            waiting, num_waiting = {}, 0
    yield from ((key, _encode(held)) for key, held in waiting.items())


def store_chunks(chunks: Iterable[bytes], path: Path) -> list[Segment]:
    """Writes chunks to a file and returns the segments that it holds then, in no order.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    segments: list[Segment] = []
    with storage.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for raw in chunks:
                chunk = msgspec.msgpack.decode(raw, type=_Chunk)
                start = file.tell()
                file.write(chunk.payload)
                for piece in chunk.pieces:
                    segments.append(_segment_at(piece, str(path), start))
                    start += piece.num_bytes + ROW_BYTES * piece.num_records
    return segments


def _pieces_of_run(plan: Plan, layout: Layout, order: int, url: str) -> Iterator[tuple[UnitKey, _Piece, bytes]]:
    local = plan.work_path("tmp", f"{order}.run")
    write_whole(local, storage.read_bytes(url))
    try:
        for key, segment in segments_of_run(plan, layout, order, str(local)):
            with loaded_segments([segment]) as loaded:
                starts = np.cumsum(loaded.sizes) - loaded.sizes
                for number, (first, stop) in enumerate(block_bounds(loaded.sizes, CHUNK_BYTES)):
                    num_bytes = int(loaded.sizes[first:stop].sum())
                    payload = b"".join(
                        (
                            loaded.data[int(starts[first]) : int(starts[first]) + num_bytes],
                            loaded.keys[first:stop].astype("<u8").tobytes(),
                            loaded.sizes[first:stop].astype("<u4").tobytes(),
                        )
                    )
                    yield key, _Piece(segment.group, order, number, stop - first, num_bytes), payload
    finally:
        local.unlink(missing_ok=True)


def _segment_at(piece: _Piece, path: str, start: int) -> Segment:
    # Each piece has the form of a run: its keys are behind its records, its sizes behind its keys.
    return Segment(
        group=piece.group,
        order=piece.order,
        path=path,
        first_record=0,
        num_records=piece.num_records,
        first_byte=start,
        num_bytes=piece.num_bytes,
        run_records=piece.num_records,
        run_bytes=start + piece.num_bytes,
        piece=piece.piece,
    )


def _encode(waiting: _Waiting) -> bytes:
    return msgspec.msgpack.encode(_Chunk(waiting.pieces, bytes(waiting.payload)))

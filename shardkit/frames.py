"""Follows the frames of a block and says of each record whether it is whole. Never raises, never reads past the end."""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardkit.tfrecord import FOOTER_BYTES, HEADER_BYTES, OVERHEAD_BYTES

Int64s = npt.NDArray[np.int64]

_LENGTH_BYTES = 8
_MASK_DELTA = np.uint32(0xA282EAD8)


class Frames(NamedTuple):
    """The frames of one block.

    Attributes:
        positions: Where each frame that could be followed starts; an entry more for the one that could not.
        num_followed: Frames that could be followed, with whole records or not.
        is_chain_whole: Whether they end with the block.
        starts, lengths: Of the whole records, without framing.
        indices: Position in the block of each whole record.
        problems: What is wrong with the other records, by position in the block.
    """

    positions: Int64s
    num_followed: int
    is_chain_whole: bool
    starts: Int64s
    lengths: Int64s
    indices: Int64s
    problems: dict[int, str]


def check_frames(block: bytes) -> Frames:
    """Returns the frames of a block; the chain ends at the first length that is damaged or too long."""
    positions, length_crcs, record_crcs, end_problem = _follow(block)
    stored: npt.NDArray[np.uint32] = np.ndarray((len(block) + 1,), "<u4", block + bytes(4), strides=(1,))
    frame_starts = np.array(positions, np.int64)
    lengths = np.diff(frame_starts) - OVERHEAD_BYTES
    frame_starts = frame_starts[:-1]
    problems: dict[int, str] = {}
    num_followed = len(lengths)
    bad_lengths = np.flatnonzero(_mask(length_crcs) != stored[frame_starts + _LENGTH_BYTES])
    if len(bad_lengths):
        num_followed = int(bad_lengths[0])
        end_problem = "the length of a record is damaged: its CRC32C does not match"
    if end_problem is not None:
        problems[num_followed] = end_problem
    starts, lengths = frame_starts[:num_followed] + HEADER_BYTES, lengths[:num_followed]
    is_whole = _mask(record_crcs[:num_followed]) == stored[starts + lengths]
    for i in np.flatnonzero(~is_whole).tolist():
        problems[i] = "a record is damaged: its CRC32C does not match"
    return Frames(
        positions=np.array(positions, np.int64)[: num_followed + 1],
        num_followed=num_followed,
        is_chain_whole=end_problem is None,
        starts=starts[is_whole],
        lengths=lengths[is_whole],
        indices=np.flatnonzero(is_whole),
        problems=problems,
    )


def _follow(block: bytes) -> tuple[list[int], list[int], list[int], str | None]:
    """Returns where frames start (and where they end), the CRC32Cs of their contents, and why they end too early."""
    crc32c = google_crc32c.value
    position, end = 0, len(block)
    positions: list[int] = [0]
    length_crcs: list[int] = []
    record_crcs: list[int] = []
    while position < end:
        left = end - position - OVERHEAD_BYTES
        if left < 0:
            return positions, length_crcs, record_crcs, f"a record is cut off: {end - position} bytes are left"
        header = block[position : position + _LENGTH_BYTES]
        length = int.from_bytes(header, "little")
        length_crc = crc32c(header)
        if length > left:
            stated = int.from_bytes(block[position + _LENGTH_BYTES : position + HEADER_BYTES], "little")
            if int(_mask([length_crc])[0]) != stated:
                return (
                    positions,
                    length_crcs,
                    record_crcs,
                    "the length of a record is damaged: its CRC32C does not match",
                )
            return (
                positions,
                length_crcs,
                record_crcs,
                f"a record is cut off: it claims {length} bytes, {left} are left",
            )
        start = position + HEADER_BYTES
        length_crcs.append(length_crc)
        record_crcs.append(crc32c(block[start : start + length]))
        position = start + length + FOOTER_BYTES
        positions.append(position)
    return positions, length_crcs, record_crcs, None


def _mask(crcs: list[int]) -> npt.NDArray[np.uint32]:
    crc = np.array(crcs, np.uint32)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA

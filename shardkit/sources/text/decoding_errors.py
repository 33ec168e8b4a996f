"""What keeps bytes from being text: another encoding, a NUL, too many of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardkit import file_types
from shardkit.errors import DamagedFileError
from shardkit.sources.base import RawFile, place
from shardkit.sources.text.blocks import Positions
from shardkit.sources.text.rejected_records import Problem
from shardkit.sources.text_heads import check_is_text
from shardkit.units import format_size


def find_decoding_errors(texts: pa.Array, max_record_bytes: int, first_bytes: Positions) -> dict[int, Problem]:
    """Returns the fault of each bad text, by its position; in order, and empty if all are well.

    Args:
        texts: Of the type `binary`, without nulls.
        first_bytes: Where each text starts in its file.
    """
    found_errors: dict[int, Problem] = {}
    too_long = pc.greater(pc.binary_length(texts), min(max_record_bytes, 2**31 - 1)).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(too_long).tolist():
        found_errors[row] = too_long_fault(max_record_bytes)
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    values = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]] if len(texts) else None
    if values is None or not len(values):
        return found_errors
    if not values.min():
        zeros = np.flatnonzero(values == 0) + offsets[0]
        rows = np.searchsorted(offsets, zeros, side="right") - 1
        found, first = np.unique(rows, return_index=True)
        for row, position in zip(found.tolist(), (zeros[first] - offsets[found]).tolist(), strict=True):
            why = f"at byte {position} of it; it is damaged, binary, or UTF-16 or UTF-32"
            found_errors.setdefault(row, Problem("a NUL byte is in the text", why))
    try:
        texts.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        wide = np.flatnonzero(values >= 0x80) + offsets[0]
        for row in np.unique(np.searchsorted(offsets, wide, side="right") - 1).tolist():
            if fault := _not_utf8(texts[row].as_py(), int(first_bytes[row])):
                found_errors.setdefault(row, fault)
    return dict(sorted(found_errors.items()))


def too_long_fault(max_record_bytes: int) -> Problem:
    """Returns the fault of a text that has too many bytes."""
    why = f"it has more than the {format_size(max_record_bytes)} that a record may have"
    return Problem("a text is too long", why, "Check that it is text with line ends, or raise --max-record-size")


def other_encoding(head: bytes, file: RawFile) -> DamagedFileError | None:
    """Returns the error for a file that begins with the mark of UTF-16 or UTF-32, or that is no text at all."""
    try:
        check_is_text(head, file)
    except DamagedFileError as error:
        return error
    foreign = file_types.foreign_format(head, file.name)
    return (
        None if foreign is None else DamagedFileError("the file is no text", where=place(file), why=f"it is {foreign}")
    )


def _not_utf8(text: bytes, first_byte: int) -> Problem | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        next_step = "Name the encoding with --encoding, such as cp1252 (of Windows) or latin-1"
        return Problem("the text is not UTF-8", f"not UTF-8 at byte {first_byte + error.start}", next_step)
    return None

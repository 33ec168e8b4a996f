"""Compares what the kernel and the reference say about the same records."""

import numpy as np

from shardkit.encoding import kernel_reference as reference


class DifferenceFound(Exception):
    """Two decoders disagree."""


def frame_all(records, behind=b""):
    """Returns a buffer of records, one close to the other, and their starts and lengths; with more bytes behind."""
    lengths = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(lengths) - lengths
    return b"".join([*records, behind]), starts, lengths


def exact(data):
    """Returns the bytes in memory of exactly their size; Python's own types have a zero behind them."""
    return np.frombuffer(data, np.uint8).copy()


def find_difference(kernel, frames, starts, lengths, specs):
    """Returns what differs between the kernel's and the reference's columns, None if nothing does."""
    expected = reference.decode(frames, starts, lengths, specs)
    columns, problems = kernel.decode(frames, starts, lengths, specs)
    found = np.frombuffer(problems, np.int64)
    if found.tolist() != expected.problems.tolist():
        return f"problems: expected {expected.problems.tolist()}, got {found.tolist()}"
    if len(columns) != len(specs):
        return f"{len(columns)} columns for {len(specs)} specs"
    for spec, ours, theirs in zip(specs, expected.columns, columns, strict=True):
        what = _column_difference(ours, theirs, memoryview(lengths).nbytes // 8)
        if what is not None:
            return f"{spec}: {what}"
    return None


def _column_difference(expected, got, num_rows):
    if len(expected) != len(got):
        return f"expected {len(expected)} buffers, got {len(got)}"
    if (expected[0] is None) != (got[0] is None):
        return f"expected validity {expected[0]}, got {got[0]}"
    if expected[0] is not None:
        bits = np.unpackbits(np.frombuffer(got[0], np.uint8), bitorder="little")
        wanted = np.unpackbits(expected[0], bitorder="little")
        if len(bits) < num_rows or bits[:num_rows].tolist() != wanted[:num_rows].tolist():
            return f"expected validity {wanted[:num_rows].tolist()}, got {bits[:num_rows].tolist()}"
    for i, (one, other) in enumerate(zip(expected[1:], got[1:], strict=True), start=1):
        if bytes(one) != bytes(other):
            return f"buffer {i}: expected {bytes(one).hex()}, got {bytes(other).hex()}"
    return None


def find_difference_alone(kernel, record, specs):
    """Returns what differs for one record, alone in its buffer or with others behind it."""
    found = (find_difference(kernel, *frame_all([record], behind), specs) for behind in (b"", bytes(80), b"\xff" * 80))
    return next((what for what in found if what is not None), None)


def smaller(data, is_bad):
    """Returns bytes that are still bad after as much as possible was taken out."""
    size = len(data)
    while size:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            if is_bad(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def find_scan_difference(kernel, frames):
    """Returns how the kernel's scan of a buffer differs from the reference's, None if it does not."""
    expected = reference.scan(frames)
    starts, lengths, states, end = kernel.scan(exact(frames))
    got = (bytes(starts), bytes(lengths), bytes(states), end)
    wanted = (expected.starts.tobytes(), expected.lengths.tobytes(), expected.states.tobytes(), expected.end)
    return None if got == wanted else f"scan: expected {expected}, got {np.frombuffer(starts, np.int64)}, end {end}"

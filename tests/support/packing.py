"""Packing by a loop over tokens, as the reference of tests."""

from __future__ import annotations


def reference(documents, length, separator):
    """Returns tokens, segments and positions of the sequences that documents make."""
    sequences, row = [], []
    last = None
    for number, document in enumerate(documents):
        for token in [*document, *([] if separator is None or not document else [separator])]:
            if len(row) == length:
                sequences.append(row)
                row = []
            is_same = bool(row) and last == number
            segment = row[-1][1] + (not is_same) if row else 1
            row.append((token, segment, row[-1][2] + 1 if is_same else 0))
            last = number
    if row:
        sequences.append(row + [(0, 0, 0)] * (length - len(row)))
    return [tuple(map(list, zip(*row, strict=True))) for row in sequences]

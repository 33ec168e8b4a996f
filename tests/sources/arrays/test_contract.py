"""NumPy and IDX keep the contract of sources."""

from __future__ import annotations

import struct

import numpy as np

from shardkit.sources.base import SourceOptions
from tests.support.files.format_contract import FormatContract


class TestNpy(FormatContract):
    format = "numpy"
    knows_its_end = True
    dtype = np.dtype([("n", ">i4"), ("s", "<U6"), ("v", "<f4", (2, 2))])

    def options(self):
        return SourceOptions(array_record="row")

    def row(self, number):
        return {"n": number, "s": f"é{number}", "v": [number, 0.5, -1.0, 2.0]}

    def values(self, rows):
        values = np.zeros(len(rows), self.dtype)
        for place, row in enumerate(rows):
            if row is None:
                # A surrogate is no character.
                values["s"][place : place + 1].view(np.uint32)[0] = 0xD800
            else:
                values[place] = (row["n"], row["s"], np.reshape(row["v"], (2, 2)))
        return values

    def write(self, folder, name, rows):
        np.save(folder / f"{name}.npy", self.values(rows))


class TestNpz(TestNpy):
    is_cut = False
    reads_compressed = False

    def write(self, folder, name, rows):
        values = self.values(rows)
        np.savez(folder / f"{name}.npz", **{column: values[column] for column in self.dtype.names})


NUMBERS_ALWAYS_FIT = {
    "test_a_bad_row_ends_the_reading": "every byte is a number",
    "test_good_and_rejected_rows_are_all_rows": "every byte is a number",
}


def idx(rows: list, *shape: int) -> bytes:
    """Returns an IDX file of bytes."""
    head = bytes([0, 0, 8, 1 + len(shape)]) + struct.pack(f">{1 + len(shape)}I", len(rows), *shape)
    return head + np.array(rows, np.uint8).tobytes()


class TestIdxValues(FormatContract):
    format = "idx"
    knows_its_end = True
    leaves_out = NUMBERS_ALWAYS_FIT

    def row(self, number):
        return {"values": [number, 255 - number, 7]}

    def write(self, folder, name, rows):
        (folder / f"{name}-idx2-ubyte").write_bytes(idx([row["values"] for row in rows], 3))


class TestIdxPairs(FormatContract):
    format = "idx"
    knows_its_end = True
    leaves_out = NUMBERS_ALWAYS_FIT

    def row(self, number):
        return {"image": [number, 255 - number, 7, 0, 1, 2], "label": number % 10}

    def write(self, folder, name, rows):
        # Names that differ in words would be several data sets.
        part = int.from_bytes(name.encode())
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx([row["image"] for row in rows], 3, 2))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx([row["label"] for row in rows]))

"""TFRecord keeps the contract of sources."""

from __future__ import annotations

import itertools

from shardkit.encoding.tfrecord import frame
from tests.support.files.format_contract import FormatContract
from tests.support.files.tfrecord_makers import example, sequence


class TestExamples(FormatContract):
    format = "tfrecord"

    def row(self, number):
        return {"n": number, "s": f"é{number}", "x": None if number % 3 else 0.5, "l": [number] * (number % 3)}

    def record(self, row):
        return example(**{name: value for name, value in row.items() if value is not None})

    def write(self, folder, name, rows):
        frames = [bytearray(frame(self.record(self.row(0) if row is None else row))) for row in rows]
        for content, row in zip(frames, rows, strict=True):
            # The checksum of the record is wrong then.
            content[12] ^= row is None
        (folder / f"{name}.tfrecord").write_bytes(b"".join(frames))

    def may_end_at(self, content, length):
        frames = [frame(self.record(row)) for row in self._rows()]
        return length in itertools.accumulate(map(len, frames))


class TestSequences(TestExamples):
    def row(self, number):
        return {"n": number, "words": [f"é{number}"] * (number % 3), "pairs": [number, 1] * (number % 4)}

    def record(self, row):
        pairs = [row["pairs"][i : i + 2] for i in range(0, len(row["pairs"]), 2)]
        return sequence({"n": row["n"]}, words=row["words"], pairs=pairs)

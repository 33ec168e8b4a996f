"""Text keeps the contract of sources, whatever is a row of it."""

from __future__ import annotations

import itertools

from shardkit.sources.base import SourceOptions
from tests.support.files.format_contract import FormatContract


class TestLines(FormatContract):
    format = "text"
    record = "line"
    breaks = ("\n", "\r\n", "\n\n", "\n\r\n")

    def options(self):
        return SourceOptions(text_record=self.record)

    def row(self, number):
        return {"text": f"{' é' * (number % 4)}{number}"}

    def write(self, folder, name, rows):
        texts = [b"\xff" if row is None else row["text"].encode() for row in rows]
        ends = itertools.cycle(self.breaks)
        (folder / f"{name}.txt").write_bytes(b"".join(text + next(ends).encode() for text in texts))

    def may_end_at(self, content, length):
        return True


class TestParagraphs(TestLines):
    record = "paragraph"
    breaks = ("\n\n", "\r\n\r\n", "\n\n\r\n", "\n\r\n\n")

    def row(self, number):
        return {"text": f"one\ntwo {'é' * (number % 4)}\r\n{number}"}


class TestFiles(TestLines):
    record = "file"

    def row(self, number):
        return {"text": f"one\n\ntwo {number}\n", "filename": f"{number:04}.txt"}

    def write(self, folder, name, rows):
        for place, row in enumerate(rows):
            path = folder / (f"{place:04}.txt" if row is None else row["filename"])
            path.write_bytes(b"\xff" if row is None else row["text"].encode())


class TestSparseVectors(FormatContract):
    format = "libsvm"

    def row(self, number):
        present = [index for index in range(1, 6) if (number >> index) & 1 or index == 2]
        values = [number + index / 4 for index in present]
        return {"label": number % 3 - 1, "qid": number, "indices": present, "values": values}

    def write(self, folder, name, rows):
        (folder / f"{name}.libsvm").write_text("".join("one\n" if row is None else line_of(row) for row in rows))

    def may_end_at(self, content, length):
        return True


class TestDenseVectors(TestSparseVectors):
    def options(self):
        # As they are settled.
        return SourceOptions(vector="dense", vector_size=5, first_index=1)

    def row(self, number):
        row = super().row(number)
        values = dict(zip(row.pop("indices"), row.pop("values"), strict=True))
        return {**row, "features": [values.get(index, 0.0) for index in range(1, 6)]}

    def write(self, folder, name, rows):
        super().write(
            folder, name, [row and {**row, "indices": range(1, 6), "values": row["features"]} for row in rows]
        )


def line_of(row):
    """Returns a row as libsvm writes it."""
    pairs = " ".join(f"{i}:{v}" for i, v in zip(row["indices"], row["values"], strict=True))
    return f"{row['label']:+d} qid:{row['qid']} {pairs}\n"

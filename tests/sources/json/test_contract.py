"""JSON Lines and arrays keep the contract of sources."""

from __future__ import annotations

import json

from tests.support.files.format_contract import FormatContract


class JsonContract(FormatContract):
    format = "jsonl"

    def row(self, number):
        text = '[{,\\"é\n}]'[: number % 9]
        return {"n": number, "s": f"{text}{number}", "x": None if number % 3 else 0.5, "l": [number] * (number % 3)}

    def lines(self, rows):
        return ['{"n": "bad"}' if row is None else json.dumps(row, ensure_ascii=False) for row in rows]


class TestJsonLines(JsonContract):
    def write(self, folder, name, rows):
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in self.lines(rows)))

    def may_end_at(self, content, length):
        return content[:length].endswith((b"}", b"\n"))


class TestJsonArray(JsonContract):
    format = "json"

    def write(self, folder, name, rows):
        (folder / f"{name}.json").write_text("[" + ",\n ".join(self.lines(rows)) + "]\n")

    def may_end_at(self, content, length):
        return content[:length].endswith(b"]")

"""Avro keeps the contract of sources."""

from __future__ import annotations

import fastavro

from tests.support.files.format_contract import FormatContract

FIELDS = {"n": "long", "s": "string", "x": ["null", "float"], "l": {"type": "array", "items": "int"}}
SCHEMA = {"type": "record", "name": "row", "fields": [{"name": n, "type": t} for n, t in FIELDS.items()]}


class TestAvro(FormatContract):
    format = "avro"
    knows_its_end = True

    def row(self, number):
        return {"n": number, "s": f"é{number}", "x": None if number % 3 else 0.5, "l": [number] * (number % 3)}

    def write(self, folder, name, rows):
        bad = {"n": 0, "s": "<bad>", "x": None, "l": []}
        path = folder / f"{name}.avro"
        with path.open("wb") as out:
            fastavro.writer(out, SCHEMA, [bad if row is None else row for row in rows], sync_interval=30)
        path.write_bytes(path.read_bytes().replace(b"<bad>", b"<\xff\xff\xff>"))

    def may_end_at(self, content, length):
        return content[:length].endswith(content[-16:])

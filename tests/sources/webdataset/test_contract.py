"""WebDatasets keep the contract of sources."""

from __future__ import annotations

from tests.support.files.format_contract import FormatContract
from tests.support.files.webdataset_makers import WEBDATASET, pack, write


class TestWebDataset(FormatContract):
    format = "webdataset"
    knows_its_end = True
    is_cut = False

    def options(self):
        return WEBDATASET

    def row(self, number):
        return {"__key__": f"{number:04}", "cls": number, "txt": "é" * (number % 5)}

    def write(self, folder, name, rows):
        members = []
        for place, row in enumerate(rows):
            row = row or {"__key__": f"bad{place}", "cls": "bad", "txt": ""}
            members += [(f"{row['__key__']}.{extension}", str(row[extension]).encode()) for extension in ("cls", "txt")]
        write(folder, pack(members), f"{name}.tar")

    def may_end_at(self, content, length):
        # Two blocks of zeros end an archive; what follows them only fills it up.
        return length >= -(-len(content.rstrip(b"\0")) // 512) * 512 + 1024

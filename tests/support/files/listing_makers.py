"""Files of several kinds that the tests of listing find."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.files.image_makers import encoded


def write(folder: Path, name: str, content: str | bytes = "a,b\n1,2\n") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), buffer)
    return buffer.getvalue()


def png() -> bytes:
    return encoded("L", "PNG")

"""Small whole files of every format, by independent writers, and what independent readers count in damaged ones."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sqlite3
import struct
import tarfile
import tempfile
import wave
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.orc as orc
import pyarrow.parquet as pq
from PIL import Image

from shardkit.sources.base import SourceOptions
from tests.support.files.webdataset_makers import npy

NUM_ROWS = 40


class SourceFile(NamedTuple):
    """A whole file.

    Attributes:
        name: Of the file.
        content: Its bytes.
        counts: Returns how many rows an independent reader finds; raises where it finds none.
        settings: Options of the source.
    """

    name: str
    content: bytes
    counts: Callable[[bytes], int | None] | None = None
    settings: tuple[tuple[str, str], ...] = ()

    def options(self, *, tolerates_bad_rows: bool) -> SourceOptions:
        """Returns how the file is read."""
        return SourceOptions(tolerates_bad_rows=tolerates_bad_rows, **dict[str, Any](self.settings))

    def count(self, content: bytes) -> int | None:
        """Returns how many rows an independent reader finds in some bytes, None if it cannot say."""
        if self.counts is None:
            return None
        try:
            return self.counts(content)
        except Exception:  # noqa: BLE001 - readers of damaged files raise anything
            return None


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "price": i / 8,
            "name": f'n{i}, "ä"' if i % 7 else "a\nb",
            "flag": i % 3 == 0,
            "note": None if i % 5 == 0 else f"x{i}",
        }
        for i in range(NUM_ROWS)
    ]


def _table() -> pa.Table:
    return pa.Table.from_pylist(_rows()).append_column(
        "tokens", pa.array([[i, i + 1][: i % 3] for i in range(NUM_ROWS)])
    )


def _csv(delimiter: str) -> bytes:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(_rows()[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows())
    return sink.getvalue().encode()


def _json_lines(content: bytes) -> int:
    return sum(1 for line in content.replace(b"\xef\xbb\xbf", b"", 1).split(b"\n") if line.strip(b" \t\r"))


def _framed(records: list[bytes]) -> bytes:
    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    parts = []
    for record in records:
        head = struct.pack("<Q", len(record))
        parts += [head, struct.pack("<I", masked(head)), record, struct.pack("<I", masked(record))]
    return b"".join(parts)


def _example(i: int) -> bytes:
    """Returns {"a": [i], "b": ["x"]} as a tf.train.Example, by hand."""

    def part(tag: int, content: bytes) -> bytes:
        return bytes((tag << 3 | 2, len(content))) + content

    numbers = part(3, part(1, bytes((i,))))
    texts = part(1, part(1, b"x"))
    pairs = [part(1, part(1, key) + part(2, value)) for key, value in ((b"a", numbers), (b"b", texts))]
    return part(1, b"".join(pairs))


_AVRO_FLAT = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "name", "type": "string"},
        {"name": "flag", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
    ],
}
_AVRO_NESTED = {
    **_AVRO_FLAT,
    "fields": [*_AVRO_FLAT["fields"], {"name": "tokens", "type": {"type": "array", "items": "int"}}],
}


def _avro(schema: dict[str, Any], codec: str) -> bytes:
    sink = io.BytesIO()
    rows = [{**row, "tokens": [1, 2][: row["id"] % 3]} for row in _rows()]
    fastavro.writer(sink, schema, rows, codec=codec, sync_interval=600)
    return sink.getvalue()


def _by_path(write: Callable[[Path], Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        write(path)
        return path.read_bytes()


def _ipc(is_stream: bool) -> bytes:
    sink = io.BytesIO()
    open_writer = ipc.new_stream if is_stream else ipc.new_file
    with open_writer(sink, _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=15)
    return sink.getvalue()


def _sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table rows (id integer, price real, name text, note text)")
        connection.executemany("insert into rows values (:id, :price, :name, :note)", _rows())
    connection.close()


def _tar() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for i in range(12):
            for suffix, content in (("txt", f"text {i}".encode()), ("cls", str(i).encode())):
                member = tarfile.TarInfo(f"{i:03d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def _zip(compression: int) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as archive:
        for i in range(3):
            archive.writestr(f"{i}.csv", _csv(","))
    return sink.getvalue()


def _npz() -> bytes:
    sink = io.BytesIO()
    np.savez_compressed(sink, a=np.arange(NUM_ROWS), b=np.ones((NUM_ROWS, 3), np.float32))
    return sink.getvalue()


def _image(format: str) -> bytes:
    sink = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(sink, format)
    return sink.getvalue()


def _wav() -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(np.arange(2000, dtype="<i2").tobytes())
    return sink.getvalue()


def _one(_: bytes) -> int:
    return 1


def _parquet_rows(content: bytes) -> int:
    return int(pq.read_table(io.BytesIO(content)).num_rows)


@cache
def _csv_files() -> tuple[SourceFile, ...]:
    return (SourceFile("a.csv", _csv(",")), SourceFile("a.tsv", _csv("\t")))


@cache
def _jsonl_files() -> tuple[SourceFile, ...]:
    content = "".join(
        json.dumps({**row, "in": {"x": row["id"]}}, ensure_ascii=False) + "\n" for row in _rows()
    ).encode()
    return (SourceFile("a.jsonl", content, _json_lines),)


@cache
def _json_array_files() -> tuple[SourceFile, ...]:
    def counts(content: bytes) -> int:
        return len(json.loads(content))

    return tuple(SourceFile("a.json", json.dumps(_rows(), indent=indent).encode(), counts) for indent in (None, 2))


@cache
def _parquet_files() -> tuple[SourceFile, ...]:
    codecs = ("none", "snappy", "zstd", "gzip")
    options = [{"compression": codec, "row_group_size": 15} for codec in codecs]
    options.append({"compression": "none", "use_dictionary": False, "data_page_version": "2.0"})
    contents = [_by_path(lambda path, o=o: pq.write_table(_table(), path, **o)) for o in options]
    return tuple(SourceFile("a.parquet", content, _parquet_rows) for content in contents)


@cache
def _arrow_files() -> tuple[SourceFile, ...]:
    def of_file(content: bytes) -> int:
        return int(ipc.open_file(content).read_all().num_rows)

    def of_stream(content: bytes) -> int:
        return int(ipc.open_stream(content).read_all().num_rows)

    lz4 = _by_path(lambda path: feather.write_feather(_table(), path, compression="lz4"))
    return (
        SourceFile("a.arrow", _ipc(False), of_file),
        SourceFile("a.arrows", _ipc(True), of_stream),
        SourceFile("a.feather", lz4, of_file),
    )


@cache
def _orc_files() -> tuple[SourceFile, ...]:
    def counts(content: bytes) -> int:
        return int(orc.ORCFile(io.BytesIO(content)).nrows)

    codecs = ("uncompressed", "zlib", "snappy")
    contents = [_by_path(lambda path, c=c: orc.write_table(_table(), str(path), compression=c)) for c in codecs]
    return tuple(SourceFile("a.orc", content, counts) for content in contents)


@cache
def _avro_files() -> tuple[SourceFile, ...]:
    def counts(content: bytes) -> int:
        return sum(1 for _ in fastavro.reader(io.BytesIO(content)))

    cases = ((_AVRO_FLAT, "null"), (_AVRO_FLAT, "deflate"), (_AVRO_NESTED, "null"))
    return tuple(SourceFile("a.avro", _avro(schema, codec), counts) for schema, codec in cases)


@cache
def _text_files() -> tuple[SourceFile, ...]:
    content = "".join(f"line {i} wörd\n" for i in range(NUM_ROWS)).encode()
    return (
        SourceFile("a.txt", content),
        SourceFile("b.txt", content.replace(b"7 w", b"7\n\nw"), settings=(("text_record", "paragraph"),)),
        SourceFile("c.txt", content, _one, (("text_record", "file"),)),
        SourceFile("a.txt.gz", gzip.compress(content)),
    )


@cache
def _tfrecord_files() -> tuple[SourceFile, ...]:
    content = _framed([_example(i) for i in range(NUM_ROWS)])
    return (SourceFile("a.tfrecord", content), SourceFile("a.tfrecord.gz", gzip.compress(content)))


@cache
def _numpy_files() -> tuple[SourceFile, ...]:
    def counts(content: bytes) -> int:
        return len(np.load(io.BytesIO(content)))

    return (
        SourceFile("a.npy", npy(np.arange(NUM_ROWS * 4, dtype=np.int32).reshape(NUM_ROWS, 4)), counts),
        SourceFile("b.npy", npy(np.array([f"w{i}" for i in range(NUM_ROWS)])), counts),
        SourceFile("a.npz", _npz()),
    )


@cache
def _idx_files() -> tuple[SourceFile, ...]:
    images = struct.pack(">HBBIII", 0, 8, 3, NUM_ROWS, 5, 5) + bytes(range(250)) * 4
    return (SourceFile("train-images-idx3-ubyte", images), SourceFile("a-idx3-ubyte.gz", gzip.compress(images)))


@cache
def _image_files() -> tuple[SourceFile, ...]:
    names = (("JPEG", "jpg"), ("PNG", "png"), ("GIF", "gif"), ("BMP", "bmp"), ("WEBP", "webp"))
    return tuple(SourceFile(f"a.{suffix}", _image(format)) for format, suffix in names)


@cache
def _audio_files() -> tuple[SourceFile, ...]:
    return (SourceFile("a.wav", _wav()), SourceFile("b.wav", _wav(), settings=(("audio", "samples"),)))


@cache
def _archive_files() -> tuple[SourceFile, ...]:
    return (
        SourceFile("a.zip", _zip(zipfile.ZIP_STORED)),
        SourceFile("b.zip", _zip(zipfile.ZIP_DEFLATED)),
        SourceFile("a.csv.gz", gzip.compress(_csv(","))),
    )


FORMATS: dict[str, Callable[[], tuple[SourceFile, ...]]] = {
    "archives": _archive_files,
    "arrow": _arrow_files,
    "audio": _audio_files,
    "avro": _avro_files,
    "csv": _csv_files,
    "idx": _idx_files,
    "images": _image_files,
    "json-array": _json_array_files,
    "jsonl": _jsonl_files,
    "numpy": _numpy_files,
    "orc": _orc_files,
    "parquet": _parquet_files,
    "sqlite": lambda: (SourceFile("a.sqlite", _by_path(_sqlite)),),
    "text": _text_files,
    "tfrecord": _tfrecord_files,
    "webdataset": lambda: (SourceFile("a.tar", _tar()),),
}

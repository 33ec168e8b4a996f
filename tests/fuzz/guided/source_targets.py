"""Parsers of raw files: each format as a conversion reads it, and the headers that shardkit parses itself."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import tarfile
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow.ipc as ipc

from shardkit.encoding.byte_stream import ByteStream
from shardkit.encoding.parquet_footer import parse_row_groups
from shardkit.features import make_feature
from shardkit.sources.arrays.npy_bytes import NpyError, read_npy
from shardkit.sources.arrays.numpy_headers import read_layout
from shardkit.sources.avro.container import MAGIC, Reader, inflate, read_blocks, read_header
from shardkit.sources.avro.schema import read_schema
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.columnar.arrow_messages import footer_length, metadata_length, parse_footer, parse_message
from shardkit.sources.columnar.orc_footer import full_columns, read_tail, with_stripes
from shardkit.sources.csv.bad_records import parse_good_records
from shardkit.sources.csv.dialect import parse_dialect
from shardkit.sources.csv.parser import RECORD_ERRORS, CsvParser
from shardkit.sources.files.tar_headers import TarHeaderError, is_header, parse_pax
from shardkit.sources.files.tar_stream import TarDamageError, TarStream
from shardkit.sources.files.zip_directory import ZipError, read_directory
from shardkit.sources.json.object_bounds import FrameError, iter_elements
from shardkit.sources.text.blocks import RecordTooLongError, TextBlock
from tests.fuzz.fuzz_sources import read
from tests.fuzz.guided.target import Target
from tests.fuzz.source_files import FORMATS, SourceFile

_BLOCK = tarfile.BLOCKSIZE
_MAX_COLUMNS = 30


def _whole(name: str) -> list[bytes]:
    return [file.content for file in FORMATS[name]()]


def _numbered(files: tuple[SourceFile, ...]) -> list[bytes]:
    return [bytes([i]) + file.content for i, file in enumerate(files)]


def _read_rows(name: str, folder: str, data: bytes) -> None:
    """Reads a file of a format; the first byte says which name and options it has."""
    if not data:
        return
    files = FORMATS[name]()
    file = files[data[0] % len(files)]
    path = Path(folder, file.name)
    path.write_bytes(data[1:])
    read(path, file.options(tolerates_bad_rows=len(data) % 2 == 0))


def _tar_seeds() -> list[bytes]:
    found = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
            for name, size in (("a.txt", 5), ("a/" * 40 + "é.txt", 600), ("b", 0)):
                member = tarfile.TarInfo(name)
                member.size = size
                member.pax_headers = {"comment": "x"} if form == tarfile.PAX_FORMAT else {}
                archive.addfile(member, io.BytesIO(b"x" * size))
            archive.addfile(tarfile.TarInfo("folder/"))
        found.append(sink.getvalue()[: 12 * _BLOCK])
    return found


def _walk_tar(data: bytes) -> None:
    """Walks the archive as it is, then with right checksums, which no mutation hits."""
    raw = bytearray(data)
    for start in range(0, len(raw) - _BLOCK + 1, _BLOCK):
        if raw[start + 257 : start + 262] == b"ustar":
            raw[start + 148 : start + 156] = b" " * 8
            raw[start + 148 : start + 155] = b"%06o\0" % sum(raw[start : start + _BLOCK])
    is_header(bytes(raw))
    _pax(data[:200])
    for stream in (TarStream(cast(ByteStream, io.BytesIO(raw))), TarStream(*_seekable(bytes(raw)))):
        for _ in stream.members():
            while stream.read(1000):
                pass


def _pax(data: bytes) -> None:
    with contextlib.suppress(TarHeaderError):
        parse_pax(data)


def _seekable(data: bytes) -> tuple[ByteStream, io.BytesIO, int]:
    raw = io.BytesIO(data)
    return cast(ByteStream, raw), raw, len(data)


def _read_directory(data: bytes) -> None:
    read_directory(io.BytesIO(data), len(data), 1000)


def _npy_seeds() -> list[bytes]:
    arrays: list[Any] = [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((2, 2), np.float64, order="F"),
        np.array(["a", "bc"]),
        np.zeros(2, [("x", "<i4"), ("y", "f4", (2,))]),
        np.array(["2020-01-01"], "datetime64[s]"),
    ]
    found = []
    for array in arrays:
        sink = io.BytesIO()
        np.save(sink, array)
        found.append(sink.getvalue())
    return found


def _read_arrays(data: bytes) -> None:
    with contextlib.suppress(NpyError):
        read_npy(data)
    read_layout(cast(ByteStream, io.BytesIO(data)), "here")


def _footer(content: bytes) -> bytes:
    length = int.from_bytes(content[-8:-4], "little")
    return content[-8 - length : -8]


def _read_tail(data: bytes) -> None:
    raw = io.BytesIO(data)
    tail = read_tail(raw, len(data))
    full_columns(tail)
    with_stripes(raw, tail, 0, 1)


def _arrow_seeds() -> list[bytes]:
    content = _whole("arrow")[0]
    length = footer_length(content)
    messages = list(ipc.MessageReader.open_stream(_whole("arrow")[1]))
    return [b"\0" + content[-10 - length : -10], *(b"\1" + m.metadata.to_pybytes() for m in messages)]


def _read_message(data: bytes) -> None:
    (parse_message if data[:1] and data[0] % 2 else parse_footer)(data[1:])
    footer_length(data[-10:])
    metadata_length(data[:8])


def _read_container(data: bytes) -> None:
    reader = Reader(cast(ByteStream, io.BytesIO(data)))
    header = read_header(reader)
    try:
        read_schema(msgspec.json.decode(header.schema), "here")
    except msgspec.DecodeError:
        return
    for block in read_blocks(reader, header, 0, 2**20):
        inflate(block.data, header.codec, 2**20)


def _cut_elements(data: bytes) -> None:
    for elements in iter_elements(
        cast(ByteStream, io.BytesIO(data)), offset=0, max_record_bytes=2000, block_bytes=64 + len(data) % 700
    ):
        elements.as_lines()


def _csv_seeds() -> list[bytes]:
    rows = b'id,name,price\n1,"a, b",0.5\n2,"say ""x""\nend",\n-3,,1e9\n'
    return [rows, rows.replace(b",", b"\t"), rows.replace(b"\n", b"\r\n"), b"\xef\xbb\xbfsep=;\na;b\n001;NaN\n"]


def _filter_records(data: bytes) -> None:
    file = RawFile(path="/a.csv", name="a.csv", num_bytes=len(data), version="1")
    dialect = parse_dialect(data, True, file, SourceOptions())
    if dialect is None or len(dialect.columns) > _MAX_COLUMNS:
        return
    kinds = itertools.cycle(("int64", "string", "float32", "bool"))
    features = tuple(make_feature(name, next(kinds), nullable=True) for name in dialect.columns)
    content = data[dialect.data_start :]
    with contextlib.suppress(*RECORD_ERRORS):
        CsvParser(dialect, features, ("NA",), 100).parse(content)
        return
    options = SourceOptions(null_values=("NA",), max_field_bytes=100)
    parse_good_records(TextBlock(memoryview(content), 0, True), content, dialect, features, options)


def source_targets(folder: str) -> list[Target]:
    """Returns the targets; those of whole files write them into the folder."""
    headers = [
        Target("tar", _tar_seeds, _walk_tar, (TarDamageError,)),
        Target("zip", lambda: _whole("archives")[:2], _read_directory, (ZipError,)),
        Target("npy", _npy_seeds, _read_arrays),
        Target("parquet-footer", lambda: [_footer(c) for c in _whole("parquet")], parse_row_groups, (ValueError,)),
        Target("orc-tail", lambda: _whole("orc"), _read_tail, (ValueError,)),
        Target("arrow-messages", _arrow_seeds, _read_message, (ValueError,)),
        Target("avro-container", lambda: [*_whole("avro"), MAGIC], _read_container, (ValueError,)),
        Target("csv-records", _csv_seeds, _filter_records),
        Target("json-elements", lambda: _whole("json-array"), _cut_elements, (FrameError, RecordTooLongError)),
    ]
    return headers + [
        Target(
            f"rows-{name}",
            functools.partial(lambda make: _numbered(make()), make),
            functools.partial(_read_rows, name, folder),
        )
        for name, make in FORMATS.items()
    ]

"""What the tests of archives pack and read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from shardkit.sources import choose_source
from shardkit.sources.base import SourceOptions
from shardkit.sources.files.streams import open_stream

ANY = SourceOptions()


MiB = 1 << 20


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zstd(data):
    return pa.compress(data, "zstd", asbytes=True)


PACKERS = {
    "a.zip": zip_of,
    "stored.zip": lambda members: zip_of(members, zipfile.ZIP_STORED),
    "a.tar": tar_of,
    "a.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "a.tgz": lambda members: gzip.compress(tar_of(members)),
    "a.tar.zst": lambda members: zstd(tar_of(members)),
    "a.tar.bz2": lambda members: bz2.compress(tar_of(members)),
    "a.tar.xz": lambda members: lzma.compress(tar_of(members)),
}


def content_of(file):
    with open_stream(file) as stream:
        return b"".join(iter(lambda: stream.read(1000), b""))


def size_of(file):
    with open_stream(file, is_read_through=True) as stream:
        return sum(len(data) for data in iter(lambda: stream.read(MiB), b""))


def rows_of(files, options=ANY):
    source = choose_source(files, options)
    features = source.infer(files, options)
    batches = [b for split in source.split(files, options) for b in source.read(split, files, features, options)]
    return [row for b in batches for row in b.batch.to_pylist()], batches


def png(size=(3, 2)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(start, num_rows=10):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": range(start, start + num_rows)}), buffer)
    return buffer.getvalue()


TABLES = [("x/b.csv", b"a,b\n1,x\n2,y\n"), ("x/a.csv", b"a,b\n3,z\n"), ("y/c.csv.gz", gzip.compress(b"a,b\n4,w\n"))]


EXPECTED = [{"a": 3, "b": "z"}, {"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 4, "b": "w"}]


def directory_entry(content):
    return content.index(b"PK\x01\x02")


def patched(content, offset, form, value, start=None):
    data = bytearray(content)
    struct.pack_into(form, data, (directory_entry(content) if start is None else start) + offset, value)
    return bytes(data)

"""Readers of raw files that share no code with shardkit: what they find is what a conversion has to hold.

Each takes paths and gives columns by the names that shardkit gives them: lists of values, None for a null.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import struct
import tarfile
import wave
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import duckdb
import fastavro
import fastparquet
import numpy as np
import polars as pl
from PIL import Image

from tests.benchmarks.real_data.stored_rows import Text

Table = dict[str, Any]
Reader = Callable[[Sequence[Path]], Table]

csv.field_size_limit(2**31)
_INFLATE: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZ": bz2.decompress,
    b"\xfd7": lzma.decompress,
}
_NANOSECONDS = {"ms": 10**6, "us": 10**3, "ns": 1}


def content_of(path: Path) -> bytes:
    """Returns the bytes of a file, decompressed if it is gzip, bz2 or xz by its first bytes."""
    raw = path.read_bytes()
    inflate = _INFLATE.get(raw[:2])
    return inflate(raw) if inflate else raw


def csv_reader(
    *, delimiter: str = ",", columns: Sequence[str] = (), null_values: Sequence[str] = (), encoding: str = "utf-8-sig"
) -> Reader:
    """Returns a reader of CSV by the standard library: rows of as many fields as the header, the rest left out."""

    def read(paths: Sequence[Path]) -> Table:
        texts = [content_of(p).decode(encoding, "surrogateescape") for p in paths]
        return merge([_csv_table(text, delimiter, columns, null_values) for text in texts])

    return read


def archived_csv_reader(**options: Any) -> Reader:
    """Returns a reader of the CSV files in a zip file or tar."""

    def read(paths: Sequence[Path]) -> Table:
        settings = {"delimiter": ",", "columns": (), "null_values": (), **options}
        return merge([_csv_table(raw.decode("utf-8-sig"), **settings) for raw in _members(paths[0], ".csv")])

    return read


def _members(archive: Path, suffix: str) -> Iterator[bytes]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            yield from (members.read(name) for name in members.namelist() if name.endswith(suffix))
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(suffix) else None
                if file is not None:
                    yield file.read()


def _csv_table(text: str, delimiter: str, columns: Sequence[str], null_values: Sequence[str]) -> Table:
    rows = [r for r in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if r]
    # A column without a name is called after its position.
    names = [name or f"unnamed_{i}" for i, name in enumerate(list(columns) or rows.pop(0), start=1)]
    nulls = {"", *null_values}
    kept = [r for r in rows if len(r) == len(names)]
    return {
        name: [None if cell in nulls else Text(cell) for cell in cells]
        for name, cells in zip(names, zip(*kept, strict=True) if kept else ([] for _ in names), strict=True)
    }


def read_json_lines(paths: Sequence[Path]) -> Table:
    """Reads an object a line."""
    lines = (line for p in paths for line in content_of(p).decode("utf-8-sig").split("\n"))
    return from_rows(json.loads(line) for line in lines if line.strip())


def read_json(paths: Sequence[Path]) -> Table:
    """Reads arrays of objects, one object, or objects one after the other."""
    rows: list[Any] = []
    for path in paths:
        text = content_of(path).decode("utf-8-sig").strip()
        while text:
            document, end = json.JSONDecoder().raw_decode(text)
            rows.extend(document if isinstance(document, list) else [document])
            text = text[end:].strip()
    return from_rows(rows)


def read_avro(paths: Sequence[Path]) -> Table:
    """Reads by fastavro, or where it stumbles over metadata that is no text, by polars."""
    rows: list[Any] = []
    for path in paths:
        with path.open("rb") as file:
            try:
                rows.extend(fastavro.reader(file))
            except UnicodeDecodeError:
                rows.extend(pl.read_avro(path).to_dicts())
    return from_rows(rows)


def read_parquet(paths: Sequence[Path]) -> Table:
    """Reads by polars, which has its own Parquet reader, or where it cannot by DuckDB or fastparquet, which do too."""
    return merge([_parquet_table(p) for p in paths])


def _parquet_table(path: Path) -> Table:
    # They raise errors of many kinds, some of them panics.
    with contextlib.suppress(Exception, pl.exceptions.PanicException):
        return _flat_frame(pl.read_parquet(path, use_pyarrow=False))
    with contextlib.suppress(duckdb.Error):
        found = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [str(path)])
        names = [d[0] for d in found.description]
        return from_rows(dict(zip(names, row, strict=True)) for row in found.fetchall())
    frame = fastparquet.ParquetFile(str(path)).to_pandas()
    return {name: list(frame[name]) for name in frame}


def _flat_frame(frame: pl.DataFrame, prefix: str = "") -> Table:
    table: Table = {}
    for series in frame.get_columns():
        name = prefix + series.name
        if series.dtype == pl.Struct:
            table.update(_flat_frame(series.struct.unnest(), name + "/"))
        elif series.dtype.is_temporal() and series.dtype != pl.Date:
            scale = _NANOSECONDS[getattr(series.dtype, "time_unit", "ns")]
            table[name] = [None if v is None else v * scale for v in series.to_physical().to_list()]
        else:
            table[name] = series.to_list() if series.dtype != pl.Date else series.to_physical().to_list()
    return table


def from_rows(rows: Iterable[Any]) -> Table:
    """Returns the columns of rows of objects, with objects in objects as `a/b`."""
    flat = [dict(_flat_items(row)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: [row.get(name) for row in flat] for name in names}


def _flat_items(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat_items(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def merge(tables: Sequence[Table]) -> Table:
    """Returns the rows of several tables one after the other."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table)
    merged: Table = {name: [] for name in names}
    for table in tables:
        num_rows = len(next(iter(table.values()), ()))
        for name in names:
            merged[name].extend(table.get(name, [None] * num_rows))
    return merged


def text_reader(unit: str = "line", encoding: str = "utf-8-sig") -> Reader:
    """Returns a reader of the lines that are not empty, or of whole files."""

    def read(paths: Sequence[Path]) -> Table:
        texts = [content_of(p).decode(encoding) for p in paths]
        if unit == "file":
            return {"text": texts, "filename": [p.name for p in paths]}
        return _lines(texts)

    return read


def _lines(texts: Sequence[str]) -> Table:
    lines = [line.removesuffix("\r") for text in texts for line in text.split("\n")]
    return {"text": [line for line in lines if line]}


def read_zipped_texts(paths: Sequence[Path]) -> Table:
    """Reads all files of a zip file but its README, a row a file, without those that are empty."""
    with zipfile.ZipFile(paths[0]) as archive:
        names = [n for n in archive.namelist() if not n.endswith(("/", "readme.md"))]
        # The root that all members share is left out, but for its last folder.
        found = {"/".join(PurePosixPath(n).parts[-2:]): archive.read(n).decode("utf-8-sig") for n in names}
    return {"text": [t for t in found.values() if t], "filename": [n for n, t in found.items() if t]}


def image_reader(root: Path, *, labelled: bool = True) -> Reader:
    """Returns a reader of image files by Pillow; the label is the first folder below `root`."""

    def read(paths: Sequence[Path]) -> Table:
        table: Table = {n: [] for n in ("image", "filename", "height", "width", "channels")}
        for path in paths:
            with Image.open(path) as image:
                width, height = image.size
                # A palette stands for colours, and for how one sees through them.
                mode = image.mode if image.mode != "P" else "RGBA" if "transparency" in image.info else "RGB"
                channels = len(Image.new(mode, (1, 1)).getbands())
            found = (path.read_bytes(), path.relative_to(root).as_posix(), height, width, channels)
            for name, value in zip(table, found, strict=True):
                table[name].append(value)
        if labelled:
            table["label"] = [p.relative_to(root).parts[0] for p in paths]
        return table

    return read


def voc_reader(annotations: Path) -> Reader:
    """Returns a reader of images with the boxes of Pascal VOC files."""

    def read(paths: Sequence[Path]) -> Table:
        table = image_reader(paths[0].parent, labelled=False)(paths)
        names = ("boxes", "box_labels", "is_difficult", "is_truncated")
        table.update({n: [] for n in names})
        for path in paths:
            objects = ElementTree.parse(annotations / f"{path.stem}.xml").findall("object")
            corners = [
                [float(o.findtext(f"bndbox/{c}", "")) for c in ("xmin", "ymin", "xmax", "ymax")] for o in objects
            ]
            table["boxes"].append(corners)
            table["box_labels"].append([o.findtext("name") for o in objects])
            for name, tag in (("is_difficult", "difficult"), ("is_truncated", "truncated")):
                table[name].append([int(o.findtext(tag, "0")) for o in objects])
        return table

    return read


def read_wav(paths: Sequence[Path]) -> Table:
    """Reads the headers of WAV files by the standard library."""
    table: Table = {n: [] for n in ("audio", "filename", "sample_rate", "num_frames", "channels")}
    for path in paths:
        with wave.open(str(path)) as audio:
            found = (path.read_bytes(), path.name, audio.getframerate(), audio.getnframes(), audio.getnchannels())
        for name, value in zip(table, found, strict=True):
            table[name].append(value)
    return table


def read_idx(paths: Sequence[Path]) -> Table:
    """Reads an IDX file of images and the one of their labels."""
    arrays = []
    for path in paths:
        raw = content_of(path)
        num_dims = raw[3]
        shape = struct.unpack(f">{num_dims}I", raw[4 : 4 + 4 * num_dims])
        arrays.append(np.frombuffer(raw, np.uint8, offset=4 + 4 * num_dims).reshape(shape))
    images, labels = sorted(arrays, key=lambda a: -a.ndim)
    return {"image": images, "label": labels}


def read_npy(paths: Sequence[Path]) -> Table:
    """Reads an array whose rows are the rows."""
    return {paths[0].stem: np.load(paths[0], allow_pickle=False)}


def read_tar(paths: Sequence[Path]) -> Table:
    """Reads a WebDataset by the standard library: members that are called alike up to the first dot are one row."""
    rows: dict[str, dict[str, Any]] = {}
    with tarfile.open(paths[0]) as tar:
        for member in tar:
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            file = tar.extractfile(member)
            assert file is not None
            rows.setdefault(key, {"__key__": key})[extension] = _decoded(file.read(), extension)
    return from_rows(rows.values())


def _decoded(raw: bytes, extension: str) -> Any:
    if extension.endswith(".gz"):
        return _decoded(gzip.decompress(raw), extension.removesuffix(".gz"))
    if extension == "cls":
        return int(raw)
    return raw.decode() if extension == "txt" else raw

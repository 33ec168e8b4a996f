"""What each tool does in `peers.py`, in a process of its own and an environment of its own.

    python peer_work.py write beam rows.csv OUTPUT
    python peer_work.py read mds OUTPUT

Imports come first; the last line of the output is JSON: CPU and wall seconds of the work after them, on all threads
and in child processes. Each tool is used as its documentation shows, with its own defaults.
"""

import csv
import glob
import importlib.machinery
import json
import os
import shutil
import sys
import time
import types
from collections.abc import Callable, Iterator

FLOATS, INTEGERS, STRINGS = range(8), range(8, 16), range(16, 20)
NUM_SHARDS = 4
BATCH_ROWS = 1024

Work = Callable[[], int | None]


def typed_rows(path: str) -> Iterator[list]:
    """Yields the values of each line as Python has them: 8 floats, 8 integers, 4 strings."""
    with open(path, newline="") as file:
        lines = csv.reader(file)
        next(lines)
        for line in lines:
            yield typed(line)


def typed(line: list[str]) -> list:
    """Returns the values of a line."""
    return [*map(float, line[:8]), *map(int, line[8:16]), *line[16:]]


def header(path: str) -> list[str]:
    """Returns the names of the columns."""
    with open(path, newline="") as file:
        return next(csv.reader(file))


def serializer(names: list[str]) -> Callable[[list], bytes]:
    """Returns what makes a serialised tf.train.Example of a row."""
    import tensorflow as tf

    example, features, feature = tf.train.Example, tf.train.Features, tf.train.Feature
    floats, integers, texts = tf.train.FloatList, tf.train.Int64List, tf.train.BytesList

    def serialize(row: list) -> bytes:
        values = {}
        for i in FLOATS:
            values[names[i]] = feature(float_list=floats(value=[row[i]]))
        for i in INTEGERS:
            values[names[i]] = feature(int64_list=integers(value=[row[i]]))
        for i in STRINGS:
            values[names[i]] = feature(bytes_list=texts(value=[row[i].encode()]))
        return example(features=features(feature=values)).SerializeToString()

    return serialize


def write_shardkit(source: str, output: str) -> Work:
    """`shardkit convert`: local runner, global shuffle, gzip that can seek, statistics, manifest."""
    import shardkit.cli
    from shardkit.runtime.process_limits import lighten_process

    lighten_process()
    import rich.progress  # noqa: F401

    import beam_pipelines.engines.local  # noqa: F401
    import shardkit.cli.convert
    import shardkit.cli.run_convert

    def work() -> None:
        if shardkit.cli.main(["convert", source, output]):
            raise SystemExit("the conversion failed")

    return work


def write_beam(source: str, output: str) -> Work:
    """A hand-written pipeline: lines, tf.train.Example, WriteToTFRecord with gzip; order and shards as they come."""
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    serialize = serializer(header(source))

    def work() -> None:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = (
                pipeline
                | beam.io.ReadFromText(source, skip_header_lines=1)
                | beam.Map(lambda line: serialize(typed(next(csv.reader([line])))))
                | beam.io.WriteToTFRecord(f"{output}/part", file_name_suffix=".tfrecord.gz", num_shards=NUM_SHARDS)
            )

    return work


def write_tf_writer(source: str, output: str) -> Work:
    """tf.io.TFRecordWriter with gzip, row by row, in the order of the source."""
    import tensorflow as tf

    serialize = serializer(header(source))

    def work() -> None:
        writers = [tf.io.TFRecordWriter(f"{output}/part-{i}.tfrecord.gz", "GZIP") for i in range(NUM_SHARDS)]
        for number, row in enumerate(typed_rows(source)):
            writers[number % NUM_SHARDS].write(serialize(row))
        for writer in writers:
            writer.close()

    return work


def _tfds_builder(source: str, output: str, names: list[str]) -> object:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    dtypes = {
        **dict.fromkeys(FLOATS, tf.float32),
        **dict.fromkeys(INTEGERS, tf.int64),
        **dict.fromkeys(STRINGS, tf.string),
    }

    class PeerRows(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = tfds.core.Path(output)

        def _info(self) -> object:
            features = tfds.features.FeaturesDict({names[i]: tfds.features.Scalar(dtypes[i]) for i in range(20)})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager: object) -> dict:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple]:
            for number, row in enumerate(typed_rows(source)):
                yield number, dict(zip(names, row, strict=True))

    return PeerRows(data_dir=output)


def write_tfds(source: str, output: str) -> Work:
    """A GeneratorBasedBuilder: global shuffle, uncompressed (it has no other), statistics off as by default."""
    builder = _tfds_builder(source, output, header(source))
    return lambda: builder.download_and_prepare()


def import_streaming() -> object:
    """Returns mosaicml-streaming; where torchvision cannot be loaded, with a stand-in that serves all but pictures."""
    try:
        import torchvision  # noqa: F401
    except Exception:  # noqa: BLE001 - any failure to load: RuntimeError beside a torch of another build
        for name in [n for n in sys.modules if n.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            sys.modules[module.__name__] = module
        sys.modules["torchvision.datasets"].VisionDataset = object
        sys.modules["torchvision.transforms.functional"].to_tensor = None
    import streaming

    return streaming


def write_mds(source: str, output: str) -> Work:
    """MosaicML's MDSWriter, row by row, in the order of the source, uncompressed as by default."""
    import numpy as np

    streaming = import_streaming()
    names = header(source)
    encodings = ["float32"] * 8 + ["int64"] * 8 + ["str"] * 4

    def work() -> None:
        with streaming.MDSWriter(out=output, columns=dict(zip(names, encodings, strict=True))) as writer:
            for row in typed_rows(source):
                row[:8] = map(np.float32, row[:8])
                row[8:16] = map(np.int64, row[8:16])
                writer.write(dict(zip(names, row, strict=True)))

    return work


def read_shardkit(output: str) -> Work:
    """Blocks to Arrow columns by the manifest."""
    from shardkit.dataset.block_index import list_blocks
    from shardkit.dataset.block_reader import map_blocks
    from shardkit.dataset.open import open_dataset
    from shardkit.encoding.decoder import RecordDecoder

    def work() -> int:
        dataset = open_dataset(output)
        decoder = RecordDecoder(dataset.manifest.features)
        refs = [ref for shard in dataset.shards for ref in list_blocks(shard)]
        batches = map_blocks(
            dataset, refs, lambda ref, frames: decoder.decode(frames, ref.path), num_threads=1, max_ahead=2
        )
        return sum(batch.num_rows for batch in batches)

    return work


def read_tf_writer(output: str) -> Work:
    """tf.data: TFRecordDataset, batch, parse_example."""
    import tensorflow as tf

    types_ = {
        **dict.fromkeys(FLOATS, tf.float32),
        **dict.fromkeys(INTEGERS, tf.int64),
        **dict.fromkeys(STRINGS, tf.string),
    }
    names = [f"{'f' if i < 8 else 'i' if i < 16 else 's'}{i % 8}" for i in range(20)]
    spec = {names[i]: tf.io.FixedLenFeature([], types_[i]) for i in range(20)}

    def work() -> int:
        records = tf.data.TFRecordDataset(sorted(glob.glob(f"{output}/*.gz")), "GZIP").batch(BATCH_ROWS)
        batches = records.map(lambda serialized: tf.io.parse_example(serialized, spec))
        return sum(len(batch["i0"]) for batch in batches)

    return work


def read_tfds(output: str) -> Work:
    """tfds.as_numpy over batches."""
    import tensorflow_datasets as tfds

    def work() -> int:
        (folder,) = glob.glob(f"{output}/*/*/dataset_info.json")
        builder = tfds.builder_from_directory(os.path.dirname(folder))
        batches = tfds.as_numpy(builder.as_dataset(split="train", batch_size=BATCH_ROWS))
        return sum(len(batch["i0"]) for batch in batches)

    return work


def read_mds(output: str) -> Work:
    """StreamingDataset over local shards, a dict a row."""
    streaming = import_streaming()

    def work() -> int:
        streaming.base.util.clean_stale_shared_memory()
        return sum(1 for _ in streaming.StreamingDataset(local=output, shuffle=False, batch_size=BATCH_ROWS))

    return work


WRITERS = {
    "shardkit": write_shardkit,
    "beam": write_beam,
    "tfds": write_tfds,
    "mds": write_mds,
    "tf_writer": write_tf_writer,
}
READERS = {"shardkit": read_shardkit, "tfds": read_tfds, "mds": read_mds, "tf_writer": read_tf_writer}


def cpu_seconds() -> float:
    """Returns CPU time of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Does one piece of work and prints what it took."""
    what, tool, *arguments = sys.argv[1:]
    if what == "write":
        shutil.rmtree(arguments[1], ignore_errors=True)
        os.makedirs(arguments[1])
        work = WRITERS[tool](*arguments)
    else:
        work = READERS[tool](*arguments)
    import_s, wall = cpu_seconds(), time.monotonic()
    num_rows = work()
    spent = {"cpu_s": cpu_seconds() - import_s, "wall_s": time.monotonic() - wall, "num_rows": num_rows}
    print(json.dumps(spent), flush=True)
    # What tools do when the interpreter ends is not their work.
    os._exit(0)


if __name__ == "__main__":
    main()

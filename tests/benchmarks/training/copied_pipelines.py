"""Input pipelines as they are copied from one tutorial to the next, beside the trainer's own, on the same gzip shards.

    python -m tests.benchmarks.training.copied_pipelines --columns flights.csv.zip --photos folder/of/photos
    python -m tests.benchmarks.training.copied_pipelines --quick

"copied" is `TFRecordDataset`, `map` of `parse_single_example`, `shuffle(10000)` of what was parsed, `batch`, and no
prefetch; images are decoded, resized, mirrored and changed in brightness and contrast in that same map. "copied, tuned"
adds `AUTOTUNE` to the map and a prefetch. "well made" reads eight shards in turn and in parallel, shuffles what is
still serialized, parses whole batches with `parse_example` and prefetches; images are decoded in a parallel map. "ours"
is what `shardkit train` gives its loop: `ReaderInput`, with a model of the user's own that takes every
column as it is; its images are cropped at random, too, and resized from all their pixels, which the others leave out.
What TensorFlow puts into a pipeline by itself stays switched on.

Every batch goes to the same cheap step, a `tf.function` that adds up all tensors (of strings, their lengths). All read
all columns and leave out what does not fill a batch. Each way is a process of its own and runs some batches before it
is measured, over whole epochs; ways take turns, medians of the rounds. CPU seconds are those of all threads.

Columns: a table that `shardkit convert` reads, else 20 generated columns. Images: a folder of photos, else generated
JPEG files of 18.7 KB. Tokens: 512 ids a row of English text, from the documentation of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tests.benchmarks.measure import Check, print_checks, print_machine, print_table

BUFFER_EXAMPLES = 10_000
CYCLE_LENGTH = NUM_SHARDS = 8
NUM_WARM_UP = 5
BLOCK_BYTES = 2**20
IMAGE_SIZE = 128
TARGET = 4.0
OURS, COPIED, TUNED, WELL_MADE = "ours", "copied", "copied, tuned", "well made"
WAYS = (OURS, WELL_MADE, TUNED, COPIED)
MANY_EPOCHS = 10_000
MODEL = """
import keras
import tensorflow as tf

class Cheap(keras.Model):
    def __init__(self, num_outputs):
        super().__init__()
        self.outputs_ = keras.layers.Dense(num_outputs)

    def call(self, inputs):
        return self.outputs_(tf.zeros([tf.shape(next(iter(inputs.values())))[0], 1]))

def build(features, statistics, label):
    return Cheap(label.num_outputs)
"""


class Case(NamedTuple):
    """Rows of one kind.

    Attributes:
        num_quick_rows: The same, for a look at whether everything runs.
    """

    label: str
    task: str
    batch_size: int
    num_rows: int
    num_quick_rows: int


CASES = {
    "columns": Case("float_0", "regression", 1024, 200_000, 20_000),
    "tokens": Case("label", "classification", 256, 40_000, 2_000),
    "images": Case("label", "classification", 32, 2_000, 200),
}


def generate(kind: str, folder: Path, num_rows: int) -> None:
    """Writes generated rows as a dataset."""
    from shardkit.features import make_feature
    from shardkit.testing import write_dataset
    from tests.benchmarks import workloads

    _, features, rows = getattr(workloads, f"rows_of_{kind}")(num_rows)
    if kind == "tokens":
        features = (*features, make_feature("label", "int64"))
        rows = rows.append_column("label", pa.array(np.arange(num_rows) % 2))
    block_examples = max(1, min(num_rows // NUM_SHARDS, BLOCK_BYTES * num_rows // rows.nbytes))
    write_dataset(folder, features, {"train": rows}, num_shards=NUM_SHARDS, block_examples=block_examples)


def convert(source: Path, folder: Path) -> None:
    """Converts files as the command does."""
    command = [sys.executable, "-m", "shardkit", "convert", str(source), str(folder), "--num-shards", str(NUM_SHARDS)]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        raise SystemExit(done.stderr)


def add_up(batch: Any) -> Any:
    """Returns one number that needs every tensor of a batch."""
    import tensorflow as tf

    parts = tf.nest.flatten(batch, expand_composites=True)
    numbers = [tf.strings.length(part) if part.dtype == tf.string else part for part in parts]
    return tf.add_n([tf.reduce_sum(tf.cast(number, tf.float32)) for number in numbers])


def by_trainer(folder: Path, case: Case) -> Callable[[], Iterable[Any]]:
    """Returns what gives an epoch of the trainer's batches each time that it is called."""
    from train.options.config import TrainOptions
    from train.runs.request import resolve
    from train.setup import set_up

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "model.py").write_text(MODEL)
        options = TrainOptions(
            dataset=str(folder),
            label=case.label,
            task=case.task,
            output=name,
            model=f"{name}/model.py:build",
            global_batch_size=case.batch_size,
            epochs=MANY_EPOCHS,
            image_size=IMAGE_SIZE,
        )
        setup = set_up(resolve(options))
    batches = iter(setup.input.training(setup.plan.position(0)))
    return lambda: islice(batches, setup.plan.steps_per_epoch)


def by_tensorflow(folder: Path, case: Case, way: str) -> Callable[[], Iterable[Any]]:
    """Returns a dataset of stock tf.data, written one way or the other."""
    import tensorflow as tf

    from shardkit.dataset.open import open_dataset

    features = open_dataset(str(folder)).manifest.features
    dtypes = {"int64_list": tf.int64, "float_list": tf.float32}
    spec = {f.name: tf.io.FixedLenFeature(list(f.shape), dtypes.get(f.stored_as, tf.string)) for f in features}
    files = sorted(map(str, folder.glob("data/*/*.tfrecord.gz")))
    images = [f.name for f in features if f.media_type == "image/jpeg"]

    def decode(example: dict[str, Any]) -> dict[str, Any]:
        for name in images:
            image = tf.image.resize(tf.io.decode_jpeg(example[name], channels=3), [IMAGE_SIZE, IMAGE_SIZE])
            image = tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.2 * 255)
            example[name] = tf.clip_by_value(tf.image.random_contrast(image, 0.8, 1.2), 0.0, 255.0)
        return example

    def parse_one(serialized: Any) -> dict[str, Any]:
        return decode(tf.io.parse_single_example(serialized, spec))

    if way != WELL_MADE:
        is_tuned = way == TUNED
        examples = tf.data.TFRecordDataset(files, "GZIP")
        examples = examples.map(parse_one, num_parallel_calls=tf.data.AUTOTUNE if is_tuned else None)
        batches = examples.shuffle(BUFFER_EXAMPLES).batch(case.batch_size, drop_remainder=True)
        dataset = batches.prefetch(tf.data.AUTOTUNE) if is_tuned else batches
    else:
        records = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
        records = records.interleave(
            lambda path: tf.data.TFRecordDataset(path, "GZIP"),
            cycle_length=CYCLE_LENGTH,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        ).shuffle(BUFFER_EXAMPLES)
        if images:
            examples = records.map(parse_one, num_parallel_calls=tf.data.AUTOTUNE)
            batches = examples.batch(case.batch_size, drop_remainder=True)
        else:
            batches = records.batch(case.batch_size, drop_remainder=True).map(
                lambda serialized: tf.io.parse_example(serialized, spec), num_parallel_calls=tf.data.AUTOTUNE
            )
        dataset = batches.prefetch(tf.data.AUTOTUNE)
    return lambda: dataset


def measure(kind: str, case: Case, folder: Path, way: str, seconds: float) -> dict[str, float]:
    """Returns the examples a second of one way, in this process."""
    import tensorflow as tf

    epoch = by_trainer(folder, case) if way == OURS else by_tensorflow(folder, case, way)
    step = tf.function(add_up, reduce_retracing=True)

    def run(batches: Iterable[Any]) -> int:
        num_batches = 0
        for batch in batches:
            step(batch).numpy()
            num_batches += 1
        return num_batches

    # The trainer reads on from epoch to epoch; the epochs that are measured are whole ones.
    run(epoch() if way == OURS else islice(iter(epoch()), NUM_WARM_UP))
    started, cpu, num_batches, num_epochs = time.monotonic(), time.process_time(), 0, 0
    while num_epochs == 0 or time.monotonic() - started < seconds:
        num_batches += run(epoch())
        num_epochs += 1
    wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu
    num_examples = num_batches * case.batch_size
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    rates = {"wall": num_examples / wall_s, "cpu": num_examples / cpu_s, "cores": cpu_s / wall_s}
    return rates | {"peak_mb": peak_mb, "epoch": num_batches / num_epochs}


def measure_apart(*request: Any) -> dict[str, float]:
    """Returns what `measure` does, from a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--one", json.dumps(request)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def take_turns(kind: str, case: Case, folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Returns the medians of every way."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
            found[way].append(measure_apart(kind, case, str(folder), way, seconds))
            print(f"{kind}, {way}: {found[way][-1]['wall']:,.0f} examples/s", file=sys.stderr, flush=True)
    assert len({one["epoch"] for measured in found.values() for one in measured}) == 1
    return {
        way: {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        for way, measured in found.items()
    }


def _lines(found: dict[str, dict[str, float]], kind: str) -> Iterator[tuple[str, ...]]:
    for way, rates in found.items():
        times = (found[OURS][key] / rates[key] for key in ("wall", "cpu"))
        yield (
            kind,
            way,
            f"{rates['wall']:,.0f}",
            f"{rates['cpu']:,.0f}",
            f"{rates['cores']:.2f}",
            f"{rates['peak_mb']:,.0f}",
            *(f"{ratio:.1f}" for ratio in times),
        )


def main() -> None:
    """Prints a table for all kinds of rows, then the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=Path, help="A table to convert, such as a CSV file.")
    parser.add_argument("--columns-label", help="A column of numbers of that table.")
    parser.add_argument("--photos", type=Path, help="A folder of JPEG files in a folder for each class.")
    parser.add_argument("--kinds", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="Of each measurement; an epoch at least.")
    parser.add_argument("--quick", action="store_true", help="One short round of few rows: shows that it runs.")
    parser.add_argument("--markdown", action="store_true", help="Print a table in Markdown and nothing else.")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, case, folder, way, seconds = json.loads(options.one)
        print(json.dumps(measure(kind, Case(*case), Path(folder), way, seconds)))
        return
    if (options.columns is None) != (options.columns_label is None):
        parser.error("--columns and --columns-label go together")
    if options.quick:
        options.rounds, options.seconds = 1, 0.0
    if not options.markdown:
        print_machine("shardkit", "tensorflow", "keras")
    sources = {"columns": options.columns, "images": options.photos}
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for kind in options.kinds:
            case, folder = CASES[kind], Path(name) / kind
            if (source := sources.get(kind)) is None:
                generate(kind, folder, case.num_quick_rows if options.quick else case.num_rows)
            else:
                convert(source, folder)
                case = case._replace(label=options.columns_label) if kind == "columns" else case
            found[kind] = take_turns(kind, case, folder, options.rounds, options.seconds)
    headers = ("rows", "pipeline", "examples/s", "per CPU s", "cores", "peak MB", "ours is faster by", "per CPU s")
    lines = list(chain.from_iterable(_lines(rates, kind) for kind, rates in found.items()))
    if options.markdown:
        print(f"| {' | '.join(headers)} |\n|{'---|' * 2}{'---:|' * (len(headers) - 2)}")
        print("".join(f"| {' | '.join(line)} |\n" for line in lines), end="")
        return
    print_table(f"medians of {options.rounds} rounds", headers, lines)
    if not options.quick:
        print_checks(
            [
                Check(f"{kind}: examples/s of ours / copied", rates[OURS]["wall"] / rates[COPIED]["wall"], TARGET)
                for kind, rates in found.items()
            ]
        )


if __name__ == "__main__":
    main()

"""How well shuffled batches mix data that is sorted by class and was converted with `--no-shuffle`.

    python -m tests.benchmarks.reading.mixing --rows 1000000 --batch 256

The reader's order mixes 48 blocks a batch; stock tf.data shuffles the files and reads 16 at a time through a buffer of
10,000 examples, or all of them one after the other. Prints, per way: examples that are held to choose from, classes of
10 in a batch, and the mean of chi-square over its degrees of freedom, which is 1 where every example were drawn by
itself and larger the worse the classes are mixed. At both ends of an epoch two lanes stand in each block; how well the
first and the last batches are mixed, a fiftieth of all each, is shown by itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import shardkit

NUM_CLASSES = 10
BUFFER_EXAMPLES = 10_000
CYCLE_LENGTH = 16


def make_dataset(folder: Path, num_rows: int) -> Path:
    """Converts rows that are sorted by class, about 100 bytes each, and returns the dataset."""
    source, dataset = folder / "sorted.csv", folder / "dataset"
    with source.open("w") as file:
        file.write("label,payload\n")
        for row in range(num_rows):
            file.write(f"{row * NUM_CLASSES // num_rows},{row:064d}\n")
    command = [sys.executable, "-m", "shardkit", "convert", str(source), str(dataset), "--no-shuffle"]
    subprocess.run([*command, "--num-shards", "32"], check=True, capture_output=True)
    return dataset


def by_reader(dataset: Path, batch_size: int, num_lanes: int) -> tuple[int, list[np.ndarray]]:
    """Returns how many examples are held, and the labels of every batch."""
    opened = shardkit.open(str(dataset))
    mean_block = np.mean([n for shard in opened.dataset.shards for n in shard.block_num_examples])
    reader = opened["train"].batches(global_batch_size=batch_size, seed=1, num_lanes=num_lanes, features=["label"])
    return int(num_lanes * mean_block), [np.asarray(batch["label"]) for batch in reader]


def by_tensorflow(dataset: Path, batch_size: int, cycle_length: int) -> tuple[int, list[np.ndarray]]:
    """Returns the size of the buffer, and the labels of every batch."""
    tf.random.set_seed(1)
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, dataset.glob("data/*/*.tfrecord.gz")))).shuffle(1000)
    records = files.interleave(lambda path: tf.data.TFRecordDataset(path, "GZIP"), cycle_length=cycle_length)
    batches = records.shuffle(BUFFER_EXAMPLES).batch(batch_size, drop_remainder=True)
    spec = {"label": tf.io.FixedLenFeature([], tf.int64)}
    return BUFFER_EXAMPLES, [tf.io.parse_example(batch, spec)["label"].numpy() for batch in batches]


def measure(batches: Iterable[np.ndarray]) -> tuple[float, int, float]:
    """Returns classes in a batch, mean and least, and chi-square over its degrees of freedom."""
    counts = np.array([np.bincount(labels, minlength=NUM_CLASSES) for labels in batches])
    expected = counts.sum(axis=0) / counts.sum() * counts.sum(axis=1, keepdims=True)
    num_classes = (counts > 0).sum(axis=1)
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1) / (NUM_CLASSES - 1)
    return float(num_classes.mean()), int(num_classes.min()), float(chi_square.mean())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    table = Table(
        "way", "examples held", "classes a batch", "least", "chi-square", "at the ends", "least", "chi-square"
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder), arguments.rows)
        ways = {f"reader, {lanes} lanes": by_reader(dataset, arguments.batch, lanes) for lanes in (16, 48, 96)}
        ways |= {
            f"tf.data, cycle of {cycle}": by_tensorflow(dataset, arguments.batch, cycle) for cycle in (1, CYCLE_LENGTH)
        }
        for name, (num_held, batches) in ways.items():
            num_ends = max(1, len(batches) // 50)
            cells = [
                (f"{mean:.1f}", str(least), f"{chi_square:.1f}")
                for mean, least, chi_square in map(measure, (batches, batches[:num_ends] + batches[-num_ends:]))
            ]
            table.add_row(name, f"{num_held:,}", *cells[0], *cells[1])
    Console().print(table)


if __name__ == "__main__":
    main()

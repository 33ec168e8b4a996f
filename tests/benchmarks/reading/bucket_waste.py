"""How much of a batch is padding: batches of similar length against plain ones, on Zipf, lognormal and uniform lengths.

    python -m tests.benchmarks.reading.bucket_waste --num-tokens 20000000 --tokens-per-batch 32768 --num-groups 8

A dataset of int32 lists is written for each kind of lengths and read by the reader itself: with `LengthBuckets` whose
boundaries it chooses, with powers of two, and in plain batches of as many rows as those have on average. Padding is
counted twice: to the boundary of the bucket, which gives few shapes, and to the longest list of each batch. Tokens are
those of all workers, without padding. Ends with code 1 if the chosen boundaries leave 10 % or more of padding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardkit.features import arrow_schema, make_feature
from shardkit.reading.batch import Batch, Ragged
from shardkit.reading.length_buckets import LengthBuckets
from shardkit.reading.split import Split
from shardkit.reading.splits import Splits
from shardkit.testing import write_dataset
from tests.benchmarks.measure import Cell, Check, print_checks, print_machine, print_table

LONGEST = 512
FEATURE = make_feature("tokens", "int32", (None,))
MAX_WASTE = 0.1
CHOSEN = "chosen"

Lengths = npt.NDArray[np.int64]


class Reading(NamedTuple):
    """What batches of one way to read held.

    Attributes:
        num_shapes: Different boundaries; None without.
        to_boundary: The same with padding.
        to_longest: The same, padded no further than to the longest list of the batch.
    """

    num_shapes: int | None
    tokens: Lengths
    to_boundary: Lengths
    to_longest: Lengths
    num_examples: int
    examples_per_s: float


def kinds_of_lengths(num_tokens: int, seed: int) -> Iterator[tuple[str, Lengths]]:
    """Yields names and lengths, of so many tokens each: buckets that hold few batches say little."""
    rng = np.random.default_rng(seed)
    values = np.arange(1, LONGEST + 1)
    for exponent in (1.0, 1.3):
        weights = 1 / values**exponent
        weights /= weights.sum()
        yield f"Zipf {exponent}", rng.choice(values, int(num_tokens / (weights * values).sum()), p=weights)
    yield "lognormal", np.clip(rng.lognormal(4.5, 0.8, num_tokens // 115).astype(np.int64), 1, LONGEST)
    yield "uniform", rng.integers(1, LONGEST + 1, 2 * num_tokens // LONGEST)


def write(folder: Path, lengths: Lengths) -> Split:
    """Writes lists of these lengths, in blocks of about a quarter of a MiB."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = pa.array(np.arange(offsets[-1], dtype=np.int32) % 30_000)
    lists = pa.ListArray.from_arrays(pa.array(offsets), values)
    batch = pa.record_batch([lists], arrow_schema((FEATURE,)))
    block_examples = max(1, 2**18 // int(2 * lengths.mean() + 40))
    dataset = write_dataset(folder, (FEATURE,), {"train": batch}, num_shards=4, block_examples=block_examples)
    return Splits(dataset)["train"]


def read(batches: Iterable[Batch]) -> Reading:
    """Reads all batches and counts."""
    shapes, found, num_examples = set(), [], 0
    started = time.perf_counter()
    for batch in batches:
        column = batch["tokens"]
        if isinstance(column, Ragged):
            lengths = column.row_lengths()
            longest = int(lengths.max())
            boundary = batch.pad_to or longest
            found.append((int(lengths.sum()), len(lengths) * boundary, len(lengths) * longest))
            num_examples += len(lengths)
            shapes.add(batch.pad_to)
    seconds = time.perf_counter() - started
    tokens, to_boundary, to_longest = np.array(found, np.int64).reshape(-1, 3).T
    num_shapes = None if None in shapes else len(shapes)
    return Reading(num_shapes, tokens, to_boundary, to_longest, num_examples, num_examples / seconds)


def row_of(kind: str, way: str, reading: Reading, num_examples: int) -> list[Cell]:
    """Returns the row of the table."""
    num_tokens = int(reading.tokens.sum())
    return [
        kind,
        way,
        reading.num_shapes,
        f"{1 - num_tokens / reading.to_boundary.sum():.1%}" if reading.num_shapes else None,
        f"{1 - num_tokens / reading.to_longest.sum():.1%}",
        len(reading.tokens),
        f"{reading.tokens.mean():,.0f}",
        f"{reading.tokens.min():,}",
        f"{1 - reading.num_examples / num_examples:.2%}",
        f"{reading.examples_per_s:,.0f}",
    ]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-tokens", type=int, default=20_000_000)
    parser.add_argument("--tokens-per-batch", type=int, default=32_768)
    parser.add_argument("--num-groups", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[list[Cell]] = []
    passes: list[list[Cell]] = []
    checks: list[Check] = []
    print_machine("numpy", "pyarrow")
    for kind, lengths in kinds_of_lengths(options.num_tokens, options.seed):
        with tempfile.TemporaryDirectory() as folder:
            split = write(Path(folder) / "set", lengths)
            for way, boundaries in ((CHOSEN, None), ("powers of two", tuple(2**i for i in range(3, 10)))):
                buckets = LengthBuckets(
                    feature="tokens",
                    tokens_per_batch=options.tokens_per_batch,
                    boundaries=boundaries,
                    num_groups=options.num_groups,
                )
                started = time.perf_counter()
                reader = split.batches(buckets=buckets, seed=options.seed)
                seconds = time.perf_counter() - started
                reading = read(reader)
                rows.append(row_of(kind, way, reading, len(lengths)))
                if way == CHOSEN:
                    chosen = ", ".join(map(str, reader.order_options.buckets.boundaries))
                    passes.append([kind, f"{len(lengths) / seconds:,.0f}", chosen])
                    waste = 1 - reading.tokens.sum() / reading.to_boundary.sum()
                    checks.append(Check(f"{kind}: share that is no padding", 1 - float(waste), 1 - MAX_WASTE))
                    size = max(1, len(lengths) // len(reading.tokens))
            plain = read(split.batches(global_batch_size=size, seed=options.seed))
            rows.append(row_of(kind, f"plain, {size} rows", plain, len(lengths)))
    header = (
        "lengths | batches | shapes | to boundary | to longest | steps | tokens a step | least | dropped | examples/s"
    )
    print_table("padding", header.split(" | "), rows)
    print_table("the pass that learns the lengths", ["lengths", "examples/s", "chosen boundaries"], passes)
    print_checks(checks)
    return int(any(check.measured is None or check.measured < check.target for check in checks))


if __name__ == "__main__":
    sys.exit(main())

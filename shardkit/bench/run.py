"""The whole measurement of one split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from shardkit.bench.feeding import Fed, feed
from shardkit.bench.memory import PeakMemory
from shardkit.bench.planning import (
    ENOUGH_BUSY,
    NUM_ACCELERATORS,
    STEP_TIMES_S,
    Feeding,
    choose_batch_size,
    choose_split,
    compute_feeding,
)
from shardkit.bench.rates import Batches, Contender, Open, Rate, measure, summarize, take_turns
from shardkit.bench.stages import Stage, measure_stages
from shardkit.dataset.manifest import SplitInfo
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.features import Features
from shardkit.reading.batches import ReadingOptions
from shardkit.reading.splits import open_splits
from shardkit.storage import files as storage

NUM_ROUNDS = 3
SHARDKIT, TF_DATA = "shardkit", "tf.data"

_FOREVER = 2**31


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure.

    Attributes:
        split: None means `train`, or the largest split.
        version: Of the dataset; None means the newest.
        batch_size: Examples; None means what suits the size of a record.
        seconds: Of each measurement.
        num_threads: That read.
        features: Names of those to decode; None means all.
        shuffle: False reads in the stored order.
        step_time_s: Of one step of one accelerator; None means that nothing is fed, only computed.
        num_accelerators: None means 1, 2, 4 and 8, up to the first that are not busy 90 % of the time.
    """

    split: str | None = None
    version: int | None = None
    batch_size: int | None = None
    seconds: float = 1.0
    num_threads: int
    features: tuple[str, ...] | None = None
    shuffle: bool = True
    step_time_s: float | None = None
    num_accelerators: int | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every way to read has to do.

    Attributes:
        location: Of the dataset.
        version: Of the dataset.
        split: Name of the split.
        features: Which to decode.
        batch_size: Examples of a batch; what does not fill one at the end of an epoch is left out.
        num_threads: That read.
        shuffle: Whether epochs are shuffled.
    """

    location: str
    version: int
    split: str
    features: Features
    batch_size: int
    num_threads: int
    shuffle: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        location: Of the dataset.
        name: Of the dataset.
        version: Of the dataset.
        split: Name of the split.
        compression: Of its shards.
        num_examples: Of the split.
        num_shards: Of the split.
        features: Names of those that were decoded.
        batch_size: Examples of a batch.
        asked_batch_size: What was asked for, None if nothing was.
        seconds: Of each measurement.
        num_rounds: Measurements of each way to read.
        num_threads: That read.
        num_cores: That this process may use.
        shuffle: Whether epochs are shuffled.
        mean_record_bytes: Of a framed record.
        mean_stored_bytes: Of a record in its file.
        reader: This reader.
        tfdata: Stock tf.data on the same work; None if it was left out.
        no_tfdata: Why it was left out, None if it was not asked for or measured.
        peak_memory_bytes: The most that this reader took, beyond what the process took before.
        stages: Of this reader, in one thread.
        fed: Accelerators that were fed by this reader.
        computed: What the reader's rate means for accelerators.
    """

    location: str
    name: str
    version: int
    split: str
    compression: str
    num_examples: int
    num_shards: int
    features: tuple[str, ...]
    batch_size: int
    asked_batch_size: int | None
    seconds: float
    num_rounds: int
    num_threads: int
    num_cores: int
    shuffle: bool
    mean_record_bytes: float
    mean_stored_bytes: float
    reader: Rate
    tfdata: Rate | None
    no_tfdata: str | None
    peak_memory_bytes: int | None
    stages: tuple[Stage, ...]
    fed: tuple[Fed, ...]
    computed: tuple[Feeding, ...]


class Baseline(msgspec.Struct, frozen=True):
    """Stock tf.data, or why there is none.

    Attributes:
        open: Opens it for some work.
        why_not: Why it is left out.
    """

    open: Callable[[Work], Open] | None = None
    why_not: str | None = None


def run(
    location: str, options: BenchOptions, *, load_tfdata: Callable[[Dataset], Baseline], tell: Callable[[str], None]
) -> Report:
    """Measures how fast one split is read.

    Args:
        location: Of the dataset.
        options: What to measure.
        load_tfdata: Called after the memory of this reader has been measured.
        tell: Called with a sentence about the progress.

    Raises:
        UsageError: If there is no such dataset, version, split or feature.
        DamageError: If something cannot be read.
    """
    dataset = open_dataset(location, options.version)
    split = choose_split(dataset.manifest, options.split)
    work = plan_work(dataset, split, options)
    peak_memory_bytes = _warm_up(work, options, tell)
    stages = _stages(dataset, work, options, tell)
    tfdata = load_tfdata(dataset)
    rates = _measure_rates(work, split, options, tfdata, tell)
    reader = rates[SHARDKIT]
    return Report(
        location=storage.redact(dataset.url),
        name=dataset.manifest.name,
        version=dataset.version,
        split=split.name,
        compression=dataset.manifest.compression,
        num_examples=split.num_examples,
        num_shards=split.num_shards,
        features=tuple(f.name for f in work.features),
        batch_size=work.batch_size,
        asked_batch_size=options.batch_size,
        seconds=options.seconds,
        num_rounds=NUM_ROUNDS,
        num_threads=work.num_threads,
        num_cores=len(os.sched_getaffinity(0)),
        shuffle=work.shuffle,
        mean_record_bytes=split.num_uncompressed_bytes / split.num_examples,
        mean_stored_bytes=split.num_bytes / split.num_examples,
        reader=reader,
        tfdata=rates.get(TF_DATA),
        no_tfdata=tfdata.why_not,
        peak_memory_bytes=peak_memory_bytes,
        stages=stages,
        fed=tuple(_feed(work, options, tell)),
        computed=tuple(compute_feeding(reader.examples_per_s, work.batch_size, s) for s in STEP_TIMES_S),
    )


def plan_work(dataset: Dataset, split: SplitInfo, options: BenchOptions) -> Work:
    """Returns the work of every way to read.

    Raises:
        UsageError: If there is no such feature.
    """
    names = options.features
    manifest = dataset.manifest
    return Work(
        location=dataset.url,
        version=dataset.version,
        split=split.name,
        features=manifest.features if names is None else tuple(manifest.feature(n) for n in dict.fromkeys(names)),
        batch_size=choose_batch_size(
            options.batch_size, split.num_examples, split.num_uncompressed_bytes / split.num_examples
        ),
        num_threads=options.num_threads,
        shuffle=options.shuffle,
    )


def read_batches(work: Work, num_ahead: int = ReadingOptions().num_ahead) -> Batches:
    """Yields batches of NumPy columns, epoch after epoch; text is left as bytes, as tf.data gives it."""
    split = open_splits(work.location, work.version)[work.split]
    reader = split.batches(
        global_batch_size=work.batch_size,
        num_epochs=_FOREVER,
        shuffle=work.shuffle,
        features=[f.name for f in work.features],
        num_threads=work.num_threads,
        num_ahead=num_ahead,
        decodes_text=False,
    )
    try:
        yield from reader
    finally:
        reader.close()


def _warm_up(work: Work, options: BenchOptions, tell: Callable[[str], None]) -> int | None:
    """Returns the memory that this reader takes."""
    tell(f"warming up: {SHARDKIT}")
    memory = PeakMemory()
    measure(lambda: read_batches(work), options.seconds)
    return memory.num_bytes()


def _stages(dataset: Dataset, work: Work, options: BenchOptions, tell: Callable[[str], None]) -> tuple[Stage, ...]:
    tell("stages")
    return measure_stages(
        dataset,
        work.split,
        work.features,
        batch_size=work.batch_size,
        shuffle=work.shuffle,
        seconds=options.seconds,
    )


def _measure_rates(
    work: Work, split: SplitInfo, options: BenchOptions, tfdata: Baseline, tell: Callable[[str], None]
) -> dict[str, Rate]:
    contenders = [Contender(SHARDKIT, lambda: read_batches(work))]
    if tfdata.open is not None:
        contenders.append(Contender(TF_DATA, tfdata.open(work)))
        tell(f"warming up: {TF_DATA}")
        measure(contenders[-1].open, options.seconds)
    windows = take_turns(contenders, num_rounds=NUM_ROUNDS, seconds=options.seconds, tell=tell)
    return {
        name: summarize(
            found,
            batch_size=work.batch_size,
            record_bytes=split.num_uncompressed_bytes / split.num_examples,
            stored_bytes=split.num_bytes / split.num_examples,
        )
        for name, found in windows.items()
    }


def _feed(work: Work, options: BenchOptions, tell: Callable[[str], None]) -> Iterator[Fed]:
    if options.step_time_s is None:
        return
    chosen = options.num_accelerators
    for number in NUM_ACCELERATORS if chosen is None else (chosen,):
        tell(f"feeding accelerators: {number}")
        # All batches of the next step are made while this one is computed.
        num_ahead = max(number, ReadingOptions().num_ahead)
        fed = feed(
            partial(read_batches, work, num_ahead),
            num_accelerators=number,
            step_time_s=options.step_time_s,
            seconds=options.seconds,
        )
        yield fed
        if fed.share_busy < ENOUGH_BUSY:
            return

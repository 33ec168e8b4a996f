"""The whole measurement of one split."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from shardkit.bench.rates import Batches, Open, PeakMemory, Rate, measure, summarize, take_turns
from shardkit.dataset.manifest import Manifest, SplitInfo
from shardkit.dataset.open import Dataset, open_dataset
from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.reading.batches import ReadingOptions
from shardkit.reading.splits import open_splits
from shardkit.storage import files as storage
from shardkit.units import MiB

NUM_ROUNDS = 3
SHARDKIT, TF_DATA = "shardkit", "tf.data"

_FOREVER = 2**31
_BATCH_SIZE = 1024
_BATCH_BYTES = 32 * MiB
# At the end of an epoch nothing is read ahead, and small splits would be measured for nothing else.
_MIN_BATCHES = 8


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure.

    Attributes:
        split: None means `train`, or the largest split.
        version: Of the dataset; None means the newest.
        batch_size: Examples; None means what suits the size of a record.
        features: Names of those to decode; None means all.
        shuffle: False reads in the stored order.
    """

    split: str | None = None
    version: int | None = None
    batch_size: int | None = None
    seconds: float = 1.0
    num_threads: int
    features: tuple[str, ...] | None = None
    shuffle: bool = True


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What every way to read has to do. Examples that do not fill a batch at the end of an epoch are left out."""

    location: str
    version: int
    split: str
    features: Features
    batch_size: int
    num_threads: int
    shuffle: bool


# Opens stock tf.data for some work; or why it is left out; None where it is not wanted.
Baseline = Callable[[Work], Open] | str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        split, num_examples, num_shards: Of the split that was read.
        features: Names of those that were decoded.
        asked_batch_size: What was asked for, None if nothing was.
        tfdata: Stock tf.data on the same work; None if it was left out.
        no_tfdata: Why it was left out, None if it was not asked for or measured.
        peak_memory_bytes: The most that this reader took, beyond what the process took before.
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
    num_rounds: int = NUM_ROUNDS
    num_threads: int
    num_cores: int
    shuffle: bool
    mean_record_bytes: float
    mean_stored_bytes: float
    reader: Rate
    tfdata: Rate | None
    no_tfdata: str | None
    peak_memory_bytes: int | None


def run(
    location: str, options: BenchOptions, *, load_tfdata: Callable[[Dataset], Baseline], tell: Callable[[str], None]
) -> Report:
    """Measures how fast one split is read.

    Args:
        load_tfdata: Called after the memory of this reader has been measured.

    Raises:
        UsageError: If there is no such dataset, version, split or feature.
        DamageError: If something cannot be read.
    """
    dataset = open_dataset(location, options.version)
    split = choose_split(dataset.manifest, options.split)
    work = plan_work(dataset, split, options)
    tell(f"warming up: {SHARDKIT}")
    peak_memory_bytes = _warm_up(work, options.seconds)
    tfdata = load_tfdata(dataset)
    rates = _measure_rates(work, split, tfdata, options.seconds, tell)
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
        num_threads=work.num_threads,
        num_cores=len(os.sched_getaffinity(0)),
        shuffle=work.shuffle,
        mean_record_bytes=split.num_uncompressed_bytes / split.num_examples,
        mean_stored_bytes=split.num_bytes / split.num_examples,
        reader=rates[SHARDKIT],
        tfdata=rates.get(TF_DATA),
        no_tfdata=tfdata if isinstance(tfdata, str) else None,
        peak_memory_bytes=peak_memory_bytes,
    )


def choose_split(manifest: Manifest, name: str | None) -> SplitInfo:
    """Returns the split that is named, else `train`, else the largest one.

    Raises:
        UsageError: If there is no such split, or it holds no examples.
    """
    known = [s.name for s in manifest.splits]
    if name is None and not known:
        raise UsageError(
            "there is nothing to read",
            why="the dataset holds no examples",
            next_step="Convert inputs that hold rows, and read that dataset",
        )
    if name is None:
        name = "train" if "train" in known else max(manifest.splits, key=lambda s: s.num_examples).name
    split = manifest.split(name)
    if not split.num_examples:
        with_examples = [s.name for s in manifest.splits if s.num_examples]
        raise UsageError(
            "there is nothing to read",
            where=f"split {name!r}",
            why="it holds no examples",
            next_step=f"Choose one of: {', '.join(with_examples)}" if with_examples else None,
        )
    return split


def choose_batch_size(wanted: int | None, num_examples: int, mean_num_bytes: float) -> int:
    """Returns the examples of a batch, never more than there are.

    Args:
        wanted: None means 1,024, or if that is less the largest power of two whose records take 32 MiB, and of which an
            epoch has eight.
        num_examples: Of the split, at least one.
        mean_num_bytes: Of a framed record.
    """
    if wanted is None:
        affordable = max(1, min(int(_BATCH_BYTES / max(1.0, mean_num_bytes)), num_examples // _MIN_BATCHES))
        wanted = min(_BATCH_SIZE, 1 << (affordable.bit_length() - 1))
    return min(wanted, num_examples)


def plan_work(dataset: Dataset, split: SplitInfo, options: BenchOptions) -> Work:
    """Returns the work of every way to read. Raises UsageError if there is no such feature."""
    names, manifest = options.features, dataset.manifest
    mean_num_bytes = split.num_uncompressed_bytes / split.num_examples
    return Work(
        location=dataset.url,
        version=dataset.version,
        split=split.name,
        features=manifest.features if names is None else tuple(manifest.feature(n) for n in dict.fromkeys(names)),
        batch_size=choose_batch_size(options.batch_size, split.num_examples, mean_num_bytes),
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


def _warm_up(work: Work, seconds: float) -> int | None:
    """Returns the memory that this reader takes."""
    memory = PeakMemory()
    measure(lambda: read_batches(work), seconds)
    return memory.num_bytes()


def _measure_rates(
    work: Work, split: SplitInfo, tfdata: Baseline, seconds: float, tell: Callable[[str], None]
) -> dict[str, Rate]:
    readers: dict[str, Open] = {SHARDKIT: lambda: read_batches(work)}
    if callable(tfdata):
        readers[TF_DATA] = tfdata(work)
        tell(f"warming up: {TF_DATA}")
        measure(readers[TF_DATA], seconds)
    windows = take_turns(readers, num_rounds=NUM_ROUNDS, seconds=seconds, tell=tell)
    record_bytes = split.num_uncompressed_bytes / split.num_examples
    return {name: summarize(w, batch_size=work.batch_size, record_bytes=record_bytes) for name, w in windows.items()}

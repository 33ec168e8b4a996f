"""Several splits read as one, each with its share of the rows: an endless run that is cut into epochs of any length."""

from __future__ import annotations

import hashlib
import math
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Unpack

import msgspec
import numpy as np
import xxhash

from shardkit.dataset.block_loader import Block, BlockLoader
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.reading.batch import Batch
from shardkit.reading.hooks import FilterFunction, MapFunction, MappedSource
from shardkit.reading.mixture_order import MixtureOrder, integer_weights
from shardkit.reading.order import EpochSequence, OrderOptions, Rows, Worker, check_options
from shardkit.reading.reader import BatchReader, Readable
from shardkit.reading.settings import BatchKeywords, BatchSettings, takes_settings
from shardkit.reading.split import Split

# Must agree for a batch to hold rows of several splits; the rest says how values are looked at.
_COMPARED = ("dtype", "shape", "vocabulary", "timezone")
_NUM_KEPT_EPOCHS = 64
_MAX_SHOWN_CHARACTERS = 100


class MixturePlace(NamedTuple):
    """A block of one epoch of one source.

    Attributes:
        source: Its position among the sources.
        epoch: Of that source, from 0.
    """

    source: int
    epoch: int
    place: int


class Mixture:
    """Several splits as one source of batches.

    Attributes:
        weights: Of each source; the shares of rows are in proportion to them.
    """

    def __init__(self, splits: Sequence[Split], weights: Sequence[float | Fraction]) -> None:
        _check_weights(splits, weights)
        self.splits = tuple(splits)
        self.weights = tuple(weights)
        self._integers = integer_weights(weights)

    @cached_property
    def features(self) -> Features:
        first, *others = (split.features for split in self.splits)
        names = [f.name for f in first if all(any(f.name == o.name for o in other) for other in others)]
        return tuple(_merged(name, self.splits) for name in names if not _differences(name, self.splits))

    def map(self, function: MapFunction) -> MappedSource:
        """Returns the mixture with a function on its batches, for adapters; see `BatchReader.map`."""
        return MappedSource(self).map(function)

    def filter(self, function: FilterFunction) -> MappedSource:
        """Returns the mixture with a condition on the rows of its batches, for adapters; see `BatchReader.filter`."""
        return MappedSource(self).filter(function)

    @takes_settings
    def batches(
        self,
        *,
        global_batch_size: int,
        num_steps: int | None = None,
        source_feature: str | None = None,
        **settings: Unpack[BatchKeywords],
    ) -> BatchReader:
        """Returns a reader of this worker's batches, each of `global_batch_size // num_workers` rows.

        After any number of steps every source has given its share of the rows, but for one row with two sources and a
        few with more. Each source has its own epochs: a smaller one begins the next epoch sooner.

        Args:
            global_batch_size: Examples that all workers together take a step.
            num_steps: What is called an epoch of the mixture: epoch e goes on where epoch e - 1 ended. None never ends.
            source_feature: Name of a column to add: int32 `[n]`, the position of each row's source.
            **settings: See `BatchSettings`.

        Raises:
            UsageError: If the numbers do not fit together, or the sources differ in their features; says what would
                fit.
        """
        given = BatchSettings(**settings)
        order = given.order(global_batch_size)
        # Lanes are read side by side in any case.
        check_options(msgspec.structs.replace(order, shuffle=True), given.worker)
        _check_numbers(given, num_steps)
        features = self._chosen(given.features)
        self._check_sources(features, source_feature)
        steps_each = sys.maxsize if num_steps is None else num_steps
        sources = [_Source(i, split, order) for i, split in enumerate(self.splits)]
        rows, worker = MixtureOrder(self._integers, [s.num_examples for s in self.splits], order), given.worker
        readable = Readable(
            plan_epoch=lambda n: MixturePlan(rows, sources, worker, n * steps_each, steps_each, source_feature),
            features=features,
            dataset=self._hash(),
            split="mixture without end" if num_steps is None else f"mixture in epochs of {num_steps:,} steps",
            order=order,
            is_remote=any(source.loader.is_remote for source in sources),
        )
        rebuild = partial(
            self.batches,
            global_batch_size=global_batch_size,
            num_steps=num_steps,
            source_feature=source_feature,
            **settings,
        )
        return BatchReader(readable, given, rebuild)

    def _check_sources(self, features: Features, source_feature: str | None) -> None:
        if source_feature is not None and any(f.name == source_feature for f in features):
            raise UsageError(
                f"source_feature cannot be {source_feature!r}",
                why="a feature is called so",
                next_step="Give another name, or leave that feature out with features=[...]",
            )
        for split in self.splits:
            if not split.num_examples:
                raise UsageError(f"{_name_of(split)} has no examples", next_step="Leave it out of the mixture")

    def _chosen(self, names: Sequence[str] | None) -> Features:
        if names is None:
            names = list(dict.fromkeys(f.name for split in self.splits for f in split.features))
        if not names:
            raise UsageError("no feature is chosen", next_step="Name at least one, or leave `features` out for all")
        differences = [difference for name in names for difference in _differences(name, self.splits)]
        if differences:
            common = ", ".join(repr(f.name) for f in self.features) or "none"
            raise UsageError(
                "the sources of the mixture differ in their features",
                why="; ".join(differences),
                next_step=f"Choose among those that agree with features=[...]: {common}",
            )
        return tuple(_merged(name, self.splits) for name in names)

    def _hash(self) -> str:
        parts = [(_identity_of(split), weight) for split, weight in zip(self.splits, self._integers, strict=True)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()


class MixturePlan:
    """The plan of some steps of a mixture; see `EpochPlan`."""

    def __init__(
        self,
        order: MixtureOrder,
        sources: Sequence[_Source],
        worker: Worker,
        first_step: int,
        num_steps: int,
        source_feature: str | None,
    ) -> None:
        self._order = order
        self._sources = sources
        self._worker = worker
        self._first_step = first_step
        self._num_steps = num_steps
        self._source_feature = source_feature
        lanes_each = sources[0].order.num_lanes // sources[0].order.num_turns // worker.num_workers
        # With a small share of a source not every step needs the block that a lane is in. Blocks are kept as they are
        # stored, because small sources are in several epochs at once.
        self._load = lru_cache(2 * lanes_each * len(sources))(self._load_stored)

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def num_rows(self, step: int) -> int:
        return self._sources[0].order.global_batch_size // self._worker.num_workers

    def is_filled_up(self, step: int) -> bool:
        return False

    def rows(self, step: int) -> list[Rows]:
        found: list[Rows] = []
        for source, start, stop in self._order.rows(self._first_step + step, self._worker):
            found += self._sources[source].rows(start, stop)
        return found

    def load(self, place: MixturePlace) -> Block:
        sequence = self._sources[place.source].sequence(place.epoch)
        block = self._load(place.source, int(sequence.blocks[place.place]))
        order = sequence.block_order(place.place)
        if order is None:
            return block
        return block._replace(starts=block.starts[order], lengths=block.lengths[order], stored_rows=order)

    def num_bytes(self, place: MixturePlace) -> int:
        source = self._sources[place.source]
        return source.loader.num_bytes(int(source.sequence(place.epoch).blocks[place.place]))

    def finish(self, step: int, batch: Batch) -> Batch:
        if self._source_feature is None:
            return batch
        rows = self.rows(step)
        sources = np.array([place.source for place, _, _ in rows], np.int32)
        column = np.repeat(sources, [stop - start for _, start, stop in rows])
        return Batch({**batch, self._source_feature: column}, batch.present, batch.mask, batch.pad_to)

    def _load_stored(self, source: int, index: int) -> Block:
        return self._sources[source].loader.load(index, None)


class _Source:
    """One split as an endless sequence of its epochs."""

    def __init__(self, index: int, split: Split, order: OrderOptions) -> None:
        self.loader: BlockLoader = split.block_loader
        name = f"{order.seed}/{index}/{_identity_of(split)}"
        self.order = msgspec.structs.replace(order, seed=xxhash.xxh3_64_intdigest(name.encode()))
        self._index = index
        self._num_examples = split.num_examples
        sizes = split.block_num_examples
        # A batch may go through several epochs of a small source.
        num_kept = _NUM_KEPT_EPOCHS + 2 * order.global_batch_size // split.num_examples
        self.sequence = lru_cache(num_kept)(lambda epoch: EpochSequence(sizes, self.order, epoch))

    def rows(self, start: int, stop: int) -> Iterable[Rows]:
        """Yields the places of neighbours in the endless sequence."""
        while start < stop:
            epoch, position = divmod(start, self._num_examples)
            sequence = self.sequence(epoch)
            place = int(sequence.ends.searchsorted(position, side="right"))
            size, end = int(sequence.sizes[place]), int(sequence.ends[place])
            num_rows = min(end - position, stop - start)
            first = position - (end - size)
            yield MixturePlace(self._index, epoch, place), first, first + num_rows
            start += num_rows


def mix(sources: Mapping[Split, float | Fraction] | Iterable[tuple[Split, float | Fraction]]) -> Mixture:
    """Mixes splits; see `shardkit.mix`."""
    pairs = list(sources.items()) if isinstance(sources, Mapping) else list(sources)
    if not all(len(pair) == 2 for pair in pairs):
        raise UsageError("these are no sources of a mixture", next_step="Give {split: weight, ...}")
    splits: list[Any] = [split for split, _ in pairs]
    for split in splits:
        if not isinstance(split, Split):
            why = f"{type(split).__name__} is no split of a dataset"
            if isinstance(split, (MappedSource, Mixture)):
                why = "functions are done to batches, and a batch of a mixture holds rows of all its sources"
            raise UsageError(
                "this cannot be mixed", why=why, next_step="Mix splits, and call map and filter on the mixture"
            )
    return Mixture(splits, [weight for _, weight in pairs])


def _check_weights(splits: Sequence[Split], weights: Sequence[Any]) -> None:
    if not splits:
        raise UsageError("a mixture of nothing", next_step="Give at least one split and its weight")
    for split, weight in zip(splits, weights, strict=True):
        if not _is_weight(weight):
            raise UsageError(
                f"{_name_of(split)} cannot have the weight {_shown(weight)}",
                next_step="Give a positive number, or leave the split out",
            )


def _is_weight(weight: Any) -> bool:
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    try:
        return is_number and math.isfinite(weight) and weight > 0
    except OverflowError:  # Of an integer that no float comes near.
        return False


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_MAX_SHOWN_CHARACTERS]
    except ValueError:  # Of an integer of thousands of digits.
        return f"of {type(value).__name__}"


def _check_numbers(settings: BatchSettings, num_steps: int | None) -> None:
    settings.check_numbers(**({} if num_steps is None else {"num_steps": num_steps}))
    epoch, num_epochs = settings.epoch, settings.num_epochs
    if num_steps is None and (epoch, num_epochs) not in ((0, 0), (0, 1)):
        raise UsageError(
            "a mixture without end has one epoch",
            why=f"epoch is {epoch}, num_epochs {num_epochs}, and num_steps is not given",
            next_step="Say with num_steps=... how many steps an epoch has",
        )


def _differences(name: str, splits: Sequence[Split]) -> list[str]:
    """Returns the differences that keep a feature from being one column of all splits."""
    found = [(split, _feature(split, name)) for split in splits]
    missing = [f"{_name_of(split)} has no {name!r}" for split, feature in found if feature is None]
    if missing:
        return missing
    first_split, first = found[0]
    return [
        f"{name!r} has {field} {getattr(first, field)!r} in {_name_of(first_split)} and "
        f"{getattr(feature, field)!r} in {_name_of(split)}"
        for split, feature in found
        for field in _COMPARED
        if getattr(feature, field) != getattr(first, field)
    ]


def _merged(name: str, splits: Sequence[Split]) -> Feature:
    found = [feature for split in splits if (feature := _feature(split, name)) is not None]
    media_types = {feature.media_type for feature in found}
    return msgspec.structs.replace(
        found[0],
        nullable=any(feature.nullable for feature in found),
        media_type=media_types.pop() if len(media_types) == 1 else None,
    )


def _feature(split: Split, name: str) -> Feature | None:
    return next((feature for feature in split.features if feature.name == name), None)


def _name_of(split: Split) -> str:
    return f"split {split.name!r} of {split.dataset.manifest.name!r}"


def _identity_of(split: Split) -> str:
    return f"{split.dataset.manifest.shard_table.sha256}/{split.name}"

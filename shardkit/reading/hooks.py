"""What users do to batches: functions that run in the reader's threads, ahead of the consumer.

    def flip(batch, rng):
        image = batch["image"].copy()
        is_flipped = rng.random() < 0.5
        image[is_flipped] = image[is_flipped, :, ::-1]
        return {**batch, "image": image}

    train.batches(global_batch_size=256).map(decode_images("image", size=(224, 224))).map(flip)
    BatchDataset(train.map(decode_images("image", size=(224, 224))).map(flip), global_batch_size=256)

They run for several batches at once, in any order; batches are delivered in theirs. The order of the calls is the order
of the work. A filter makes batches smaller, down to none of their rows, and never fewer: workers that differ in their
number of steps would wait for each other forever.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from shardkit.errors import ShardkitError, UsageError
from shardkit.features import Features
from shardkit.hashing import UInt64s, mix64, row_keys
from shardkit.reading.batch import Batch, Bools, Column, Ragged
from shardkit.reading.order import Rows

MapFunction = Callable[..., "Batch | Mapping[str, Column]"]
FilterFunction = Callable[..., Any]


class Made(NamedTuple):
    """A batch on its way through the hooks.

    Attributes:
        keys: uint64 `[n]`: of each row, whatever the number of workers and steps is; zeros where no hook asks for them.
        num_hooks: That it has gone through.
    """

    batch: Batch
    epoch: int
    step: int
    keys: UInt64s
    num_hooks: int = 0

    @property
    def num_rows(self) -> int:
        """How many rows it has by now."""
        return num_rows_of(self.batch)


class RowRandom:
    """Random numbers for the rows of a batch.

    A row's numbers follow from the seed, the epoch, the example and the function: not from the batch, the thread or the
    worker that it falls to. So a run that is resumed, on any number of workers, goes on with the same ones.

    Attributes:
        seeds: uint64 `[n]`, one a row: for generators of one's own, such as `numpy.random.default_rng(seeds[i])`.
    """

    def __init__(self, seeds: UInt64s) -> None:
        self.seeds = seeds
        self._num_drawn = 0

    def random(self, *shape: int) -> npt.NDArray[np.float64]:
        """Returns numbers from 0 to below 1, `[n, *shape]`; others at each call."""
        num_values = int(np.prod(shape, dtype=np.int64))
        counters = np.arange(self._num_drawn, self._num_drawn + num_values, dtype=np.uint64)
        self._num_drawn += num_values
        bits = mix64(self.seeds[:, None] ^ mix64(counters))
        # The 53 bits that a float64 holds.
        numbers: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return numbers.reshape(len(self.seeds), *shape)

    def integers(self, low: int, high: int, *shape: int) -> npt.NDArray[np.int64]:
        """Returns integers from `low` to `high` - 1, `[n, *shape]`; others at each call."""
        return low + np.minimum((self.random(*shape) * (high - low)).astype(np.int64), high - low - 1)


class Map:
    """The hook of `BatchReader.map`, for any number of threads."""

    def __init__(self, function: MapFunction) -> None:
        self._call = _Call("map", function)
        self.takes_random = self._call.takes_random

    def __call__(self, made: Made) -> Made:
        """Returns the batch that the function made of one."""
        found = self._call(made)
        if isinstance(found, Batch):
            batch = found
        elif isinstance(found, Mapping):
            present = {name: bools for name, bools in made.batch.present.items() if name in found}
            batch = Batch(dict(found), present, made.batch.mask, made.batch.pad_to)
        else:
            raise self._call.wrong(made, f"it returned {_type_name(found)}, not a Batch or a dict of columns")
        num_rows = self._check(made, batch)
        return made._replace(batch=batch, keys=_keys_after(made, num_rows))

    def _check(self, made: Made, batch: Batch) -> int:
        if not batch:
            raise self._call.wrong(made, "it returned no columns")
        columns: Mapping[str, Any] = batch
        for name, column in columns.items():
            if not isinstance(column, Ragged) and not (isinstance(column, np.ndarray) and column.ndim):
                why = f"column {name!r} is {_type_name(column)}, not a NumPy array [n, ...] or a Ragged"
                raise self._call.wrong(made, why)
        lengths = {f"column {name!r}": _length_of(column) for name, column in batch.items()}
        lengths |= {f"present[{name!r}]": len(bools) for name, bools in batch.present.items()}
        if batch.mask is not None:
            lengths["mask"] = len(batch.mask)
        if len(set(lengths.values())) > 1:
            why = f"rows differ: {', '.join(f'{name} has {length:,}' for name, length in lengths.items())}"
            raise self._call.wrong(made, why, "Return a Batch with `present` and `mask` that go with its rows")
        return next(iter(lengths.values()))


class Filter:
    """The hook of `BatchReader.filter`, for any number of threads."""

    def __init__(self, function: FilterFunction) -> None:
        self._call = _Call("filter", function)
        self.takes_random = self._call.takes_random

    def __call__(self, made: Made) -> Made:
        """Returns the rows that the function wants."""
        found = np.asarray(self._call(made))
        if found.dtype != np.bool_ or found.shape != (made.num_rows,):
            expected = f"bool [{made.num_rows}]"
            raise self._call.wrong(made, f"expected {expected}, got {found.dtype} {list(found.shape)}")
        return made if found.all() else made._replace(batch=take_rows(made.batch, found), keys=made.keys[found])


Hook = Map | Filter


class BatchSource(Protocol):
    """What gives batches: a split, a mixture of several, or one of them with functions on its batches."""

    @property
    def features(self) -> Features: ...
    @property
    def batches(self) -> Callable[..., Any]: ...


class MappedSource:
    """A source of batches with functions on each. Adapters take it in place of a split."""

    def __init__(self, source: BatchSource, hooks: tuple[Hook, ...] = ()) -> None:
        self.features = source.features
        self.hooks = hooks
        self._source = source

    @property
    def num_filters(self) -> int:
        return sum(isinstance(hook, Filter) for hook in self.hooks)

    def map(self, function: MapFunction) -> MappedSource:
        """Returns the source with one more function; see `BatchReader.map`."""
        return MappedSource(self._source, (*self.hooks, Map(function)))

    def filter(self, function: FilterFunction) -> MappedSource:
        """Returns the source with one more condition; see `BatchReader.filter`."""
        return MappedSource(self._source, (*self.hooks, Filter(function)))

    def batches(self, **settings: Any) -> Any:
        """Returns a reader of the batches that the functions make; settings are those of the source's `batches`."""
        return self._source.batches(**settings).with_hooks(self.hooks)


def run_hooks(hooks: tuple[Hook, ...], made: Made) -> Batch:
    """Returns the batch after all hooks, one after the other."""
    for hook in hooks:
        made = hook(made)._replace(num_hooks=made.num_hooks + 1)
    return made.batch


def num_rows_of(batch: Batch) -> int:
    """Returns how many rows a batch has."""
    return next((_length_of(column) for column in batch.values()), 0)


def take_rows(batch: Batch, wanted: Bools) -> Batch:
    """Returns the rows for which `wanted`, bool `[n]`, is True."""
    return Batch(
        {name: _taken(column, wanted) for name, column in batch.items()},
        {name: bools[wanted] for name, bools in batch.present.items()},
        None if batch.mask is None else batch.mask[wanted],
        batch.pad_to,
    )


def keys_of(rows: list[Rows], num_rows: int, seed: int, epoch: int) -> UInt64s:
    """Returns a key of each row of a batch, uint64 `[num_rows]`, that follows from the seed, the epoch and its place.

    Args:
        num_rows: Of the batch; rows that only fill it up get other keys.
        seed: Of the order.
    """
    parts = [np.uint64(_place_key(place)) ^ np.arange(start, stop, dtype=np.uint64) for place, start, stop in rows]
    parts.append(np.arange(num_rows - sum(map(len, parts)), dtype=np.uint64))
    return mix64(np.concatenate(parts) ^ row_keys(np.array([epoch % 2**64], np.uint64), seed))


class _Call:
    """A user's function: how it is called, and its name in messages."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise UsageError(
                f"{kind} needs a function of a batch",
                why=f"{_type_name(function)} cannot be called",
                next_step=f"Give a function: reader.{kind}(lambda batch: ...)",
            )
        self._kind = kind
        self._function = function
        self.takes_random = _takes_random(function)

    def __call__(self, made: Made) -> Any:
        try:
            if not self.takes_random:
                return self._function(made.batch)
            salt = mix64(np.array([made.num_hooks], np.uint64))
            return self._function(made.batch, rng=RowRandom(mix64(made.keys ^ salt)))
        except StopIteration as error:
            # It would end the generator that the batches come from.
            raise RuntimeError(f"StopIteration in the {self._where(made)}") from error
        except Exception as error:
            error.add_note(f"In the {self._where(made)}")
            raise

    def wrong(self, made: Made, why: str, next_step: str | None = None) -> ShardkitError:
        """Returns the error for a result that cannot be used."""
        kind = "a Batch or a dict of columns of equal length" if self._kind == "map" else "a bool for each row"
        return UsageError(
            f"the {self._where(made)} gave what cannot be used", why=why, next_step=next_step or f"Return {kind}"
        )

    def _where(self, made: Made) -> str:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return f"{self._kind} function {name}, epoch {made.epoch}, step {made.step}"


def _takes_random(function: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # Some that are not written in Python.
        return False
    return parameter is not None and parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)


def _keys_after(made: Made, num_rows: int) -> UInt64s:
    if num_rows == len(made.keys):
        return made.keys
    # It is unknown which new row came from which old one, so the position in the batch makes the keys different.
    all_keys = np.bitwise_xor.reduce(made.keys, initial=np.uint64(0))
    return mix64(np.arange(num_rows, dtype=np.uint64) ^ all_keys)


def _place_key(place: Any) -> int:
    numbers = place if isinstance(place, tuple) else (place,)
    # A bool says something about the reading, not about the rows.
    text = ",".join(str(int(number)) for number in numbers if not isinstance(number, bool))
    return xxhash.xxh3_64_intdigest(text.encode())


def _taken(column: Column, wanted: Bools) -> Column:
    if not isinstance(column, Ragged):
        return column[wanted]
    lengths = column.row_lengths()
    splits = np.concatenate([[0], np.cumsum(lengths[wanted])]).astype(np.int32)
    first, stop = int(column.row_splits[0]), int(column.row_splits[-1])
    return Ragged(column.values[first:stop][np.repeat(wanted, lengths)], splits)


def _length_of(column: Column) -> int:
    return column.num_rows if isinstance(column, Ragged) else len(column)


def _type_name(value: Any) -> str:
    return type(value).__name__

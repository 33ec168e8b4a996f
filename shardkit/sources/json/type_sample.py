"""Which features the objects of a sample have; a few that do not go with the others may be left out."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from shardkit.errors import BadInputError, DamagedFileError, NoRowsError, ShardkitError, UsageError
from shardkit.features import Feature, Features
from shardkit.messages import shown
from shardkit.sources.base import RawFile, SourceOptions, SourceSettings
from shardkit.sources.columns.dropped_columns import check_dropped, drop_option, without_keys
from shardkit.sources.columns.folder_columns import folder_names, with_folder_columns
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.json.seen_values import TOLERATE, MixedColumn
from shardkit.sources.json.table_signs import note_on_columns, way_to_rows_within
from shardkit.sources.json.type_inference import ShapeObserver, flatten, parents, why_no_name

Row = dict[str, Any]
# Rows with their places.
Rows = list[tuple[str, Row]]

_EXACT_INTEGER = 2**53
# One in so many rows may be bad; beyond that the sample is not understood.
_FEW = 10
_LISTED_KEYS = 3


WiderRows = Callable[[Features], Iterable[Rows]]


class Inferred(NamedTuple):
    """Features, and notes for the user on columns that hold values of several types."""

    features: Features
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SampledSource(SourceSettings, ABC):
    """A source whose columns are the keys of the objects in a sample."""

    @abstractmethod
    def sample(self, files: tuple[RawFile, ...], options: SourceOptions) -> Inferred:
        """Returns what the objects of a sample have. It is called by `infer` and by `notes`."""

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the keys of the sample; behind them stand the columns that folders name, such as `year=2013`.

        Where bad rows are tolerated, lines that are no objects and damaged files are passed over, and less than half of
        the objects may be of another shape than the others.

        Raises:
            UsageError: If a key cannot name a column, or the only object has a list of objects.
        """
        return with_folder_columns(self.sample(files, options).features, files, options.drop_columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns which columns hold values of several types."""
        try:
            return self.sample(files, options).notes
        except ShardkitError:
            # The columns are declared, and these were not looked at.
            return ()


def infer_features(
    files: Sequence[RawFile],
    sample: Callable[[RawFile], Iterable[Rows]],
    options: SourceOptions,
    *,
    wider_rows: WiderRows | None = None,
    nothing: str = "there is no object in the input files",
) -> Inferred:
    """Returns the features that the objects of some files have, and notes on them.

    A column that holds values of several kinds is a `json` column. Where bad rows are tolerated, less than half of the
    objects may hold values of another kind than the others without making one: reading tells of those. A tenth may also
    hold a key that names no column, and damaged files are passed over.

    Args:
        files: All input files; some are looked at.
        sample: Gives the objects of one file, some at a time.
        options: Say which keys are left out, and whether bad rows are tolerated.
        wider_rows: Gives those objects of all files that features do not hold, if their types count too; those of
            another kind than the sample are left out.
        nothing: What to say if no object is found.

    Raises:
        UsageError: If a key cannot name a column, or the only object has a list of objects.
        BadInputError: If there are no objects, or none has a key.
    """
    dropped = options.drop_columns
    parts = _sampled(files, sample, nothing, tolerates_bad_rows=options.tolerates_bad_rows)
    notes = note_on_columns([row for part in parts for found in part for row in found], files)
    if not options.union_by_name:
        _check_alike(parts)
    rows = [row for part in parts for found in part for _, row in found] if dropped else []
    seen = {name for row in rows for name in without_keys(row, dropped)}
    if not any(file.records for file in files):
        _check_no_rows_within(parts, files[0] if len(files) == 1 else None)
    kept = None if wider_rows is None else partial(_without, wider_rows, dropped)
    found = _reconcile(parts, kept, options.tolerates_bad_rows)
    names = [*(f.name for f in found.features), *seen, *folder_names(files)]
    check_dropped(dropped, names, "the rows that were looked at")
    inner = next((n for n in dropped for f in found.features if n.startswith(f"{f.name}/")), None)
    if inner is not None:
        raise UsageError(
            f"--drop-columns {inner} names a part of a column that is no object in all rows",
            next_step=f"Leave out all of it with {drop_option([inner.partition('/')[0]])}, or the part with --map",
        )
    if not found.features:
        raise BadInputError("no column is left" if dropped else "the objects have no keys")
    return found._replace(notes=(*notes, *found.notes))


def _sampled(
    files: Sequence[RawFile], sample: Callable[[RawFile], Iterable[Rows]], nothing: str, *, tolerates_bad_rows: bool
) -> list[list[Rows]]:
    parts: list[list[Rows]] = []
    damage: DamagedFileError | None = None
    for file in sample_files([f for f in files if f.num_bytes]):
        try:
            parts.append(list(sample(file)))
        except DamagedFileError as error:
            if not tolerates_bad_rows:
                raise
            damage = damage or error
    if not any(map(any, parts)):
        raise damage or NoRowsError(why=nothing if parts else "all input files are empty")
    return parts


def _without(wider_rows: WiderRows, dropped: tuple[str, ...], features: Features) -> Iterator[Rows]:
    for rows in wider_rows(features):
        for _, row in rows if dropped else ():
            without_keys(row, dropped)
        yield rows


def _check_alike(parts: list[list[Rows]]) -> None:
    """Checks that the objects of no file have most keys not in common with those of the first: they are other tables.

    Raises:
        UsageError: If those of one have.
    """
    files = [rows for part in parts if (rows := [row for found in part for row in found])]
    keys = [{key for _, row in rows for key in row} for rows in files]
    for rows, own in zip(files[1:], keys[1:], strict=True):
        if own and 2 * len(own & keys[0]) < min(len(own), len(keys[0])):
            other = ", ".join(map(shown, sorted(own - keys[0])[:_LISTED_KEYS]))
            raise UsageError(
                "files hold objects of different keys",
                where=rows[0][0],
                why=f"{other} and the like are not in {files[0][0][0].rpartition(', ')[0]}",
                next_step="Leave files out with --exclude GLOB, convert them one by one, or add --union-by-name, which "
                "makes values of missing keys null",
            )


def _check_no_rows_within(parts: list[list[Rows]], file: RawFile | None) -> None:
    files = [[row for found in part for row in found] for part in parts]
    # Beside a file of several objects each is a row, as the only chat of a small test split.
    for rows in () if any(len(rows) > 1 for rows in files) else files:
        way = way_to_rows_within(rows[0][1], file) if len(rows) == 1 else None
        if way is not None:
            raise UsageError(
                f"column {shown(way[0])} is a list of objects",
                where=rows[0][0],
                why="the file holds no other object, so these may be the rows",
                next_step=way[1],
            )


def _reconcile(parts: list[list[Rows]], wider_rows: WiderRows | None, tolerates_bad_rows: bool) -> Inferred:
    if not tolerates_bad_rows:
        return _observe(chain.from_iterable(parts), wider_rows, takes_mixed=True)
    try:
        return _observe(chain.from_iterable(parts), wider_rows)
    except (MixedColumn, UsageError):
        rows = [row for found in parts for some in found for row in some]
        usual = _usual(rows)
        # A row of unusual types becomes a bad row; a key that names no column is an error for the user.
        is_most = 2 * len(usual) > len(rows)
        num_other = sum(map(_is_unsupported, rows)) if is_most else len(rows) - len(usual)
        if num_other * _FEW <= len(rows):
            # A row alone may hold values of several kinds.
            with suppress(MixedColumn):
                return _observe([usual], wider_rows)
        found = _observe(chain.from_iterable(parts), wider_rows, takes_mixed=True)
        return found._replace(notes=tuple(note.removesuffix(f"; {TOLERATE}") for note in found.notes))


def _observe(parts: Iterable[Rows], wider_rows: WiderRows | None, *, takes_mixed: bool = False) -> Inferred:
    observer = ShapeObserver()
    for rows in parts:
        observer.add(rows)
    features = observer.features(takes_mixed=takes_mixed)
    notes = tuple(observer.notes)
    kinds = {f.name: _kind_of(f) for f in features}
    if wider_rows is None:
        return Inferred(features, (*notes, *_file_notes(observer, features)))
    wider: Features = features
    before: Features = ()
    # Wider types may round what narrower ones held: an integer in a column of floats.
    while wider != before:
        before = wider
        # Columns that hold other types too: json, which may be that of empty objects, and text of large integers.
        takes_others = observer.has_large_integers() or any(f.is_json for f in before)
        for rows in wider_rows(() if takes_others else before):
            observer.add([row for row in rows if _is_of({} if takes_mixed else kinds, row[1])])
        observer.notes.clear()
        try:
            wider = observer.features(takes_mixed=takes_mixed)
        except MixedColumn:
            # Integers beyond int64 make text of a column, and later rows hold other text.
            observer.notes.clear()
            wider = observer.features(takes_mixed=True)
    return Inferred(wider, (*observer.notes, *_wider_notes(observer, features, wider)))


def _wider_notes(observer: ShapeObserver, first: Features, wider: Features) -> Iterator[str]:
    dtypes = {f.name: f.dtype for f in first}
    for feature in wider:
        name, before = feature.name, dtypes.get(feature.name)
        had_parts = any(other.startswith(f"{name}/") for other in dtypes)
        if before is None and not had_parts and (place := observer.place_of(name)) is not None:
            yield f"column {shown(name)} is first seen in {place}; rows without it hold null"
        elif before is not None and before != feature.dtype and (why := observer.why_wider(name, feature.dtype)):
            otherwise = "rounds it" if before == "float32" else "makes it a bad row"
            yield (
                f"column {shown(name)} is {feature.dtype}, and not {before} as in the first rows, because of {why}; "
                f"--cast {shlex.quote(f'{name}={before}')} {otherwise}"
            )


def _file_notes(observer: ShapeObserver, features: Features) -> Iterator[str]:
    """Yields a note for each column of numbers whose type comes from another file than the first that has it."""
    for feature in features:
        why, place = observer.why_wider(feature.name, feature.dtype), observer.place_of(feature.name)
        if why is not None and place is not None and not why.endswith(f" in {place}"):
            files = (text.rpartition(", ")[0].rpartition(" in ")[2] for text in (why, f" in {place}"))
            if len(set(files)) > 1:
                type_ = feature.describe_type()
                yield f"column {shown(feature.name)} is {type_}, because of {why}: numbers of other files need less"


def _kind_of(feature: Feature) -> str:
    kind = "json" if feature.is_json else {"string": "string", "bool": "bool"}.get(feature.dtype, "number")
    # Lists of lists of another shape make a json column of an array.
    return kind if not feature.shape else f"list of {kind}" if len(feature.shape) == 1 else "json"


def _is_of(kinds: dict[str, str], row: Row) -> bool:
    # A column that is new is of any kind.
    if any(map(why_no_name, row)):
        return False
    for path, value in flatten(row):
        kind = _kind(value)
        above = next((parent for parent in parents(path) if parent in kinds), None)
        if above is not None and kinds[above] != "json":
            return False
        expected = kinds.get(path, kind)
        # A list with nulls, objects or lists in it makes a json column of lists.
        makes_json = kind == "json" and expected is not None and expected.startswith("list")
        if kind is not None and expected not in (kind, "json") and not makes_json:
            return False
    return True


def _usual(rows: Rows) -> Rows:
    # The rows whose values all have the most frequent kind of their key, and whose keys can name columns.
    kinds = [{key: kind for key, kind in _kinds(row) if kind is not None} for _, row in rows]
    counts: dict[str, Counter[str]] = {}
    for found in kinds:
        for key, kind in found.items():
            counts.setdefault(key, Counter())[kind] += 1
    # A json column takes all kinds.
    most = {key: counter.most_common(1)[0][0] for key, counter in counts.items() if not _is_json(counter)}
    usual: Rows = []
    for row, found in zip(rows, kinds, strict=True):
        if "unsupported" not in found.values() and all(kind == most.get(key, kind) for key, kind in found.items()):
            usual.append(row)
    return usual


def _kinds(row: Row) -> Iterator[tuple[str, str | None]]:
    # Keys of objects and of values, for one may stand where others have the other; None says nothing.
    for path, value in flatten(row):
        yield path, _kind(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and not _is_small(value):
            # Under a separate key: small integers go with floats and with large ones.
            yield f"{path}\0number", "large" if isinstance(value, int) else "float"
        parents = path.split("/")[:-1]
        for number in range(1, len(parents) + 1):
            yield "/".join(parents[:number]), "object"
    if any(map(why_no_name, row)):
        yield "\0keys", "unsupported"


def _is_json(kinds: Counter[str]) -> bool:
    return kinds.most_common(1)[0][0] == "json"


def _is_unsupported(row: tuple[str, Row]) -> bool:
    return any(kind == "unsupported" for _, kind in _kinds(row[1]))


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        if kinds & {None, "object", "json"} or any(isinstance(item, list) for item in value):
            return "json"
        if len(kinds) > 1:
            return "list of mixed"
        return f"list of {kinds.pop()}" if kinds else None
    if isinstance(value, dict):
        return "object"
    return {bool: "bool", str: "string"}.get(type(value), "number")


def _is_small(value: float) -> bool:
    return isinstance(value, int) and -_EXACT_INTEGER <= value <= _EXACT_INTEGER

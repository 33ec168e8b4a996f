"""Appending: which of the inputs a dataset has already, and whether the others fit it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest

import msgspec
import xxhash

from shardkit.conversion.inputs.inspect_inputs import InspectedInputs
from shardkit.conversion.inputs.recipe_checks import recipe_of
from shardkit.conversion.plan import BaseVersion
from shardkit.dataset.documents import InputInfo
from shardkit.dataset.manifest import Manifest
from shardkit.dataset.open import Dataset, give_up_step, list_versions, open_dataset
from shardkit.errors import BadInputError, DamageError, UsageError
from shardkit.features import Feature, Features
from shardkit.messages import printable, shown
from shardkit.sources import source_of
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.formats import format_named
from shardkit.sources.listing import Expanded, Listing
from shardkit.storage import files as storage
from shardkit.units import format_count, format_number

# Each asks the disk whether a file is still there.
_MAX_LOOKS = 16
_ANEW = "Convert all of it anew with --overwrite, or to another destination"


class NothingNew(Exception):  # noqa: N818 - no error: there is nothing to do
    """All inputs are in the dataset already."""

    def __init__(self, base: Dataset, num_known: int, notes: tuple[str, ...] = ()) -> None:
        super().__init__(num_known)
        self.base = base
        self.num_known = num_known
        self.notes = notes


def open_base(destination: str) -> Dataset:
    """Opens the dataset that is appended to.

    Raises:
        UsageError: If there is none, or it cannot be appended to.
        DamageError, StorageError: If it cannot be read.
    """
    where = storage.redact(destination)
    if not list_versions(destination, 0):
        raise UsageError(
            "there is no dataset to append to", where=where, next_step="Leave out --append to make the first version"
        )
    dataset = open_dataset(destination)
    recipe_of(dataset.manifest, where)
    try:
        _ = dataset.shards
    except DamageError as error:
        error.next_step = f"{give_up_step(destination, dataset.version)}, and then this one"
        raise
    return dataset


def base_version(dataset: Dataset) -> BaseVersion:
    """Returns the base of an append for a plan."""
    return BaseVersion(version=dataset.version, fingerprint=dataset.manifest.fingerprint)


def appended_fingerprint(base: BaseVersion, own: str) -> str:
    """Returns the name of the result of a version and a conversion of further inputs."""
    return xxhash.xxh3_128_hexdigest(f"{base.fingerprint}\0{own}".encode())


def named_as_before(expanded: Expanded, base: Manifest) -> Expanded:
    """Returns inputs whose names begin where those of the dataset's inputs do, if all of them are there.

    A row's place in the order and its split depend on the name of its file: it is then what it would be in a
    conversion of all inputs.
    """
    for root in base.created.roots:
        prefix = storage.unpinned(f"{root.path.rstrip('/')}/")
        if root.path and all(storage.unpinned(storage.redact(f.path)).startswith(prefix) for f in expanded.files):
            depth = root.path.rstrip("/").count("/") + 1
            path = "/".join(expanded.files[0].path.split("/")[:depth])
            return msgspec.structs.replace(expanded, root=path or "/")
    return expanded


def leave_out_known(listing: Listing, base: Dataset) -> Listing:
    """Returns the files of a listing that the dataset does not have yet.

    Raises:
        NothingNew: If there are none.
        UsageError: If a file that it has changed since, or it is unknown whether it has a file.
    """
    known = _Known(base.manifest)
    files = tuple(file for file in listing.files if not known.has(file, listing.root))
    damaged = tuple(pair for pair in listing.damaged if not known.has(pair[0], listing.root))
    num_all, num_new = len(listing.files) + len(listing.damaged), len(files) + len(damaged)
    rejected = tuple(
        f"{printable(name)} was rejected as a whole and has the size that it had then: it is left out again. If it was "
        "repaired, give it another name"
        for name in known.rejected
    )
    if not num_new:
        raise NothingNew(base, num_all, rejected)
    left_out_note = f"{format_count(num_all - num_new)} of {format_number(num_all, 'file')} are in the dataset already"
    notes = (*rejected, left_out_note) if num_new < num_all else ()
    return msgspec.structs.replace(
        listing, files=files, damaged=damaged, notes=(*listing.notes, *notes, *_rename_note(files, base.manifest))
    )


def first_known(base: Manifest, files: Sequence[RawFile], root: str) -> str | None:
    """Returns the name of the first file that a dataset has, or may have, None if it has none of them."""
    known = _Known(base)
    for file in files:
        try:
            if known.has(file, root):
                return file.name
        except UsageError:
            return file.name
    return None


def source_features(base: Manifest) -> Features:
    """Returns the features of a dataset's source, before any transformation."""
    held = recipe_of(base, base.name).source_features
    return held or base.features


def check_fit(inspected: InspectedInputs, base: Manifest) -> tuple[str, ...]:
    """Checks that new files have the columns of the dataset, and returns notes on columns of other types.

    Reading the rows shows whether the values of such a column fit.

    Raises:
        BadInputError: If a column is missing, or there is another one; names the file.
    """
    if not inspected.has_features:
        return ()
    held = {f.name: f for f in source_features(base)}
    found = {f.name: f for f in inspected.features}
    is_sparse = format_named(inspected.source.format).may_lack_columns or inspected.source.union_by_name
    missing = [f for name, f in held.items() if name not in found and not (is_sparse and f.nullable)]
    more = [f for name, f in found.items() if name not in held]
    if missing:
        raise BadInputError(
            f"column {shown(missing[0].name)} is missing",
            where=_first_file(inspected, lambda columns: missing[0].name not in columns),
            why=f"the dataset has it as {missing[0].describe_type()}",
            next_step=f"Give the file the columns of the dataset, or leave it out with --exclude GLOB. {_ANEW}",
        )
    if more:
        raise BadInputError(
            f"column {shown(more[0].name)} is not in the dataset",
            where=_first_file(inspected, lambda columns: more[0].name in columns),
            why=f"the file has it as {more[0].describe_type()}; the dataset has: "
            + ", ".join(shown(name) for name in held),
            next_step=f"Give the file the columns of the dataset, or leave it out with --exclude GLOB. {_ANEW}",
        )
    others = [f for name, f in held.items() if name in found and _is_of_another_kind(found[name], f)]
    notes = (_kind_note(inspected, feature, found[feature.name]) for feature in others)
    return tuple(note for note in notes if note is not None)


def check_same_features(features: Features, base: Manifest) -> None:
    """Checks that the features are those of the dataset.

    Raises:
        UsageError: If not, as where a user's function gives other features by now.
    """
    if features == base.features:
        return
    own, held = next(pair for pair in zip_longest(features, base.features) if pair[0] != pair[1])
    raise UsageError(
        "the new rows would not have the features of the dataset",
        why=f"{_described(own)} in place of {_described(held)}",
        next_step=_ANEW,
    )


class _Known:
    """The inputs that a dataset has, found by where they lay and by their names."""

    def __init__(self, manifest: Manifest) -> None:
        self._by_place: dict[str, InputInfo] = {}
        self._by_name: dict[str, tuple[InputInfo, str | None]] = {}
        self.rejected: list[str] = []
        for info, place in _placed(manifest):
            self._by_name[info.name] = (info, place)
            if place is not None:
                self._by_place[place] = info

    def has(self, file: RawFile, root: str) -> bool:
        """Returns whether the dataset has a file, which is known by its place, or else by its name and size.

        Raises:
            UsageError: If it has another size than in the dataset, or it is unknown whether it is there.
        """
        place = _joined(storage.redact(root), file.name)
        if (same := self._by_place.get(place)) is not None:
            return self._is_same(file, same)
        for name in _endings(place, file.name):
            if name not in self._by_name:
                continue
            info, old_place = self._by_name[name]
            if old_place is not None and _is_another(old_place, place):
                if name == file.name:
                    raise UsageError(
                        "the dataset has another file of that name",
                        where=printable(file.name),
                        why=f"it was {printable(old_place)}, and this is {printable(place)}",
                        next_step="Name the folder that holds both folders, so that the names of the files tell "
                        "them apart; what the dataset has already is left out",
                    )
            elif name == file.name:
                return self._is_same(file, info)
            elif file.num_bytes == info.num_bytes:
                raise UsageError(
                    "it is unknown whether the dataset has a file already",
                    where=printable(file.name),
                    why=f"it has one of the same size that is called {printable(name)}",
                    next_step="Name the inputs as they were named for the dataset, or leave it out with --exclude GLOB",
                )
        return False

    def _is_same(self, file: RawFile, info: InputInfo) -> bool:
        if info.damage is None:
            return _is_same(file, info)
        # None of its rows is in the dataset. The same bytes would be rejected again, in a new version every time.
        if file.num_bytes == info.num_bytes:
            self.rejected.append(file.name)
        return file.num_bytes == info.num_bytes


def _rename_note(files: Sequence[RawFile], base: Manifest) -> tuple[str, ...]:
    """Returns a note if a new file is older than the dataset and has the size of one of its inputs that is gone."""
    made_ns = int(datetime.fromisoformat(base.created.at).timestamp()) * 10**9
    places: dict[int, list[str]] = {}
    for info, place in _placed(base):
        if place is not None and storage.is_local(place):
            places.setdefault(info.num_bytes, []).append(place)
    local = (file for file in files if file.num_bytes in places and storage.is_local(file.path))
    old = (file for file in local if file.member is None and int(file.version) < made_ns)
    pairs = itertools.islice(((file, place) for file in old for place in places[file.num_bytes]), _MAX_LOOKS)
    gone = {file.name: place for file, place in pairs if not storage.exists(place)}
    if not gone:
        return ()
    name, place = next(iter(gone.items()))
    more = f", and so with {format_number(len(gone) - 1, 'more file')}" if len(gone) > 1 else ""
    return (
        f"{printable(name)} has the size of {printable(place)}, which is in the dataset and is gone{more}: if it "
        "was renamed, its rows are added once more",
    )


def _placed(manifest: Manifest) -> Iterator[tuple[InputInfo, str | None]]:
    inputs = iter(manifest.accounting.inputs)
    for root in manifest.created.roots:
        for _, info in zip(range(root.num_inputs), inputs, strict=False):
            # Names are whole if the inputs have no folder in common, but not if the folder was not noted.
            is_known = root.path or info.name.startswith("/") or not storage.is_local(info.name)
            yield info, _joined(root.path, info.name) if is_known else None
    for info in inputs:
        yield info, None


def _joined(root: str, name: str) -> str:
    return storage.unpinned(f"{root.rstrip('/')}/{name}" if root else name)


def _endings(place: str, name: str) -> Iterator[str]:
    """Yields the names that a file at a place may have gone by, its own name first."""
    yield name
    parts = place.split("/")
    yield from (ending for i in range(len(parts)) if (ending := "/".join(parts[i:])) and ending != name)


def _is_another(old_place: str, place: str) -> bool:
    # A URL is the same everywhere, a path is not: of two that differ, one may be the other's copy on this machine.
    if storage.is_local(old_place):
        return storage.is_local(place) and storage.exists(old_place)
    return not storage.is_local(place)


def _is_same(file: RawFile, info: InputInfo) -> bool:
    if file.num_bytes == info.num_bytes:
        return True
    raise UsageError(
        "a file changed since it was converted",
        where=printable(file.name),
        why=f"it has {format_number(file.num_bytes, 'byte')}, and had {format_count(info.num_bytes)}; its old rows are "
        "in the dataset",
        next_step="Put new rows into separate files, or leave it out with --exclude GLOB. " + _ANEW,
    )


def _first_file(inspected: InspectedInputs, is_it: Callable[[Mapping[str, Feature]], bool]) -> str:
    """Returns the name of the first file whose columns are so."""
    return printable(next(_files_whose(inspected, is_it), inspected.files[0]).name)


def _files_whose(inspected: InspectedInputs, is_it: Callable[[Mapping[str, Feature]], bool]) -> Iterator[RawFile]:
    source = source_of(inspected.source)
    for file in inspected.files:
        with suppress(BadInputError, UsageError):
            if is_it({f.name: f for f in source.infer((file,), inspected.source)}):
                yield file


def _kind_note(inspected: InspectedInputs, held: Feature, found: Feature) -> str | None:
    name = held.name
    files = _files_whose(inspected, lambda columns: name in columns and _is_of_another_kind(columns[name], held))
    file = next((f for f in files if _begins_with_values(f, inspected.source, name)), None)
    if file is None:
        return None
    return (
        f"column {shown(name)} looks like {found.describe_type()} in {printable(file.name)} and is "
        f"{held.describe_type()} in the dataset: a value that does not fit makes its row a bad one"
    )


def _begins_with_values(file: RawFile, options: SourceOptions, name: str) -> bool:
    """Whether there is a value among the first rows of a file: a column of text without any is of no type."""
    source = source_of(options)
    with suppress(BadInputError, UsageError):
        features = source.infer((file,), options)
        position = [f.name for f in features].index(name)
        splits = source.split((file,), options)
        batches = itertools.chain.from_iterable(source.read(part, (file,), features, options) for part in splits)
        rows = next(batches, None)
        return rows is not None and (
            rows.batch.column(position).null_count < rows.batch.num_rows or bool(rows.rejected)
        )
    return True


def _is_of_another_kind(found: Feature, held: Feature) -> bool:
    return held.vocabulary is None and _kind(found.dtype) not in _castable_kinds(held.dtype)


def _kind(dtype: str) -> str:
    kind = dtype.partition("[")[0].partition("(")[0].rstrip("0123456789")
    return "int" if kind == "uint" else kind


def _castable_kinds(dtype: str) -> Sequence[str]:
    """Returns kinds of values that become a dtype without a word."""
    kind = _kind(dtype)
    return {
        "float": ("float", "int", "decimal"),
        "string": ("string", "int", "float", "bool", "date", "timestamp", "time", "decimal", "duration"),
        "bytes": ("bytes", "string"),
        "timestamp": ("timestamp", "date"),
        "decimal": ("decimal", "int"),
    }.get(kind, (kind,))


def _described(feature: Feature | None) -> str:
    return "nothing" if feature is None else f"{shown(feature.name)}, {feature.describe_type()},"

"""The plan: everything the workers need to know, fixed before work starts, stored once in the work folder."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from shardkit._version import __version__
from shardkit.conversion.request import RecipeOptions, fields_of
from shardkit.dataset.manifest import DATA_DIR, FORMAT_VERSION, Created, InputRoot
from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile
from shardkit.sources.options import SourceOptions
from shardkit.storage import files as storage
from shardkit.transforms.options import without_places, without_secrets
from shardkit.transforms.pipeline import TransformPlan

WORK_DIR = "work"

# Libraries whose output is part of examples and shards.
_MAKE_BYTES = ("av", "isal", "pillow", "tokenizers", "zlib-ng")

# Recipes of 0.1.0 hold these always. A later option is in a recipe only where it is not the default, so that datasets
# keep their fingerprints when an option is added: nothing is added here.
_ALWAYS_HELD = frozenset({
    "allow_empty", "allows_duplicate_keys", "audio", "audio_rate", "columns", "compression", "compression_level",
    "dedup", "delimiter", "drop_columns", "encoding", "exclude", "format", "group_by", "has_header", "include",
    "labels", "labels_sha256", "leading_zeros", "max_bad", "max_expansion", "max_field_bytes", "max_pixels",
    "max_record_bytes", "max_row_seconds", "null_values", "num_shards", "on_bad_record", "query", "seed",
    "shard_bytes", "shuffle", "source", "source_features", "split_column", "splits", "stratify", "table",
    "text_record", "tfds", "tolerates_bad_rows", "transforms",
})  # fmt: skip


class Recipe(RecipeOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be done to the inputs. With the inputs and the features it determines every byte.

    The options are as the plan settles them: `source.format` is never None; `splits` have fractions, unless a column
    or the files name the split of each row; `shard_bytes` is None with `num_shards`; `compression_level` is None only
    without compression.

    Attributes:
        splits_by_name: Whether the name of a file tells the split of its rows.
        labels_sha256: Of the files that `source.labels` names.
        source_features: What the source gives, where that is something else than the features of the dataset.
    """

    splits_by_name: bool = False
    labels_sha256: str | None = None
    source_features: Features = ()

    @property
    def has_fractions(self) -> bool:
        """Whether rows are dealt to the splits by fractions: neither a column nor the files name them."""
        return self.split_column is None and not self.splits_by_name

    @property
    def reads_twice(self) -> bool:
        """Whether the fate of a row depends on other rows, so that all are read before the first is written."""
        return any(asked is not None for asked in (self.dedup, self.sample, self.stratify, self.split_by))


class DamagedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input that could not even be planned for, and why."""

    file: RawFile
    reason: str


class BaseVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version of a dataset that a conversion appends to."""

    version: int
    fingerprint: str


class Packing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rows are packed; see `shardkit.conversion.extract.packing`.

    Attributes:
        column: Column of token lists.
        length: Tokens of a sequence.
        separator: Token behind each row; None puts none.
    """

    column: str
    length: int
    separator: int | None


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One conversion.

    Attributes:
        destination: Location of the dataset.
        work_dir: Local folder for spool and finished steps; on the destination's file system where that is local.
        exchange: Folder in a store by which workers exchange what they made; None if all of them see `work_dir`.
        fingerprint: Hash of inputs, features, recipe and format version.
        created: The manifest's block of the same name.
        features: Of the examples. Those of rows are `row_features`.
        transforms: What makes these features of those that the source gives.
        damaged_files: Inputs that are rejected as a whole.
        overwrite: Whether a next version may be made of a dataset that is already there.
        inferred: Columns of the source whose types are those of the first rows. If there are any, a row that another
            type would hold ends the conversion, and the types of all rows are inferred.
        packing: How the tokens of rows are joined; None makes an example of each row.
        base: What the rows are appended to; None makes a dataset of them alone.
        rebases: Whether they may go behind versions that other appends made since.
    """

    destination: str
    work_dir: str
    fingerprint: str
    created: Created
    recipe: Recipe
    features: Features
    files: tuple[RawFile, ...]
    input_splits: tuple[InputSplit, ...]
    overwrite: bool
    transforms: TransformPlan
    damaged_files: tuple[DamagedFile, ...] = ()
    exchange: str | None = None
    inferred: frozenset[str] = frozenset()
    packing: Packing | None = None
    base: BaseVersion | None = None
    rebases: bool = True

    @property
    def row_features(self) -> Features:
        """Features of the rows before they are packed."""
        return self.transforms.output_features

    @property
    def data_path(self) -> str:
        """Folder of the shards, relative to the dataset."""
        return f"{DATA_DIR}/{self.fingerprint}"

    def work_path(self, *parts: str) -> Path:
        """Returns a path in the work folder."""
        return Path(self.work_dir, *parts)


def fingerprint(files: Sequence[RawFile], features: Features, recipe: Recipe) -> str:
    """Returns 32 hexadecimal digits that name the result of a conversion: no places and no times enter."""
    document: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "files": [(f.name, f.num_bytes) for f in files],
        "features": features,
        # A limit decides whether there is a dataset, not its content. Files are known by their hashes, and the list of
        # files holds the included ones.
        "recipe": stored_recipe(
            msgspec.structs.replace(
                recipe,
                **_blank_limits(""),
                splits=tuple(msgspec.structs.replace(share, files="") for share in recipe.splits),
                source=msgspec.structs.replace(recipe.source, **_blank_limits("source")),
                transforms=msgspec.structs.replace(without_places(recipe.transforms), **_blank_limits("transforms")),
            )
        ),
    }
    if any(f.split for f in files):
        document["file_splits"] = [f.split for f in files]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(document, order="sorted"))


def _blank_limits(part: str) -> dict[str, Any]:
    """Returns a value for every limit in a part of the recipe: None, or 0, False and () by the type, or the default."""
    limits = [f for f in fields_of("limit") if f.part == part]
    is_default = {f.name: f.default is None or f.name not in _ALWAYS_HELD for f in limits}
    return {f.name: f.default if is_default[f.name] else type(f.default)() for f in limits}


def redacted(recipe: Recipe) -> Recipe:
    """Returns a recipe without the secrets of its paths."""
    labels = None if recipe.source.labels is None else storage.redact(recipe.source.labels)
    return msgspec.structs.replace(
        recipe,
        source=msgspec.structs.replace(recipe.source, labels=labels),
        splits=tuple(msgspec.structs.replace(share, files=storage.redact(share.files)) for share in recipe.splits),
        transforms=without_secrets(recipe.transforms),
    )


def stored_recipe(recipe: Recipe) -> dict[str, Any]:
    """Returns a recipe as the manifest holds it."""
    stored: dict[str, Any] = msgspec.to_builtins(recipe)
    for held, default in ((stored, Recipe()), (stored["source"], SourceOptions())):
        for name, value in msgspec.to_builtins(default).items():
            if name not in _ALWAYS_HELD and held[name] == value:
                del held[name]
    for share in stored["splits"]:
        if not share["files"]:
            del share["files"]
    return stored


def input_versions(plan: Plan, input_split: InputSplit) -> tuple[str, ...]:
    """Returns the versions of the files of an input split."""
    return tuple(f.version for f in plan.files[input_split.file_start : input_split.file_stop])


def make_created(inputs: Sequence[str], roots: Sequence[InputRoot] = ()) -> Created:
    """Returns when and by what the conversion is made.

    Args:
        inputs: As they were typed.
        roots: What their names are relative to.
    """
    packages = sorted(("apache-beam", "duckdb", "numpy", "protobuf", "pyarrow", *_MAKE_BYTES))
    versions = {name: v for name in packages if (v := _version_of(name)) is not None}
    return Created(
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        commit_id=secrets.token_hex(16),
        inputs=tuple(storage.redact(i) for i in inputs),
        tool_versions={"shardkit": __version__, "python": platform.python_version(), **versions},
        roots=tuple(roots),
    )


def default_work_root(destination: str) -> str:
    """Returns where the work folder goes: beside the data, because a shard is then linked and not copied.

    Raises:
        UsageError: If the destination is no local folder and names no place for one.
    """
    if storage.is_local(destination):
        return storage.join(destination, WORK_DIR)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", storage.redact(destination))
    cache = os.environ.get("XDG_CACHE_HOME") or storage.join(str(Path.home()), ".cache")
    return storage.join(cache, "shardkit", name)


def work_roots(destination: str, work_dir: str | None) -> tuple[str, str | None]:
    """Returns the local folder of work folders, and the one in a store, where that was named.

    Args:
        destination: Of the dataset, normalized.
        work_dir: As the user gave it, None for none.

    Raises:
        UsageError: If there is no place for them.
        UnsafeError: If one is named where nothing is written.
    """
    if work_dir is None:
        return default_work_root(destination), None
    named = storage.normalize(work_dir)
    if storage.is_local(named):
        return named, None
    storage.protocol_of(named)  # Web servers are only read.
    return default_work_root(destination), named


def save_plan(plan: Plan) -> str:
    """Stores the plan in its work folder, under a name of this attempt, and returns its path."""
    path = plan_file(plan)
    write_whole(path, msgspec.json.encode(plan))
    return str(path)


def plan_file(plan: Plan) -> Path:
    """Returns where `save_plan` stores a plan."""
    return plan.work_path(f"plan-{plan.created.commit_id}.json")


class _Head(msgspec.Struct, frozen=True):
    created: dict[str, Any]


@functools.lru_cache(maxsize=4)
def check_tools(path: str) -> None:
    """Checks that this process reads a plan with the tools that it was made with, as far as they decide on bytes.

    Raises:
        UsageError: If it does not, or cannot read the plan at all, as on a host that does not share the folder.
    """
    here = f"a worker on {platform.node()}"
    try:
        raw = storage.read_bytes(path)
    except OSError as error:
        raise UsageError(
            f"{here} cannot read the plan of the conversion",
            where=storage.redact(path),
            why=error.strerror,
            next_step="Name a folder that all workers share with --work-dir",
        ) from error
    planned = msgspec.json.decode(raw, type=_Head).created["tool_versions"]
    for name in ("shardkit", *_MAKE_BYTES):
        own = __version__ if name == "shardkit" else _version_of(name)
        if own is not None and planned.get(name, own) != own:
            raise UsageError(
                f"{here} has {name} {own}, and the command has {planned[name]}",
                why="other versions may write other bytes",
                next_step=f"Install {name} {planned[name]} where workers run",
            )


@functools.lru_cache(maxsize=4)
def load_plan(path: str) -> Plan:
    """Returns the plan stored at `path`."""
    return msgspec.json.decode(storage.read_bytes(path), type=Plan)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file of the work folder so that it is there whole or not at all.

    Raises:
        OutOfSpaceError, UsageError, StorageError: If it cannot be written.
    """
    with storage.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def check_destination(destination: str) -> None:
    """Checks that a local destination is a folder that may be written, creating it if needed.

    Raises:
        UsageError: If it is a file or may not be written.
        OutOfSpaceError, StorageError: If nothing can be written there.
    """
    if not storage.is_local(destination):
        return
    path = storage.local_path(destination)
    if path.exists() and not path.is_dir():
        raise UsageError("the destination is a file", where=str(path), next_step="Name a folder")
    storage.make_folder(destination)


@contextlib.contextmanager
def no_new_folders(destination: str) -> Iterator[None]:
    """Removes the folders that were made for a destination if an error is raised."""
    path = storage.local_path(destination) if storage.is_local(destination) else None
    missing = [] if path is None else [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def work_order(splits: Sequence[InputSplit], files: Sequence[RawFile]) -> list[InputSplit]:
    """Returns input splits in the order in which they are best begun: the largest first, so that all end together.

    What is in a compressed tar is reached by decompressing all in front of it. Its members count as one piece of
    work, and come in the order of the archive.
    """
    pieces: defaultdict[tuple[str, int], list[InputSplit]] = defaultdict(list)
    for split in splits:
        file = files[split.file_start]
        is_in_order = file.member is not None and file.member.archive_compression is not None
        pieces[(file.path, -1) if is_in_order else ("", split.index)].append(split)
    largest_first = sorted(pieces.values(), key=lambda piece: -sum(s.num_bytes for s in piece))
    return [s for piece in largest_first for s in sorted(piece, key=lambda s: _start(s, files))]


def _start(split: InputSplit, files: Sequence[RawFile]) -> int:
    member = files[split.file_start].member
    return 0 if member is None else member.start

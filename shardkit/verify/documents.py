"""What a dataset has besides its shards: the manifest against itself, rejected rows, files that nothing names."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.dataset.append_info import statistics_file
from shardkit.dataset.manifest import MANIFESTS_DIR, Manifest, manifest_path
from shardkit.dataset.open import Dataset
from shardkit.dataset.rejected_rows import check_file, read_hashed
from shardkit.errors import DamageError
from shardkit.storage import files as storage
from shardkit.storage.regular_files import NotRegularError

# The last are counts that another version names, which this one was appended to.
_BESIDE_SHARDS = (".idx", ".labels.txt", "dataset_info.json", "features.json", ".zst")


def find_problems(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yields the path of every document that is wrong, and why."""
    for problem in _contradictions(dataset.manifest):
        yield manifest_path(dataset.version), problem
    for info in dataset.manifest.accounting.rejected_files:
        found, _ = check_file(dataset, info)
        if found is not None:
            yield info.path, found
    yield from _problems_of_counted(dataset)


def count_other_files(dataset: Dataset) -> int:
    """Returns how many files are beside the shards that the manifest does not name."""
    named: dict[str, set[str]] = {}
    paths = [shard.path for shard in dataset.shards]
    paths += [info.path for info in dataset.manifest.accounting.rejected_files]
    for path in paths:
        folder, _, name = path.rpartition("/")
        named.setdefault(folder, set()).add(name)
    return sum(
        name not in names and not name.endswith(_BESIDE_SHARDS) and (folder != "" or name != MANIFESTS_DIR)
        for folder, names in named.items()
        for name in storage.list_names(storage.join(dataset.url, folder))
    )


def _problems_of_counted(dataset: Dataset) -> Iterator[tuple[str, str]]:
    try:
        info = statistics_file(dataset.manifest)
    except DamageError as error:
        yield manifest_path(dataset.version), f"{error.what}: {error.why}"
        return
    if info is None:
        return
    try:
        read_hashed(storage.join(dataset.url, info.path), info.sha256)
    except FileNotFoundError:
        yield info.path, "the file of statistics is missing; only --append needs it, and counts again"
    except NotRegularError as error:
        yield info.path, f"the file of statistics cannot be read: {error.strerror}"
    except DamageError:
        yield info.path, "the file of statistics is damaged: its SHA-256 is not the one of the manifest"


def _contradictions(manifest: Manifest) -> Iterator[str]:
    num_examples = sum(s.num_examples for s in manifest.splits)
    if manifest.accounting.num_stored != num_examples:
        yield f"its splits have {num_examples} examples, its accounting {manifest.accounting.num_stored}"
    names = {f.name for f in manifest.features}
    for split in manifest.splits:
        for name, statistics in sorted(split.statistics.items()):
            if name not in names:
                yield f"split {split.name!r} has statistics of {name!r}, which is no feature"
            elif statistics.count + statistics.num_nulls != split.num_examples:
                yield f"the statistics of {name!r} in split {split.name!r} are not of {split.num_examples} examples"

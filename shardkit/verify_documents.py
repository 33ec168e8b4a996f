"""What a dataset has besides its shards: the manifest against itself, rejected rows, files that nothing names."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit import storage
from shardkit.dataset import Dataset
from shardkit.manifest import MANIFESTS_DIR, STATISTICS_FILE, Manifest, manifest_path
from shardkit.rejected import check_file

_BESIDE_SHARDS = (".idx", ".labels.txt", "dataset_info.json", "features.json", STATISTICS_FILE)


def find_problems(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yields the path of every document that is wrong, and why."""
    for problem in _contradictions(dataset.manifest):
        yield manifest_path(dataset.version), problem
    for info in dataset.manifest.accounting.rejected_files:
        found, _ = check_file(dataset, info)
        if found is not None:
            yield info.path, found


def count_other_files(dataset: Dataset) -> int:
    """Returns how many files lie beside the shards that the manifest does not name."""
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


def _contradictions(manifest: Manifest) -> Iterator[str]:
    num_examples = sum(s.num_examples for s in manifest.splits)
    if manifest.accounting.num_examples != num_examples:
        yield f"its splits have {num_examples} examples, its accounting {manifest.accounting.num_examples}"
    names = {f.name for f in manifest.features}
    for split in manifest.splits:
        for name, statistics in sorted(split.statistics.items()):
            if name not in names:
                yield f"split {split.name!r} has statistics of {name!r}, which is no feature"
            elif statistics.count + statistics.num_nulls != split.num_examples:
                yield f"the statistics of {name!r} in split {split.name!r} are not of {split.num_examples} examples"

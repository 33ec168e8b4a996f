"""What a reader finds, told without any code of shardkit: which dataset is there, and whether it is whole."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.judges.records import Damaged, Row, records_of, row_of

_MANIFEST = re.compile(r"manifests/(\d{8})\.json")


class Files(Protocol):
    """A place with files in it, by names relative to it."""

    def names(self) -> list[str]:
        """Returns the names of all files."""
        ...

    def read(self, name: str) -> bytes:
        """Returns a whole file."""
        ...


class Version(NamedTuple):
    """A version of a dataset that is whole.

    Attributes:
        number: Of the version.
        commit_id: Of the conversion that made it.
        rows: All rows of all splits, as often as they are there.
        shards: SHA-256 by path.
        document: The manifest without what differs from run to run.
    """

    number: int
    commit_id: str
    rows: Counter[Row]
    shards: Mapping[str, str]
    document: Mapping[str, Any]


def version_numbers(names: list[str]) -> list[int]:
    """Returns the versions that have a manifest, ascending."""
    return sorted(int(match.group(1)) for name in names if (match := _MANIFEST.fullmatch(name)))


def read_versions(files: Files) -> tuple[dict[int, Version], list[str]]:
    """Returns the versions that are whole, by number, and a sentence for each that is not."""
    versions: dict[int, Version] = {}
    torn = []
    for number in version_numbers(files.names()):
        try:
            versions[number] = read_version(files, number)
        except Damaged as error:
            torn.append(f"TORN: {error}")
    return versions, torn


def newest(files: Files) -> Version | None:
    """Returns the newest version, None if there is none.

    Raises:
        Damaged: If it is not whole.
    """
    numbers = version_numbers(files.names())
    return read_version(files, numbers[-1]) if numbers else None


def read_version(files: Files, number: int) -> Version:
    """Returns a version.

    Raises:
        Damaged: If it is not whole.
    """
    try:
        return _read_version(files, number)
    except (KeyError, ValueError, FileNotFoundError, pa.ArrowException) as error:
        raise Damaged(f"version {number}: {type(error).__name__}: {error}") from error


def _read_version(files: Files, number: int) -> Version:
    document = json.loads(files.read(f"manifests/{number:08d}.json"))
    stated = document.pop("sha256")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if hashlib.sha256(text.encode()).hexdigest() != stated:
        raise Damaged("the manifest's own checksum is wrong")
    table = files.read(document["shard_table"]["path"])
    if hashlib.sha256(table).hexdigest() != document["shard_table"]["sha256"]:
        raise Damaged("the shard table is another one")
    counted = document["extensions"]["statistics"]
    if hashlib.sha256(files.read(counted["path"])).hexdigest() != counted["sha256"]:
        raise Damaged("what the statistics were made of is something else")
    shards = pq.read_table(io.BytesIO(table), use_threads=False).to_pylist()
    rows: Counter[Row] = Counter()
    num_examples: Counter[str] = Counter()
    for shard in shards:
        found = _rows_of(files, shard, is_gzip=document["compression"] == "gzip")
        num_examples[shard["split"]] += sum(found.values())
        rows += found
    for split in document["splits"]:
        if num_examples[split["name"]] != split["num_examples"]:
            raise Damaged(f"{num_examples[split['name']]} rows instead of {split['num_examples']}")
    if sum(num_examples.values()) != document["accounting"]["num_examples"]:
        raise Damaged("the accounting does not add up")
    created = document.pop("created")
    # Differs with the number of the version.
    document["shard_table"].pop("path")
    return Version(number, created["commit_id"], rows, {s["path"]: s["sha256"] for s in shards}, document)


def _rows_of(files: Files, shard: dict[str, Any], *, is_gzip: bool) -> Counter[Row]:
    raw = files.read(shard["path"])
    if len(raw) != shard["num_bytes"]:
        raise Damaged(f"{shard['path']}: {len(raw)} bytes instead of {shard['num_bytes']}")
    if hashlib.sha256(raw).hexdigest() != shard["sha256"]:
        raise Damaged(f"{shard['path']}: other bytes")
    rows = Counter(row_of(record) for record in records_of(raw, is_gzip=is_gzip))
    if sum(rows.values()) != shard["num_examples"]:
        raise Damaged(f"{shard['path']}: {sum(rows.values())} rows instead of {shard['num_examples']}")
    return rows

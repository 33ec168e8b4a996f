"""The books of a conversion: rows in = examples out + filtered + duplicates + rejected, file by file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from shardkit.conversion.extracted import Extracted
from shardkit.conversion.plan import Plan, write_whole
from shardkit.conversion.rows.bad_rows import rejected_lines
from shardkit.dataset.documents import Accounting, InputInfo, RejectedFile
from shardkit.dataset.rejected_rows import pack_files
from shardkit.errors import StorageError
from shardkit.storage import files as storage


def account(plan: Plan, extracted: Sequence[Extracted], num_examples: int) -> Accounting:
    """Returns the account of all rows, and stores the rejected ones where they are wanted.

    Raises:
        StorageError: If the examples in the shards are not those that the inputs gave.
    """
    inputs = _input_infos(plan, extracted)
    accounting = Accounting(
        num_rows=sum(i.num_rows or 0 for i in inputs),
        num_examples=sum(i.num_examples for i in inputs),
        num_filtered=sum(i.num_filtered for i in inputs),
        num_duplicates=sum(i.num_duplicates for i in inputs),
        num_rejected=sum(i.num_rejected for i in inputs),
        num_sequences=None if plan.packing is None else sum(part.num_sequences for part in extracted),
        num_damaged_files=sum(i.damage is not None for i in inputs),
        inputs=inputs,
        rejected_files=_store_rejected(plan, extracted) if plan.recipe.on_bad_record == "quarantine" else (),
    )
    if accounting.num_stored != num_examples:
        raise StorageError(
            "the shards do not hold what was read",
            why=f"the inputs gave {accounting.num_stored} examples, the shards hold {num_examples}",
            state="Nothing was committed",
            next_step="Remove the work folder and run the same command again",
        )
    return accounting


def _input_infos(plan: Plan, extracted: Sequence[Extracted]) -> tuple[InputInfo, ...]:
    rows: Counter[int] = Counter()
    filtered: Counter[int] = Counter()
    duplicates: Counter[int] = Counter()
    rejected: Counter[int] = Counter()
    damage: dict[int, str] = {}
    for part in extracted:
        rows.update(part.rows_by_file)
        filtered.update(part.filtered_by_file)
        duplicates.update(part.duplicates_by_file)
        rejected.update(part.rejected_by_file)
        damage.update(part.damage)
    found = [
        InputInfo(
            name=file.name,
            num_bytes=file.num_bytes,
            num_rows=None if i in damage else rows[i],
            num_examples=rows.get(i, 0) - filtered.get(i, 0) - duplicates.get(i, 0) - rejected.get(i, 0),
            num_filtered=filtered.get(i, 0),
            num_duplicates=duplicates.get(i, 0),
            num_rejected=rejected.get(i, 0),
            damage=damage.get(i),
        )
        for i, file in enumerate(plan.files)
    ]
    found += [
        InputInfo(name=d.file.name, num_bytes=d.file.num_bytes, num_rows=None, num_examples=0, damage=d.reason)
        for d in plan.damaged_files
    ]
    return tuple(sorted(found, key=lambda info: info.name))


def _store_rejected(plan: Plan, extracted: Sequence[Extracted]) -> tuple[RejectedFile, ...]:
    stored = []
    for number, (content, num_rows) in enumerate(pack_files(rejected_lines(plan, extracted))):
        name = f"rejected-{number:05d}.jsonl.gz"
        local = plan.work_path("tmp", name)
        write_whole(local, content)
        path = f"{plan.data_path}/{name}"
        storage.put_file(local, storage.join(plan.destination, path))
        digest = hashlib.sha256(content).hexdigest()
        stored.append(RejectedFile(path=path, num_rows=num_rows, num_bytes=len(content), sha256=digest))
    return tuple(stored)

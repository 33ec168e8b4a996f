"""Rows of a dataset that could not be fetched, as an input of an append that tries them again."""

from __future__ import annotations

import re

import msgspec

from shardkit.conversion.inputs.append_check import NothingNew, source_features
from shardkit.conversion.inputs.database_rows import ROWS_FOLDER
from shardkit.conversion.plan import write_whole
from shardkit.conversion.request import ConvertRequest
from shardkit.dataset.open import Dataset
from shardkit.dataset.rejected_rows import read_rejected
from shardkit.errors import UsageError
from shardkit.sources.options import SourceOptions
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.transforms.fetch.rows import NO_CONTENT

# The number counts the files of rejected rows that were tried again by then.
_NAME = re.compile(r"(?:^|/)fetch-again-(\d+)\.jsonl$")


def with_rows_again(options: ConvertRequest, base: Dataset, work_root: str) -> ConvertRequest:
    """Returns a request whose only input is the rows that could not be fetched, each as its source gave it.

    Args:
        options: Of the append, as the recipe of the dataset has them.
        work_root: Folder of all intermediate files; the rows go there, beside those of servers.

    Raises:
        UsageError: If the rows were not kept, or lack what decides on them.
        NothingNew: If there are none.
    """
    accounting = base.manifest.accounting
    _check(options, base)
    tried = [int(found.group(1)) for info in accounting.inputs if (found := _NAME.search(info.name))]
    records = read_rejected(base, first=max(tried, default=0))
    rows = [record.raw for record in records if record.raw is not None and record.reason.startswith(NO_CONTENT)]
    if not rows:
        raise NothingNew(base, 0)
    refuse_link(work_root, ROWS_FOLDER)
    path = storage.local_path(work_root) / ROWS_FOLDER / f"fetch-again-{len(accounting.rejected_files)}.jsonl"
    content = b"\n".join((*rows, b""))
    # An attempt that was cut off knows the file by its time, too.
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)
    source = options.source
    as_json = SourceOptions(
        format="json",
        max_pixels=source.max_pixels,
        max_record_bytes=source.max_record_bytes,
        max_field_bytes=source.max_field_bytes,
    )
    # All of these rows were bad ones before.
    return msgspec.structs.replace(options, inputs=(str(path),), source=as_json, max_bad="100%")


def _check(options: ConvertRequest, base: Dataset) -> None:
    if options.inputs:
        raise UsageError("--fetch-again takes the rows of the dataset, and no inputs", next_step="Leave them out")
    why = None
    if options.transforms.fetch is None:
        why = "it was made without --fetch"
    elif options.on_bad_record == "skip" and base.manifest.accounting.num_rejected:
        why = "rejected rows were counted, not kept; --on-bad-record quarantine keeps them"
    elif base.manifest.recipe.get("splits_by_name"):
        why = "the names of its files tell the splits, and rows that were rejected are not in those files"
    elif any(f.dtype == "bytes" for f in source_features(base.manifest)):
        why = "it has a column of bytes, which is not kept as it was"
    if why is not None:
        raise UsageError(
            "rows of this dataset cannot be fetched again",
            where=storage.redact(base.url),
            why=why,
            next_step="Convert the list anew with --overwrite",
        )

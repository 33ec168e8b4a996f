"""`python -m tests.faults.command read-epochs URL` reads whole epochs by the public reader, and prints their rows."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping

from shardkit.reading.split import Split
from tests.faults.judges.records import Row

NUM_EPOCHS = 3
_BATCH = 16


def main(url: str) -> int:
    """Prints the version and the rows of each epoch as JSON; returns the exit code that shardkit gives an error."""
    import shardkit
    from shardkit.errors import ShardkitError

    try:
        splits = shardkit.open(url)
        epochs = [[row for split in splits.values() for row in _rows(split, epoch)] for epoch in range(NUM_EPOCHS)]
    except ShardkitError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps({"version": splits.dataset.version, "epochs": epochs}) + "\n")
    return 0


def epochs_in(said: str) -> list[Counter[Row]]:
    """Returns the rows of each epoch that a reader printed."""
    found: Mapping[str, list[list[tuple[int, float]]]] = json.loads(said.splitlines()[-1])
    return [Counter((("id", (i,)), ("x", (x,))) for i, x in rows) for rows in found["epochs"]]


def _rows(split: Split, epoch: int) -> list[tuple[int, float]]:
    rows: list[tuple[int, float]] = []
    for batch in split.batches(global_batch_size=_BATCH, seed=1, epoch=epoch, remainder="pad"):
        is_real = slice(None) if batch.mask is None else batch.mask
        rows += zip(batch["id"][is_real].tolist(), batch["x"][is_real].tolist(), strict=True)
    return rows

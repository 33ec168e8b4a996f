"""The checkpoint of the best epoch. It lies in a separate folder, and is either whole or absent."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from shardkit.storage import files as storage
from train.reporting.early_stopping import best_epoch
from train.reporting.metrics import EpochMetrics
from train.runs.run_folder import CHECKPOINT_PREFIX, list_checkpoints, promised_checkpoints


def keep_best(
    checkpoints: Path, target: Path, epochs: Sequence[EpochMetrics], monitor: str, *, is_new: bool = False
) -> bool:
    """Copies the checkpoint of the best epoch, if there is one and it is not kept already, and removes others.

    To be called when the checkpoint of an epoch was written, and when a run goes on: it may have been killed between.

    Args:
        checkpoints: Folder of the newest checkpoints.
        target: Folder for the best one.
        epochs: Of the run so far.
        monitor: The metric that decides.
        is_new: Whether the checkpoint of the last epoch was just written; after a fall-back to an older one, the same
            epoch may be kept already.

    Returns:
        Whether the checkpoint of the best epoch is kept.

    Raises:
        ShardkitError: If the target cannot be written.
    """
    best = best_epoch(epochs, monitor)
    if best is None:
        return False
    step, kept = best.step, list_checkpoints(target)
    if step not in kept or (is_new and step == epochs[-1].step):
        if step not in list_checkpoints(checkpoints):
            return step in kept
        copy_checkpoint(checkpoints, target, step)
    remove_others(target, step)
    return True


def copy_checkpoint(source: Path, target: Path, step: int) -> None:
    """Copies the files of a checkpoint; the index, without which there is none, comes last and at once."""
    storage.make_folder(str(target))
    index = f"{_name(step)}.index"
    with storage.translate_os_errors(target):
        (target / index).unlink(missing_ok=True)
        for file in source.glob(f"{_name(step)}.data-*"):
            _copy(file, target / file.name)
        temporary = target / f".{index}.new"
        _copy(source / index, temporary)
        temporary.replace(target / index)


def remove_others(folder: Path, step: int | None = None) -> None:
    """Removes all checkpoints but one, or all, the indices first, and parts of others that a kill left."""
    with storage.translate_os_errors(folder):
        kept = None if step is None else f"{_name(step)}."
        others = [p for p in folder.glob(f"*{CHECKPOINT_PREFIX}-*") if kept is None or not p.name.startswith(kept)]
        for path in sorted(others, key=lambda p: p.suffix != ".index"):
            path.unlink()


def kept_checkpoints(checkpoints: Path, best: Path) -> dict[int, list[str]]:
    """Returns the paths of all checkpoints of a run by step, ascending, without their suffix; also of damaged ones."""
    found: dict[int, list[str]] = {}
    for folder in (checkpoints, best):
        for step in promised_checkpoints(folder):
            found.setdefault(step, []).append(str(folder / _name(step)))
    return dict(sorted(found.items()))


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # What a link names is a file of others.
    shutil.copyfile(source, target)


def _name(step: int) -> str:
    return f"{CHECKPOINT_PREFIX}-{step}"

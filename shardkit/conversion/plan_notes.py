"""What the user should know of a plan, one sentence each."""

from __future__ import annotations

import re
import shlex
from collections import Counter

from shardkit.conversion.inputs.media_notes import media_notes, unsigned_notes
from shardkit.conversion.plan import Plan
from shardkit.encoding.kernel import HAS_KERNEL
from shardkit.errors import UsageError
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile
from shardkit.sources.file_words import name_notes
from shardkit.sources.folders.class_folders import class_of, folder_notes
from shardkit.sources.formats import format_named
from shardkit.sources.split_names import in_order, split_of
from shardkit.transforms.pipeline import transform_notes
from shardkit.units import format_count, format_number

_FEW_FILES = 16
# As Hugging Face and Kaggle call columns that name splits.
_OF_SPLITS = re.compile(r"(?<![^\W_])(split|usage|subset)(?![^\W_])", re.IGNORECASE)


def plan_notes(plan: Plan, listed: tuple[RawFile, ...], fit_notes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the notes on a plan.

    Args:
        listed: All inputs; with a limit the plan has a part of them.
        fit_notes: On what is appended, see `check_fit`.

    Raises:
        UsageError: If the first rows, which a limit takes, have some of the classes only.
    """
    return (
        *_split_notes(plan),
        *_split_column_notes(plan),
        *_video_notes(plan),
        *_limit_notes(plan, listed),
        *_folder_notes(plan),
        *fit_notes,
        *transform_notes(plan.transforms),
        *media_notes(plan.features, plan.transforms.input_features, (f.name for f in plan.files)),
        *unsigned_notes(plan.features),
        *_packing_notes(plan),
        *_kernel_notes(),
    )


def _split_notes(plan: Plan) -> tuple[str, ...]:
    if any(share.files for share in plan.recipe.splits):
        counts = Counter(map(split_of, plan.files))
        return ("files: " + ", ".join(f"{s.name} {format_count(counts[s.name])}" for s in plan.recipe.splits),)
    named = [split_of(file) for file in plan.files]
    found = {split for split in named if split is not None}
    names = ", ".join(in_order(found))
    if not plan.recipe.source.has_split_names:
        # A dataset that is appended to may have been made of files that tell no split.
        is_rare = len(found) < 2 and len(named) > _FEW_FILES
        if not found or is_rare or None not in named or not plan.recipe.has_fractions:
            return ()
        silent = printable(plan.files[named.index(None)].name)
        return (f"the names of some files tell splits ({names}), but not that of {silent}: all rows are pooled",)
    if plan.recipe.splits_by_name:
        if any(file.shard for file in plan.files):
            return (f"the dataset has the splits: {names}",)
        by = "the layout names" if any(file.split for file in plan.files) else "the names of the files tell"
        return (f"{by} the splits: {names}",)
    by = "the dataset has" if any(file.shard for file in plan.files) else "the names of the files tell"
    return (f"{by} splits ({names}), which are pooled: options divide the rows otherwise",)


def _split_column_notes(plan: Plan) -> tuple[str, ...]:
    recipe = plan.recipe
    if recipe.split_column or recipe.split_by or recipe.splits_by_name or len(recipe.splits) > 1:
        return ()
    found = next((f for f in plan.row_features if _OF_SPLITS.search(f.name) and f.dtype == "string"), None)
    if found is None:
        return ()
    option = f"--split-column {shlex.quote(printable(found.name))}"
    return (f"column {shown(found.name)} may name the split of each row; {option} divides the rows by it",)


def _video_notes(plan: Plan) -> tuple[str, ...]:
    recipe = plan.recipe
    is_dealt = recipe.has_fractions and len(recipe.splits) > 1 and not (recipe.group_by or recipe.split_by)
    if recipe.source.video == "bytes" or not is_dealt:
        return ()
    return (f"{recipe.source.video} of one video fall into several splits; --group-by filename keeps them together",)


def _folder_notes(plan: Plan) -> tuple[str, ...]:
    format = format_named(plan.recipe.source.format)
    is_settled = format.name == "dataset" or plan.transforms.options.source_column is not None
    if format.has_row_files or is_settled or plan.recipe.source.text_record == "file":
        return ()
    return folder_notes(plan.files, is_text=format.name == "text") or name_notes(plan.files)


def _limit_notes(plan: Plan, listed: tuple[RawFile, ...]) -> tuple[str, ...]:
    if plan.recipe.sample is not None:
        return (f"{format_count(plan.recipe.sample)} rows are taken at random, by the seed {plan.recipe.seed}",)
    if plan.recipe.limit is None:
        return ()
    of = " of each split" if plan.recipe.splits_by_name else ""
    number, total = len(plan.files), len(listed)
    read = f", from {format_count(number)} of {format_number(total, 'file')}" if number < total else ""
    all_classes, classes = ({class_of(f, plan.recipe.source) for f in files} for files in (listed, plan.files))
    source = plan.recipe.source
    has_classes = (format_named(source.format).has_row_files or source.has_text_classes) and source.labels is None
    if has_classes and len(classes) < len(all_classes):
        raise UsageError(
            f"the first {format_count(plan.recipe.limit)} rows{of} have {format_count(len(classes))} of "
            f"{format_count(len(all_classes))} classes",
            why="the files of a class stand together",
            next_step=f"Write --sample {plan.recipe.limit} instead, which takes rows at random",
        )
    return (f"the first {format_count(plan.recipe.limit)} rows{of} are taken{read}; --sample takes rows at random",)


def _packing_notes(plan: Plan) -> tuple[str, ...]:
    others = [shown(f.name) for f in plan.row_features if plan.packing and f.name != plan.packing.column]
    return (f"--pack leaves out: {', '.join(others)}",) if others else ()


def _kernel_notes() -> tuple[str, ...]:
    if HAS_KERNEL:
        return ()
    return ("the compiled kernel was not built: encoding takes many times longer (install with a C++ compiler)",)

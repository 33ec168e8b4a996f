"""The pages of `shardkit convert` before it begins and when it is done. Names of users are never read as markup."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardkit.cli.pages.decision_page import show_decisions, show_first_rows
from shardkit.cli.pages.inspect_head import describe_accounting, print_splits
from shardkit.cli.pages.phases import rate_text
from shardkit.cli.shell.formatting import shorten
from shardkit.cli.shell.tables import print_prose
from shardkit.conversion.plan import Plan
from shardkit.conversion.prepare import Prepared
from shardkit.conversion.space.disk_space import Need, space_needs
from shardkit.dataset.append_info import appended_to, own_inputs
from shardkit.dataset.manifest import DATA_DIR, SplitInfo
from shardkit.dataset.open import Dataset
from shardkit.errors import ShardkitError
from shardkit.features import Features
from shardkit.messages import visible
from shardkit.storage import files as storage
from shardkit.units import format_count, format_duration, format_number, format_size

# Where a dry run would write that was given no destination.
NO_DESTINATION = ".shardkit-dry-run"
# So many features are listed whole; of more, the first so many.
_MAX_FEATURES = 40
_SHOWN_FEATURES = 30
_MAX_NAME_LENGTH = 60
_MAX_KINDS = 3
# Columns of a terminal that shows how features are stored, too.
_WIDE = 60


def show_plan(console: Console, plan: Plan, notes: Sequence[str]) -> None:
    """Prints the inputs and the features."""
    num_bytes = sum(f.num_bytes for f in plan.files)
    files = format_number(len(plan.files), "file")
    console.print(f"{files}, {format_size(num_bytes)}, read as {plan.recipe.source.format}", soft_wrap=True)
    show_features(console, plan)
    for note in notes:
        show_note(console, note)


def show_features(console: Console, plan: Plan) -> None:
    """Prints the features, the first ones where they are many."""
    listed = plan.features if len(plan.features) <= _MAX_FEATURES else plan.features[:_SHOWN_FEATURES]
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("feature", "type", "stored as", "nulls") if console.width >= _WIDE else ("feature", "type")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for feature in listed:
        name = shorten(visible(feature.name), _MAX_NAME_LENGTH)
        cells = (name, visible(feature.describe_type()), feature.stored_as, "allowed" if feature.nullable else "none")
        table.add_row(*map(Text, cells[: len(headings)]))
    console.print(table)
    if len(listed) < len(plan.features):
        console.print(_rest(plan.features[len(listed) :]), soft_wrap=True, markup=False)


def show_note(console: Console, note: str) -> None:
    """Prints a note for the user."""
    print_prose(console, Text.assemble(("note: ", "yellow"), visible(storage.redact(note))))


def show_dry_run(console: Console, prepared: Prepared) -> ShardkitError | None:
    """Prints the plan and its needs; returns the error of a bad row among the first ones, None if there is none."""
    plan = prepared.plan
    show_decisions(console, plan)
    console.print()
    show_features(console, plan)
    console.print()
    error = show_first_rows(console, plan)
    console.print()
    for note in prepared.notes:
        show_note(console, note)
    recipe = plan.recipe
    if recipe.num_shards is not None:
        shards = format_number(recipe.num_shards, "shard") + " a split"
    else:
        shards = f"of {format_size(recipe.shard_bytes or 0)}"
    level = f", level {recipe.compression_level}" if recipe.compression_level else ""
    facts = [
        ("shards", f"{shards}, compression {recipe.compression}{level}"),
        ("work", _describe_work(prepared)),
        # Workers without a shared disk keep nothing here.
        *(("space", _describe_space(need)) for need in (space_needs(plan) if plan.exchange is None else ())),
        *([] if plan.destination.endswith(f"/{NO_DESTINATION}") else [("dataset", storage.redact(plan.destination))]),
    ]
    for name, value in facts:
        print_prose(console, Text(f"{name:<9}{visible(value)}"))
    console.print("This was a dry run: nothing was written.")
    return error


def show_result(
    console: Console, dataset: Dataset, destination: str, *, seconds: float, num_kept_bytes: int, peak_bytes: int | None
) -> None:
    """Prints the result."""
    destination = storage.redact(destination)
    print_splits(console, dataset, dataset.manifest.splits)
    accounting = dataset.manifest.accounting
    num_bytes = sum(i.num_bytes for i in own_inputs(dataset.manifest))
    took = f"in {format_duration(seconds)}"
    if num_kept_bytes:
        took += f" ({format_size(num_kept_bytes)} of the input were read before)"
    else:
        took += f" ({rate_text(num_bytes / seconds)} of input)"
    console.print(describe_accounting(accounting), soft_wrap=True)
    base = appended_to(dataset.manifest)
    appended = f", appended to version {base.version}," if base is not None else ""
    pieces = [f"version {dataset.version} of {visible(destination)}{appended} {took}"]
    if peak_bytes is not None:
        pieces.append(f"peak memory {format_size(peak_bytes)}")
    for line in fill(pieces, console.width):
        console.print(line, soft_wrap=True, markup=False)
    if dataset.manifest.recipe.get("tfds"):
        folder = visible(storage.join(destination, DATA_DIR, dataset.manifest.fingerprint))
        console.print(f"TensorFlow Datasets: tfds.builder_from_directory({folder!r})", soft_wrap=True, markup=False)
    if accounting.rejected_files:
        console.print(f"All that was left out: {_inspect(destination)} --rejected", soft_wrap=True, markup=False)
    console.print(f"Next: {_inspect(destination)}", soft_wrap=True, markup=False)


def fill(pieces: Sequence[str], width: int) -> list[str]:
    """Returns lines of whole pieces, joined by commas, as many on each as fit."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        joined = f"{lines[-1]}, {piece}"
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(piece)
    return lines


def rounding_notes(splits: Sequence[SplitInfo], features: Features) -> list[str]:
    """Returns notes on values that were rounded."""
    dtypes = {feature.name: feature.dtype for feature in features}
    lost: Counter[str] = Counter()
    for split in splits:
        lost.update({name: statistics.num_rounded for name, statistics in split.statistics.items()})
    return [
        f"{name!r}: {format_number(number, 'value')} rounded to {dtypes[name]}; declare "
        f"{'string' if dtypes[name] == 'float64' else 'float64'} in a --schema file to keep every digit"
        for name, number in lost.items()
        if number
    ]


def _rest(features: Features) -> str:
    kinds = Counter(f.describe_type() for f in features).most_common()
    tally = ", ".join(f"{format_count(n)} {visible(kind)}" for kind, n in kinds[:_MAX_KINDS])
    others = len(features) - sum(n for _, n in kinds[:_MAX_KINDS])
    more = f", {format_count(others)} others" if others else ""
    return f"... and {format_count(len(features))} more ({tally}{more}); 'shardkit inspect' shows all when it is done"


def _describe_work(prepared: Prepared) -> str:
    plan = prepared.plan
    passes = "read twice" if plan.recipe.reads_twice else "read once"
    text = f"{format_number(len(plan.input_splits), 'part')} of input, {passes}"
    if prepared.num_finished_splits:
        text += f"; {format_count(prepared.num_finished_splits)} of them were read before"
    return text


def _describe_space(need: Need) -> str:
    return f"{need.describe()} in {need.where.partition(f'/{NO_DESTINATION}')[0]}"


def _inspect(destination: str) -> str:
    return f"shardkit inspect {visible(shlex.quote(destination))}"

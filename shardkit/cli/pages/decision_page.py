"""What a dry run shows of how the inputs are understood: each decision, and the options that would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shardkit.cli.shell.formatting import format_example_value
from shardkit.cli.shell.tables import pad
from shardkit.conversion.plan import Plan
from shardkit.encoding.example import python_value
from shardkit.errors import NarrowTypesError, ShardkitError
from shardkit.messages import visible
from shardkit.sources import source_of
from shardkit.sources.csv.header import made_names
from shardkit.sources.folders.class_folders import describe_classes
from shardkit.sources.formats import format_named
from shardkit.sources.split_names import split_of
from shardkit.units import format_number, format_size

_SHOWN_ROWS = 3
_SHOWN_COLUMNS = 12


class Decision(NamedTuple):
    """One decision about the inputs."""

    name: str
    text: str
    options: str


def decisions_of(plan: Plan) -> list[Decision]:
    """Returns the decisions about the inputs of a plan: kind, labels, splits, header and columns."""
    source = plan.recipe.source
    format = format_named(source.format)
    size = format_size(sum(file.num_bytes for file in plan.files))
    found = [Decision("inputs", f"{format_number(len(plan.files), 'file')}, {size}, {format.title}", "--format")]
    if format.has_row_files or source.has_text_classes:
        found.append(_labels(plan))
    found.append(_splits(plan))
    if "has_header" in format.options and not format.has_row_files:
        is_made = source.columns is not None and source.columns == made_names(len(source.columns))
        text = "none: columns have numbers" if is_made else "the first line" if source.columns is None else "--columns"
        found.append(Decision("header", text, "--header, --no-header, --columns"))
    columns = f"{format_number(len(plan.features), 'column')}, see below"
    found.append(Decision("columns", columns, "--schema, --cast, --drop-columns"))
    return found


def _labels(plan: Plan) -> Decision:
    source = plan.recipe.source
    if source.labels is not None:
        return Decision("labels", "of files beside them, see the notes", "--labels, --no-labels")
    classes = describe_classes(plan.files, source)
    ways = "--class-folder, --no-labels" if source.has_text_classes else "--class-folder, --labels, --no-labels"
    return Decision("classes", classes, ways) if classes else Decision("labels", "none", "--labels")


def _splits(plan: Plan) -> Decision:
    recipe = plan.recipe
    if recipe.splits_by_name:
        counts = Counter(map(split_of, plan.files))
        text = ", ".join(f"{s.name} {format_number(counts[s.name], 'file')}" for s in recipe.splits)
    elif recipe.split_column is not None:
        text = f"{', '.join(s.name for s in recipe.splits)} by column {recipe.split_column}"
    else:
        text = ", ".join(f"{s.name} {100 * s.fraction:.4g} %" for s in recipe.splits)
    return Decision("splits", text, "--split")


def show_decisions(console: Console, plan: Plan) -> None:
    """Prints the decisions about the inputs, and the first rows as they are read."""
    found = decisions_of(plan)
    width = max(len(decision.name) for decision in found)
    for name, text, options in found:
        line = Text(f"{pad(name, width)}  {visible(text)}")
        if cell_len(line.plain) + len(options) + 3 > console.width:
            line.append(f"\n{' ' * (width + 2)}")
        else:
            line.append("  ")
        line.append(f"({options})", style="dim")
        console.print(line, soft_wrap=True)


def show_first_rows(console: Console, plan: Plan) -> ShardkitError | None:
    """Prints the first rows of the inputs, before any transformation.

    Returns:
        The error of a bad row that is among them, at which the conversion would end; None if there is none.
    """
    features = plan.transforms.input_features or plan.features
    shown = features[:_SHOWN_COLUMNS]
    width = max(cell_len(visible(feature.name)) for feature in shown)
    rows, error = _first_rows(plan, features)
    is_changed = plan.transforms.input_features != plan.transforms.output_features
    for number, row in enumerate(rows, start=1):
        console.print(Text(f"row {number}{' of the inputs, before changes' if is_changed else ''}", style="bold"))
        for feature in shown:
            value = format_example_value(row[feature.name], feature, max(20, console.width - width - 4))
            console.print(Text(f"  {pad(visible(feature.name), width)}  {visible(value)}"), soft_wrap=True)
        if len(shown) < len(features):
            console.print(f"  and {format_number(len(features) - len(shown), 'column')} more")
    if error is None:
        return None
    if isinstance(error, NarrowTypesError) and plan.inferred:
        # The conversion widens the types, and goes on.
        console.print(Text(f"a row is bad: {visible(str(error))}"), soft_wrap=True)
        return None
    console.print("A bad row is among the first ones: the conversion would end with the error below.", soft_wrap=True)
    return error


def _first_rows(plan: Plan, features: Sequence[Any]) -> tuple[list[dict[str, Any]], ShardkitError | None]:
    source = source_of(plan.recipe.source)
    parts = (part for split in plan.input_splits for part in split.parts or (split,))
    batches = (b for part in parts for b in source.read(part, plan.files, tuple(features), plan.recipe.source))
    rows: list[dict[str, Any]] = []
    try:
        while len(rows) < _SHOWN_ROWS and (batch := next(batches, None)) is not None:
            first = batch.batch.slice(0, _SHOWN_ROWS - len(rows))
            columns = {name: map(python_value, first.column(name)) for name in first.schema.names}
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    except ShardkitError as error:
        return rows, error
    return rows, None

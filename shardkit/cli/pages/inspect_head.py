"""The head of the page of `shardkit inspect`: what a dataset is, and its splits, which `convert` shows too."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from shardkit.cli.shell.tables import page_width, print_columns, print_facts
from shardkit.dataset.append_info import AppendedTo, appended_to, own_inputs
from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import Manifest, SplitInfo
from shardkit.dataset.open import Dataset
from shardkit.features import Features
from shardkit.messages import visible
from shardkit.storage import files as storage
from shardkit.units import format_count, format_number, format_size

_LISTED_FEATURES = 12


def print_head(console: Console, dataset: Dataset) -> None:
    """Prints where a dataset comes from, how its rows add up, and how its features are stored."""
    manifest = dataset.manifest
    title = Text(visible(manifest.name), style="bold")
    title.append(f"  version {dataset.version}", style="not bold")
    console.print(title)
    account = manifest.accounting
    num_input_bytes = sum(i.num_bytes for i in account.inputs)
    compression = {"gzip": "TFRecord, gzip in blocks", "none": "TFRecord, not compressed"}[manifest.compression]
    if manifest.recipe.get("source") == "index" and manifest.compression == "gzip":
        compression = "TFRecord, gzip as others wrote it, one block a file"
    facts = (
        ("location", storage.redact(dataset.url)),
        ("created", manifest.created.at.replace("T", " ").replace("Z", " UTC")),
        ("inputs", f"{format_number(len(account.inputs), 'file')}, {format_size(num_input_bytes)}"),
        ("rows", describe_accounting(account)),
        *([("appended", _appended_note(manifest, base))] if (base := appended_to(manifest)) is not None else []),
        ("format", f"{compression}{_level_note(manifest)} (format version {manifest.format_version})"),
        ("fingerprint", manifest.fingerprint[:12]),
    )
    print_facts(console, facts)
    for text in _stored(manifest.features):
        for number, line in enumerate(textwrap.wrap(visible(text), page_width(console) - 16)):
            console.print(Text(f"  {'' if number else 'stored as':<12}{'  ' if number else ''}{line}"), soft_wrap=True)


def print_splits(console: Console, dataset: Dataset, splits: Sequence[SplitInfo]) -> None:
    """Prints a line for each split, and one for all of them together."""
    headings = ("split", "shards", "examples", "share", "size", "uncompressed", "ratio", "max/min")
    total = max(1, sum(s.num_examples for s in dataset.manifest.splits))
    rows: list[tuple[str, ...]] = []
    for info in splits:
        smallest, largest = dataset.split_shards(info.name).size_range()
        rows.append((*_split_cells(info, total), f"{largest / smallest:.4f}" if smallest else ""))
    if len(splits) > 1:
        whole = SplitInfo(
            name="",
            num_shards=sum(s.num_shards for s in splits),
            num_examples=sum(s.num_examples for s in splits),
            num_bytes=sum(s.num_bytes for s in splits),
            num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in splits),
        )
        rows.append((*_split_cells(whole, total), ""))
    print_columns(console, headings, rows, num_left=1)


def _split_cells(info: SplitInfo, total: int) -> tuple[str, ...]:
    return (
        visible(info.name),
        format_count(info.num_shards),
        format_count(info.num_examples),
        f"{info.num_examples / total:.1%}",
        format_size(info.num_bytes),
        format_size(info.num_uncompressed_bytes),
        f"{info.num_uncompressed_bytes / info.num_bytes:.2f}" if info.num_bytes else "",
    )


def _stored(features: Features) -> Iterator[str]:
    """Yields each kind of storage with the features that it has, in the order of the schema."""
    for kind in dict.fromkeys(feature.stored_as for feature in features):
        names = [feature.name for feature in features if feature.stored_as == kind]
        more = f" and {format_count(len(names) - _LISTED_FEATURES)} more" if len(names) > _LISTED_FEATURES else ""
        yield f"{kind}: {', '.join(names[:_LISTED_FEATURES])}{more}"


def _appended_note(manifest: Manifest, base: AppendedTo) -> str:
    return f"{format_number(len(own_inputs(manifest)), 'file')} to version {base.version}"


def describe_accounting(account: Accounting) -> str:
    """Returns the account of all rows, in words."""
    parts = [f"{format_number(account.num_rows, 'row')} in", f"{format_number(account.num_examples, 'example')} out"]
    if account.num_sequences is not None:
        parts[1] = f"{format_count(account.num_examples)} packed into {format_number(account.num_sequences, 'example')}"
    for number, word in (
        (account.num_filtered, "filtered"),
        (account.num_duplicates, "duplicates"),
        (account.num_rejected, "rejected"),
    ):
        parts += [f"{format_count(number)} {word}"] if number else []
    if account.num_damaged_files:
        parts.append(f"{format_number(account.num_damaged_files, 'file')} rejected whole, their rows unknown")
    return ", ".join(parts)


def _level_note(manifest: Manifest) -> str:
    level = manifest.recipe.get("compression_level")
    return f", level {level}" if isinstance(level, str) else ""

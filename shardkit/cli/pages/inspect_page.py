"""The pages of `shardkit inspect`, made with rich. Names and values of users are never read as markup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shardkit.cli.pages.inspect_head import print_head, print_splits
from shardkit.cli.shell.formatting import (
    format_class,
    format_example_value,
    format_number_value,
    format_share,
    format_stored_time,
    is_temporal,
    shorten,
)
from shardkit.cli.shell.tables import GAP, column_widths, pad, page_width, print_columns, print_prose
from shardkit.dataset.block_reader import first_examples
from shardkit.dataset.manifest import FeatureStatistics, Quantiles, ShardInfo, SplitInfo
from shardkit.dataset.open import Dataset
from shardkit.dataset.rejected_rows import RejectedRecord
from shardkit.features import Feature
from shardkit.messages import visible
from shardkit.statistics.collector import combine_statistics
from shardkit.units import format_count, format_number, format_size

_MAX_VALUE_LENGTH = 24
_MAX_VOCABULARIES = 6
_RAW_SHOWN_BYTES = 300


class FeatureRow(NamedTuple):
    """One feature and its statistics.

    Attributes:
        statistics: Over all splits; nothing of distinct and top values, vocabularies and quantiles.
        largest: Of the largest split, for those.
    """

    feature: Feature
    statistics: FeatureStatistics
    largest: FeatureStatistics


def print_page(dataset: Dataset, *, split: str | None, with_shards: bool, num_examples: int | None) -> None:
    """Prints the content of a dataset on stdout.

    Args:
        split: Leave out the others.
        with_shards: List the shards instead of the features.
        num_examples: Show so many examples of the (first) split instead of the features.
    """
    console = Console(highlight=False)
    splits = [s for s in dataset.manifest.splits if split in (None, s.name)]
    print_head(console, dataset)
    print_splits(console, dataset, splits)
    if with_shards:
        for info in splits:
            _print_shards(console, dataset.split_shards(info.name))
    if num_examples is not None:
        _print_examples(console, dataset, splits[0].name, num_examples)
    if not with_shards and num_examples is None:
        _print_features(console, dataset, splits)


def feature_rows(features: Sequence[Feature], splits: Sequence[SplitInfo]) -> list[FeatureRow]:
    """Returns each feature that has statistics, with those of all splits together."""
    rows = []
    for feature in features:
        found = [s.statistics[feature.name] for s in _by_size(splits) if feature.name in s.statistics]
        if not found:
            continue
        rows.append(FeatureRow(feature, combine_statistics(found), found[0]))
    return rows


def _by_size(splits: Sequence[SplitInfo]) -> list[SplitInfo]:
    return sorted(splits, key=lambda s: -s.num_examples)


def _print_shards(console: Console, shards: Sequence[ShardInfo]) -> None:
    folders = {s.path.rpartition("/")[0] for s in shards}
    prefix = f"{folders.pop()}/" if len(folders) == 1 else ""
    rows = [
        (
            s.path.removeprefix(prefix),
            format_count(s.num_examples),
            format_count(s.num_bytes),
            format_count(s.num_uncompressed_bytes),
            format_count(len(s.block_num_bytes)),
            f"{s.crc32c:08x}",
        )
        for s in shards
    ]
    if prefix:
        console.print()
        console.print(Text(prefix, style="bold"), soft_wrap=True, end="")
    headings = ("shard", "examples", "bytes", "uncompressed", "blocks", "crc32c")
    print_columns(console, headings, rows, num_left=1)


def _print_examples(console: Console, dataset: Dataset, split: str, num_examples: int) -> None:
    features = dataset.manifest.features
    width = max((cell_len(visible(f.name)) for f in features), default=0)
    room = max(40, page_width(console) - width - 6)
    for number, example in enumerate(first_examples(dataset, split, num_examples)):
        console.print()
        console.print(Text(f"{visible(split)}, example {number}", style="bold"))
        for feature in features:
            value = example[feature.name]
            line = Text(f"  {pad(visible(feature.name), width)}  ")
            line.append(visible(format_example_value(value, feature, room)), style="dim" if value is None else "")
            console.print(line, soft_wrap=True)


def _print_features(console: Console, dataset: Dataset, splits: Sequence[SplitInfo]) -> None:
    rows = feature_rows(dataset.manifest.features, splits)
    times = [r for r in rows if is_temporal(r.feature)]
    numbers = [r for r in rows if r.statistics.mean is not None and r not in times and not _is_class(r.feature)]
    values = [r for r in rows if r not in numbers and r not in times]
    if numbers:
        _print_numbers(console, numbers)
    if times:
        _print_times(console, times)
    if values:
        _print_values(console, values, _describe_pixels(rows))
    lengths = [r for r in rows if _has_lengths_worth_showing(r)]
    if lengths:
        _print_lengths(console, lengths)
    notes = list(_notes(rows, splits))
    if notes:
        console.print()
    for note in notes:
        print_prose(console, Text(note, style="dim"))


def _print_numbers(console: Console, rows: Sequence[FeatureRow]) -> None:
    has_lists = any(r.statistics.mean_length is not None for r in rows)
    headings = ["numbers", "type", "nulls", "min", "p1", "median", "p99", "max", "mean", "std", "distinct"]
    cells = []
    for row in rows:
        s = row.statistics
        percentiles = _percentiles(row.largest.quantiles, ("p1", "median", "p99"))
        numbers = (s.min, *percentiles, s.max, s.mean, s.std)
        shown = (*map(format_number_value, numbers), _distinct(row.largest))
        cells.append((*_first_cells(row), *shown, *([_lengths(row)] if has_lists else [])))
    print_columns(console, [*headings, *(["length"] if has_lists else [])], cells)


def _print_times(console: Console, rows: Sequence[FeatureRow]) -> None:
    cells = []
    for row in rows:
        s = row.statistics
        moments = (s.min, *_percentiles(row.largest.quantiles, ("median",)), s.max)
        cells.append((*_first_cells(row), *(format_stored_time(v, row.feature) for v in moments)))
    print_columns(console, ("times", "type", "nulls", "first", "median", "last"), cells)


def _print_values(console: Console, rows: Sequence[FeatureRow], pixels: str) -> None:
    headings = ("values", "type", "nulls", "distinct", "length")
    cells = [(*_first_cells(row), _distinct(row.largest), _lengths(row)) for row in rows]
    widths = column_widths([headings, *cells])
    room = page_width(console) - sum(w + GAP for w in widths)
    if room < _MAX_VALUE_LENGTH:
        # The column is below, beside the first one.
        room = page_width(console) - widths[0] - GAP
    last = [pixels if _is_image(row.feature) else _top_values(row, room) for row in rows]
    if not any(last):
        print_columns(console, headings, cells)
        return
    rows_with_last = [(*c, value) for c, value in zip(cells, last, strict=True)]
    print_columns(console, (*headings, "most frequent"), rows_with_last, last_is_left=True)


def _print_lengths(console: Console, rows: Sequence[FeatureRow]) -> None:
    cells = []
    for row in rows:
        s, quantiles = row.statistics, row.largest.length_quantiles
        format_length = format_size if _is_blob(row.feature) else format_number_value
        numbers = (s.min_length, *_percentiles(quantiles, ("median", "p95", "p99")), s.max_length, s.mean_length)
        unit = "" if _is_blob(row.feature) else "values" if not row.feature.is_scalar else "bytes"
        cells.append((visible(row.feature.name), unit, *(format_length(n) if n is not None else "" for n in numbers)))
    print_columns(console, ("lengths", "", "min", "median", "p95", "p99", "max", "mean"), cells)


def _percentiles(quantiles: Quantiles | None, names: Sequence[str]) -> list[float | int | None]:
    if quantiles is None:
        return [None] * len(names)
    known = {"p1": quantiles.p01, "median": quantiles.p50, "p95": quantiles.p95, "p99": quantiles.p99}
    return [known[name] for name in names]


def _has_lengths_worth_showing(row: FeatureRow) -> bool:
    """Whether a feature is text, a blob or a list whose lengths vary; those of classes tell nothing."""
    s = row.largest
    is_class = row.feature.is_scalar and len(s.vocabulary) > 0
    return s.length_quantiles is not None and not is_class and s.min_length != s.max_length


def _notes(rows: Sequence[FeatureRow], splits: Sequence[SplitInfo]) -> Iterator[str]:
    if len(splits) > 1:
        largest = visible(_by_size(splits)[0].name)
        yield f"Medians and other percentiles, distinct and most frequent values are those of split {largest}."
    if any(not r.largest.num_distinct_is_exact for r in rows):
        yield "~ is an estimate, within about 3 %."
    yield from _note_on_vocabularies(rows)
    for row in rows:
        s, name = row.statistics, visible(row.feature.name)
        kinds = ((s.num_nans, "NaN"), (s.num_infs, "infinite"), (s.num_rounded, f"rounded to {row.feature.dtype}"))
        odd = [f"{format_count(number)} {word}" for number, word in kinds if number]
        if odd:
            yield f"{name}: of {format_number(s.num_values, 'value')} {', '.join(odd)}."


def _note_on_vocabularies(rows: Sequence[FeatureRow]) -> Iterator[str]:
    listed = [r for r in rows if len(r.largest.vocabulary) > 1 and not _is_class(r.feature)]
    sizes = [f"{visible(r.feature.name)} of {format_number(len(r.largest.vocabulary), 'value')}" for r in listed]
    more = len(sizes) - _MAX_VOCABULARIES
    if sizes:
        named = ", ".join(sizes[:_MAX_VOCABULARIES])
        yield f"Vocabularies in the manifest: {named}{f', and {format_count(more)} more' if more > 0 else ''}."


def _is_class(feature: Feature) -> bool:
    return feature.vocabulary is not None or feature.dtype == "bool"


def _is_blob(feature: Feature) -> bool:
    return feature.is_scalar and feature.dtype == "bytes"


def _is_image(feature: Feature) -> bool:
    return feature.media_type is not None and feature.media_type.startswith("image/")


def _describe_pixels(rows: Sequence[FeatureRow]) -> str:
    """Returns the sizes of the images, from the features that an image source adds; empty if there are none."""
    known = {r.feature.name: r.statistics for r in rows}
    if not all(name in known and known[name].min is not None for name in ("height", "width")):
        return ""
    height, width, channels = known["height"], known["width"], known.get("channels")
    smallest, largest = f"{width.min} x {height.min}", f"{width.max} x {height.max}"
    text = f"{smallest if smallest == largest else f'{smallest} to {largest}'} pixels"
    if channels is None or channels.min is None:
        return text
    same = channels.min == channels.max
    return f"{text}, {channels.min if same else f'{channels.min} to {channels.max}'} channels"


def _first_cells(row: FeatureRow) -> tuple[str, str, str]:
    s = row.statistics
    nulls = s.num_nulls / (s.count + s.num_nulls) if s.num_nulls else 0.0
    shown = "<0.1%" if 0 < nulls < 0.001 else f"{nulls:.1%}" if nulls else "0"
    return visible(row.feature.name), visible(row.feature.describe_type()), shown


def _distinct(s: FeatureStatistics) -> str:
    if s.num_distinct is None:
        return ""
    return f"{'' if s.num_distinct_is_exact else '~'}{format_count(s.num_distinct)}"


def _lengths(row: FeatureRow) -> str:
    s = row.statistics
    if s.mean_length is None or s.min_length is None or s.max_length is None:
        return ""
    low, high = (format_size(n) if _is_blob(row.feature) else format_count(n) for n in (s.min_length, s.max_length))
    return low if low == high else f"{low} to {high}"


def _top_values(row: FeatureRow, room: int) -> str:
    """Returns the most frequent values that fit, at least one; none that fewer than one in a thousand rows have."""
    s = row.largest
    text = ""
    for top in s.top_values:
        if top.count * 1000 < s.num_values or top.count == 1 < s.num_values:
            break
        shown = shorten(format_class(top.value, row.feature), _MAX_VALUE_LENGTH)
        longer = f"{text}{', ' if text else ''}{shown} {format_share(top.count / s.num_values)}"
        if text and cell_len(longer) > room:
            break
        text = longer
    return text


def print_rejected(records: Iterator[RejectedRecord], num_shown: int) -> None:
    """Prints rows that were rejected, the first so many."""
    console = Console(highlight=False)
    num_rows = 0
    for num_rows, record in enumerate(records, start=1):
        if num_rows > num_shown:
            continue
        where = visible(f"{record.file}, {record.position}" if record.position else record.file)
        console.print(Text.assemble((where, "bold"), f"  {visible(record.reason)}"), soft_wrap=True)
        if record.raw is not None:
            raw = record.raw[:_RAW_SHOWN_BYTES]
            rest = "" if len(record.raw) <= _RAW_SHOWN_BYTES else f" and {len(record.raw) - len(raw):,} bytes more"
            console.print(Text(f"  {visible(raw.decode(errors='backslashreplace'))}{rest}"), soft_wrap=True)
    if num_rows > num_shown:
        console.print(f"and {num_rows - num_shown:,} more; --json has all of them")

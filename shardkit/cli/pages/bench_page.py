"""The page of `shardkit bench`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from shardkit.bench.run import SHARDKIT, TF_DATA, Report
from shardkit.cli.shell.tables import page_width, print_columns, print_facts
from shardkit.messages import visible
from shardkit.units import format_count, format_number, format_size


def print_report(report: Report) -> None:
    """Prints the measurements on stdout."""
    console = Console(highlight=False)
    _print_head(console, report)
    _print_rates(console, report)
    console.print()
    for note in _notes(report):
        for line in Text(note, style="dim").wrap(console, page_width(console)):
            line.rstrip()
            console.print(line, soft_wrap=True)


def _print_head(console: Console, report: Report) -> None:
    title = Text(visible(report.name), style="bold")
    title.append(f"  version {report.version}, split {visible(report.split)}", style="not bold")
    console.print(title, soft_wrap=True)
    size = f"{format_size(report.mean_record_bytes)} a record"
    if report.compression == "gzip":
        size += f", {format_size(report.mean_stored_bytes)} in gzip"
    examples, shards = format_number(report.num_examples, "example"), format_number(report.num_shards, "shard")
    batches = f"{format_number(report.batch_size, 'example')}, {format_number(len(report.features), 'feature')}"
    threads = f"{format_number(report.num_threads, 'reading thread')}, {format_number(report.num_cores, 'core')}"
    facts = (
        ("data", f"{examples} in {shards}, {size}"),
        ("batches", f"{batches}, {'shuffled' if report.shuffle else 'in the stored order'}"),
        ("reading", threads),
    )
    print_facts(console, facts, width=9)


def _print_rates(console: Console, report: Report) -> None:
    rates = [rate for rate in (report.reader, report.tfdata) if rate is not None]

    def row(name: str, field: str) -> list[str]:
        values = [getattr(rate, field) for rate in rates]
        ratio = [_ratio(values[0], values[1])] if len(values) == 2 else []
        return [name, *map(_number, values), *ratio]

    rows = [
        row("examples/s", "examples_per_s"),
        row("MB/s of records", "record_mb_per_s"),
        row("examples per CPU second", "examples_per_cpu_s"),
        ["open to first batch", *(f"{_number(rate.first_batch_s * 1e3)} ms" for rate in rates)],
        ["peak memory", "unknown" if report.peak_memory_bytes is None else format_size(report.peak_memory_bytes)],
    ]
    headings = ["rates", SHARDKIT, *([TF_DATA, "ratio"] if report.tfdata is not None else [])]
    print_columns(console, headings, [[*r, *[""] * (len(headings) - len(r))] for r in rows], num_left=1)


def _notes(report: Report) -> Iterator[str]:
    if report.asked_batch_size is not None and report.asked_batch_size > report.batch_size:
        yield (
            f"The split has only {format_number(report.num_examples, 'example')}: batches are as large, not "
            f"{format_count(report.asked_batch_size)}."
        )
    if report.no_tfdata is not None:
        yield f"tf.data was left out: {report.no_tfdata}."
    yield (
        f"Rates: median of {report.num_rounds} measurements of {_seconds(report.seconds)} after a warm-up, epoch after "
        f"epoch; files that fit come from the page cache. Text stays bytes on both sides."
    )
    if report.tfdata is not None:
        yield (
            "tf.data: parallel interleave over the shards in chunks, parse_example of whole batches, prefetch, in any "
            "order that is fast; it shuffles nothing but the shards."
        )
    if report.peak_memory_bytes is not None:
        yield "Peak memory: of a separate reader, beyond the memory of the process before."


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f} x" if theirs else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"

"""A conversion as the command runs it: what is shown, the bar, signals, and the end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from shardkit.cli.errors import explain, show, visible
from shardkit.cli.tables import describe_accounting
from shardkit.conversion.bad_rows import bad_row_samples
from shardkit.conversion.commit import Committed
from shardkit.conversion.extract import load_extracted
from shardkit.conversion.layout import load_layout
from shardkit.conversion.plan import Plan, save_plan
from shardkit.conversion.prepare import ConvertOptions, prepare, remove_work_folder, work_folder
from shardkit.conversion.progress import Totals, read_totals
from shardkit.dataset import open_dataset
from shardkit.errors import BadInputError, ConflictError, ShardkitError, StorageError, UsageError
from shardkit.units import MiB, format_count, format_duration, format_number, format_size

# Below this, starting processes takes longer than the work.
_ONE_WORKER_BYTES = 16 * MiB

# Held by whoever ends the process first: stopping the workers after Ctrl-C looks like losing them.
_ending = threading.Lock()


def convert(options: ConvertOptions, num_workers: int | None) -> None:
    """Plans and runs a conversion, showing what it does on stderr and what was made on stdout.

    Raises:
        ShardkitError: With the state of the destination.
    """
    logging.disable(logging.CRITICAL)  # Beam warns of packages that nothing here needs.
    from beam_pipelines.convert import COMMITTED_FILE
    from beam_pipelines.local import run_local, stop_workers

    console = Console(stderr=True, highlight=False)
    started = time.monotonic()
    prepared = prepare(options)
    plan = prepared.plan
    _show_plan(console, plan, prepared.notes)
    workers = num_workers or _default_workers(plan)
    with work_folder(plan), _hard_stop(stop_workers), _progress_bar(console, plan, prepared.num_finished_splits):
        plan_path = save_plan(plan)
        try:
            run_local(plan_path, workers, lambda error: _end_now(error, stop_workers))
        except ShardkitError as error:
            if isinstance(error, BadInputError | UsageError | ConflictError):
                # The inputs or the command must change, and with them the name of the work folder.
                remove_work_folder(plan)
            raise error.with_state(_state_after_failure(plan)) from error
        committed = msgspec.msgpack.decode(plan.work_path(COMMITTED_FILE).read_bytes(), type=Committed)
        notes = load_layout(plan).notes
        samples = bad_row_samples(plan, load_extracted(plan))
    remove_work_folder(plan)
    for note in notes:
        _show_note(console, note)
    _show_result(plan, options.destination, committed, samples, time.monotonic() - started)


def _default_workers(plan: Plan) -> int:
    if sum(f.num_bytes for f in plan.files) < _ONE_WORKER_BYTES:
        return 1
    return len(os.sched_getaffinity(0))


def _show_plan(console: Console, plan: Plan, notes: tuple[str, ...]) -> None:
    num_bytes = sum(f.num_bytes for f in plan.files)
    files = "1 file" if len(plan.files) == 1 else f"{format_count(len(plan.files))} files"
    console.print(f"{files}, {format_size(num_bytes)}, read as {plan.recipe.source.format}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("feature", "type", "stored as", "nulls"):
        table.add_column(heading, overflow="fold")
    for feature in plan.features:
        nulls = "allowed" if feature.nullable else "none"
        table.add_row(*(Text(visible(v)) for v in (feature.name, feature.describe_type(), feature.stored_as, nulls)))
    console.print(table)
    for note in notes:
        _show_note(console, note)


def _show_note(console: Console, note: str) -> None:
    console.print(Text.assemble(("note: ", "yellow"), visible(note)), soft_wrap=True)


def _show_result(plan: Plan, destination: str, committed: Committed, bad_rows: Sequence[str], seconds: float) -> None:
    console = Console(highlight=False)
    dataset = open_dataset(plan.destination, committed.version)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("split", "shards", "examples", "size", "uncompressed", "max/min"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for split in dataset.manifest.splits:
        sizes = [s.num_uncompressed_bytes for s in dataset.split_shards(split.name)]
        table.add_row(
            split.name,
            format_count(split.num_shards),
            format_count(split.num_examples),
            format_size(split.num_bytes),
            format_size(split.num_uncompressed_bytes),
            f"{max(sizes) / min(sizes):.4f}",
        )
    rate = sum(f.num_bytes for f in plan.files) / 1e6 / seconds
    accounting = dataset.manifest.accounting
    console.print(table)
    console.print(
        f"{describe_accounting(accounting)}, version {committed.version} of {destination} "
        f"in {format_duration(seconds)} ({rate:.1f} MB/s of input)",
        soft_wrap=True,
    )
    for sentence in bad_rows:
        _show_note(Console(stderr=True, highlight=False), f"left out: {sentence}")
    if bad_rows and accounting.rejected_files:
        console.print(f"All that was left out: shardkit inspect {destination} --rejected", soft_wrap=True)
    for split in dataset.manifest.splits:
        for name, statistics in split.statistics.items():
            if statistics.num_rounded:
                _show_note(
                    Console(stderr=True, highlight=False),
                    f"{name!r}: {format_number(statistics.num_rounded, 'value')} rounded to float32; declare float64 "
                    "in a --schema file to keep every digit",
                )
    console.print(f"Next: shardkit inspect {destination}", soft_wrap=True)


def _state_after_failure(plan: Plan) -> str:
    with contextlib.suppress(ShardkitError):
        version = open_dataset(plan.destination).version
        return f"Nothing was committed; version {version} is untouched"
    return "Nothing was committed"


@contextlib.contextmanager
def _hard_stop(stop_workers: Callable[[], None]) -> Iterator[None]:
    # Beam turns an interrupt into other errors or waits for its workers; everything here may stop at any instant.
    def stop(number: int, frame: FrameType | None) -> None:
        if not _ending.acquire(blocking=False):
            return
        word, code = ("interrupted", 130) if number == signal.SIGINT else ("terminated", 128 + number)
        text = f"\n{word}: Nothing was committed; run the same command again to go on where it stopped.\n"
        os.write(2, text.encode())
        _stop_and_exit(stop_workers, code)

    # Whoever starts a command with nohup wants SIGHUP to stay ignored.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_now(error: StorageError, stop_workers: Callable[[], None]) -> None:
    if not _ending.acquire(blocking=False):
        return
    sys.stderr.write("\n")
    show(explain(error), error)
    sys.stderr.flush()
    _stop_and_exit(stop_workers, error.exit_code)


def _stop_and_exit(stop_workers: Callable[[], None], exit_code: int) -> NoReturn:
    # All is said: what the runner's threads complain of when their workers go is noise.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    with contextlib.suppress(Exception):
        stop_workers()
    os._exit(exit_code)


@contextlib.contextmanager
def _progress_bar(console: Console, plan: Plan, num_finished_splits: int) -> Iterator[None]:
    if num_finished_splits:
        console.print(f"Going on: {num_finished_splits} of {len(plan.input_splits)} parts were read before")
    if not console.is_terminal:
        yield
        return
    ended = threading.Event()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    thread = threading.Thread(target=_follow, args=(bar, plan, ended), daemon=True)
    with bar:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _follow(bar: Progress, plan: Plan, ended: threading.Event) -> None:
    num_input_bytes = sum(s.num_bytes for s in plan.input_splits)
    task = bar.add_task("reading", total=1.0, figures="")
    started = time.monotonic()
    layout_path = plan.work_path("layout.json")
    num_framed_bytes: int | None = None
    while not ended.wait(0.25):
        totals = read_totals(plan.work_path("progress"))
        if num_framed_bytes is None and totals.num_input_bytes >= num_input_bytes and layout_path.exists():
            num_framed_bytes = sum(s.num_bytes for s in load_layout(plan).splits)
        share, figures, stage = _shown(totals, num_input_bytes, num_framed_bytes, time.monotonic() - started)
        bar.update(task, completed=share, figures=figures, description=stage)


def _shown(
    totals: Totals, num_input_bytes: int, num_framed_bytes: int | None, seconds: float
) -> tuple[float, str, str]:
    read = min(1.0, totals.num_input_bytes / max(1, num_input_bytes))
    written = min(1.0, totals.num_framed_bytes / num_framed_bytes) if num_framed_bytes else 0.0
    rate = totals.num_input_bytes / 1e6 / max(seconds, 1e-3)
    figures = f"{format_count(totals.num_rows)} rows, {format_size(totals.num_input_bytes)}, {rate:.1f} MB/s"
    if totals.num_rejected:
        figures += f", {format_count(totals.num_rejected)} rejected"
    return 0.75 * read + 0.25 * written, figures, "writing" if read == 1.0 else "reading"

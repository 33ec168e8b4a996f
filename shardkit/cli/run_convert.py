"""A conversion as the command runs it: the pages, the bar, signals, and the end."""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich.console import Console

from beam_pipelines.engines.engine import Engine, Start, engine_for
from beam_pipelines.engines.settings import EngineOptions
from shardkit.cli.pages.convert_page import rounding_notes, show_dry_run, show_note, show_plan, show_result
from shardkit.cli.pages.progress import Display, converting, new_display, planning
from shardkit.cli.shell.append_options import show_nothing_new, tidy_after_append
from shardkit.cli.shell.engine_options import engine_rows
from shardkit.cli.shell.supervised import (
    announce_open_files,
    announce_step,
    announce_work_folder,
    is_restarted,
    is_supervised,
)
from shardkit.cli.shell.tables import print_columns
from shardkit.cli.stop_convert import end_at_signals, end_at_signals_after_commit, end_now, stop_and_exit
from shardkit.cli.stop_remote import asking
from shardkit.conversion.commit.commit import COMMITTED_FILE, Committed, refuse_existing
from shardkit.conversion.extract.extract import load_extracted
from shardkit.conversion.inputs.append_check import NothingNew
from shardkit.conversion.inputs.database_rows import forget_server_rows
from shardkit.conversion.plan import Plan
from shardkit.conversion.prepare import Prepared, prepare
from shardkit.conversion.progress import read_totals
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.rows.bad_rows import bad_row_samples
from shardkit.conversion.run.all_types import notes_on_types, of_all_rows, with_all_types
from shardkit.conversion.run.convert import explained, explained_run, run_prepared, way_on
from shardkit.conversion.shards.layout import load_layout
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.dataset.append_info import own_inputs
from shardkit.dataset.open import open_dataset
from shardkit.errors import NarrowTypesError, ShardkitError, UsageError
from shardkit.runtime.bounded import steps_bounded
from shardkit.runtime.process_limits import EXIT_NO_MEMORY, NO_MEMORY
from shardkit.sources.columns.sampling import ALL_ROWS_BYTES
from shardkit.storage import files as storage
from shardkit.units import KiB, format_count, format_number


def convert(
    options: ConvertRequest, num_workers: int | None, engine_options: EngineOptions, *, is_dry_run: bool = False
) -> None:
    """Plans and runs a conversion, showing its progress on stderr and its result on stdout.

    Args:
        num_workers: Pieces of work at the same time; None lets the inputs decide.
        engine_options: What runs it, and what the user asks of that.
        is_dry_run: Whether to end when the plan is made and shown, on stdout.

    Raises:
        ShardkitError: With the state of the destination; of a dry run also that of a bad row among those shown.
    """
    logging.disable(logging.CRITICAL)  # Beam warns of packages that nothing here needs.
    started = time.monotonic()
    display = new_display()
    engine = engine_for(engine_options)
    options = engine.prepare(options, num_workers)
    notes = engine.check()
    if is_dry_run:
        _dry_run(options, display, engine, num_workers, notes)
        return
    if options.append:
        tidy_after_append(options)
    try:
        prepared = _prepared(options, display)
    except NothingNew as nothing:
        show_nothing_new(Console(highlight=False), nothing, options.destination)
        return
    if prepared.committed_version is not None:
        _end_what_was_cut_off(prepared.plan, prepared.committed_version, options.destination, started)
        return
    console = Console(stderr=True, highlight=False)
    if not is_restarted():
        show_plan(console, prepared.plan, (*prepared.notes, *notes))
    if prepared.num_finished_splits:
        parts = format_number(len(prepared.plan.input_splits), "part")
        console.print(f"Going on: {format_count(prepared.num_finished_splits)} of {parts} were read before")
    try:
        made = _run(prepared, num_workers, engine, display)
    except NarrowTypesError as error:
        prepared = _widened(prepared, options, error, display, console)
        made = _run(prepared, num_workers, engine, display)
    with end_at_signals_after_commit(made.committed.version):
        _show(console, made, prepared.plan, options.destination, started)


def _prepared(options: ConvertRequest, display: Display) -> Prepared:
    try:
        with _planning(display, options):
            return prepare(options)
    except NarrowTypesError:
        # --limit reads rows to plan.
        with _planning(display, options):
            return prepare(of_all_rows(options))


def _widened(
    before: Prepared, options: ConvertRequest, error: NarrowTypesError, display: Display, console: Console
) -> Prepared:
    """Returns the plan with types that hold all values, or raises the error if no type was inferred."""
    if not before.plan.inferred:
        raise error
    with _planning(display, options):
        prepared = with_all_types(before, options, error)
    if found := notes_on_types(before, prepared, error):
        show_plan(console, prepared.plan, found)
    return prepared


@contextlib.contextmanager
def _planning(display: Display, options: ConvertRequest) -> Iterator[None]:
    bounded = steps_bounded(options.max_row_seconds, announce_step, announce_open_files)
    with planning(display), explained(options), bounded:
        yield


def _show(console: Console, made: _Made, plan: Plan, destination: str, started: float) -> None:
    dataset = open_dataset(plan.destination, made.committed.version)
    left_out = [f"left out: {sentence}" for sentence in made.bad_rows]
    for note in (*made.notes, *left_out, *rounding_notes(dataset.manifest.splits, plan.features)):
        show_note(console, note)
    show_result(
        Console(highlight=False),
        dataset,
        destination,
        seconds=time.monotonic() - started,
        num_kept_bytes=made.num_kept_bytes,
        peak_bytes=made.peak_bytes,
    )


class _Made(NamedTuple):
    """A committed version, and notes about its making."""

    committed: Committed
    notes: tuple[str, ...]
    bad_rows: list[str]
    num_kept_bytes: int
    peak_bytes: int | None


def _run(prepared: Prepared, asked_workers: int | None, engine: Engine, display: Display) -> _Made:
    plan = prepared.plan
    with explained_run(plan):
        start = engine.start(plan, asked_workers or engine.default_workers(plan), display.say)
        with work_folder(plan):
            remote = start.remote
            stopping = end_at_signals(plan, start.stop) if remote is None else asking(plan, remote, display)
            with stopping, converting(display, plan, start.read_progress):
                made = _make(prepared, start)
            # Before another process may hold it: that one would find a commit that seems cut off.
            with end_at_signals_after_commit(made.committed.version):
                remove_work_folder(plan)
            return made


def _make(prepared: Prepared, start: Start) -> _Made:
    plan = prepared.plan
    announce_work_folder(plan.work_dir)

    def run(plan_path: str) -> None:
        try:
            start.run(plan_path, lambda error: end_now(error, start.stop))
        except ShardkitError as error:
            if error.what == NO_MEMORY and is_supervised():
                # A user's function may keep its memory; a new process has it free.
                stop_and_exit(start.stop, EXIT_NO_MEMORY)
            raise

    # If a service runs the same conversion already, the folder belongs to that job.
    run_prepared(prepared, run, keeps_folder_of_others=start.remote is not None)
    return _Made(
        committed=msgspec.msgpack.decode(plan.work_path(COMMITTED_FILE).read_bytes(), type=Committed),
        notes=load_layout(plan).notes,
        bad_rows=bad_row_samples(plan, load_extracted(plan)),
        num_kept_bytes=(
            start.read_progress()[0] if start.read_progress else read_totals(plan.work_path("progress"))
        ).num_kept_input_bytes,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KiB if start.is_this_process else None,
    )


def _end_what_was_cut_off(plan: Plan, version: int, destination: str, started: float) -> None:
    remove_work_folder(plan)
    dataset = open_dataset(plan.destination, version)
    console = Console(stderr=True, highlight=False)
    show_note(console, "the dataset was complete already; what its conversion left, which was cut off, is removed")
    show_result(
        Console(highlight=False),
        dataset,
        destination,
        seconds=time.monotonic() - started,
        num_kept_bytes=sum(i.num_bytes for i in own_inputs(dataset.manifest)),
        peak_bytes=None,
    )


def _dry_run(
    options: ConvertRequest, display: Display, engine: Engine, num_workers: int | None, notes: Sequence[str]
) -> None:
    destination = storage.normalize(options.destination)
    is_new = storage.is_local(destination) and not storage.exists(destination)
    try:
        try:
            prepared = _prepared(options, display)
            if prepared.plan.inferred and sum(f.num_bytes for f in prepared.plan.files) <= ALL_ROWS_BYTES:
                # An option may name a column as the first rows have it.
                with contextlib.suppress(UsageError), _planning(display, options):
                    prepared = prepare(of_all_rows(options))
        except NothingNew as nothing:
            show_nothing_new(Console(highlight=False), nothing, options.destination)
            return
        if prepared.committed_version is not None:
            refuse_existing(prepared.plan)
        console = Console(highlight=False)
        error = show_dry_run(console, prepared)
        if engine.spec is not None:
            _show_engine(console, engine, prepared.plan, num_workers or engine.default_workers(prepared.plan))
        for note in notes:
            show_note(console, note)
        if not prepared.plan.work_path().exists():
            forget_server_rows(prepared.plan)
        if error is not None:
            raise error.with_state("Nothing was written", way_on(error, options.on_bad_record))
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                storage.local_path(destination).rmdir()


def _show_engine(console: Console, engine: Engine, plan: Plan, num_workers: int) -> None:
    chosen, flags = engine.settings_and_flags(plan, num_workers)
    console.print(f"\nEngine: {engine.options.runner}")
    print_columns(console, ("setting", "value", "why"), engine_rows(chosen, flags), num_left=3)

"""A request made into a dataset in this process, and how any engine runs a prepared plan."""

from __future__ import annotations

from collections.abc import Callable

from shardkit.conversion.commit.commit import COMMITTED_FILE
from shardkit.conversion.exchange import fetch_signs, offer_plan
from shardkit.conversion.extract.extract import fetch_extracted
from shardkit.conversion.inputs.append_check import NothingNew
from shardkit.conversion.inputs.inspect_inputs import remember
from shardkit.conversion.plan import save_plan
from shardkit.conversion.prepare import Prepared, prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.run.all_types import of_all_rows, with_all_types
from shardkit.conversion.run.local import check_folder, default_workers, run_local
from shardkit.conversion.run.outcome import explained, explained_run, state_of, way_on
from shardkit.conversion.shards.layout import LAYOUT_FILE
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.errors import BadInputError, ConflictError, NarrowTypesError, ShardkitError, UsageError


def convert(request: ConvertRequest, num_workers: int | None = None, *, can_go_on: bool = True) -> None:
    """Makes the dataset that a request asks for, by the local engine.

    Args:
        num_workers: Pieces of work at the same time; None lets the inputs decide.
        can_go_on: Whether the same request may be made again, to go on where this one was interrupted.

    Raises:
        ShardkitError: With the state of the destination.
    """
    try:
        prepared = _prepared(request)
    except NothingNew:
        return
    if prepared.committed_version is not None:
        remove_work_folder(prepared.plan)
        return
    try:
        _run(prepared, num_workers, can_go_on=can_go_on)
    except NarrowTypesError as error:
        if not prepared.plan.inferred:
            raise
        with explained(request):
            prepared = with_all_types(prepared, request, error)
        _run(prepared, num_workers, can_go_on=can_go_on)


def run_prepared(prepared: Prepared, run: Callable[[str], None], *, keeps_folder_of_others: bool = False) -> None:
    """Runs a plan whose work folder this process holds, and brings what its workers leave there.

    Args:
        keeps_folder_of_others: Whether a conflict means that the folder belongs to another run.

    Raises:
        ShardkitError: What a worker reported, with the state of the destination and the next step.
    """
    plan = prepared.plan
    remember(plan, prepared.inspected)
    try:
        plan_path = save_plan(plan)
        if plan.exchange is not None:
            plan_path = offer_plan(plan)
        run(plan_path)
        fetch_signs(plan, COMMITTED_FILE, LAYOUT_FILE)
        fetch_extracted(plan)
    except ShardkitError as error:
        next_step = way_on(error, plan.recipe.on_bad_record)
        if plan.base is not None and isinstance(error, BadInputError):
            # The features and the handling of bad rows must be those of the dataset.
            error.next_step = "Correct the file, or leave it out with --exclude GLOB"
        error.with_state(state_of(plan), next_step)
        is_of_others = keeps_folder_of_others and isinstance(error, ConflictError)
        if not is_of_others and isinstance(error, BadInputError | UsageError | ConflictError):
            # The inputs or the command must change, and with them the name of the work folder.
            remove_work_folder(plan)
        raise


def _prepared(request: ConvertRequest) -> Prepared:
    with explained(request):
        try:
            return prepare(request)
        except NarrowTypesError:
            # A limit on rows reads them to plan.
            return prepare(of_all_rows(request))


def _run(prepared: Prepared, num_workers: int | None, *, can_go_on: bool) -> None:
    plan = prepared.plan
    with explained_run(plan):
        check_folder(plan)
        with work_folder(plan):
            number = num_workers or default_workers(plan)
            try:
                run_prepared(prepared, lambda plan_path: run_local(plan_path, number, lambda error: None))
            except BaseException:
                if not can_go_on:
                    remove_work_folder(plan)
                raise
            remove_work_folder(plan)

"""A request made into a dataset in this process, and how any engine runs a prepared plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from shardkit.conversion.commit.commit import COMMITTED_FILE, find_commit, may_be_committed
from shardkit.conversion.exchange import fetch_signs, offer_plan
from shardkit.conversion.extract.extract import fetch_extracted
from shardkit.conversion.inputs.append_check import NothingNew
from shardkit.conversion.inputs.inspect_inputs import remember
from shardkit.conversion.plan import Plan, save_plan
from shardkit.conversion.prepare import Prepared, prepare
from shardkit.conversion.request import BadRowPolicy, ConvertRequest
from shardkit.conversion.run.all_types import of_all_rows, with_all_types
from shardkit.conversion.run.local import check_folder, default_workers, run_local
from shardkit.conversion.shards.layout import LAYOUT_FILE
from shardkit.conversion.space.disk_space import explain_full_disk
from shardkit.conversion.work_folder import remove_work_folder, work_folder
from shardkit.dataset.open import open_dataset
from shardkit.errors import BadInputError, ConflictError, NarrowTypesError, OutOfSpaceError, ShardkitError, UsageError
from shardkit.runtime.process_limits import NO_MEMORY
from shardkit.storage import files as storage


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


@contextlib.contextmanager
def explained(options: ConvertRequest) -> Iterator[None]:
    """Adds the state of the destination and the next step to errors of planning that lack them."""
    try:
        yield
    except ShardkitError as error:
        # A store that kept failing is not asked once more.
        is_asked = isinstance(error, BadInputError | UsageError) and error.state is None
        state = _state_after_failure(options.destination) if is_asked else "Nothing was committed"
        raise error.with_state(state, way_on(error, options.on_bad_record)) from error


@contextlib.contextmanager
def explained_run(plan: Plan) -> Iterator[None]:
    """Adds the state of the destination to errors of a run, and says of a full disk what takes how much."""
    try:
        yield
    except OutOfSpaceError as error:
        full = error if error.what.startswith(NO_MEMORY) else explain_full_disk(plan, error)
        raise full.with_state(state_of(plan)) from error
    except ShardkitError as error:
        error.with_state(state_of(plan))
        raise


def way_on(error: ShardkitError, on_bad_record: BadRowPolicy) -> str | None:
    """Returns the next step after an error of the inputs, None for other errors."""
    if not isinstance(error, BadInputError):
        return None
    if error.where is None:
        return "Correct the inputs, or leave some out with --exclude GLOB"
    if on_bad_record == "fail":
        return "Correct the file, or leave such rows out with --on-bad-record skip or quarantine"
    return "Correct the file, or leave it out with --exclude GLOB"


def state_of(plan: Plan) -> str:
    """Returns the state of the destination after a failure; the commit may have come before, or its answer be lost."""
    try:
        version = find_commit(plan) if may_be_committed(plan) else None
    except ShardkitError:
        return "Whether it was committed is not known"
    else:
        if version is not None:
            return f"It was committed all the same, as version {version}"
    return _state_after_failure(plan.destination)


def _state_after_failure(destination: str) -> str:
    with contextlib.suppress(ShardkitError):
        version = open_dataset(storage.normalize(destination)).version
        return f"Nothing was committed; version {version} is untouched"
    return "Nothing was committed"

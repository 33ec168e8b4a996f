"""What an error of a conversion says beside its cause: the state of the destination, and the next step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from shardkit.conversion.commit.commit import find_commit, may_be_committed
from shardkit.conversion.plan import Plan
from shardkit.conversion.request import BadRowPolicy, ConvertRequest
from shardkit.conversion.space.disk_space import explain_full_disk
from shardkit.dataset.open import open_dataset
from shardkit.errors import BadInputError, OutOfSpaceError, ShardkitError, UsageError
from shardkit.runtime.process_limits import NO_MEMORY
from shardkit.storage import files as storage


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

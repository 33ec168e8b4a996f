"""A loss or weights that are no number: which batch it was, what is odd in it, how to look at it, how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from shardkit import storage
from shardkit.errors import UsageError
from train.batch import Batch
from train.input import BatchInput
from train.plan import Position, TrainPlan
from train.request import Request

SMALLER_STEPS = "Add --resume and a smaller --learning-rate, or begin again with --clip-norm 1 and another --output"

_MAX_ROWS = 5


class Finding(NamedTuple):
    """What an input of a batch holds.

    Attributes:
        name: Of the input.
        rows: Of the global batch, counted from 0, in which it is no number.
        largest: Absolute value among the others.
    """

    name: str
    rows: tuple[int, ...]
    largest: float


class BadBatch(NamedTuple):
    """A batch with inputs that are no numbers."""

    num_steps: int
    findings: list[Finding]


def find_bad_batch(
    plan: TrainPlan, input_: BatchInput, worker_index: int, first_step: int, num_steps: int
) -> BadBatch | None:
    """Returns the first batch of some steps that holds inputs which are no numbers; reads them again.

    A layer such as a ReLU makes 0 of NaN, so that the loss stays a number while the weights do not.
    """
    batches = input_.training(plan.position(first_step))
    for step, batch in zip(range(first_step, num_steps), batches, strict=False):
        findings = look_at(batch, worker_index * plan.worker_batch_size)
        if any(finding.rows for finding in findings):
            return BadBatch(step + 1, findings)
    return None


class Search(NamedTuple):
    """Where inputs that are no numbers are looked for.

    Attributes:
        num_before: Batches up to the last one that was taken.
        num_after: Batches behind it, which others took at the same time.
    """

    num_before: int = 1
    num_after: int = 0


def not_a_number(
    request: Request,
    plan: TrainPlan,
    input_: BatchInput,
    worker_index: int,
    is_any: Callable[[bool], bool],
    last_step: Callable[[], int | None],
    search: Search,
    num_steps: int,
) -> UsageError:
    """Returns the error for a loss that was no number in the last of so many steps; reads its batch again.

    Args:
        request: Of the run.
        plan: Sizes and steps.
        input_: Of this worker.
        worker_index: Of this worker.
        is_any: Returns whether something is so on one of the workers, which all ask.
        last_step: Returns after which step there is a checkpoint; None without one.
        search: Where to look.
        num_steps: Completed ones.
    """
    first, end = max(0, num_steps - search.num_before), min(plan.num_steps, num_steps + search.num_after)
    bad = find_bad_batch(plan, input_, worker_index, first, end)
    position = plan.position((num_steps if bad is None else bad.num_steps) - 1)
    where = f"batch {position.step + 1:,} of {plan.steps_per_epoch:,} of epoch {position.epoch + 1}"
    if bad is None and end - first > 1:
        where = f"one of the batches around {where.removeprefix('batch ')}"
    findings = look_at(next(iter(input_.training(position))), worker_index * plan.worker_batch_size)
    why, advice = explain(findings)
    if is_any(bad is not None) and bad is None:
        why, advice = "inputs in another worker's share are no numbers", "Its log in workers/ names them"
    return UsageError(
        f"the loss is no longer a number at step {num_steps:,}",
        where=where,
        why=why,
        state=what_is_kept(last_step()),
        next_step=f"{advice}. {how_to_look(request, plan, position)}",
    )


def what_is_kept(last_step: int | None) -> str:
    """Returns the sentence that says where the last checkpoint stands."""
    return "There is no checkpoint yet" if last_step is None else f"The last checkpoint is after step {last_step:,}"


def weights_not_finite(
    name: str | None, num_steps: int, last_saved: int | None, request: Request, plan: TrainPlan, bad: BadBatch | None
) -> UsageError:
    """Returns the error for weights that the last of so many steps made infinite or NaN.

    Args:
        name: Of a variable; None where another worker has it.
        num_steps: Completed ones.
        last_saved: Steps after which there is a checkpoint; None without one.
        request: Of the run.
        plan: Sizes and steps.
        bad: The batch with inputs that are no numbers; None if there is none.
    """
    kept = what_is_kept(None)
    if last_saved is not None:
        kept = f"They are not saved, and the checkpoint after step {last_saved:,} is kept"
    if bad is not None:
        position = plan.position(bad.num_steps - 1)
        why, advice = explain(bad.findings)
        return UsageError(
            f"the weights are no longer numbers after step {num_steps:,}",
            where=f"batch {position.step + 1:,} of {plan.steps_per_epoch:,} of epoch {position.epoch + 1}",
            why=why,
            state=kept,
            next_step=f"{advice}. {how_to_look(request, plan, position)}",
        )
    return UsageError(
        f"the weights are no longer numbers after step {num_steps:,}",
        why="the losses were numbers still, and an update was too large"
        + ("" if name is None else f": {name!r} holds NaN or infinity"),
        state=kept,
        next_step=SMALLER_STEPS,
    )


def look_at(batch: Batch, first_row: int = 0) -> list[Finding]:
    """Returns what the inputs of a batch hold that are numbers with a fraction.

    Args:
        batch: As a model takes it.
        first_row: Of the batch within the global one.
    """
    return [
        Finding(name, *_numbers(values, first_row))
        for name, values in _named_inputs(batch.inputs)
        if np.issubdtype(values.dtype, np.floating) and values.size
    ]


def explain(findings: list[Finding]) -> tuple[str, str]:
    """Returns why a loss is no number, as far as its batch tells, and what to do."""
    bad = [f"{finding.name!r} in {_shown(finding.rows)}" for finding in findings if finding.rows]
    if bad:
        return (
            f"inputs in its batch are no numbers: {', '.join(bad)}",
            "Convert again without those values, or make the model cope with NaN in its inputs",
        )
    if not findings:
        return "its batch cannot be the reason, so the weights are", SMALLER_STEPS
    largest = max(findings, key=lambda finding: finding.largest)
    return f"all inputs in its batch are numbers, up to {largest.largest:.4g} in {largest.name!r}", SMALLER_STEPS


def how_to_look(request: Request, plan: TrainPlan, position: Position) -> str:
    """Returns a sentence with the lines of Python that give exactly the global batch of a step."""
    if request.options.reader != "shardkit":
        return "With --reader shardkit, this error says how to look at the batch"
    if request.options.length_buckets is not None:
        return "Without --length-buckets, this error says how to look at the batch"
    dataset = request.dataset
    state = f"{{**batches.state(), 'epoch': {position.epoch}, 'step': {position.step}}}"
    code = (
        "import shardkit",
        f"split = shardkit.open({storage.redact(dataset.url)!r}, {dataset.version})[{request.splits.train!r}]",
        f"batches = split.batches(global_batch_size={plan.global_batch_size}, num_lanes={plan.num_lanes}, "
        f"seed={request.options.seed}, epoch={position.epoch})",
        f"batches.restore({state})",
        "batch = next(iter(batches))",
    )
    return f"To look at the batch in Python, whose rows count from 0: {'; '.join(code)}"


def _named_inputs(inputs: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    if isinstance(inputs, Mapping):
        yield from ((name, np.asarray(value)) for name, value in inputs.items())
    else:
        flat = keras.tree.flatten(inputs)
        yield from ((f"input {i}" if len(flat) > 1 else "input", np.asarray(x)) for i, x in enumerate(flat))


def _numbers(values: npt.NDArray[Any], first_row: int) -> tuple[tuple[int, ...], float]:
    is_finite = np.isfinite(values)
    rows = np.flatnonzero(~is_finite.reshape(len(values), -1).all(axis=1)) + first_row
    return tuple(rows.tolist()), float(np.abs(np.where(is_finite, values, 0)).max())


def _shown(rows: tuple[int, ...]) -> str:
    if len(rows) == 1:
        return f"row {rows[0]}"
    more = f" and {len(rows) - _MAX_ROWS:,} more" if len(rows) > _MAX_ROWS else ""
    return f"rows {', '.join(map(str, rows[:_MAX_ROWS]))}{more}"

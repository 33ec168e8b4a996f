"""A loss or weights that are no number: the batch, its odd values, how to look at it, how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from shardkit.errors import UsageError
from shardkit.storage import files as storage
from train.input.reader_input import BatchInput
from train.models.batch import Batch
from train.options.step_plan import TrainPlan
from train.runs.request import Request

SMALLER_STEPS = "Add --resume and a smaller --learning-rate, or begin again with --clip-norm 1 and another --output"
_LOOK_AT_THE_MODEL = (
    "Look in it for a logarithm, a root or a division that meets 0 or less, and for values too large for --precision"
)

_MAX_ROWS = 5
_ELSEWHERE = ("inputs in another worker's share are no numbers", "Its log in workers/ names them")


class Finding(NamedTuple):
    """What an input of a batch holds.

    Attributes:
        rows: Of the global batch, counted from 0, in which it is no number.
        largest: Absolute value among the others.
    """

    name: str
    rows: tuple[int, ...]
    largest: float


class BadBatch(NamedTuple):
    """A batch with inputs that are no numbers, after so many steps."""

    num_steps: int
    findings: list[Finding]

    @property
    def steps(self) -> range:
        """Its only step, counted from 0."""
        return range(self.num_steps - 1, self.num_steps)


class Batches(NamedTuple):
    """The training batches of this worker, which are read again to find why a number is none."""

    request: Request
    plan: TrainPlan
    input: BatchInput
    worker_index: int

    def look_at(self, steps: range) -> Iterator[tuple[int, list[Finding]]]:
        """Yields steps with what `look_at` finds in this worker's share of their batches."""
        first_row = self.worker_index * self.plan.worker_batch_size
        for step, batch in zip(steps, self.input.training(self.plan.position(steps.start)), strict=False):
            yield step, look_at(batch, first_row)

    def first_bad(self, steps: range) -> BadBatch | None:
        """Returns the first batch of some steps that holds inputs which are no numbers.

        A layer such as a ReLU makes 0 of NaN, so that the loss stays a number while the weights do not.
        """
        return first_bad(self.look_at(steps))


def first_bad(looked_at: Iterable[tuple[int, list[Finding]]]) -> BadBatch | None:
    """Returns the first batch that holds inputs which are no numbers, of what `Batches.look_at` yields."""
    found = ((step, findings) for step, findings in looked_at if any(finding.rows for finding in findings))
    return next((BadBatch(step + 1, findings) for step, findings in found), None)


def not_a_number(
    batches: Batches, num_steps: int, num_around: int, is_any: Callable[[bool], bool], last_step: int | None
) -> UsageError:
    """Returns the error for a loss that was no number in the last of so many steps; reads its batch again.

    Args:
        num_steps: Completed ones.
        num_around: Batches before and after it that other workers took at the same time; those since all workers last
            met are looked at in any case.
        is_any: Returns whether something is so on one of the workers, which all ask.
        last_step: After which there is a checkpoint; None without one.
    """
    plan = batches.plan
    around = _around(plan, num_steps, num_around)
    looked_at = list(batches.look_at(around))
    bad = first_bad(looked_at)
    is_elsewhere = is_any(bad is not None) and bad is None
    steps = around if bad is None else bad.steps
    if bad is not None:
        why, advice = explain(bad.findings)
    elif is_elsewhere:
        why, advice = _ELSEWHERE
    else:
        its_batch = "its batch" if len(steps) == 1 else "these batches"
        if plan.num_workers > 1:
            its_batch = f"this worker's share of {its_batch}"
        why, advice = explain(_merged(looked_at), its_batch, is_first=num_steps == 1)
    return UsageError(
        f"the loss is no longer a number at step {num_steps:,}",
        where=_named(plan, steps),
        why=why,
        state=what_is_kept(last_step),
        next_step=f"{advice}. {how_to_look(batches.request, plan, steps)}",
    )


def _around(plan: TrainPlan, num_steps: int, num_around: int) -> range:
    """Returns the steps, counted from 0, whose batches may have made the loss of the last of so many steps."""
    begin = (num_steps - 1) // plan.steps_per_epoch * plan.steps_per_epoch
    first = max(begin, num_steps - max(1, num_around))
    while first > begin and not plan.is_sync_due(first):
        first -= 1
    return range(first, min(begin + plan.steps_per_epoch, num_steps + num_around))


def _named(plan: TrainPlan, steps: range) -> str:
    epoch, first = plan.position(steps.start)
    last = first + len(steps)
    which = f"batch {last:,}" if len(steps) == 1 else f"one of the batches {first + 1:,} to {last:,}"
    return f"{which} of {plan.steps_per_epoch:,} of epoch {epoch + 1}"


def _merged(looked_at: Iterable[tuple[int, list[Finding]]]) -> list[Finding]:
    largest: dict[str, float] = {}
    for finding in chain.from_iterable(findings for _, findings in looked_at):
        largest[finding.name] = max(largest.get(finding.name, 0.0), finding.largest)
    return [Finding(name, (), value) for name, value in largest.items()]


def what_is_kept(last_step: int | None) -> str:
    """Returns the sentence that says where the last checkpoint is."""
    return "There is no checkpoint yet" if last_step is None else f"The last checkpoint is after step {last_step:,}"


def weights_not_finite(
    name: str | None,
    num_steps: int,
    last_saved: int | None,
    batches: Batches,
    bad: BadBatch | None,
    *,
    is_elsewhere: bool = False,
) -> UsageError:
    """Returns the error for weights that the last of so many steps made infinite or NaN.

    Args:
        name: Of a variable; None where another worker has it.
        num_steps: Completed ones.
        last_saved: Steps after which there is a checkpoint; None without one.
        bad: The batch with inputs that are no numbers; None if there is none.
        is_elsewhere: Whether another worker has such a batch, and this one has none.
    """
    where = None
    if bad is not None:
        where = _named(batches.plan, bad.steps)
        why, advice = explain(bad.findings)
        advice = f"{advice}. {how_to_look(batches.request, batches.plan, bad.steps)}"
    elif is_elsewhere:
        why, advice = _ELSEWHERE
    else:
        named = "" if name is None else f": {name!r} holds NaN or infinity"
        why, advice = f"the losses were numbers still, and an update was too large{named}", SMALLER_STEPS
    kept = what_is_kept(None)
    if last_saved is not None:
        kept = f"They are not saved, and the checkpoint after step {last_saved:,} is kept"
    message = f"the weights are no longer numbers after step {num_steps:,}"
    return UsageError(message, where=where, why=why, state=kept, next_step=advice)


def look_at(batch: Batch, first_row: int = 0) -> list[Finding]:
    """Returns the findings in the inputs of a batch that are floats."""
    return [
        Finding(name, *_numbers(values, first_row))
        for name, values in _named_inputs(batch.inputs)
        if np.issubdtype(values.dtype, np.floating) and values.size
    ]


def explain(findings: list[Finding], its_batch: str = "its batch", *, is_first: bool = False) -> tuple[str, str]:
    """Returns why a loss is no number, as far as its batch tells, and what to do."""
    bad = [f"{finding.name!r} in {_shown(finding.rows)}" for finding in findings if finding.rows]
    if bad:
        return (
            f"inputs in {its_batch} are no numbers: {', '.join(bad)}",
            "Convert again without those values, or make the model cope with NaN in its inputs",
        )
    if findings:
        largest = max(findings, key=lambda finding: finding.largest)
        why = f"all inputs in {its_batch} are numbers, up to {largest.largest:.4g} in {largest.name!r}"
    else:
        why = f"{its_batch} cannot be the reason"
    if is_first:
        return (f"{why}, and no weight was trained yet, so it is the model", _LOOK_AT_THE_MODEL)
    return (why if findings else f"{why}, so the weights are"), SMALLER_STEPS


def how_to_look(request: Request, plan: TrainPlan, steps: range) -> str:
    """Returns a sentence with the lines of Python that give exactly the global batches of some steps of one epoch."""
    if request.options.reader != "shardkit":
        return "With --reader shardkit, this error says how to look at the batch"
    if request.options.length_buckets is not None:
        return "Without --length-buckets, this error says how to look at the batch"
    dataset, position = request.dataset, plan.position(steps.start)
    is_one = len(steps) == 1
    state = f"{{**batches.state(), 'epoch': {position.epoch}, 'step': {position.step}}}"
    code = (
        "import shardkit" if is_one else "import itertools, shardkit",
        f"split = shardkit.open({storage.redact(dataset.url)!r}, {dataset.version})[{request.splits.train!r}]",
        f"batches = split.batches(global_batch_size={plan.global_batch_size}, num_lanes={plan.num_lanes}, "
        f"seed={request.options.seed}, epoch={position.epoch})",
        f"batches.restore({state})",
        "batch = next(iter(batches))" if is_one else f"found = list(itertools.islice(batches, {len(steps)}))",
    )
    what = "the batch" if is_one else "the batches"
    return f"To look at {what} in Python, whose rows count from 0: {'; '.join(code)}"


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

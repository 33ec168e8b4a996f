"""The limit of bad rows, kept while input splits are worked at in isolation: each of their bad rows costs processes."""

from __future__ import annotations

from itertools import islice

from shardkit.conversion.option_forms import BadLimit
from shardkit.conversion.plan import Plan
from shardkit.conversion.rows.bad_rows import MAX_SAMPLES
from shardkit.conversion.rows.crash_records import load_crash_record, num_crashed
from shardkit.conversion.rows.read_rows import name_crashed
from shardkit.errors import BadInputError
from shardkit.units import format_number

_ANY_NUMBER = 1 << 62


def refuse_too_many(plan: Plan, input_split_index: int) -> None:
    """Checks that no more rows are known to end a process than may be bad, however many rows there are.

    Args:
        plan: The plan.
        input_split_index: Whose rows to name.

    Raises:
        BadInputError: If there are; shows a few of them.
    """
    if plan.recipe.max_bad is None:
        return
    limit = BadLimit(plan.recipe.max_bad)
    indices = [int(path.stem) for path in plan.work_path("isolated").glob("*.verdict")]
    num_bad = sum(num_crashed(load_crash_record(plan, index)) for index in indices)
    if not limit.is_exceeded(num_bad, _ANY_NUMBER):
        return
    named = sorted(indices, key=lambda index: (index != input_split_index, index))
    samples = (sentence for index in named for sentence in name_crashed(plan, plan.input_splits[index]))
    raise BadInputError(
        "too many rows do not fit",
        where="; ".join(islice(samples, MAX_SAMPLES)),
        why=f"{format_number(num_bad, 'row')} or more are bad; --max-bad {limit.text} allows less",
        next_step="Correct them, or raise --max-bad",
    )

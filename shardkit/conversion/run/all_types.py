"""The plan of a conversion once more, with the types of all rows: one row did not fit those of the first."""

from __future__ import annotations

import shlex

import msgspec

from shardkit.conversion.plan import make_created
from shardkit.conversion.prepare import Prepared, prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.conversion.work_folder import remove_work_folder
from shardkit.errors import NarrowTypesError, UsageError
from shardkit.features import Feature
from shardkit.messages import shown


def of_all_rows(options: ConvertRequest) -> ConvertRequest:
    """Returns a request whose types are inferred from all rows."""
    return msgspec.structs.replace(options, source=msgspec.structs.replace(options.source, types_of_all_rows=True))


def with_all_types(prepared: Prepared, options: ConvertRequest, error: NarrowTypesError) -> Prepared:
    """Returns the plan with the types of all rows.

    Args:
        prepared: The plan with the types of the first rows.
        error: The row that did not fit.

    Raises:
        NarrowTypesError: The error of the row, if bad rows end the conversion and other types do not help. That is also
            so where an option names a column that only the first rows have.
    """
    must_fit = prepared.plan.recipe.on_bad_record == "fail"
    try:
        again = prepare(of_all_rows(options))
    except UsageError:
        remove_work_folder(prepared.plan)
        if must_fit:
            raise error from None
        # A plan is stored under the name of its attempt, and workers keep those that they have read.
        created = make_created(options.inputs, prepared.plan.created.roots)
        plan = msgspec.structs.replace(prepared.plan, inferred=frozenset(), created=created)
        return msgspec.structs.replace(prepared, plan=plan, num_finished_splits=0)
    is_same = again.plan.transforms.input_features == prepared.plan.transforms.input_features
    if error.where is not None and is_same and must_fit:
        remove_work_folder(again.plan)
        raise error
    return again


def notes_on_types(before: Prepared, after: Prepared, error: NarrowTypesError) -> list[str]:
    """Returns notes on the columns whose types all rows change.

    Args:
        before: The plan with the types of the first rows.
        after: The plan with the types of all rows.
        error: The row that did not fit.
    """
    if after.plan.transforms.input_features == before.plan.transforms.input_features:
        return []
    notes = [note for note in after.notes if note not in before.notes]
    types = {f.name: f for f in before.plan.transforms.input_features}
    for feature in after.plan.transforms.input_features:
        earlier = types.get(feature.name)
        if earlier != feature and not any(shown(feature.name) in note for note in after.notes):
            notes.append(_note(feature, earlier, error))
    # Of a column that is cast the option that a note names is given.
    cast = tuple(f"column {shown(name)} " for name, _ in after.plan.transforms.options.cast)
    return [note for note in notes if not note.startswith(cast)]


def _note(feature: Feature, earlier: Feature | None, error: NarrowTypesError) -> str:
    was = ", which the first rows lack" if earlier is None else f", and was {earlier.describe_type()}"
    nulls = ", and may be null" if feature.nullable and (earlier is None or not earlier.nullable) else ""
    # A row may add one column and, with others, change a second one.
    is_named = feature.name.partition("/")[0] in f"{error.what} {error.why}"
    why = f", because of {error.where or error.what}: {error.why}" if is_named else ""
    way = ""
    if earlier is not None and earlier.shape == feature.shape and earlier.dtype != feature.dtype:
        fate = "rounds such values" if earlier.dtype == "float32" else "makes bad rows of the others"
        way = f"; --cast {shlex.quote(f'{feature.name}={earlier.dtype}')} {fate}"
    return f"column {shown(feature.name)} is {feature.describe_type()}{nulls}{was}{why}{way}"

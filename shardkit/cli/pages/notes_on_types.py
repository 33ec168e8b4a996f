"""Notes on columns whose type is another one than that of the first rows."""

from __future__ import annotations

from shardkit.conversion.prepare import Prepared
from shardkit.errors import NarrowTypesError
from shardkit.messages import shown


def notes_on_types(before: Prepared, after: Prepared, error: NarrowTypesError) -> list[str]:
    """Returns notes on the columns whose types all rows change.

    Args:
        before: The plan with the types of the first rows.
        after: The plan with the types of all rows.
        error: The row that did not fit.
    """
    if after.plan.transforms.input_features == before.plan.transforms.input_features:
        return []
    # Of a column that is cast the option that a note names is given.
    cast = tuple(f"column {shown(name)} is " for name, _ in after.plan.transforms.options.cast)
    notes = [note for note in after.notes if note not in before.notes and not note.startswith(cast)]
    types = {f.name: f for f in before.plan.transforms.input_features}
    for feature in after.plan.transforms.input_features:
        earlier = types.get(feature.name)
        if earlier == feature or any(shown(feature.name) in note for note in after.notes):
            continue
        nulls = ", and may be null" if feature.nullable and (earlier is None or not earlier.nullable) else ""
        was = ", which no row before has" if earlier is None else f", and was {earlier.describe_type()}"
        notes.append(
            f"column {shown(feature.name)} is {feature.describe_type()}{nulls}{was}, because of "
            f"{error.where or error.what}: {error.why}"
        )
    return notes

"""Rows chosen and columns computed by SQL, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, feature_from_arrow
from shardkit.messages import printable, shown
from shardkit.runtime.interruptible import interruptible
from shardkit.transforms.duckdb_session import reason_of, session
from shardkit.transforms.row_origin import as_python
from shardkit.transforms.sql_checks import OPTION, TABLE, Item, Part, Statement, parse_statement
from shardkit.transforms.steps import (
    RowError,
    RowFailure,
    StepResult,
    Taken,
    batch_of,
    cast_result,
    empty_batch,
    run_halving,
)


def select_step(features: Features, text: str) -> SelectStep:
    """Returns the step that keeps the rows and columns a statement asks for.

    A column that is passed on, under whatever name, keeps its type, media type and class names. Times with a zone are
    computed in UTC.

    Raises:
        UsageError: If the statement is not sound row by row, or has no result that an example can hold.
    """
    statement = parse_statement(text, features)
    return SelectStep(statement, _features_after(features, statement))


class SelectStep:
    """Keeps the rows and columns that a statement asks for."""

    option = OPTION

    def __init__(self, statement: Statement, after: Features) -> None:
        self._statement = statement
        self.features = after
        self.sources: Mapping[str, str] | None = {i.name: i.source for i in statement.items if i.source is not None}

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the result of a batch."""
        if not is_tolerant:
            return self._halving(batch, is_tolerant=False)
        try:
            return StepResult(self._call(batch))
        except RowError:
            # One query a row is slow, so one query finds all rows that fail.
            failures = _find_failures(batch, self._statement)
        is_sound = np.ones(batch.num_rows, dtype=np.bool_)
        is_sound[[f.row for f in failures]] = False
        sound = np.flatnonzero(is_sound)
        rest = self._halving(batch.take(pa.array(sound)), is_tolerant=True)
        failures += [RowFailure(int(sound[f.row]), f.error) for f in rest.failures]
        kept = sound if rest.taken.kept is None else sound[rest.taken.kept]
        return StepResult(rest.taken._replace(kept=kept), tuple(sorted(failures, key=lambda f: f.row)))

    def _halving(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        return run_halving(self._call, self.features, batch, is_tolerant=is_tolerant)

    def _call(self, batch: pa.RecordBatch) -> Taken:
        return _run(batch, self._statement, self.features)


def _find_failures(batch: pa.RecordBatch, statement: Statement) -> list[RowFailure]:
    # The failures that one query finds, in order. Smaller and smaller parts find the others.
    import duckdb

    try:
        checked = _query(batch, statement, statement.check_sql)
    except duckdb.Error:
        return []  # An expression may speak of another by its name.
    failures: list[RowFailure] = []
    is_open = np.ones(batch.num_rows, dtype=np.bool_)
    for position, part in enumerate(statement.parts):
        fails = is_open & ~checked.column(position).to_numpy()
        rows = np.flatnonzero(fails)
        values = batch.select(list(part.inputs)).take(pa.array(rows))
        failures += map(_failure, rows.tolist(), repeat(part), _values_of(values))
        is_open &= ~fails
        if part.is_condition:
            # Computed columns matter only where the condition holds.
            is_open &= checked.column(-1).fill_null(False).to_numpy()
    return sorted(failures, key=lambda f: f.row)


def _failure(row: int, part: Part, values: tuple[object, ...]) -> RowFailure:
    given = ", ".join(f"{name} = {shown(value)}" for name, value in zip(part.inputs, values, strict=True))
    of = f" of {given}" if given else ""
    return RowFailure(
        row, RowError(f"the statement of {OPTION} fails", f"{printable(part.text)}{of} cannot be computed")
    )


def _values_of(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    columns = [[as_python(value) for value in column] for column in batch.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows


def _features_after(features: Features, statement: Statement) -> Features:
    by_name = {f.name: f for f in features}
    computed: dict[str, pa.DataType] = {}
    if statement.sql is not None:
        computed = {f.name: f.type for f in _ask(empty_batch(features), statement, is_planning=True).schema}
    after = []
    for item in statement.items:
        if item.source is not None:
            after.append(msgspec.structs.replace(by_name[item.source], name=item.name))
        else:
            after.append(_computed_feature(item, computed[item.name]))
    return tuple(after)


def _computed_feature(item: Item, type_: pa.DataType) -> Feature:
    try:
        return feature_from_arrow(item.name, type_, nullable=item.is_nullable, where=OPTION)
    except UsageError as error:
        error.next_step = f"Cast it in the statement, as in CAST(... AS VARCHAR) AS {item.name}"
        raise


def _run(batch: pa.RecordBatch, statement: Statement, after: Features) -> Taken:
    kept = None
    computed: dict[str, pa.Array] = {}
    if statement.sql is not None:
        result = _ask(batch, statement)
        rows = result.column(statement.row_column).to_numpy()
        if (np.diff(rows) <= 0).any():
            order = np.argsort(rows, kind="stable")
            rows, result = rows[order], result.take(pa.array(order))
        computed = {name: result.column(name) for name in result.column_names}
        kept = None if len(rows) == batch.num_rows else rows.astype(np.int64)
    positions = None if kept is None else pa.array(kept)
    columns = []
    for item, feature in zip(statement.items, after, strict=True):
        if item.source is None:
            what = f"column {shown(item.name)} of {OPTION} does not fit"
            columns.append(cast_result(computed[item.name], feature, what).column)
        else:
            column = batch.column(item.source)
            columns.append(column if positions is None else column.take(positions))
    return Taken(batch_of(after, columns), kept)


def _ask(batch: pa.RecordBatch, statement: Statement, *, is_planning: bool = False) -> pa.Table:
    import duckdb

    # Errors that a value may cause; all others are errors of the statement.
    of_values = (
        duckdb.ConversionException,
        duckdb.OutOfRangeException,
        duckdb.InvalidInputException,
        duckdb.TypeMismatchException,
    )
    try:
        return _query(batch, statement, statement.sql or "")
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(f"{OPTION}: {reason_of(error)}") from error
    except of_values as error:
        if is_planning:
            raise _fails(error) from error
        raise RowError(f"the statement of {OPTION} fails", reason_of(error)) from error
    except duckdb.NotSupportedError as error:
        next_step = "Give the columns that it computes with another type, as in --cast COLUMN=float32"
        raise _fails(error, next_step) from error
    except duckdb.Error as error:
        raise _fails(error) from error


def _fails(error: Exception, next_step: str | None = None) -> UsageError:
    return UsageError(f"the statement of {OPTION} cannot be used", why=reason_of(error), next_step=next_step)


def _query(batch: pa.RecordBatch, statement: Statement, sql: str) -> pa.Table:
    numbers = pa.array(np.arange(batch.num_rows, dtype=np.int64))
    names = [statement.row_column, *statement.inputs]
    columns = [numbers, *(batch.column(name) for name in statement.inputs)]
    connection = session()

    def query() -> pa.Table:
        connection.register(TABLE, pa.RecordBatch.from_arrays(columns, names=names))
        try:
            return connection.execute(sql).to_arrow_table()
        finally:
            connection.unregister(TABLE)

    return interruptible(query, connection.interrupt)

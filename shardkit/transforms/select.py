"""Rows chosen and columns computed by SQL, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Feature, Features, feature_from_arrow
from shardkit.sources.streams import shown
from shardkit.transforms.duckdb_session import reason_of, session
from shardkit.transforms.statements import OPTION, TABLE, Item, Statement, parse_statement
from shardkit.transforms.steps import (
    Positions,
    RowError,
    RowFailure,
    StepResult,
    Taken,
    batch_of,
    empty_batch,
    fit_result,
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
    """Keeps the rows and columns that a statement asks for.

    Args:
        statement: What is asked for.
        after: Features of the result.
    """

    option = OPTION

    def __init__(self, statement: Statement, after: Features) -> None:
        self._statement = statement
        self.features = after
        self.sources: Mapping[str, str] | None = {i.name: i.source for i in statement.items if i.source is not None}

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns what becomes of the rows of a batch."""
        if not is_tolerant:
            return self._halving(batch, is_tolerant=False)
        try:
            return StepResult(self._call(batch))
        except RowError:
            # Asking DuckDB once a row is slow, so what surely does not fail is set aside.
            is_sure = np.zeros(batch.num_rows, dtype=bool)
            is_sure[_sure_rows(batch, self._statement)] = True
        parts = [np.flatnonzero(is_sure), np.flatnonzero(~is_sure)]
        results = [self._halving(batch.take(pa.array(part)), is_tolerant=True) for part in parts]
        kept = np.concatenate([_kept_of(r.taken, part) for r, part in zip(results, parts, strict=True)])
        order = np.argsort(kept)
        found = pa.concat_batches([r.taken.batch for r in results]).take(pa.array(order))
        failures = [
            RowFailure(int(part[f.row]), f.error)
            for result, part in zip(results, parts, strict=True)
            for f in result.failures
        ]
        return StepResult(Taken(found, kept[order]), tuple(sorted(failures, key=lambda f: f.row)))

    def _halving(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        return run_halving(self._call, self.features, batch, is_tolerant=is_tolerant)

    def _call(self, batch: pa.RecordBatch) -> Taken:
        return _run(batch, self._statement, self.features)


def _kept_of(taken: Taken, positions: Positions) -> Positions:
    return positions if taken.kept is None else positions[taken.kept]


def _sure_rows(batch: pa.RecordBatch, statement: Statement) -> Positions:
    import duckdb

    try:
        found: Positions = _query(batch, statement, statement.sure_sql).column(0).to_numpy()
    except duckdb.Error:
        return np.array([], dtype=np.int64)  # An expression may speak of another by its name.
    return found


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
            columns.append(fit_result(computed[item.name], feature, what).column)
        else:
            column = batch.column(item.source)
            columns.append(column if positions is None else column.take(positions))
    return Taken(batch_of(after, columns), kept)


def _ask(batch: pa.RecordBatch, statement: Statement, *, is_planning: bool = False) -> pa.Table:
    import duckdb

    # What a value may be to blame for; all else is a matter of the statement.
    of_values = (
        duckdb.ConversionException,
        duckdb.OutOfRangeException,
        duckdb.InvalidInputException,
        duckdb.TypeMismatchException,
    )
    try:
        return _query(batch, statement, statement.sql or "")
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
    connection.register(TABLE, pa.RecordBatch.from_arrays(columns, names=names))
    try:
        return connection.execute(sql).to_arrow_table()
    finally:
        connection.unregister(TABLE)

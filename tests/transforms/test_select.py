"""--select: row by row what DuckDB gives for the whole table, and a refusal of whatever is not row by row."""

from __future__ import annotations

import signal
import subprocess
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.transforms import duckdb_session
from shardkit.transforms.duckdb_session import ask, session
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms
from tests.support.examples import draws

FEATURES = (
    make_feature("x", "float64", nullable=True),
    make_feature("label", "int64", vocabulary=("a", "b")),
    make_feature("Name", "string"),
    make_feature("tags", "int64", (None,)),
    make_feature("half", "float16"),
    make_feature("moment", "timestamp[ns]", timezone="Europe/Berlin"),
    make_feature("image", "bytes", media_type="image/png"),
    make_feature("grid", "float32", (2, 2)),
)
FILES = (RawFile(path="/a", name="a.csv", num_bytes=1, version=""),)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)


def table(n=50, seed=0):
    rng = np.random.default_rng(seed)
    columns = {
        "x": pa.array(rng.normal(size=n).round(3), mask=rng.random(n) < 0.2),
        "label": pa.array(rng.integers(0, 2, n)),
        "Name": pa.array([f"Name {i % 7}é" for i in range(n)]),
        "tags": pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int64())),
        "half": pa.array(np.arange(n, dtype=np.float16)),
        "moment": pa.array(np.arange(n) * 10**15 + 7, pa.timestamp("ns", "Europe/Berlin")),
        "image": pa.array([bytes([i % 256]) * i for i in range(n)]),
        "grid": pa.array([[i, 1, 2, 3] for i in range(n)], pa.list_(pa.float32(), 4)),
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(FEATURES))


def rows_of(batch, first=0):
    return RowBatch(batch, row_identities(FILES[0], 0, first, batch.num_rows), 0)


def run(statement, batch=None, *, tolerant=False, features=FEATURES):
    plan = plan_transforms(features, TransformOptions(select=statement), SourceOptions(tolerates_bad_rows=tolerant))
    batch = table() if batch is None else batch
    applied = apply(plan, rows_of(batch), FILES, SPLIT)
    found = applied.rows.batch
    found.validate(full=True)
    assert found.schema == arrow_schema(plan.output_features)
    assert (
        applied.rows.batch.num_rows + sum(applied.num_filtered.values()) + len(applied.rows.rejected) == batch.num_rows
    )
    return applied, plan


def of_duckdb(statement, batch):
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    known = [name for name in batch.schema.names if name not in ("half", "grid")]
    connection.register("rows", pa.Table.from_batches([batch.select(known)]))
    return connection.execute(statement).to_arrow_table()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT x FROM rows WHERE x > 0.5",
        "SELECT label, x * 2 AS double_x, upper(name) AS u FROM rows WHERE label = 1 AND x IS NOT NULL",
        "SELECT name AS n, length(n) AS k FROM rows r WHERE k > 3 AND r.x < 0",
        "SELECT x, list_transform(tags, lambda t: t + label) AS moved, [t * 2 FOR t IN tags IF t > 1] AS odd FROM rows",
        "SELECT CASE WHEN x > 0 THEN 'up' WHEN x < 0 THEN 'down' ELSE 'none' END AS sign FROM rows",
        "SELECT coalesce(x, -1) AS filled, nullif(label, 0) AS n, split_part(name, ' ', 2) AS last FROM rows",
        "SELECT strftime(moment, '%Y-%m-%d %H') AS hour, moment + INTERVAL 1 DAY AS later FROM rows",
        "SELECT x FROM rows WHERE name LIKE '%3%' OR name IN ('Name 1é', 'Name 2é') OR x BETWEEN 0 AND 0.1",
        "FROM rows SELECT label, md5(name) AS digest, octet_length(image) AS size WHERE len(tags) > 1",
        "SELECT list_sum(tags) AS total, x::VARCHAR AS text, TRY_CAST(name AS INTEGER) AS failed FROM rows",
        "SELECT 7 AS seven, 'it''s' AS quoted FROM rows WHERE NOT (x > 0)",
    ],
)
def test_the_rows_are_those_of_duckdb_on_the_whole_table(statement):
    batch = table()
    applied, _ = run(statement, batch)
    expected = of_duckdb(statement, batch)
    assert applied.rows.batch.schema.names == expected.schema.names
    assert applied.rows.batch.to_pylist() == expected.to_pylist()


def test_columns_that_are_passed_on_keep_all_that_is_known_of_them():
    applied, plan = run("SELECT * EXCLUDE (x) RENAME (label AS class), image AS picture FROM rows WHERE label = 1")
    by_name = {f.name: f for f in plan.output_features}
    assert by_name["class"].vocabulary == ("a", "b")
    assert by_name["picture"].media_type == by_name["image"].media_type == "image/png"
    assert by_name["grid"].shape == (2, 2)
    chosen = table().filter(pa.array([v == 1 for v in table()["label"].to_pylist()]))
    assert applied.rows.batch.select(["class", *(f.name for f in FEATURES[2:])]).columns == chosen.columns[1:]


def test_names_are_spelled_as_in_the_source_and_stars_may_be_replaced():
    _, plan = run("SELECT * REPLACE (lower(name) AS name) FROM rows")
    assert [f.name for f in plan.output_features] == [f.name for f in FEATURES]
    assert [f.name for f in run("SELECT NAME, X FROM rows")[1].output_features] == ["Name", "x"]


def test_computed_columns_are_nullable_only_where_a_value_may_lack():
    _, plan = run(
        "SELECT x + 1 AS a, label + 1 AS b, upper(name) AS c, x > 1 AS d, x IS NULL AS e, 1 / label AS f FROM rows"
    )
    assert [f.nullable for f in plan.output_features] == [True, False, False, True, False, True]


def test_rows_keep_their_identities_in_order():
    batch = table()
    applied, _ = run("SELECT x FROM rows WHERE label = 1", batch)
    expected = np.flatnonzero(np.array(batch["label"]) == 1)
    assert (applied.rows.identities == row_identities(FILES[0], 0, 0, 50)[expected]).all()
    assert applied.num_filtered == {0: 50 - len(expected)}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT sum(x) AS s FROM rows", "aggregate sum()"),
        ("SELECT count(*) AS n FROM rows", "aggregate count_star()"),
        ("SELECT first(x) AS s FROM rows", "aggregate first()"),
        ("SELECT geomean(x) AS s FROM rows", "aggregate avg()"),
        ("SELECT x FROM rows WHERE x > (SELECT avg(x) FROM rows)", "subquery"),
        ("SELECT x FROM rows WHERE EXISTS (SELECT 1)", "subquery"),
        ("SELECT x FROM rows ORDER BY x", "ORDER BY"),
        ("SELECT x FROM rows LIMIT 3", "LIMIT"),
        ("SELECT x FROM rows OFFSET 3", "LIMIT"),
        ("SELECT DISTINCT x FROM rows", "DISTINCT"),
        ("SELECT DISTINCT ON (label) x FROM rows", "DISTINCT"),
        ("SELECT x FROM rows GROUP BY x", "GROUP BY"),
        ("SELECT x FROM rows GROUP BY ALL", "GROUP BY"),
        ("SELECT x FROM rows QUALIFY row_number() OVER () = 1", "QUALIFY"),
        ("SELECT row_number() OVER () AS n FROM rows", "window function"),
        ("SELECT r.x FROM rows r JOIN rows q ON r.x = q.x", "only table is rows"),
        ("SELECT r.x FROM rows r, rows q", "only table is rows"),
        ("SELECT x FROM 'other.parquet'", "only table is rows"),
        ("SELECT x FROM read_csv('other.csv')", "only table is rows"),
        ("SELECT x FROM (SELECT x FROM rows)", "only table is rows"),
        ("SELECT x FROM other", "only table is rows"),
        ("SELECT 1 AS one", "only table is rows"),
        ("VALUES (1)", "only table is rows"),
        ("WITH a AS (SELECT 1) SELECT x FROM rows", "WITH"),
        ("SELECT x FROM rows UNION ALL SELECT x FROM rows", "UNION"),
        ("SELECT x FROM rows TABLESAMPLE 10%", "sample"),
        ("SELECT x FROM rows USING SAMPLE 3", "sample"),
        ("SELECT random() AS r FROM rows", "random() does not give the same"),
        ("SELECT list_transform(tags, lambda t: t * random()) AS r FROM rows", "random() does not give the same"),
        ("SELECT uuid() AS r FROM rows", "uuid() does not give the same"),
        ("SELECT now() AS r FROM rows", "now() does not give the same"),
        ("SELECT today() AS r FROM rows", "today() does not give the same"),
        ("SELECT current_date AS r FROM rows", "current_date does not give the same"),
        ("SELECT current_timestamp AS r FROM rows", "current_timestamp does not give the same"),
        ("SELECT x AS current_date, current_date AS r FROM rows", "current_date does not give the same"),
        ("SELECT ago(INTERVAL 1 DAY) AS r FROM rows", "current_timestamp does not give the same"),
        ("SELECT age(moment) AS r FROM rows", "age() does not give the same"),
        ("SELECT current_setting('threads') AS r FROM rows", "current_setting() does not give the same"),
        ("SELECT nextval('s') AS r FROM rows", "nextval() does not give the same"),
        ("SELECT list_aggr(tags, 'reservoir_quantile', 0.5) AS r FROM rows", "list_aggr()"),
        ("SELECT unnest(tags) AS t FROM rows", "several rows of one"),
        ("SELECT x + 1 FROM rows", "has no name"),
        ("SELECT x AS a, label AS A FROM rows", "two columns"),
        ("SELECT #1 FROM rows", "not counted"),
        ("SELECT ? AS a FROM rows", "parameter"),
        ("SELECT COLUMNS('x.*') FROM rows", "COLUMNS"),
        ("SELECT * LIKE 'x%' FROM rows", "* stands for all columns"),
        ("SELECT nothing(x) AS a FROM rows", "no function nothing()"),
        ("SELECT x + name AS a FROM rows", "No function matches"),
        ("SELECT half + 1 AS a FROM rows", "--cast"),
        ("SELECT {'a': x} AS a FROM rows", "struct<a: double>"),
        ("DELETE FROM rows", "only a SELECT"),
        ("COPY rows TO 'stolen.csv'", "only a SELECT"),
        ("SELECT x FROM rows; DROP TABLE rows", "only a SELECT"),
        ("SELECT x FROM rows; SELECT x FROM rows", "2 statements"),
        ("", "0 statements"),
        ("SELECT FROM WHERE", "syntax error"),
        ("SELECT missing FROM rows", "'missing' that is not there"),
        ("SELECT * EXCLUDE (missing) FROM rows", "'missing' that is not there"),
        ("SELECT rowid FROM rows", "'rowid' that is not there"),
        ("SELECT __row__ FROM rows", "'__row__' that is not there"),
        ("SELECT x FROM rows WHERE getenv('HOME') = 'a'", "no function getenv()"),
    ],
)
def test_what_is_not_row_by_row_is_refused_before_work(statement, why):
    with pytest.raises(UsageError) as caught:
        run(statement)
    assert why in str(caught.value)
    assert "--select" in str(caught.value)


def test_a_value_that_fails_costs_its_row():
    features = (make_feature("s", "string"), make_feature("t", "string"))
    batch = pa.record_batch({"s": ["1", "2", "x", "4", "y\x1b"], "t": list("abcde")})
    statement = "SELECT CAST(s AS INTEGER) AS n, t FROM rows WHERE t <> 'a'"
    with pytest.raises(BadInputError, match=r"in a\.csv, row 3: Could not convert string 'x'"):
        run(statement, batch, features=features)
    applied, _ = run(statement, batch, features=features, tolerant=True)
    assert applied.rows.batch.to_pydict() == {"n": [2, 4], "t": ["b", "d"]}
    assert [r.position for r in applied.rows.rejected] == ["row 3", "row 5"]
    assert applied.rows.rejected[0].raw == b'{"s":"x","t":"c"}'
    assert all("\x1b" not in r.reason for r in applied.rows.rejected)


@pytest.mark.full
def test_failing_values_are_found_where_expressions_speak_of_each_other_and_nulls_abound():
    features = (make_feature("s", "string", nullable=True),)
    values = ["1", None, "x", "4", None, "y", "-7"] * 20
    statement = "SELECT CAST(s AS INTEGER) AS n, n + 1 AS m, s FROM rows WHERE m IS NULL OR m > 0"
    applied, _ = run(statement, pa.record_batch({"s": values}), features=features, tolerant=True)
    expected = [None if v is None else int(v) for v in values if v not in ("x", "y", "-7")]
    assert applied.rows.batch["n"].to_pylist() == expected
    assert applied.num_filtered == {0: 20}
    assert [r.position for r in applied.rows.rejected] == [
        f"row {i + 1}" for i, v in enumerate(values) if v in ("x", "y")
    ]


def test_conditions_are_tried_from_left_to_right():
    features = (make_feature("kind", "string"), make_feature("s", "string"))
    batch = pa.record_batch({"kind": ["n", "t"] * 5000, "s": ["1", "x"] * 5000})
    applied, _ = run("SELECT s FROM rows WHERE kind = 'n' AND CAST(s AS INTEGER) > 0", batch, features=features)
    assert applied.rows.batch.num_rows == 5000


def test_names_that_sql_cannot_tell_apart_are_refused_and_odd_ones_are_quoted():
    with pytest.raises(UsageError, match="'a' and 'A'"):
        run("SELECT a FROM rows", features=(make_feature("a", "int64"), make_feature("A", "int64")))
    features = (make_feature('od"d/1', "int64"), make_feature("__row__", "int64"))
    batch = pa.record_batch({'od"d/1': [1, 2], "__row__": [5, 6]})
    applied, _ = run('SELECT *, "od""d/1" * 2 AS "dou""ble" FROM rows WHERE __row__ > 5', batch, features=features)
    assert applied.rows.batch.to_pylist() == [{'od"d/1': 2, "__row__": 6, 'dou"ble': 4}]


@pytest.mark.parametrize(
    "attempt",
    ["SELECT * FROM read_text('{file}')", "COPY (SELECT 1) TO '{file}.new'", "ATTACH '{file}.db'", "INSTALL httpfs",
     "SET enable_external_access = true", "SET threads = 4"],
)  # fmt: skip
def test_the_database_is_closed_off(tmp_path, attempt):
    file = tmp_path / "secret"
    file.write_text("x")
    with pytest.raises(duckdb.Error):
        session().execute(attempt.format(file=file)).fetchall()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "options", "extra"),
    [("duckdb", {"select": "FROM rows"}, "sql"), ("tokenizers", {"tokenize": (("s", "{file}", ""),)}, "text")],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, package, options, extra):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    code = f"""
import sys
from shardkit.errors import UsageError
from shardkit.features import make_feature
from shardkit.sources.base import SourceOptions
from shardkit.transforms import duckdb_session
from shardkit.transforms.duckdb_session import session
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import plan_transforms
features = (make_feature("s", "string"),)
plan_transforms(features, TransformOptions(lower=("s",)), SourceOptions())
assert not {{"duckdb", "tokenizers", "PIL.Image"}} & set(sys.modules)
sys.modules[{package!r}] = None
try:
    plan_transforms(features, TransformOptions(**{options!r}), SourceOptions())
except UsageError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code.replace("{file}", str(file))], capture_output=True, text=True, timeout=100
    )
    assert f"pip install 'shardkit[{extra}]'" in result.stdout, result.stderr


def test_nan_compares_as_duckdb_says():
    features = (make_feature("x", "float64"),)
    batch = pa.record_batch({"x": [1.0, float("nan"), -1.0, float("inf")]})
    applied, _ = run("SELECT x FROM rows WHERE x > 0", batch, features=features)
    assert str(applied.rows.batch["x"].to_pylist()) == "[1.0, nan, inf]"


EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "label", "len(tags)", "1", "-2", "0.5", "octet_length(image)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"abs({e})"),
        st.tuples(inner, inner).map(lambda t: f"CASE WHEN {t[0]} > {t[1]} THEN {t[0]} ELSE {t[1]} END"),
        st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=draws(40), deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(["<", ">=", "<>", "IS DISTINCT FROM"]))
def test_any_expression_gives_what_duckdb_gives(left, right, compare):
    statement = f"SELECT {left} AS a, label, {right} AS b FROM rows WHERE {left} {compare} {right}"
    batch = table()
    applied, _ = run(statement, batch)
    assert applied.rows.batch.to_pylist() == of_duckdb(statement, batch).to_pylist()


TEXTS = st.one_of(st.none(), st.sampled_from(["1", "-7", "x", "", "99999999999", "0", "1.5"]))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT CAST(s AS INTEGER) AS n, i FROM rows",
        "SELECT CAST(s AS INTEGER) + i AS n, s FROM rows WHERE CAST(i AS INTEGER) > 0",
        "SELECT CASE WHEN i > 0 THEN CAST(s AS INTEGER) END AS n, i FROM rows",
        "SELECT i FROM rows WHERE s IS NULL OR CAST(s AS INTEGER) > 0",
        "SELECT CAST(s AS TINYINT) AS n, n + 1 AS m FROM rows WHERE i <> 2",
        "SELECT s FROM rows WHERE i > 0 AND CAST(s AS INTEGER) > 0",
        "SELECT COALESCE(CAST(s AS INTEGER), 0) AS n, CAST(i * 100 AS TINYINT) AS t FROM rows",
    ],
)
@settings(max_examples=draws(25), deadline=None)
@given(values=st.lists(st.tuples(TEXTS, st.integers(-3, 3)), min_size=1, max_size=25))
def test_what_fails_among_many_rows_is_what_fails_alone(statement, values):
    features = (make_feature("s", "string", nullable=True), make_feature("i", "int64"))
    batch = pa.record_batch({"s": pa.array([s for s, _ in values], pa.string()), "i": [i for _, i in values]})
    applied, _ = run(statement, batch, features=features, tolerant=True)
    kept, failed = [], []
    for row in range(len(values)):
        try:
            alone, _ = run(statement, batch.slice(row, 1), features=features)
            kept += alone.rows.batch.to_pylist()
        except BadInputError:
            failed.append(f"row {row + 1}")
    assert applied.rows.batch.to_pylist() == kept
    assert [r.position for r in applied.rows.rejected] == failed


def test_the_reason_names_the_expression_and_what_it_was_given():
    features = (make_feature("s", "string"), make_feature("i", "int64"))
    batch = pa.record_batch({"s": ["1", "x", "3"], "i": [1, 2, 3]})
    statement = "SELECT CAST(s AS INTEGER) + i AS n FROM rows"
    applied, _ = run(statement, batch, features=features, tolerant=True)
    reason = applied.rows.rejected[0].reason
    assert "--select fails: " in reason
    assert "CAST(s AS INTEGER)" in reason
    assert "of s = 'x', i = 2 cannot be computed" in reason


def test_a_tenth_of_bad_rows_costs_no_query_each():
    features = (make_feature("s", "string"), make_feature("i", "int64"))
    values = [f"x{i}" if i % 10 == 0 else str(i) for i in range(20_000)]
    batch = pa.record_batch({"s": values, "i": list(range(20_000))})
    num_queries = 0
    connection = session()

    class Counting:
        def __getattr__(self, name):
            nonlocal num_queries
            num_queries += name == "execute"
            return getattr(connection, name)

    local = duckdb_session._local
    local.session = Counting()
    try:
        applied, _ = run("SELECT CAST(s AS INTEGER) + i AS n FROM rows", batch, features=features, tolerant=True)
    finally:
        local.session = connection
    assert len(applied.rows.rejected) == 2_000
    assert applied.rows.batch["n"].to_pylist() == [2 * i for i in range(20_000) if i % 10]
    assert num_queries < 20


def test_a_signal_ends_a_statement_of_the_planning_as_its_handler_says():
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            ask("SELECT count(*) FROM range(1000000000000)")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert ask("SELECT ?::VARCHAR", "x") == [("x",)]

"""However rows are cut into batches, each row has the same fate."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from shardkit.errors import BadInputError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import TransformPlan, apply, plan_transforms
from tests.support.examples import draws

FEATURES = (
    make_feature("n", "string", nullable=True),
    make_feature("text", "string", nullable=True),
    make_feature("tags", "string", (None,), nullable=True),
    make_feature("label", "int64", vocabulary=("a", "b", "c")),
)
FILES = (RawFile(path="/a", name="a.csv", num_bytes=1, version=""),)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)
CODE = """
import pyarrow.compute as pc
def clean(batch):
    if "7" in batch["words"].to_pylist():
        raise ValueError("seven")
    kept = batch.filter(pc.not_equal(batch["label"], 2))
    return kept.append_column("size", pc.utf8_length(kept["words"]))
"""
VALUES = st.tuples(
    st.sampled_from([None, "1", "2", "3.5", "x", "900"]),
    st.sampled_from([None, "\uff21 b", "7", "C\u0327a", "", "b c c", "bad"]),
    st.none() | st.lists(st.sampled_from(["X", "yÉ"]), max_size=3),
    st.integers(0, 2),
)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "rows.py").write_text(CODE)
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "c": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return TransformOptions(
        cast=(("n", "float64"),),
        rename=(("text", "words"),),
        drop_null=("words",),
        map_path=f"{folder}/rows.py:clean",
        select="SELECT *, n * 2 AS twice, CAST(replace(words, 'bad', 'q') || '1' AS VARCHAR) AS more, "
        "CASE WHEN words = 'bad' THEN CAST(words AS INTEGER) END AS failing FROM rows WHERE n IS NULL OR n < 100",
        unicode_form=(("words", "NFKC"),),
        lower=("words", "tags"),
        tokenize=(("words", str(folder / "tokenizer.json"), ""),),
    )


def batches_of(values, cuts):
    columns = list(zip(*values, strict=True)) if values else [()] * len(FEATURES)
    arrays = [pa.array(list(c), f.arrow_type) for c, f in zip(columns, FEATURES, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(FEATURES))
    bounds = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    for start, stop in itertools.pairwise(bounds):
        yield RowBatch(whole.slice(start, stop - start), row_identities(FILES[0], 0, start, stop - start), 0)


def run(plan, values, cuts):
    """Returns all that becomes of the rows."""
    rows, identities, rejected, num_filtered = [], [], [], 0
    for batch in batches_of(values, cuts):
        applied = apply(plan, batch, FILES, SPLIT)
        applied.rows.batch.validate(full=True)
        assert applied.rows.batch.schema == arrow_schema(plan.output_features)
        rows += applied.rows.batch.to_pylist()
        identities += applied.rows.identities.tolist()
        rejected += [(r.position, r.reason, r.raw) for r in applied.rows.rejected]
        num_filtered += sum(applied.num_filtered.values())
    return rows, identities, rejected, num_filtered


@pytest.mark.full
@settings(max_examples=draws(60), deadline=None)
@given(st.lists(VALUES, max_size=24), st.lists(st.integers(0, 24), max_size=6))
def test_any_cutting_gives_the_same_rows(options, values, cuts):
    plan = plan_transforms(FEATURES, options, SourceOptions(tolerates_bad_rows=True))
    whole, cut = run(plan, values, []), run(plan, values, cuts)
    assert whole == cut
    rows, identities, rejected, num_filtered = whole
    assert len(rows) + len(rejected) + num_filtered == len(values)
    assert identities == sorted(set(identities), key=lambda i: (i - int(row_identities(FILES[0], 0, 0, 1)[0])) % 2**64)
    assert len(identities) == len(rows)


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(VALUES, max_size=24), st.lists(st.integers(0, 24), max_size=6))
def test_any_cutting_ends_at_the_same_bad_row(options, values, cuts):
    tolerant, strict = (plan_transforms(FEATURES, options, SourceOptions(tolerates_bad_rows=t)) for t in (True, False))
    _, _, rejected, _ = run(tolerant, values, [])
    if not rejected:
        assert run(strict, values, cuts) == run(tolerant, values, cuts)
        return
    first = min(rejected, key=lambda r: int(r[0].removeprefix("row ")))
    messages = set()
    for tried in (cuts, []):
        with pytest.raises(BadInputError) as caught:
            run(strict, values, tried)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert f"a.csv, {first[0]}:" in messages.pop()


def test_the_plan_crosses_processes_as_json(options):
    plan = plan_transforms(FEATURES, options, SourceOptions(tolerates_bad_rows=True))
    again = msgspec.json.decode(msgspec.json.encode(plan), type=TransformPlan)
    assert again == plan
    values = [("1", "b c", ["X"], 0), ("x", "b", None, 1), (None, None, [], 1)]
    assert run(again, values, []) == run(plan, values, [])
    assert run(again, values, [])[0] == [
        {"n": 1.0, "words": [2, 3], "tags": ["x"], "label": 0, "size": 3, "twice": 2.0, "more": "b c1", "failing": None}
    ]


def test_without_options_rows_pass_as_they_are():
    plan = plan_transforms(FEATURES, TransformOptions(), SourceOptions())
    assert plan.output_features == FEATURES
    (rows,) = batches_of([("1", "a", None, 0)], [])
    applied = apply(plan, rows, FILES, SPLIT)
    assert applied.rows is rows
    assert applied.num_filtered == {}


def test_a_batch_of_which_nothing_stays_is_empty(options):
    plan = plan_transforms(FEATURES, options, SourceOptions())
    (rows,) = batches_of([("900", "a", None, 0), ("1", "a", None, 2)], [])
    applied = apply(plan, rows, FILES, SPLIT)
    assert applied.rows.batch.num_rows == 0
    assert applied.rows.batch.schema == arrow_schema(plan.output_features)
    assert applied.num_filtered == {0: 2}
    assert len(applied.rows.identities) == 0
    assert isinstance(applied.rows.identities, np.ndarray)

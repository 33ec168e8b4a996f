"""Text is normalised, lower-cased and tokenized row by row, as the reference libraries do it."""

from __future__ import annotations

import json
import sys
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from shardkit.errors import UsageError
from shardkit.features import arrow_schema, make_feature
from shardkit.sources.base import InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.transforms.options import TransformOptions
from shardkit.transforms.pipeline import apply, plan_transforms
from tests.support.examples import draws

FILES = (RawFile(path="/a", name="a.txt", num_bytes=1, version=""),)
SPLIT = InputSplit(index=0, file_start=0, file_stop=1)
TEXT = make_feature("text", "string", nullable=True)
WORDS = [
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[PAD]",
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "un",
    "##believ",
    "##able",
    "a",
    ".",
    "é",
]


def run(values, options, feature=TEXT):
    plan = plan_transforms((feature,), options, SourceOptions())
    batch = pa.RecordBatch.from_arrays([pa.array(values, feature.arrow_type)], schema=arrow_schema((feature,)))
    # Also as part of a longer column.
    padded = pa.concat_batches([batch.slice(0, 1), batch]).slice(1) if len(values) else batch
    applied = apply(plan, RowBatch(padded, row_identities(FILES[0], 0, 0, len(values)), 0), FILES, SPLIT)
    found = applied.rows.batch
    assert found.schema == arrow_schema(plan.output_features)
    found.validate(full=True)
    return found.column(0).to_pylist(), plan.output_features[0]


def make_tokenizer():
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return made


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def saved(tokenizer, folder):
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def tokenize(path):
    return TransformOptions(tokenize=(("text", str(path), ""),))


@settings(deadline=None)
@given(st.lists(st.none() | st.text(), max_size=8), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_normal_forms_are_those_of_unicode(values, form):
    # Characters that Python's tables do not know yet may have got a form since.
    values = [v and "".join(c for c in v if unicodedata.category(c) != "Cn") for v in values]
    found, _ = run(values, TransformOptions(unicode_form=(("text", form),)))
    assert found == [None if v is None else unicodedata.normalize(form, v) for v in values]


def test_lower_case_is_the_simple_mapping_of_every_character():
    known = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cs", "Cn")]
    found, _ = run(known, TransformOptions(lower=("text",)))
    wrong = [c for c, f in zip(known, found, strict=True) if f != c.lower() and len(c.lower()) == 1]
    assert wrong == []
    assert run(["ΌΣΟΣ", "ÀÉ x"], TransformOptions(lower=("text",)))[0] == ["όσοσ", "àé x"]


@pytest.mark.parametrize("shape", [(None,), (2,)])
def test_lists_of_text_are_changed_inside(shape):
    feature = make_feature("text", "string", shape, nullable=True)
    values = [["A", "bÉ"], None, ["C", "D"]] if shape == (2,) else [["A"], [], None, ["B", "CÉ"]]
    found, after = run(values, TransformOptions(lower=("text",)), feature)
    assert found == [None if v is None else [t.lower() for t in v] for v in values]
    assert after == feature


def test_steps_on_text_apply_in_their_fixed_order(tokenizer, tmp_path):
    path = saved(tokenizer, tmp_path)
    options = TransformOptions(unicode_form=(("text", "NFKC"),), lower=("text",), tokenize=(("text", str(path), ""),))
    found, _ = run(["\uff23\uff21\uff34 E\u0301"], options)
    assert found == [[1, WORDS.index("cat"), WORDS.index("é"), 2]]


@settings(max_examples=draws(30), deadline=None)
@given(st.lists(st.none() | st.lists(st.sampled_from([*WORDS, "unbelievable", "zebra", "  "]), max_size=6), max_size=6))
def test_token_ids_are_those_of_the_tokenizer_alone(tmp_path_factory, words):
    made = make_tokenizer()
    path = saved(made, tmp_path_factory.mktemp("tokens"))
    values = [None if w is None else " ".join(w) for w in words]
    found, feature = run(values, tokenize(path))
    assert found == [None if v is None else made.encode(v).ids for v in values]
    assert feature == make_feature("text", "int64", (None,), nullable=True)


def test_padding_to_the_longest_is_left_out_and_fixed_lengths_are_kept(tokenizer, tmp_path):
    tokenizer.enable_padding(pad_id=3, pad_token="[PAD]")
    found, _ = run(["cat", "the cat sat"], tokenize(saved(tokenizer, tmp_path)))
    assert found == [[1, 5, 2], [1, 4, 5, 6, 2]]
    tokenizer.enable_padding(pad_id=3, pad_token="[PAD]", length=4)
    tokenizer.enable_truncation(4)
    found, _ = run(["cat", "the cat sat"], tokenize(saved(tokenizer, tmp_path)))
    assert found == [[1, 5, 2, 3], [1, 4, 5, 2]]


def test_a_tokenizer_that_draws_at_random_is_refused(tmp_path):
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    with pytest.raises(UsageError, match="draws at random"):
        run(["ab"], tokenize(saved(made, tmp_path)))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (TransformOptions(lower=("missing",)), "--lower names a column 'missing'"),
        (TransformOptions(lower=("number",)), "--lower names the column 'number', which is no text"),
        (TransformOptions(lower=("text", "text")), "--lower names the column 'text' twice"),
        (TransformOptions(unicode_form=(("number", "NFC"),)), "--unicode-form names the column 'number'"),
        (TransformOptions(tokenize=(("text", "/does/not/exist.json", ""),)), "--tokenize cannot be read"),
        (TransformOptions(tokenize=(("text", "/does/not/exist.json", ""),)), "No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_work(options, why):
    features = (TEXT, make_feature("number", "int64"))
    with pytest.raises(UsageError) as caught:
        plan_transforms(features, options, SourceOptions())
    assert why in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", json.dumps({"model": {"type": "X"}}).encode()])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no tokenizer"):
        run(["a"], tokenize(path))


def test_lists_are_not_tokenized(tokenizer, tmp_path):
    with pytest.raises(UsageError, match="which holds lists"):
        run([["a"]], tokenize(saved(tokenizer, tmp_path)), make_feature("text", "string", (None,)))

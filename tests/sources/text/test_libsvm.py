"""libsvm: each line is the label and the pairs that Python's own splitting finds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.errors import BadInputError, UsageError
from shardkit.file_types import is_libsvm
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.sources.files.transcoding import with_text_options
from shardkit.testing.reading import read_paths
from tests.support.examples import draws

PROPERTY = settings(max_examples=draws(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path, **given):
    files = list_inputs([str(path)]).files
    options = SourceOptions(**given)
    source = choose_source(files, options)
    assert source.format == "libsvm"
    return read_paths(source, [path], settle(source, files, options))


def types(found):
    return {feature.name: feature.describe_type() for feature in found.features}


NUMBERS = st.integers(-99, 99).map(str) | st.sampled_from(["0.5", "-1.25", "+3", "1e-3", "2.", ".75"])
PAIRS = st.dictionaries(st.integers(1, 30), NUMBERS, min_size=1).map(lambda pairs: sorted(pairs.items()))


@pytest.mark.full
@PROPERTY
@given(st.lists(st.tuples(NUMBERS, PAIRS), min_size=2, max_size=20), st.sampled_from([" ", "  ", "\t"]))
def test_what_is_written_is_read(tmp_path, rows, blank):
    text = "".join(blank.join([label, *(f"{i}:{v}" for i, v in pairs)]) + "\n" for label, pairs in rows)
    (tmp_path / "a").write_text(text)
    found = read(tmp_path / "a")
    assert found.columns["label"] == pytest.approx([float(label) for label, _ in rows])
    assert found.columns["indices"] == [[i for i, _ in pairs] for _, pairs in rows]
    assert found.columns["values"] == [pytest.approx([float(v) for _, v in pairs]) for _, pairs in rows]
    dense = read(tmp_path / "a", vector="dense")
    size = max(i for _, pairs in rows for i, _ in pairs)
    expected = [[float(dict(pairs).get(i, 0)) for i in range(1, size + 1)] for _, pairs in rows]
    assert dense.columns["features"] == [pytest.approx(row) for row in expected]


def test_types(tmp_path):
    (tmp_path / "a.svm").write_text("1,3 qid:7 1:0.123456789 # a remark\n2 9:1\n")
    found = read(tmp_path / "a.svm")
    assert types(found) == {"label": "int64[*]", "qid": "int64", "indices": "int64[*]", "values": "float64[*]"}
    assert found.columns["label"] == [[1, 3], [2]]
    assert found.columns["qid"] == [7, None]
    assert types(read(tmp_path / "a.svm", vector="dense"))["features"] == "float64[9]"


def test_indices_from_zero(tmp_path):
    (tmp_path / "a").write_text("1 0:5 2:6\n0 1:7\n")
    assert read(tmp_path / "a", vector="dense").columns["features"] == [[5, 0, 6], [0, 7, 0]]
    assert read(tmp_path / "a").columns["indices"] == [[0, 2], [1]]


def test_a_line_of_another_kind_is_a_bad_row(tmp_path):
    (tmp_path / "a").write_text("1 1:2\n2 2:3\n3 4:5\nthree 1:2\n")
    with pytest.raises(BadInputError) as caught:
        read(tmp_path / "a")
    assert caught.value.where == "a, line 4"
    assert "got 'three'" in caught.value.why
    found = read(tmp_path / "a", tolerates_bad_rows=True)
    assert found.columns["label"] == [1, 2, 3]
    assert [row.position for row in found.rejected] == ["line 4"]


def test_an_index_twice_is_a_bad_row_of_a_dense_vector(tmp_path):
    (tmp_path / "a").write_text("1 1:2\n2 2:3\n3 4:5\n4 4:5 4:6\n")
    with pytest.raises(BadInputError, match="4 twice"):
        read(tmp_path / "a", vector="dense")


def test_a_vector_of_too_many_values_stays_sparse(tmp_path):
    (tmp_path / "a").write_text("1 1:2\n2 70000:3\n")
    assert read(tmp_path / "a").columns["indices"] == [[1], [70000]]
    with pytest.raises(UsageError, match="a dense vector would have 70,000 values"):
        read(tmp_path / "a", vector="dense")


def test_comments_are_left_out_on_demand(tmp_path):
    (tmp_path / "a").write_text("# made by hand\n1 1:2\n2 2:3\n3 4:5\n")
    with pytest.raises(BadInputError, match="--comment '#' leaves comments out"):
        read(tmp_path / "a")
    options = SourceOptions(comment="#")
    files = with_text_options(list_inputs([str(tmp_path / "a")]).files, options)
    source = choose_source(files, options)
    (split,) = source.split(files, options)
    (rows,) = source.read(split, files, source.infer(files, options), options)
    assert rows.batch.column("label").to_pylist() == [1, 2, 3]


def test_a_long_row_of_numbers_is_looked_at_in_time():
    assert not is_libsvm((b"1234567890," * 500 + b"x\n") * 3)


@pytest.mark.parametrize(
    "text",
    ["1 3:0.5 2:0.7\n0 1:1 2:1\n", "1,3 2:0.5\n4 3:0.5\n2 4:1\n", " -1 2:0.5\n +1 3:0.5\n", "1 2:3\n"],
)
def test_the_name_of_a_file_tells_too(tmp_path, text):
    (tmp_path / "a.libsvm").write_text(text)
    assert len(read(tmp_path / "a.libsvm").columns["label"]) == text.count("\n")


@pytest.mark.parametrize(
    ("line", "got"),
    [("1 3:abc 4:0.7", "3:abc"), ("1 3:nan", "3:nan"), ("x 3:1", "x"), ("1 qid:99999999999999999999 3:1", "qid:999")],
)
def test_the_word_that_does_not_fit_is_named(tmp_path, line, got):
    (tmp_path / "a.libsvm").write_text(f"1 1:1\n{line}\n")
    with pytest.raises(BadInputError) as caught:
        read(tmp_path / "a.libsvm")
    assert f"got '{got}" in caught.value.why


@pytest.mark.parametrize(
    "text",
    [
        b"1 10:30 9:15\n2 8:00\n",
        b"a 1:2\nb 2:3\n",
        b"1 1:2\n",
        b"1\n2\n3\n",
        b"1 1:2\nx\ny\n2 3:4\n",
        b"2020-01-02 10:30\n" * 3,
    ],
)
def test_other_text_is_none(text):
    assert not is_libsvm(text)

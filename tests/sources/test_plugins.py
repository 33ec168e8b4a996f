"""Sources of other packages that do not keep what a source promises."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.sources.base import InputSplit, RawFile, RejectedRow, RowBatch, SourceOptions
from shardkit.sources.plugins import PluginSource

FILE = RawFile(path="/x/a.own", name="a.own", num_bytes=1, version="")
FEATURES = (make_feature("a", "int64"), make_feature("b", "string", nullable=True))
GOOD = pa.record_batch({"a": [1, 2], "b": ["x", None]})
TWO = np.arange(2, dtype=np.uint64)


@dataclass(frozen=True)
class Own:
    """Gives what it is told to, or raises it."""

    gives: dict = field(default_factory=dict)
    format: str = "own"

    def _give(self, name, usual):
        value = self.gives.get(name, usual)
        if isinstance(value, Exception):
            raise value
        return value

    def recognizes(self, head, name):
        return self._give("recognizes", True)

    def infer(self, files, options):
        return self._give("infer", FEATURES)

    def notes(self, files, options):
        return self._give("notes", ("a note",))

    def split(self, files, options):
        return self._give("split", [InputSplit(index=0, file_start=0, file_stop=1)])

    def read(self, split, files, features, options):
        yield RowBatch(GOOD, TWO, 0)
        yield self._give("read", RowBatch(GOOD, TWO, 0))


def offered(**gives):
    return PluginSource(Own(gives), "own", "package:Own")


def read(source):
    return list(source.read(InputSplit(index=0, file_start=0, file_stop=1), (FILE,), FEATURES, SourceOptions()))


def test_a_source_that_works_is_passed_on():
    source, options = offered(), SourceOptions()
    assert source.recognizes(b"", "a.own") is True
    assert source.infer((FILE,), options) == FEATURES
    assert source.notes((FILE,), options) == ("a note",)
    assert len(source.split((FILE,), options)) == 1
    assert [part.batch for part in read(source)] == [GOOD, GOOD]


def test_what_is_no_yes_is_no():
    assert offered(recognizes="no").recognizes(b"", "a.own") is False


@pytest.mark.parametrize("name", ["recognizes", "infer", "notes", "split", "read"])
def test_its_faults_are_its_own(name):
    source, options = offered(**{name: ZeroDivisionError("by \x1b[31m")}), SourceOptions()
    calls = {
        "recognizes": lambda: source.recognizes(b"", "a.own"),
        "infer": lambda: source.infer((FILE,), options),
        "notes": lambda: source.notes((FILE,), options),
        "split": lambda: source.split((FILE,), options),
        "read": lambda: read(source),
    }
    with pytest.raises(UsageError) as caught:
        calls[name]()
    assert "the source 'own' of an installed package does not work in package:Own" in str(caught.value)
    assert "by \\x1b[31m" in str(caught.value)


def test_its_errors_about_the_input_stay():
    with pytest.raises(BadInputError, match="a line is too short"):
        read(offered(read=BadInputError("a line is too short")))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"a": [1]}, "a dict, expected a RecordBatch"),
        (pa.record_batch({"a": [1, 2]}), "the columns ['a'], expected ['a', 'b']"),
        (pa.record_batch({"b": ["x", "y"], "a": [1, 2]}), "the columns ['b', 'a'], expected ['a', 'b']"),
        (pa.record_batch({"a": ["1", "2"], "b": ["x", "y"]}), "'a' is string, expected int64"),
        (pa.record_batch({"a": [1, None], "b": ["x", "y"]}), "'a' holds nulls"),
        (pa.record_batch({"a": [1], "b": ["x"]}), "1 rows, but not as many identities"),
    ],
)
def test_batches_that_are_not_as_promised(part, why):
    with pytest.raises(UsageError) as caught:
        read(offered(read=RowBatch(part, TWO, 0)))
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        RowBatch(GOOD, TWO.astype(np.int64), 0),
        RowBatch(GOOD, TWO.tolist(), 0),
        RowBatch(GOOD, TWO, np.zeros(3, np.int64)),
        RowBatch(GOOD, TWO, np.int64(0)),
        RowBatch(GOOD, TWO, [0, 0]),
        RowBatch(GOOD, TWO, np.zeros(2)),
        "a text",
        7,
    ],
)
def test_rows_that_are_not_as_promised(rows):
    with pytest.raises(UsageError, match="does not work"):
        read(offered(read=rows))


@pytest.mark.parametrize(
    "rows",
    [
        RowBatch(GOOD, TWO, 1),
        RowBatch(GOOD, TWO, -1),
        RowBatch(GOOD, TWO, np.array([0, 1])),
        RowBatch(GOOD, TWO, 0, rejected=(RejectedRow(file_index=1, position="", first_byte=0, reason="x", raw=b""),)),
    ],
)
def test_rows_of_files_that_are_not_in_the_split(rows):
    with pytest.raises(UsageError, match="files that are not in their split"):
        read(offered(read=rows))


def test_no_features_are_a_fault():
    with pytest.raises(UsageError, match="it gives no features"):
        offered(infer=()).infer((FILE,), SourceOptions())
    with pytest.raises(UsageError, match="something else than features"):
        offered(infer=["a"]).infer((FILE,), SourceOptions())


def test_splits_of_files_that_are_not_there():
    with pytest.raises(UsageError, match="files that are not there"):
        offered(split=[InputSplit(index=0, file_start=0, file_stop=2)]).split((FILE,), SourceOptions())

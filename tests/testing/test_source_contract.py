"""The contract of sources fails where a source breaks it: faults are planted in a source that keeps it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from shardkit.errors import BadInputError, DamagedFileError
from shardkit.sources.base import SourceOptions
from shardkit.sources.json.lines_source import JsonLinesSource
from shardkit.testing import SourceContract


def lose_last_row(part, number, split, files):
    # Only where a split ends within its file, as a source would that misreads the cut.
    count = part.batch.num_rows - (split.stop < files[split.file_start].num_bytes)
    return part._replace(batch=part.batch.slice(0, count), identities=part.identities[:count])


def repeat_first_row(part, number, split, files):
    batch = pa.Table.from_batches([part.batch.slice(0, 1), part.batch]).combine_chunks().to_batches()[0]
    return part._replace(batch=batch, identities=np.append(part.identities[:1] ^ np.uint64(1 << 63), part.identities))


def give_other_type(part, number, split, files):
    columns = zip(part.batch.schema.names, part.batch.columns, strict=True)
    return part._replace(batch=pa.record_batch({n: c.cast(pa.binary()) if n == "s" else c for n, c in columns}))


def repeat_identities(part, number, split, files):
    return part._replace(identities=part.identities // np.uint64(2))


def count_identities_in_batches(part, number, split, files):
    return part._replace(identities=part.identities + np.uint64(number << 32))


def count_identities_in_files(part, number, split, files):
    return part._replace(identities=part.identities + np.uint64(split.file_start))


def draw_identities(part, number, split, files):
    drawn = np.random.default_rng().integers(1 << 62, size=part.batch.num_rows, dtype=np.uint64)
    return part._replace(identities=drawn)


def lose_rejected_rows(part, number, split, files):
    return part._replace(rejected=())


def give_no_reason(part, number, split, files):
    return part._replace(rejected=[msgspec.structs.replace(row, reason="") for row in part.rejected])


# What a fault does to a batch, and the test that finds it.
FAULTS = {
    lose_last_row: "test_any_cut_gives_the_same_rows",
    repeat_first_row: "test_rows_are_those_that_were_written",
    give_other_type: "test_rows_are_those_that_were_written",
    repeat_identities: "test_rows_are_those_that_were_written",
    count_identities_in_batches: "test_identities_do_not_depend_on_batches",
    count_identities_in_files: "test_files_beside_it_change_nothing_of_a_file",
    draw_identities: "test_reading_twice_gives_the_same",
    lose_rejected_rows: "test_good_and_rejected_rows_are_all_rows",
    give_no_reason: "test_good_and_rejected_rows_are_all_rows",
}
# What a fault passes over, and the test that finds it.
HIDDEN_ERRORS = {
    "end of the line": "test_a_file_that_is_cut_off_is_named",
    "cut off or damaged": "test_a_compressed_file_that_is_cut_off_is_refused",
    "changed during conversion": "test_a_file_that_changes_after_it_was_listed_is_refused",
    "got 'bad'": "test_a_bad_row_ends_the_reading",
}


@dataclasses.dataclass(frozen=True)
class FaultySource(JsonLinesSource):
    """JSON Lines, read with a fault."""

    change: object = None
    hides: str | None = None
    raises: Exception | None = None
    drops_columns: bool = True

    def infer(self, files, options):
        return super().infer(files, options if self.drops_columns else SourceOptions())

    def read(self, split, files, features, options):
        options = options if self.drops_columns else SourceOptions()
        try:
            for number, part in enumerate(super().read(split, files, features, options)):
                yield self.change(part, number, split, files) if self.change else part
        except BadInputError as error:
            if self.raises is not None:
                raise self.raises from error
            if self.hides is None or self.hides not in str(error):
                raise


class FaultyContract(SourceContract):
    """The contract of JSON Lines, for a source that is given."""

    is_cut = True
    drops_columns = True

    def __init__(self, **fault):
        self.fault = fault

    def source(self):
        return FaultySource(**self.fault)

    def cut_source(self, split_bytes, batch_bytes):
        return FaultySource(split_bytes=split_bytes, batch_bytes=batch_bytes, **self.fault)

    def row(self, number):
        return {"n": number, "s": f"text {number}"}

    def write(self, folder, name, rows):
        lines = ['{"n": "bad"}' if row is None else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def may_end_at(self, content, length):
        return content[:length].endswith((b"}", b"\n"))


TESTS = [name for name in dir(SourceContract) if name.startswith("test_")]


@pytest.mark.parametrize("name", TESTS)
def test_a_source_without_fault_passes(tmp_path, name):
    getattr(FaultyContract(), name)(tmp_path)


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__)
def test_faults_in_batches_are_found(tmp_path, change):
    with pytest.raises(AssertionError) as caught:
        getattr(FaultyContract(change=change), FAULTS[change])(tmp_path)
    assert str(caught.value)


@pytest.mark.parametrize("hides", HIDDEN_ERRORS)
def test_errors_that_are_passed_over_are_found(tmp_path, hides):
    with pytest.raises(AssertionError) as caught:
        getattr(FaultyContract(hides=hides), HIDDEN_ERRORS[hides])(tmp_path)
    assert str(caught.value)


@pytest.mark.parametrize("name", ["test_a_file_that_is_cut_off_is_named", "test_damage_is_named_or_does_no_harm"])
def test_errors_that_help_no_user_are_found(tmp_path, name):
    with pytest.raises(AssertionError, match="names no file"):
        getattr(FaultyContract(raises=DamagedFileError("a file is damaged")), name)(tmp_path / "a")
    with pytest.raises(KeyError):
        getattr(FaultyContract(raises=KeyError("n")), name)(tmp_path / "b")


def test_an_option_that_is_not_obeyed_is_found(tmp_path):
    with pytest.raises(AssertionError, match="without 'n'"):
        FaultyContract(drops_columns=False).test_a_dropped_column_is_the_only_one_that_is_gone(tmp_path)


def test_a_test_that_is_not_there_cannot_be_left_out():
    with pytest.raises(TypeError, match="test_nothing"):
        type("TestOther", (FaultyContract,), {"leaves_out": {"test_nothing": "it is not there"}})
    other = type("TestOther", (FaultyContract,), {"leaves_out": {TESTS[0]: "it has no meaning"}})
    assert getattr(other, TESTS[0]) is None


def test_what_a_parent_leaves_out_comes_back():
    parent = type("Parent", (SourceContract,), {"leaves_out": {TESTS[0]: "it has no meaning"}})
    child = type("Child", (parent,), {"leaves_out": {}, "drops_columns": True})
    assert {name for name in TESTS if getattr(child, name) is not getattr(SourceContract, name)} == set()
    assert getattr(parent, TESTS[0]) is None


@pytest.mark.full
def test_a_program_without_pytest_imports_it():
    code = "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None; import shardkit.testing"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

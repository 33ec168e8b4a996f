"""What every source of raw files must do, as tests that the tests of each format inherit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from shardkit.errors import BadInputError, DamagedFileError, NoRowsError, ShardkitError, UsageError
from shardkit.features import Features
from shardkit.sources.base import InputSplit, RawFile, Source, SourceOptions
from shardkit.testing.reading import (
    PACKERS,
    Reading,
    Row,
    check_names,
    check_same,
    check_same_reading,
    cut_lengths,
    file_names_of,
    files_of,
    mutations,
    read_paths,
    read_splits,
    through_json,
)

_BATCH_BYTES = (20, 150, 1 << 20)
_SMALLEST_SPLIT_BYTES = 23
_NUM_MUTATIONS = 24


class SourceContract:
    """Tests that every source passes. The tests of a format inherit them:

        class TestFixedWidth(SourceContract):
            def source(self):
                return FixedWidthSource()

            def row(self, number):
                return {"name": f"name {number}", "note": "é" * (number % 3) or None}

            def write(self, folder, name, rows):
                lines = [BAD_LINE if row is None else line_of(row) for row in rows]
                (folder / f"{name}.fwf").write_text("\\n".join([HEADER, *lines]))

    pytest collects the subclass, whose name must begin with `Test`. Each test takes the fixture `tmp_path`, a new
    folder. The contract itself imports neither pytest nor Hypothesis.

    Attributes:
        is_cut: Whether `cut_source` cuts one file into several splits.
        reads_compressed: Whether the source reads files that are compressed as a whole. If not, it must refuse them.
        knows_its_end: Whether a file says where it ends, so that one that is cut off is damaged as a whole.
        leaves_out: Tests that have no meaning for the format, each with the reason.
    """

    num_rows: ClassVar[int] = 30
    is_cut: ClassVar[bool] = False
    reads_compressed: ClassVar[bool] = True
    knows_its_end: ClassVar[bool] = False
    drops_columns: ClassVar[bool] = False
    leaves_out: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        absent = dict(cls.leaves_out)
        if not cls.drops_columns:
            absent["test_a_dropped_column_is_the_only_one_that_is_gone"] = "the option has no meaning"
        tests = {name: test for name, test in vars(SourceContract).items() if name.startswith("test_")}
        for name in absent:
            if name not in tests:
                raise TypeError(f"{cls.__name__} leaves out {name!r}, which is no test of SourceContract")
            setattr(cls, name, None)
        for name in tests.keys() - absent.keys():
            # A parent that left it out may be between.
            if getattr(cls, name) is None:
                setattr(cls, name, tests[name])

    # Facts about the format, which a subclass gives.

    def source(self) -> Source:
        """Returns the source with its usual settings."""
        raise NotImplementedError

    def cut_source(self, split_bytes: int, batch_bytes: int) -> Source:
        """Returns the source with splits and batches of about so many bytes; as it is where it has no such settings."""
        return self.source()

    def options(self) -> SourceOptions:
        """Returns the options that the files need."""
        return SourceOptions()

    def row(self, number: int) -> Row:
        """Returns the row with a number, as it is read: a value of Python a column, None for null.

        Rows with different numbers differ. All of them together have the same features as any ten in a row.
        """
        raise NotImplementedError

    def write(self, folder: Path, name: str, rows: Sequence[Row | None]) -> None:
        """Writes rows to a file whose name begins with `name`; where each file is a row, to files with other names.

        Args:
            folder: An empty folder, or one that holds files with other names.
            rows: The rows. None stands for a row that does not fit: one that is rejected where bad rows are tolerated.
        """
        raise NotImplementedError

    def may_end_at(self, content: bytes, length: int) -> bool:
        """Returns whether a file that is cut off after so many bytes may look whole, as a text does after any line."""
        return False

    # What follows from it.

    def _written(self, folder: Path, name: str = "a", rows: Sequence[Row | None] | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder, name, self._rows() if rows is None else rows)
        return folder

    def _rows(self, start: int = 0) -> list[Row | None]:
        return [self.row(number) for number in range(start, start + self.num_rows)]

    def _read(
        self, folder: Path, source: Source | None = None, features: Features | None = None, **more: Any
    ) -> Reading:
        options = msgspec.structs.replace(self.options(), **more)
        return read_paths(source or self.source(), [folder], options, features)

    def _outcome(self, folder: Path, features: Features | None, **more: Any) -> Reading | ShardkitError:
        # Another error than ShardkitError fails the test with its traceback.
        try:
            return self._read(folder, features=features, **more)
        except ShardkitError as error:
            return error

    def _split_sizes(self, folder: Path) -> list[int]:
        # From less than a row to more than a file, so that cuts fall on different bytes.
        sizes = [_SMALLEST_SPLIT_BYTES]
        while sizes[-1] <= max(path.stat().st_size for path in files_of(folder)):
            sizes.append(sizes[-1] * 9 // 4)
        return sizes

    def _cut_sources(self, folder: Path) -> Iterator[tuple[int, Source]]:
        for number, size in enumerate(self._split_sizes(folder)):
            yield size, self.cut_source(size, _BATCH_BYTES[number % len(_BATCH_BYTES)])

    # Whole files.

    def test_rows_are_those_that_were_written(self, tmp_path: Path) -> None:
        """A file gives its rows in order, with the values that were written."""
        found = self._read(self._written(tmp_path / "x"))
        check_same("the rows", found.rows, self._rows())
        check_same("the rejected rows", found.rejected, [])

    def test_its_files_are_recognized(self, tmp_path: Path) -> None:
        """`recognizes` knows the files, and says no more than yes or no of anything else."""
        recognizes = getattr(self.source(), "recognizes", None)
        if recognizes is None:
            return
        for path in files_of(self._written(tmp_path / "x")):
            assert recognizes(path.read_bytes()[:4096], path.name) is True, f"{path.name} is not recognized"
        for head in (b"", b"\0", b"\0" * 4096, b"a,b\n1,2\n", b"\xff" * 4096, bytes(range(256)) * 16):
            for name in ("a", "a.csv", "a.unknown", ".gz"):
                assert isinstance(recognizes(head, name), bool), f"recognizes gives no bool for {head[:20]!r}"

    def test_any_cut_gives_the_same_rows(self, tmp_path: Path) -> None:
        """However a file is cut, its splits together hold its rows, once each, and no identity twice."""
        folder = self._written(tmp_path / "x")
        counts = []
        for size, source in self._cut_sources(folder):
            found = self._read(folder, source)
            check_same(f"the rows in splits of {size:,} bytes", found.rows, self._rows())
            counts.append((len(found.splits), len(found.files)))
        assert not self.is_cut or max(counts)[0] > 1, "no size of a split cuts the file"
        assert counts[-1][0] <= counts[-1][1], "a file is cut though it is smaller than a split"

    def test_identities_do_not_depend_on_batches(self, tmp_path: Path) -> None:
        """A cut alone decides the identities of its rows, not the batches that they come in."""
        folder = self._written(tmp_path / "x")
        for size in self._split_sizes(folder)[1::2]:
            expected = self._read(folder, self.cut_source(size, _BATCH_BYTES[-1])).identities
            for batch in _BATCH_BYTES[:-1]:
                identities = self._read(folder, self.cut_source(size, batch)).identities
                what = f"the identities in splits of {size:,} and batches of {batch:,} bytes"
                check_same(what, identities, expected)

    def test_files_beside_it_change_nothing_of_a_file(self, tmp_path: Path) -> None:
        """The rows of several files come in the order of the files, each with the identity that it has alone."""
        more = self._rows(self.num_rows)
        first = self._written(tmp_path / "x", "b", more)
        second = self._written(self._written(tmp_path / "y"), "b", more)
        for source in (self.source(), self.cut_source(50, 100)):
            alone, both = self._read(first, source), self._read(second, source)
            check_same("the rows of two files", both.rows, [*self._rows(), *more])
            check_same("the identities of the second file", both.identities[self.num_rows :], alone.identities)
            assert both.file_indices == sorted(both.file_indices), "rows are not in the order of their files"
            check_same("the files of rows", file_names_of(both)[self.num_rows :], file_names_of(alone))

    def test_reading_twice_gives_the_same(self, tmp_path: Path) -> None:
        """Features, splits, rows and identities are the same every time."""
        folder = self._written(tmp_path / "x")
        source = self.cut_source(50, 100)
        check_same_reading("the second time", self._read(folder, source), self._read(folder, source))

    def test_what_is_planned_crosses_process_borders(self, tmp_path: Path) -> None:
        """Files, features, options and splits that were JSON give the same rows."""
        folder = self._written(tmp_path / "x")
        source = self.cut_source(50, 100)
        found = self._read(folder, source)
        splits = through_json(found.splits, list[InputSplit])
        files = through_json(found.files, tuple[RawFile, ...])
        features = through_json(found.features, Features)
        options = through_json(self.options(), SourceOptions)
        again = read_splits(source, splits, files, features, options)
        check_same_reading("after JSON", again._replace(notes=found.notes), found)

    def test_compressed_files_are_read_as_plain_ones_or_refused(self, tmp_path: Path) -> None:
        """A compressed file gives the rows of the plain one, whatever its name; where it is not read, it is named."""
        plain = self._read(self._written(tmp_path / "x"))
        contents = {path: path.read_bytes() for path in files_of(tmp_path / "x")}
        for kind, pack in PACKERS.items():
            for path, content in contents.items():
                # Two parts one after the other, as from `cat a.gz b.gz`.
                path.write_bytes(pack(content[: len(content) // 2]) + pack(content[len(content) // 2 :]))
            if not self.reads_compressed:
                refused = self._outcome(tmp_path / "x", None)
                assert isinstance(refused, ShardkitError), f"{kind} is read"
                assert refused.next_step, f"the refusal of {kind} says nothing of what to do: {refused}"
                check_names(refused, contents)
                continue
            for source in (self.source(), self.cut_source(50, 100)):
                found = self._read(tmp_path / "x", source)
                check_same(f"the rows from {kind}", found.rows, plain.rows)
                check_same(f"the identities from {kind}", found.identities, plain.identities)

    def test_a_dropped_column_is_the_only_one_that_is_gone(self, tmp_path: Path) -> None:
        """`drop_columns` takes away the columns that it names, and changes neither values nor identities."""
        folder = self._written(tmp_path / "x")
        whole = self._read(folder)
        for feature in whole.features:
            found = self._read(folder, drop_columns=(feature.name,))
            what = f"without {feature.name!r}"
            check_same(f"the features {what}", found.features, [f for f in whole.features if f is not feature])
            expected = [{name: value for name, value in row.items() if name != feature.name} for row in whole.rows]
            check_same(f"the rows {what}", found.rows, expected)
            check_same(f"the identities {what}", found.identities, whole.identities)
        error = self._outcome(folder, None, drop_columns=("no such column",))
        assert isinstance(error, UsageError), "a name that is no column is not refused"
        assert "no such column" in str(error), f"the name that is no column is not in {error}"
        known = whole.features[0].name
        assert f"{known!r}" in (error.next_step or ""), f"the column {known!r} is not offered: {error}"

    # Files that hold nothing, or change.

    def test_a_file_without_rows_adds_none(self, tmp_path: Path) -> None:
        """A file that was written without rows adds no row to those beside it, and is no other error alone."""
        good = self._read(self._written(tmp_path / "x", "b"))
        folder = self._written(tmp_path / "y", "a", [])
        if not files_of(folder):
            return  # Each file is a row.
        for features in (None, good.features):
            found = self._outcome(folder, features)
            if isinstance(found, ShardkitError):
                assert isinstance(found, NoRowsError), f"expected rows or NoRowsError, got {found!r}: {found}"
            else:
                check_same("the rows of a file without rows", found.rows, [])
        both = self._read(self._written(folder, "b"))
        check_same("the rows beside a file without rows", both.rows, good.rows)
        check_same("the identities beside a file without rows", both.identities, good.identities)

    def test_a_file_of_no_bytes_adds_no_row(self, tmp_path: Path) -> None:
        """An empty file adds no row to those beside it, or is named."""
        good = self._read(self._written(tmp_path / "x", "b"))
        folder = self._written(tmp_path / "y", "b")
        path = files_of(folder)[0]
        empty = path.with_name(f"0{path.name}")
        empty.touch()
        for tolerates in (False, True):
            found = self._outcome(folder, good.features, tolerates_bad_rows=tolerates)
            if isinstance(found, ShardkitError):
                check_names(found, [empty])
            else:
                check_same("the rows beside an empty file", found.rows, good.rows)
                check_same("the identities beside an empty file", found.identities, good.identities)
                assert len(found.rejected) <= 1, f"an empty file is {len(found.rejected)} rejected rows"

    def test_a_file_that_changes_after_it_was_listed_is_refused(self, tmp_path: Path) -> None:
        """Rows of a file that was changed or removed after the plan was made are not read."""
        found = self._read(self._written(tmp_path / "x"))
        path = files_of(tmp_path / "x")[0]
        changes: dict[str, Callable[[], object]] = {
            "written to": lambda: os.utime(path, ns=(1, 1)),
            "longer": lambda: path.write_bytes(path.read_bytes() + b"\n"),
            "removed": path.unlink,
        }
        for what, change in changes.items():
            change()
            refusal: DamagedFileError | None = None
            try:
                read_splits(self.source(), found.splits, found.files, found.features, self.options())
            except DamagedFileError as error:
                refusal = error
            assert refusal is not None, f"a file that was {what} is read"
            assert "changed during conversion" in str(refusal), f"a file that was {what} is called {refusal}"
            check_names(refusal, [path])

    # Damaged files.

    def test_a_file_that_is_cut_off_is_named(self, tmp_path: Path) -> None:
        """A file of which the end is missing is refused by name, or its last row is rejected."""
        features = self._read(self._written(tmp_path / "x")).features
        path = files_of(tmp_path / "x")[0]
        content = path.read_bytes()
        for length in cut_lengths(len(content)):
            path.write_bytes(content[:length])
            may_look_whole = self.may_end_at(content, length)
            for known, tolerates in ((None, False), (features, False), (features, True)):
                found = self._outcome(tmp_path / "x", known, tolerates_bad_rows=tolerates)
                if isinstance(found, Reading):
                    is_noticed = bool(found.rejected) or may_look_whole
                    assert is_noticed, f"{length:,} of {len(content):,} bytes are read as a whole file"
                    assert len(found.rows) + len(found.rejected) <= self.num_rows, (
                        "a file that is cut off has more rows"
                    )
                else:
                    check_names(found, [path])
                    is_damage = isinstance(found, DamagedFileError) or not self.knows_its_end
                    assert is_damage, f"expected DamagedFileError, got {found!r}: {found}"

    def test_a_compressed_file_that_is_cut_off_is_refused(self, tmp_path: Path) -> None:
        """A compressed file of which the end is missing is never read as a shorter one."""
        features = self._read(self._written(tmp_path / "x")).features
        path = files_of(tmp_path / "x")[0]
        content = path.read_bytes()
        for pack in PACKERS.values():
            packed = pack(content)
            for length in (len(packed) // 2, len(packed) - 1):
                path.write_bytes(packed[:length])
                for tolerates in (False, True):
                    found = self._outcome(tmp_path / "x", features, tolerates_bad_rows=tolerates)
                    if isinstance(found, Reading):
                        assert found.rejected, f"{length:,} of {len(packed):,} bytes are read as a whole file"
                    else:
                        check_names(found, [path])
                        is_damage = isinstance(found, DamagedFileError) or not self.reads_compressed
                        assert is_damage, f"expected DamagedFileError, got {found!r}: {found}"

    def test_damage_is_named_or_does_no_harm(self, tmp_path: Path) -> None:
        """Bytes that are changed, removed or doubled end in rows that fit, or in an error that names the file."""
        features = self._read(self._written(tmp_path / "x")).features
        paths = files_of(tmp_path / "x")[:2]
        for path in paths:
            content = path.read_bytes()
            for number, damaged in enumerate(mutations(content, _NUM_MUTATIONS // len(paths))):
                path.write_bytes(damaged)
                known = features if number // 4 % 2 else None
                found = self._outcome(tmp_path / "x", known, tolerates_bad_rows=bool(number // 8 % 2))
                if isinstance(found, ShardkitError):
                    check_names(found, [path])
            path.write_bytes(content)

    # Rows that do not fit.

    def test_a_bad_row_ends_the_reading(self, tmp_path: Path) -> None:
        """A row that does not fit is an error that names the file, unless bad rows are tolerated."""
        features = self._read(self._written(tmp_path / "x")).features
        rows = self._rows()
        for place in (0, self.num_rows // 2, self.num_rows - 1):
            folder = self._written(tmp_path / str(place), "a", [*rows[:place], None, *rows[place + 1 :]])
            found = self._outcome(folder, features)
            assert isinstance(found, BadInputError), f"expected BadInputError for a bad row, got {found!r}"
            assert not isinstance(found, DamagedFileError), f"a bad row is no damage of the file: {found}"
            check_names(found, files_of(folder))

    def test_good_and_rejected_rows_are_all_rows(self, tmp_path: Path) -> None:
        """However a file is cut, each row is good or rejected, in its order; bad rows count for the identities."""
        whole = self._read(self._written(tmp_path / "x"))
        bad = {0, 1, self.num_rows // 2, self.num_rows - 1}
        rows = [None if i in bad else row for i, row in enumerate(self._rows())]
        good = [i for i, row in enumerate(rows) if row is not None]
        folder = self._written(tmp_path / "y", "a", rows)
        found = self._read(folder, features=whole.features, tolerates_bad_rows=True)
        check_same("the good rows", found.rows, [whole.rows[i] for i in good])
        check_same("the identities of the good rows", found.identities, [whole.identities[i] for i in good])
        assert len(found.rejected) == len(bad), f"{len(found.rejected)} rows are rejected, {len(bad)} are bad"
        for size, source in self._cut_sources(folder):
            cut = self._read(folder, source, whole.features, tolerates_bad_rows=True)
            check_same(f"the good rows in splits of {size:,} bytes", cut.rows, found.rows)
            check_same(f"the rejected rows in splits of {size:,} bytes", cut.rejected, found.rejected)

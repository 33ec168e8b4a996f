"""Delimited text: CSV, TSV and their relatives, with or without a header line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import chain

import msgspec

from shardkit.errors import BadInputError, DamagedFileError, NoRowsError, UsageError
from shardkit.features import Features
from shardkit.messages import printable, shown
from shardkit.sources.base import (
    InputSplit,
    RawFile,
    RowBatch,
    SourceOptions,
    SourceSettings,
    choose_split_bytes,
    numbered,
    place,
)
from shardkit.sources.columns.dropped_columns import check_dropped, is_dropped
from shardkit.sources.columns.folder_columns import FolderColumns, folder_names, with_folder_columns
from shardkit.sources.columns.sampling import ALL_ROWS_BYTES, sample_files
from shardkit.sources.columns.union_notes import check_shared, union_notes
from shardkit.sources.csv.all_rows import AllRows, examine_all_rows, widened_by_files, widened_notes
from shardkit.sources.csv.bad_records import parse_good_records
from shardkit.sources.csv.dialect import (
    Dialect,
    check_alike,
    check_columns,
    check_same_columns,
    quoted_rows_notes,
    read_dialect,
    read_first_line,
)
from shardkit.sources.csv.header import FirstRows, check_no_names, have_header, header_notes, made_names
from shardkit.sources.csv.heads import find_odd_values, read_csv_head, read_evidence
from shardkit.sources.csv.joined import check_not_joined, way_to_join
from shardkit.sources.csv.leading_zeros import untyped_notes
from shardkit.sources.csv.parser import RECORD_ERRORS, CsvParser
from shardkit.sources.csv.second_header import check_no_second_header
from shardkit.sources.csv.stacked import check_one_table, empty_rows_notes
from shardkit.sources.csv.titles import TitleError
from shardkit.sources.file_globs import glob_in_shell
from shardkit.sources.files.many_files import attempt, map_files, undamaged
from shardkit.sources.files.streams import guard_unchanged
from shardkit.sources.split_names import split_of
from shardkit.sources.text.column_notes import check_points, column_notes, dotted_columns, point_notes
from shardkit.sources.text.line_numbers import LineNumbers
from shardkit.sources.text.quoting import QuotedRecords
from shardkit.sources.text.rejected_records import BatchMaker
from shardkit.sources.text.splits import read_blocks, split_file
from shardkit.sources.text.table_signs import check_no_padded_columns
from shardkit.sources.text.together import read_small_texts, rows_of
from shardkit.sources.text.type_inference import decide, unite

_LISTED_COLUMNS = 5
_FIRST_LINES = 16


def _lines(data: bytes, start: int) -> tuple[bytes, int] | None:
    # A quote may hold line ends, and may stay open.
    records = data[start:]
    return None if b'"' in data else (records, sum(1 for line in records.splitlines() if line))


@dataclass(frozen=True)
class CsvSource(SourceSettings):
    """Delimited text."""

    format: str = "csv"

    def settle(self, files: tuple[RawFile, ...], options: SourceOptions) -> SourceOptions:
        """Returns the options with the names of the columns, where the files have no header line.

        Raises:
            UsageError: If the first line may be either, or some files have a header line and others have none.
            DamagedFileError: If a file is damaged, unless bad rows are tolerated.
        """
        if options.has_header or (options.columns is not None and options.no_header):
            return options
        options = self._with_format(options)
        if options.columns is None:
            _check_titles([f for f in files if f.num_bytes], options)
        filled = sample_files([f for f in files if f.num_bytes], _FIRST_LINES)
        lines = undamaged(map_files(lambda file: attempt(_read_first_rows, file, options), filled), options)
        found = [rows for rows in lines if rows is not None]
        if options.columns is not None:
            check_no_names(found, options.columns, options.skip_lines)
        if not found or options.columns is not None:
            return options
        if options.delimiter is None:
            check_no_padded_columns(found[0].file, [column[:_FIRST_LINES].to_pylist() for column in found[0].below])
        if not options.no_header:
            for rows in found:
                check_one_table(rows, options)
            check_no_second_header(found[0], options.skip_lines)
            if have_header(found):
                return options
        other = next((rows for rows in found if len(rows.cells) != len(found[0].cells)), None)
        if other is not None:
            raise UsageError(
                "files without a header line have different numbers of columns",
                why=f"{printable(found[0].file.name)} has {len(found[0].cells)}, {printable(other.file.name)} has "
                f"{len(other.cells)}",
                next_step="Convert them one by one, or leave some out with --exclude GLOB",
            )
        return msgspec.structs.replace(options, columns=made_names(len(found[0].cells)))

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the columns of the header, in the order of the first file, with types from the heads of the files.

        Behind them stand those that folders name, such as `year=2013`.

        Raises:
            UsageError: If files have different columns, or a header is wrong or seems to be missing.
        """
        written = self._dialects(files, options)
        by_file = [(file.name, _kept(dialect, options)) for file, dialect in written]
        check_shared(by_file, lambda: way_to_join(written, options))
        check_not_joined(written, options)
        if not options.union_by_name:
            check_alike(by_file)
        if options.drop_columns:
            own = (name for _, dialect in written for name in dialect.columns)
            names = dict.fromkeys([*own, *folder_names(files)])
            check_dropped(options.drop_columns, names, place(written[0][0]))
        columns = _columns(written, options)
        if not columns:
            raise BadInputError("no column is left", where=place(written[0][0]))
        evidence = _evidence(written, columns, options).evidence
        features = tuple(decide(name, evidence[name]) for name in columns)
        return with_folder_columns(features, files, options.drop_columns)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on a byte order mark, a delimiter or names that may be wrong, and numbers that stay text.

        Raises:
            DifferentSchemasError: If the points in numbers may stand between thousands.
        """
        written = self._dialects(files, options)
        notes = list(union_notes([dialect.columns for _, dialect in written])) if options.union_by_name else []
        notes += _dialect_notes(written)
        if options.columns is None and not options.has_header:
            # A line that all files begin with is their header.
            rows = attempt(_read_first_rows, written[0][0], self._with_format(options)) if len(written) == 1 else None
            notes += header_notes(written[0][0], written[0][1].columns, rows if isinstance(rows, FirstRows) else None)
        if options.columns == (names := made_names(len(options.columns or ()))):
            called = (
                f"columns are called {names[0]} to {names[-1]}" if len(names) > 1 else f"column is called {names[0]}"
            )
            notes.append(
                f"{printable(written[0][0].name)} has no header line: its {called}; --columns A,B,... names them, "
                "--header takes the first line"
            )
        notes += (note for one in sample_files(written) for note in quoted_rows_notes(*one))
        notes += (note for one in sample_files(written, _FIRST_LINES) for note in empty_rows_notes(*one))
        head = attempt(read_csv_head, *written[0], options)
        if isinstance(head, DamagedFileError):
            return tuple(notes)
        kept = {name: head.columns[name] for name in _kept(written[0][1], options)}
        check_points(kept, dict(options.declared), place(written[0][0]))
        # Where a comma separates decimals, columns stand between semicolons.
        notes += point_notes(kept) if written[0][1].delimiter == ";" else ()
        odd_values = find_odd_values(sample_files(written), list(kept), options)
        return (
            *notes,
            *column_notes(kept, head.evidence, options.null_values, _dotted(written, options)),
            *untyped_notes(odd_values),
            *widened_notes(widened_by_files(sample_files(written), kept, options)),
            *widened_notes(_evidence(written, _columns(written, options), options)),
        )

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files at the ends of records; a compressed file is one split."""
        return numbered(chain.from_iterable(self._split_one(f, i, options) for i, f in enumerate(files)))

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            DamagedFileError: If a quote is never closed, a record is too long, or the header is damaged.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            dialect = read_dialect(file, self._with_format(options))
            if dialect is None:
                return
            folders = FolderColumns(file, features, dialect.columns, is_union=options.union_by_name)
            _check_header(_kept(dialect, options), folders.stored, file)
            start = split.start or dialect.data_start
            if split.stop and start >= split.stop:
                return
            yield from map(folders.fill, self._read_rows(split, file, dialect, folders.stored, options))

    def read_together(
        self, indices: Sequence[int], files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> RowBatch | None:
        """Returns the rows of small whole files of the same columns at once; None if each must be read alone."""
        options = self._with_format(options)
        dialects = {index: dialect for index in indices if (dialect := read_dialect(files[index], options)) is not None}
        if len({(d.columns, d.delimiter, d.has_quotes) for d in dialects.values()}) != 1:
            return None
        dialect = next(iter(dialects.values()))
        if sorted(_kept(dialect, options)) != sorted(f.name for f in features):
            return None
        texts = read_small_texts(list(dialects), files, options, lambda i, data: _lines(data, dialects[i].data_start))
        if texts is None:
            return None
        parser = CsvParser(dialect, features, options.null_values, options.max_field_bytes, options.leading_zeros)
        try:
            batch, num_rounded = parser.parse(b"".join(text.data for text in texts))
        except RECORD_ERRORS:
            return None
        return rows_of(batch, num_rounded, texts, files)

    def _read_rows(
        self, split: InputSplit, file: RawFile, dialect: Dialect, features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        rule = dialect.rule
        parser = CsvParser(dialect, features, options.null_values, options.max_field_bytes, options.leading_zeros)
        maker = BatchMaker(
            file, split.file_start, split.start, LineNumbers(file, rule), tolerates_bad_rows=options.tolerates_bad_rows
        )
        start = split.start or dialect.data_start
        for block in read_blocks(file, rule, options, start=start, stop=split.stop, block_bytes=self.batch_bytes):
            try:
                parsed = parser.parse(block.data)
            except RECORD_ERRORS:
                data = bytes(block.data)
                yield maker.good_records(block, data, parse_good_records(block, data, dialect, features, options))
            else:
                yield maker.clean(block, *parsed)

    def _split_one(self, file: RawFile, file_index: int, options: SourceOptions) -> list[InputSplit]:
        split_bytes = self.split_bytes or choose_split_bytes(file.num_bytes)
        if file.compression is None and file.num_bytes <= split_bytes:
            # No record end is looked for, so the delimiter does not matter.
            return split_file(file, file_index, QuotedRecords(","), options, split_bytes)
        dialect = read_dialect(file, self._with_format(options))
        return [] if dialect is None else split_file(file, file_index, dialect.rule, options, split_bytes)

    def _dialects(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[tuple[RawFile, Dialect]]:
        options = self._with_format(options)
        if options.columns is not None:
            check_columns(options.columns, "--columns", "Give each column one name")
        filled = [f for f in files if f.num_bytes]
        dialects = undamaged(map_files(lambda file: attempt(read_dialect, file, options), filled), options)
        written = [(f, d) for f, d in zip(filled, dialects, strict=True) if d is not None]
        if not written:
            raise NoRowsError(
                why="the input files hold nothing but blank lines" if filled else "all input files are empty"
            )
        return written

    def _with_format(self, options: SourceOptions) -> SourceOptions:
        return msgspec.structs.replace(options, format=self.format)


def _dotted(written: Sequence[tuple[RawFile, Dialect]], options: SourceOptions) -> tuple[str, ...]:
    of_splits = {split_of(file): (file, dialect) for file, dialect in reversed(written)}
    heads = [attempt(read_csv_head, *one, options) for one in of_splits.values()] if len(of_splits) > 1 else []
    return dotted_columns([head.columns for head in heads if not isinstance(head, DamagedFileError)])


def _dialect_notes(written: Sequence[tuple[RawFile, Dialect]]) -> Iterator[str]:
    marked = [file for file, dialect in written if dialect.has_bom]
    if marked:
        yield f"the byte order mark that {printable(marked[0].name)} begins with is left out"
    for file, dialect in written:
        if dialect.other_delimiter is not None:
            yield (
                f"only one column was found in {printable(file.name)}, though its lines hold "
                f"{dialect.other_delimiter!r}; --delimiter tells which it is"
            )
            break
    unnamed = next(((file, dialect.unnamed) for file, dialect in written if dialect.unnamed), None)
    if unnamed is not None:
        listed = ", ".join(map(shown, unnamed[1][:_LISTED_COLUMNS]))
        more = ", ..." if len(unnamed[1]) > _LISTED_COLUMNS else ""
        yield (
            f"{printable(unnamed[0].name)} has columns without a name, which are called {listed}{more}; "
            "--rename and --drop-columns take these names"
        )


def _check_titles(files: Sequence[RawFile], options: SourceOptions) -> None:
    """Checks that no line above a table stands in some of the files alone, as no option passes over these.

    Raises:
        UsageError: If one does.
    """
    found = [(file, _title_error(file, options)) for file in sample_files(files, _FIRST_LINES)]
    titled = [(file, error) for file, error in found if error is not None and error.skip]
    if titled and len(titled) < len(found):
        file, error = titled[0]
        raise UsageError(
            error.what,
            where=place(file),
            why=f"{printable(next(file.name for file, error in found if error is None))} has no such lines",
            next_step=f"Convert it alone with --include {glob_in_shell(escape(file.name))} {error.skip}",
        )


def _title_error(file: RawFile, options: SourceOptions) -> TitleError | None:
    try:
        attempt(read_dialect, file, options)
    except TitleError as error:
        return error
    except UsageError:
        pass
    return None


def _read_first_rows(file: RawFile, options: SourceOptions) -> FirstRows | None:
    cells = read_first_line(file, options)
    options = msgspec.structs.replace(options, columns=made_names(len(cells)))
    dialect = read_dialect(file, options) if cells else None
    if dialect is None:
        return None
    head = read_csv_head(file, dialect, options)
    return FirstRows(file, cells, [head.columns[name][1:] for name in dialect.columns])


def _kept(dialect: Dialect, options: SourceOptions) -> tuple[str, ...]:
    return tuple(name for name in dialect.columns if not is_dropped(name, options.drop_columns))


def _columns(written: list[tuple[RawFile, Dialect]], options: SourceOptions) -> tuple[str, ...]:
    """Returns the columns of all files, in the order in which they first appear."""
    return tuple(dict.fromkeys(name for _, dialect in written for name in _kept(dialect, options)))


def _evidence(written: list[tuple[RawFile, Dialect]], columns: tuple[str, ...], options: SourceOptions) -> AllRows:
    """Returns what the first rows tell of the columns, and all rows where those tell nothing or are not enough."""
    sampled = dict(sample_files(written))
    found = map_files(lambda file: attempt(read_evidence, file, sampled[file], options), list(sampled))
    heads = [evidence for evidence in undamaged(found, options) if evidence is not None]
    first = {name: unite(e[name] for e in heads if name in e) for name in columns}
    is_small = sum(file.num_bytes for file, _ in written) <= ALL_ROWS_BYTES
    wanted = {n: e for n, e in first.items() if options.types_of_all_rows or (is_small and not e.kinds)}
    if not wanted:
        return AllRows(first, {})
    rest = examine_all_rows(tuple(written), tuple(wanted.items()), options)
    return AllRows({**first, **rest.evidence}, rest.widened)


def _check_header(columns: tuple[str, ...], features: Features, file: RawFile) -> None:
    names = tuple(f.name for f in features)
    if set(names) != set(columns):
        try:
            check_same_columns(names, "the other files", columns, file.name)
        except UsageError as error:
            raise BadInputError(error.what, where=place(file), why=error.why) from error

"""JSON Lines: one object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from shardkit.errors import BadInputError
from shardkit.features import Features
from shardkit.sources.base import BATCH_BYTES, InputSplit, RawFile, RowBatch, SourceOptions, row_identities
from shardkit.sources.fitting import UnfitValueError
from shardkit.sources.json_rows import LINE_ERRORS, Mode, RowDecoder
from shardkit.sources.json_types import MAX_DEPTH, ShapeObserver, flatten, is_too_deep
from shardkit.sources.sampling import HEAD_BYTES, HEAD_ROWS, sample_files
from shardkit.sources.streams import guard_unchanged, open_stream, place, read_exactly, read_head, shown
from shardkit.sources.text_blocks import Lines, TextBlock
from shardkit.sources.text_splits import BOM, line_at, numbered, read_blocks, split_file
from shardkit.units import KiB

_RULE = Lines()
_NUM_WINDOWS = 8
_WINDOW_BYTES = 128 * KiB
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}


@dataclass(frozen=True)
class JsonLinesSource:
    """JSON Lines.

    Attributes:
        format: `jsonl`.
        split_bytes: Wanted size of a split; None chooses by the size of the file.
        block_bytes: Wanted text of a batch.
    """

    format: str = "jsonl"
    split_bytes: int | None = None
    block_bytes: int = BATCH_BYTES

    def infer(self, files: tuple[RawFile, ...], options: SourceOptions) -> Features:
        """Returns the keys that the heads of the files hold, and places evenly spread over large files.

        Raises:
            UsageError: If a key holds values that do not go together, or that no example can hold.
            BadInputError: If a head is no JSON Lines, or all files are empty.
        """
        observer = ShapeObserver()
        num_rows = 0
        for file in sample_files([f for f in files if f.num_bytes]):
            for rows in chain([_head_rows(file, options)], _window_rows(file)):
                observer.add(rows)
                num_rows += len(rows)
        if not num_rows:
            raise BadInputError("there are no rows", why="all input files are empty")
        features = observer.features()
        if not features:
            raise BadInputError("the objects have no keys", where=place(files[0]))
        return features

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns nothing: JSON says what it is."""
        return ()

    def split(self, files: tuple[RawFile, ...], options: SourceOptions) -> list[InputSplit]:
        """Cuts the files at the ends of lines; a compressed file is one split.

        Raises:
            BadInputError: If a line is too long.
        """
        return numbered(
            chain.from_iterable(split_file(f, i, _RULE, options, self.split_bytes) for i, f in enumerate(files))
        )

    def read(
        self, split: InputSplit, files: tuple[RawFile, ...], features: Features, options: SourceOptions
    ) -> Iterator[RowBatch]:
        """Yields the rows of one split.

        Raises:
            BadInputError: At the first line that does not fit, or if the file changed since it was listed.
        """
        file = files[split.file_start]
        with guard_unchanged(file):
            start = split.start or _start_of(file)
            if split.stop and start >= split.stop:
                return
            decoder = RowDecoder(features)
            first_row = 0
            blocks = read_blocks(
                file,
                _RULE,
                options,
                start=start,
                stop=split.stop,
                block_bytes=self.block_bytes,
            )
            for block in blocks:
                data = bytes(block.data)
                try:
                    batch, rounded = decoder.decode(data)
                except LINE_ERRORS as error:
                    line = line_at(file, _RULE, block.offset)
                    raise _explain(data, block, features, decoder.modes, file, line, error) from error
                if decoder.may_repeat_keys(data, batch) and (repeated := _first_repeated_key(data)):
                    line = line_at(file, _RULE, block.offset)
                    raise _unfit(file, line + repeated[0], f"the key {shown(repeated[1])} appears twice", None)
                identities = row_identities(file, split.start, first_row, batch.num_rows)
                first_row += batch.num_rows
                yield RowBatch(batch, identities, split.file_start, rounded)


def _start_of(file: RawFile) -> int:
    return len(BOM) if read_head(file, len(BOM)) == BOM else 0


def _head_rows(file: RawFile, options: SourceOptions) -> list[tuple[str, dict[str, Any]]]:
    start = _start_of(file)
    blocks = read_blocks(file, _RULE, options, start=start, stop=0, block_bytes=HEAD_BYTES, is_head=True)
    block = next(blocks, None)
    rows: list[tuple[str, dict[str, Any]]] = []
    if block is None:
        return rows
    data = bytes(block.data)
    blocks.close()
    _refuse_array(data, file)
    offset = start
    for line, text in enumerate(data.split(b"\n"), start=1):
        if len(rows) == HEAD_ROWS:
            break
        if text.strip():
            row, error = _parse(text, file, line, offset)
            if error is not None:
                raise error
            rows.append((place(file, line=line), row))
        offset += len(text) + 1
    return rows


def _window_rows(file: RawFile) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    # Keys that appear late would otherwise be unknown; reading tells what does not parse.
    if file.compression is not None or file.num_bytes <= HEAD_BYTES + _NUM_WINDOWS * _WINDOW_BYTES:
        return
    for number in range(1, _NUM_WINDOWS + 1):
        start = HEAD_BYTES + (file.num_bytes - HEAD_BYTES - _WINDOW_BYTES) * number // _NUM_WINDOWS
        with open_stream(file, start) as stream:
            data = read_exactly(stream, _WINDOW_BYTES)
        first, last = data.find(b"\n") + 1, data.rfind(b"\n") + 1
        rows = []
        for text in data[first:last].split(b"\n") if first else []:
            row, error = _parse(text, file, 0, 0) if text.strip() else (None, None)
            if row is not None and error is None:
                rows.append((f"{place(file)}, behind byte {start}", row))
        yield rows


def _refuse_array(data: bytes, file: RawFile) -> None:
    if data.lstrip()[:1] == b"[":
        raise BadInputError(
            "the file is a JSON array",
            where=place(file),
            why="JSON Lines is expected: one object a line",
            next_step="Convert it, perhaps with: jq -c '.[]'",
        )


def _parse(text: bytes, file: RawFile, line: int, offset: int) -> tuple[Any, BadInputError | None]:
    # The object of one line, or why it is none.
    try:
        text.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {offset + error.start}"
        return None, BadInputError("the text is not UTF-8", where=place(file, line=line), why=why)
    if is_too_deep(text):
        return None, _not_json(file, line, f"it is nested deeper than {MAX_DEPTH} levels")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return None, _not_json(file, line, _reason(text, str(error)))
    if not isinstance(value, dict):
        got = _NAMES.get(type(value), "null")
        return None, BadInputError(
            "a line is no JSON object", where=place(file, line=line), why=f"expected an object, got {got}"
        )
    return value, None


def _reason(text: bytes, message: str) -> str:
    if text.strip() == b"{" or (message == "Input data was truncated" and not _SURROGATE.search(text)):
        return "unexpected end of the line"
    if _SURROGATE.search(text) and ("truncated" in message or "surrogate" in message):
        return "a string holds half of a surrogate pair"
    message = message.removeprefix("JSON is malformed: ").split(" - at ")[0]
    return message[:1].lower() + message[1:]


def _not_json(file: RawFile, line: int, why: str) -> BadInputError:
    return BadInputError("a line is not valid JSON", where=place(file, line=line), why=why)


def _explain(
    data: bytes,
    block: TextBlock,
    features: Features,
    modes: dict[str, Mode],
    file: RawFile,
    first_line: int,
    reason: Exception,
) -> BadInputError:
    if block.offset in (0, len(BOM)):
        _refuse_array(data, file)
    lines = data.split(b"\n")
    decoder = RowDecoder(features, dict(modes))
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            decoder.decode(b"\n".join(lines[good:middle]))
            good = middle
        except LINE_ERRORS:
            bad = middle
    text, line = lines[good], first_line + good
    offset = block.offset + sum(len(t) + 1 for t in lines[:good])
    row, error = _parse(text, file, line, offset)
    return error or _misfit(text, row, features, decoder.modes, file, line, reason)


def _misfit(
    text: bytes,
    row: dict[str, Any],
    features: Features,
    modes: dict[str, Mode],
    file: RawFile,
    line: int,
    cause: Exception,
) -> BadInputError:
    values = dict(flatten(row))
    names = {f.name for f in features}
    for feature in features:
        own = {feature.name: modes[feature.name]} if feature.name in modes else {}
        try:
            RowDecoder((feature,), own, is_strict=False).decode(text)
        except LINE_ERRORS as error:
            expected = feature.describe_type()
            got = shown(values[feature.name]) if feature.name in values else "an object"
            if isinstance(error, UnfitValueError):
                expected, got = error.expected, error.got
            elif isinstance(error, OverflowError):
                got += ", which is out of range"
            what = f"column {shown(feature.name)} does not fit"
            return _unfit(file, line, what, f"expected {expected}, got {got}")
    unknown = next((p for p in values if p not in names), None)
    if unknown is not None:
        why = "no row that the features were inferred from has it"
        return _unfit(file, line, f"the key {shown(unknown)} is no column", why)
    return _not_json(file, line, str(cause))


def _unfit(file: RawFile, line: int, what: str, why: str | None) -> BadInputError:
    return BadInputError(
        what,
        where=place(file, line=line),
        why=why,
        next_step="Correct the row, or declare the column's type in a --schema file" if why else None,
    )


def _first_repeated_key(data: bytes) -> tuple[int, str] | None:
    # The 0-based line and the key; None if all keys differ after all.
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.extend(k for k in keys if keys.count(k) > 1)

    for line, text in enumerate(data.split(b"\n")):
        if text.strip():
            json.loads(text, object_pairs_hook=look)
        if repeated:
            return line, repeated[0]
    return None

"""Labels in texts: captions and transcripts of files of their own, and lines of words behind names of files."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.messages import printable, shown
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.streams import open_stream, read_exactly
from shardkit.sources.files.whole_files import read_whole_files
from shardkit.sources.media.label_tables import LabelTable, is_name_of_file
from shardkit.sources.text.table_signs import even_delimiter
from shardkit.units import MiB, format_size

_MAX_BYTES = 16 * MiB
_MAX_TABLE_BYTES = 256 * MiB
_MAX_TITLES = 8
_MAX_ROWS = 1000
_LISTED = 3
_BATCH_FILES = 1024

LIBRITTS_TEXTS = {"normalized_transcript": ".normalized.txt", "transcript": ".original.txt"}
"""The columns of LibriTTS, and how the names of their files end."""


def read_texts(files: Sequence[RawFile], column: str) -> LabelTable:
    """Returns the text of each file, without the blanks around it, under the name of the file without its extension.

    Raises:
        BadInputError: If a file is too large or not UTF-8.
    """
    texts = [text.strip() for text in texts_of(files)]
    names = [file.name.rpartition(".")[0] for file in files]
    return LabelTable(names, (make_feature(column, "string"),), {column: pa.array(texts, pa.string())})


def read_libritts(files: Sequence[RawFile]) -> LabelTable:
    """Returns the texts of LibriTTS, which has two of each sound; null where one is missing.

    Raises:
        BadInputError: If a file is too large or not UTF-8.
    """
    texts = dict(zip((file.name for file in files), map(str.strip, texts_of(files)), strict=True))
    names = list({name.rpartition(".")[0].rpartition(".")[0]: None for name in texts})
    columns = {
        column: pa.array([texts.get(name + end) for name in names], pa.string())
        for column, end in LIBRITTS_TEXTS.items()
    }
    features = tuple(make_feature(name, "string", nullable=column.null_count > 0) for name, column in columns.items())
    return LabelTable(names, features, columns)


def read_transcripts(files: Sequence[RawFile], *, in_folder: bool = True) -> LabelTable:
    """Returns the transcripts of LibriSpeech and the like: lines of an utterance and its words.

    Args:
        files: The texts.
        in_folder: Whether the sounds lie in the folder of their text.

    Raises:
        BadInputError: If a file is too large or not UTF-8, or a line has no words.
    """
    names, texts = [], []
    for file, text in zip(files, texts_of(files), strict=True):
        folder, slash, _ = file.name.rpartition("/")
        for number, line in enumerate(text.split("\n"), start=1):
            utterance, *words = line.split(maxsplit=1) or [""]
            if not utterance:
                continue
            if not words:
                raise BadInputError(
                    "a transcript has no words",
                    where=place(file, line=number),
                    next_step="Write it like 84-121123-0000 THE WORDS",
                )
            names.append(f"{folder}{slash}{utterance}" if in_folder else utterance)
            texts.append(words[0].strip())
    return LabelTable(names, (make_feature("transcript", "string"),), {"transcript": pa.array(texts, pa.string())})


def texts_of(files: Sequence[RawFile]) -> list[str]:
    """Returns the text of each file. Raises BadInputError if a file is too large or not UTF-8."""
    large = next((f for f in files if f.num_bytes > _MAX_BYTES), None)
    if large is not None:
        why = f"it has more than {format_size(_MAX_BYTES)}"
        raise BadInputError("a file of labels is too large", where=place(large), why=why, next_step="Remove the file")
    texts: list[str] = []
    for start in range(0, len(files), _BATCH_FILES):
        batch = files[start : start + _BATCH_FILES]
        texts += map(decoded, read_whole_files(batch).contents(), batch)
    return texts


def decoded(content: bytes | memoryview, file: RawFile) -> str:
    """Returns the text of a file of labels. Raises BadInputError if it is not UTF-8."""
    try:
        return str(content, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a file of labels is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error


def rows_of_words(file: RawFile, head: bytes) -> list[list[str]] | None:
    """Returns the rows of a table whose columns stand between blanks, its names first; None if a file is none.

    All lines have the same number of words, two or more, but for those that begin with `#`, which are left out. Up to
    eight lines of another number may stand above them. The last of these names the columns if it has one word less, as
    that of the names of files is left out.

    Raises:
        BadInputError: If it is too large or not UTF-8.
    """
    texts = head[: head.rfind(b"\n") + 1].splitlines()
    lines = [line.split() for line in texts if line.strip() and not line.startswith(b"#")]
    widths = Counter(map(len, lines))
    if not widths or even_delimiter(head) is not None:
        return None
    width, count = widths.most_common(1)[0]
    first = next(i for i, line in enumerate(lines) if len(line) == width)
    if width < 2 or count < 2 or first > _MAX_TITLES or any(len(line) != width for line in lines[first:]):
        return None
    rows = [line.split() for line in text_of(file).splitlines() if line.strip() and not line.startswith("#")]
    title = rows[first - 1] if first else []
    return [["file", *title], *rows[first:]] if len(title) == width - 1 else rows[first:]


def text_of(file: RawFile) -> str:
    """Returns the text of a file of labels. Raises BadInputError if it is too large or not UTF-8."""
    with open_stream(file) as stream:
        raw = read_exactly(stream, _MAX_TABLE_BYTES + 1)
    if len(raw) > _MAX_TABLE_BYTES:
        why = f"it has more than {format_size(_MAX_TABLE_BYTES)}"
        raise BadInputError("a file of labels is too large", where=place(file), why=why, next_step="Write it as CSV")
    return decoded(raw, file)


def check_no_sentences(file: RawFile, rows: Sequence[Sequence[str]]) -> None:
    """Checks that no sentences of as many words each stand behind the names: words alone, of which most are different.

    Raises:
        UsageError: If they may.
    """
    rows = rows[:_MAX_ROWS]
    columns = list(zip(*rows, strict=False))[1:]
    are_words = len(columns) > 1 and all(word.isalpha() for column in columns for word in column)
    if not are_words or all(2 * len(set(column)) <= len(rows) for column in columns):
        return
    path = shlex.quote(printable(file.path))
    raise UsageError(
        "the labels may be columns or sentences",
        where=place(file),
        why=f"each line is a name and {len(columns)} words, such as {shown(' '.join(rows[0][1:]))}",
        next_step="Write tabs between what is a column, and name that file: sentences by  sed -E "
        f"'s/[[:blank:]]+/\\t/' {path} >labels.tsv , columns by  sed -E 's/[[:blank:]]+/\\t/g' {path} >labels.tsv",
    )


def lines_of_transcripts(file: RawFile, head: bytes, files: Sequence[str]) -> str | None:
    """Returns a table of lines of a name and other numbers of words, as of AISHELL; None if a file holds none."""
    lines = [line.split() for line in head[: head.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line]
    are_words = len({len(line) for line in lines}) > 1 and even_delimiter(head) is None and b"," not in head
    if not are_words or not all(is_name_of_file(files, line[0]) for line in lines[:_LISTED]):
        return None
    rows = [line.split(maxsplit=1) for line in text_of(file).splitlines() if line.strip()]
    return "file\ttranscript\n" + "".join(f"{row[0]}\t{' '.join(row[1:]).strip()}\n" for row in rows)

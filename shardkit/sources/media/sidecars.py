"""Labels of files of their own: captions and transcripts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardkit.errors import BadInputError
from shardkit.features import make_feature
from shardkit.sources.base import RawFile, place
from shardkit.sources.files.whole_files import read_whole_files
from shardkit.sources.media.label_tables import LabelTable
from shardkit.units import MiB, format_size

_MAX_BYTES = 16 * MiB
_BATCH_FILES = 1024


def read_texts(files: Sequence[RawFile], column: str) -> LabelTable:
    """Returns the text of each file, without the blanks around it, under the name of the file without its extension.

    Raises:
        BadInputError: If a file is too large or not UTF-8.
    """
    texts = [text.strip() for text in texts_of(files)]
    names = [file.name.rpartition(".")[0] for file in files]
    return LabelTable(names, (make_feature(column, "string"),), {column: pa.array(texts, pa.string())})


def read_transcripts(files: Sequence[RawFile]) -> LabelTable:
    """Returns the transcripts of LibriSpeech: lines of an utterance and its words, for the files of the same folder.

    Raises:
        BadInputError: If a file is too large or not UTF-8, or a line has no words.
    """
    names, texts = [], []
    for file, text in zip(files, texts_of(files), strict=True):
        folder, slash, _ = file.name.rpartition("/")
        for number, line in enumerate(text.split("\n"), start=1):
            utterance, _, words = line.strip().partition(" ")
            if not utterance:
                continue
            if not words:
                raise BadInputError(
                    "a transcript has no words",
                    where=place(file, line=number),
                    next_step="Write it like 84-121123-0000 THE WORDS",
                )
            names.append(f"{folder}{slash}{utterance}")
            texts.append(words.strip())
    return LabelTable(names, (make_feature("transcript", "string"),), {"transcript": pa.array(texts, pa.string())})


def texts_of(files: Sequence[RawFile]) -> list[str]:
    """Returns the text of each file.

    Raises:
        BadInputError: If a file is too large or not UTF-8.
    """
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
    """Returns the text of a file of labels.

    Raises:
        BadInputError: If it is not UTF-8.
    """
    try:
        return str(content, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a file of labels is not UTF-8", where=place(file), why=str(error), next_step="Write it as UTF-8"
        ) from error

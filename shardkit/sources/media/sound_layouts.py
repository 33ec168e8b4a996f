"""Layouts of sounds and their transcripts, by the names of all files.

Sources: LibriSpeech, LibriTTS, LJSpeech, Common Voice, Multilingual LibriSpeech, FLEURS, VCTK and VIVOS.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from shardkit.file_types import suffix_of
from shardkit.messages import printable
from shardkit.sources.base import RawFile
from shardkit.sources.media.layout_files import Layout, base_of, first_line_of, folders_of, stem_of
from shardkit.sources.media.sidecars import LIBRITTS_TEXTS
from shardkit.sources.split_words import shared_parts, split_in_name

_LETTER = re.compile(r"[^\W\d_]")
_FLEURS_COLUMNS = 7
_LJSPEECH = re.compile(r"metadata(?:[_-][a-z]+)?\.csv")


def find_ljspeech(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of LJSpeech: `metadata.csv`, or one a split, whose lines begin with the name of a sound."""
    stems = {stem_of(f) for f in media}
    tables = [f for f in rest if _LJSPEECH.fullmatch(base_of(f))]
    tables = [f for f in tables if b"|" in (line := first_line_of(f)) and line.split(b"|")[0].decode() in stems]
    whole = [f for f in tables if base_of(f) == "metadata.csv"]
    lists = tuple(f for f in tables if split_in_name(base_of(f)) is not None)
    if len(whole) > 1 or not (whole or len(lists) > 1):
        return None
    return Layout("ljspeech", "LJSpeech", tuple(whole) or lists, lists=lists)


def find_libritts(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of LibriTTS: `x.normalized.txt` and `x.original.txt` beside `x.wav`."""
    labels = tuple(f for f in rest if f.name.endswith(tuple(LIBRITTS_TEXTS.values())))
    # Each chapter and the whole have tables.
    others = tuple(f for f in rest if suffix_of(f.name) in (".txt", ".tsv") and f not in labels)
    return Layout("libritts", "LibriTTS", labels, others) if labels else None


def find_transcripts(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of LibriSpeech: a `*.trans.txt` in each folder of sounds."""
    labels = tuple(f for f in rest if f.name.endswith(".trans.txt"))
    # Lists of the speakers, chapters and books lie above them.
    others = tuple(f for f in rest if suffix_of(f.name) == ".txt" and f not in labels)
    return Layout("transcripts", "transcripts of LibriSpeech", labels, others) if labels else None


def find_common_voice(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of Common Voice: `train.tsv`, `dev.tsv` and `test.tsv` beside `clips`."""
    tables = [f for f in rest if suffix_of(f.name) == ".tsv"]
    labels = tuple(f for f in tables if stem_of(f) in ("train", "dev", "test"))
    if not labels or not all("clips" in folders_of(f) for f in media):
        return None
    return Layout("common voice", "Common Voice", labels, tuple(f for f in tables if f not in labels))


def find_mls(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of Multilingual LibriSpeech: names, tabs and words in `train/transcripts.txt`."""
    tables = [f for f in rest if base_of(f) == "transcripts.txt"]
    stems = {stem_of(f) for f in media} if tables else set()
    labels = tuple(f for f in tables if first_line_of(f).decode("utf-8-sig", "replace").partition("\t")[0] in stems)
    # Lists of the segments, of small parts of the whole and of the speakers lie beside them.
    others = tuple(f for f in rest if suffix_of(f.name) == ".txt" and f not in labels)
    return Layout("transcript lists", "Multilingual LibriSpeech", labels, others) if labels else None


def find_fleurs(media: Sequence[RawFile], rest: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of FLEURS: `train.tsv` of seven columns without a header beside `audio/train`."""
    tables = [f for f in rest if suffix_of(f.name) == ".tsv"]
    names = {f.name for f in media} if tables else set()
    labels: dict[RawFile, str] = {}
    for file in tables:
        parent, slash, _ = file.name.rpartition("/")
        folder = f"{parent}{slash}audio/{stem_of(file)}"
        cells = first_line_of(file).split(b"\t")
        if len(cells) == _FLEURS_COLUMNS and f"{folder}/{cells[1].decode('utf-8', 'replace')}" in names:
            labels[file] = folder
    return Layout("fleurs", "FLEURS", tuple(labels), folders=tuple(labels.values())) if labels else None


def find_transcripts_apart(media: Sequence[RawFile], data: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of texts in a folder of their own, as of VCTK: `txt/p225/1.txt` for `wav48/p225/1.wav`."""
    wrapper = _wrapper_of([f.name for f in (*media, *data)])
    outer, below = zip(*(_parted(f, wrapper) for f in media), strict=True)
    alike = [f for f in data if suffix_of(f.name) in (".txt", ".lab") and _parted(f, wrapper)[1] in {*below}]
    own = [_parted(f, wrapper)[0] for f in alike]
    if "" in below or 2 * len(alike) <= len(media) or not {*outer}.isdisjoint(own):
        return None
    title = f"a text of each file in {' and '.join(map(printable, sorted({*own})))}"
    return Layout("spoken apart", title, tuple(alike), folders=tuple(f"{wrapper}{folder}" for folder in own))


def _wrapper_of(names: Sequence[str]) -> str:
    """Returns the folders around all files, with a slash behind each."""
    shared = shared_parts([name.split("/")[:-1] for name in names])
    return "".join(f"{folder}/" for folder in shared)


def _parted(file: RawFile, wrapper: str) -> tuple[str, str]:
    """Returns the outer folder of a file, and its path below that without its extension."""
    outer, _, below = file.name.removeprefix(wrapper).rpartition(".")[0].partition("/")
    return outer, below


def find_transcript_lists(media: Sequence[RawFile], data: Sequence[RawFile]) -> Layout | None:
    """Returns the layout of lists of transcripts, as of VIVOS: each line of `train/prompts.txt` begins with a name."""
    stems = {stem_of(f) for f in media}
    is_list = all(suffix_of(f.name) in ("", ".txt") and _names_a_sound(f, stems) for f in data)
    return Layout("transcript lists", "lists of transcripts", tuple(data)) if is_list else None


def _names_a_sound(file: RawFile, stems: Collection[str]) -> bool:
    name, _, words = first_line_of(file).decode("utf-8-sig", "replace").partition(" ")
    return name in stems and _LETTER.search(words) is not None

"""Sounds with transcripts in files beside them."""

from __future__ import annotations

from pathlib import Path

from tests.support.folders.parts import Case, Row, sound, write


def _common_voice(folder: Path) -> list[Row]:
    rows, seed = [], 0
    for split, table in (("train", "train.tsv"), ("validation", "dev.tsv"), ("test", "test.tsv")):
        lines = ["client_id\tpath\tsentence\tup_votes"]
        for _ in range(3):
            name = f"common_voice_en_{seed}.wav"
            rows.append((split, write(folder / "clips" / name, sound(seed)), f'"Sentence {seed}, read aloud.'))
            lines.append(f'c{seed}\t{name}\t"Sentence {seed}, read aloud.\t2')
            seed += 1
        write(folder / table, "\n".join(lines) + "\n")
    write(folder / "other.tsv", "client_id\tpath\tsentence\tup_votes\nc\tcommon_voice_en_90.wav\tNot there.\t0\n")
    return rows


def _librispeech(folder: Path) -> list[Row]:
    rows, seed = [], 0
    for speaker, chapter in ((84, 121123), (174, 50561)):
        lines = []
        for index in range(3):
            name = f"{speaker}-{chapter}-{index:04}"
            data = write(folder / "train-clean-5" / str(speaker) / str(chapter) / f"{name}.wav", sound(seed))
            lines.append(f"{name} THE WORDS OF NUMBER {seed}\n")
            rows.append(("train", data, f"THE WORDS OF NUMBER {seed}"))
            seed += 1
        write(folder / "train-clean-5" / str(speaker) / str(chapter) / f"{speaker}-{chapter}.trans.txt", "".join(lines))
    write(folder / "SPEAKERS.TXT", ";ID |SEX| SUBSET |MINUTES| NAME\n84 | F | dev-clean | 8.02 | Someone\n")
    write(folder / "BOOKS.TXT", "174|A Title|\n")
    return rows


def _libritts(folder: Path) -> list[Row]:
    rows = []
    for seed in range(4):
        base = folder / "train-clean-100" / "84" / "121123" / f"84_121123_{seed:06}_000000"
        texts = f"Number {seed}, he said", f"Number the {seed}, he said"
        rows.append(("train", write(base.with_suffix(".wav"), sound(seed)), texts))
        write(base.with_suffix(".original.txt"), f"{texts[0]}\n")
        write(base.with_suffix(".normalized.txt"), f"{texts[1]}\n")
    write(base.parent / "84_121123.trans.tsv", "84_121123_000000_000000\tNumber 0\tNumber the 0\n")
    write(folder / "speakers.tsv", "READER\tGENDER\n84\tF\n")
    return rows


def _vivos(folder: Path) -> list[Row]:
    rows, seed = [], 0
    for split in ("train", "test"):
        lines = []
        for _ in range(4):
            seed += 1
            name = f"VIVOS{split.upper()}01_R{seed:03}"
            data = write(folder / split / "waves" / f"VIVOS{split.upper()}01" / f"{name}.wav", sound(seed))
            lines.append(f"{name} KHÁCH SẠN {seed}\n")
            rows.append((split, data, f"KHÁCH SẠN {seed}"))
        write(folder / split / "prompts.txt", "".join(lines))
    return rows


def _ljspeech(folder: Path) -> list[Row]:
    rows, lines = [], []
    for seed, text in enumerate(("Printing, in the only sense", '"the ward, he said', "in being comparatively modern")):
        rows.append(("train", write(folder / "wavs" / f"LJ001-{seed:04}.wav", sound(seed)), text))
        lines.append(f"LJ001-{seed:04}|{text}|{text}\n")
    write(folder / "metadata.csv", "".join(lines))
    write(folder / "README", "The LJ Speech dataset\n")
    return rows


def _ljspeech_splits(folder: Path, *, has_whole: bool) -> list[Row]:
    rows = _ljspeech(folder)
    lines = (folder / "metadata.csv").read_text().splitlines(keepends=True)
    write(folder / "metadata_train.csv", "".join(lines[:2]))
    write(folder / "metadata_val.csv", "".join(lines[2:]))
    if not has_whole:
        (folder / "metadata.csv").unlink()
    return [("train" if index < 2 else "validation", *row[1:]) for index, row in enumerate(rows)]


def _noisy(folder: Path) -> list[Row]:
    for seed, name in enumerate(("clean_trainset_wav", "clean_testset_wav", "noisy_trainset_wav", "noisy_testset_wav")):
        for index in range(3):
            write(folder / name / f"p{index}.wav", sound(10 * seed + index))
    return []


def _vctk(folder: Path) -> list[Row]:
    rows, seed = [], 0
    for speaker in ("p225", "p226"):
        for index in range(3):
            data = write(folder / "wav48" / speaker / f"{index:03}.wav", sound(seed))
            write(folder / "txt" / speaker / f"{index:03}.txt", f"Please call Stella, {seed}.\n")
            rows.append(("train", data, f"Please call Stella, {seed}."))
            seed += 1
    write(folder / "speaker-info.txt", "ID  AGE  GENDER\n225  23  F\n")
    return rows


def _sphere(folder: Path) -> list[Row]:
    """Makes sounds as TIMIT has them, in class folders of dialects."""
    rows = []
    for index, region in enumerate(("dr1", "dr1", "dr2", "dr2")):
        samples = sound(index)[44:]
        fields = {"channel_count": 1, "sample_rate": 8000, "sample_n_bytes": 2, "sample_count": len(samples) // 2}
        lines = "".join(f"{name} -i {value}\n" for name, value in fields.items())
        header = f"NIST_1A\n   1024\n{lines}sample_coding -s3 pcm\nsample_byte_format -s2 01\nend_head\n".encode()
        data = write(folder / region / f"SX{index}.WAV", header.ljust(1024) + samples)
        rows.append(("train", data, region))
    return rows


SPEECH = (
    Case("sounds of TIMIT", _sphere, key="audio"),
    Case("VoiceBank, clean and noisy", _noisy, refusal=("clean_testset_wav", "--no-labels")),
    Case("Common Voice", _common_voice, key="audio", label=("sentence",)),
    Case("LibriSpeech", _librispeech, key="audio", label=("transcript",)),
    Case("LibriTTS", _libritts, key="audio", label=("transcript", "normalized_transcript")),
    Case("VIVOS", _vivos, key="audio", label=("transcript",)),
    Case("VCTK, below another folder", lambda f: _vctk(f / "VCTK-Corpus"), key="audio", label=("transcript",)),
    Case("VCTK", _vctk, key="audio", label=("transcript",)),
    Case("LJSpeech", _ljspeech, key="audio", label=("transcript",)),
    Case(
        "LJSpeech, split tables beside the whole",
        lambda f: _ljspeech_splits(f, has_whole=True),
        key="audio",
        label=("transcript",),
    ),
    Case(
        "LJSpeech, split tables alone",
        lambda f: _ljspeech_splits(f, has_whole=False),
        key="audio",
        label=("transcript",),
    ),
)

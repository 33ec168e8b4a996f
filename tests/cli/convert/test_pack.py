"""`--pack`: sequences for a language model, as stock TensorFlow reads them, against the tokenizer's own tokens."""

from __future__ import annotations

import json

import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from tests.conversion.extract.test_packing import reference
from tests.support.paths import DATA

pytestmark = pytest.mark.full

LENGTH = 64
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = ["The quick brown fox jumps over the lazy dog", "Speak, speak. First Citizen: you are all resolved"] * 50
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet)
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path, made


def sequences_of(out, split="train"):
    """Returns the sequences as stock TensorFlow reads them."""
    import tensorflow as tf

    paths = [f"{out}/{shard.path}" for shard in open_dataset(out).split_shards(split)]
    found = []
    for record in tf.data.TFRecordDataset(paths, compression_type="GZIP").as_numpy_iterator():
        example = tf.train.Example.FromString(record).features.feature
        found.append(tuple(list(example[n].int64_list.value) for n in ("text", "segment_ids", "positions")))
    return sorted(found)


def test_a_real_text_is_packed_token_for_token(tmp_path, capfd, tokenizer):
    text = DATA / "text" / "tinyshakespeare" / "input.txt"
    if text.exists():
        lines = [line for line in text.read_text().split("\n")[:9_000] if line.strip()]
    else:
        lines = [f"line {n} of a text, " * (n % 9) + "end" for n in range(3_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    path, made = tokenizer
    out = tmp_path / "out"
    options = ("--tokenize", f"text={path}", "--pack", str(LENGTH))
    assert main(["convert", str(tmp_path / "a.txt"), str(out), *options]) == 0
    ids = [encoding.ids for encoding in made.encode_batch(lines)]
    assert sequences_of(out) == sorted(reference(ids, LENGTH, made.token_to_id(END)))
    output = capfd.readouterr()
    assert f"{len(lines):,} rows in, {len(lines):,} packed into" in output.out
    assert "fill up the last ones" in output.err
    assert main(["verify", str(out)]) == 0
    assert main(["convert", str(tmp_path / "a.txt"), str(tmp_path / "again"), *options]) == 0
    assert open_dataset(out).manifest.fingerprint == open_dataset(tmp_path / "again").manifest.fingerprint


def test_rows_are_chosen_divided_and_appended_before_they_are_packed(tmp_path, capfd, tokenizer):
    path, made = tokenizer
    end = made.token_to_id(END)

    def write(name, first):
        rows = [
            {
                "lang": "en" if n % 3 else "de",
                "part": "test" if n % 5 == 0 else "train",
                "text": f"Text {n} " * (n % 7 + 1),
            }
            for n in range(first, first + 700)
        ]
        rows += rows[:50]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return rows[:700]

    rows = write("a.jsonl", 0)
    out = tmp_path / "out"
    options = ("--select", "SELECT part, text FROM rows WHERE lang = 'en'", "--dedup", "--split-column", "part")
    pack = ("--tokenize", f"text={path}", "--pack", str(LENGTH), "--separator", END)
    assert main(["convert", str(tmp_path / "a.jsonl"), str(out), *options, *pack]) == 0
    output = capfd.readouterr()
    assert "750 rows in" in output.out
    for split in ("train", "test"):
        ids = [made.encode(r["text"]).ids for r in rows if r["lang"] == "en" and r["part"] == split]
        assert sequences_of(out, split) == sorted(reference(ids, LENGTH, end))
    more = write("b.jsonl", 700)
    out = tmp_path / "appended"
    assert main(["convert", str(tmp_path / "a.jsonl"), str(out), *options[:2], *options[3:], *pack]) == 0
    before = sequences_of(out)
    assert main(["convert", str(tmp_path / "b.jsonl"), str(out), "--append"]) == 0
    ids = [made.encode(r["text"]).ids for r in [*more, *more[:50]] if r["lang"] == "en" and r["part"] == "train"]
    assert sequences_of(out) == sorted([*before, *reference(ids, LENGTH, end)])
    assert main(["verify", str(out)]) == 0

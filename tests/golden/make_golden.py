"""Makes the golden files anew: inputs, a dataset, a training run, and `expected.json`, which says what datasets are.

    python -m tests.golden.make_golden expected    what the conversions give now, and the whole dataset
    python -m tests.golden.make_golden added       what the conversions give that expected.json lacks
    python -m tests.golden.make_golden run         a training run on the whole dataset, at the end of its first epoch
    python -m tests.golden.make_golden inputs      the raw files; they are committed, so this is rarely needed

The files hold what shardkit 0.1.0 made, and for options that are younger what the first version with them made. They
tell whether later code still gives the same bytes, so make them anew only where a change of the bytes is meant, and say
so in the commit. The training run was made by the last code before the files moved to their rooms. The whole dataset is
converted from a copy of the inputs in a folder below /tmp, whose name enters its manifest, and which is removed.
"""

import gzip
import json
import math
import shutil
import sqlite3
import struct
import sys
import tempfile
import wave
from pathlib import Path

import google_crc32c

from tests.golden.golden_cases import (
    CASES,
    DATASET,
    EXPECTED,
    INPUTS,
    RUN,
    append,
    convert,
    describe,
    shardkit,
    tools,
    train,
)

NEUTRAL = Path("/tmp/golden")
TOWNS = ("Ulm", "Köln", "Bonn", "Trier", "Aachen", "Halle", "Jena")


def write(name, content):
    """Writes an input, text or bytes."""
    path = INPUTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def people(first, stop):
    """Returns rows of people as CSV; some lack a name, a few do not fit."""
    lines = ["name;age;height;town;comment"]
    for i in range(first, stop):
        age = "old" if i % 61 == 50 else "NA" if i % 17 == 3 else i * 7 % 95
        name = "" if i % 29 == 5 else f"Zoe\u0308 {i}"
        lines.append(f"{name};{age};{1.5 + i % 50 / 128};{TOWNS[i * i % 7]};{'none' if i % 2 else 'left out'}")
    return "\n".join(lines) + "\n"


def make_tables():
    """Writes the inputs that are tables."""
    write("people/one.csv", people(0, 120))
    write("people/two.csv.gz", gzip.compress(people(120, 180).encode(), mtime=0))
    write("people/notes.csv", "left;out\n1;2\n")
    write("later/three.csv", people(180, 230))
    write("plain/towns.csv", "".join(f"{t},{i * 1000 + 7},{i + 0.5}\n" for i, t in enumerate(TOWNS)).encode("latin-1"))
    events = [{"kind": "ab"[i % 2], "at": i // 3, "part": ("train", "test")[i % 5 == 0]} for i in range(60)]
    lines = [json.dumps(e) for e in events] + ['{"kind": "a", "kind": "c", "at": 99, "part": "test"}']
    write("events/events.jsonl", "\n".join(lines) + "\n")
    write("zips/zips.csv", "zip,n\n" + "".join(f"{i % 40:05d},{i % 4}\n" for i in range(60)) + "x,1\n")
    classes = '["no", "one", "two", "three"]'
    write("zips.toml", f'[features.zip]\ndtype = "int32"\n\n[features.n]\ndtype = "int64"\nvocabulary = {classes}\n')
    (INPUTS / "shop.sqlite").unlink(missing_ok=True)
    shop = sqlite3.connect(INPUTS / "shop.sqlite")
    shop.execute("PRAGMA page_size = 1024")
    shop.execute("CREATE TABLE sold (item TEXT, price REAL, number INTEGER)")
    rows = [(("pear", "plum", "fig")[i % 3], i / 4, i) for i in range(40)]
    shop.executemany("INSERT INTO sold VALUES (?, ?, ?)", rows)
    shop.execute("CREATE TABLE other (x INTEGER)")
    shop.commit()
    shop.close()
    write(
        "rows.py",
        '"""Changes rows."""\n\nimport pyarrow.compute as pc\n\n\ndef denser(batch):\n'
        '    """Returns the rows with the people a square kilometre."""\n'
        '    return batch.append_column("density", pc.divide(batch.column("people"), batch.column("area")))\n',
    )


def make_younger_tables():
    """Writes the inputs for options that are younger than the others."""
    head = "exported by hand\n"
    rows = [f"{i % 13},{TOWNS[i % 7]},{i}" + (',"late"' if i > 19 else "") for i in range(40)]
    write("visits/a.csv", head + "day,town,guests\n# closed in winter\n" + "\n".join(rows[:20]) + "\n")
    write("visits/b.csv", head + "day,town,guests,note\n" + "\n".join(rows[20:]) + "\n")
    write("flowers/flowers.csv", "".join(f"{i / 10},{i % 4},{'rose' if i % 3 else 'lily'}\n" for i in range(20)))
    orders = [{"id": i, "lines": [{"item": TOWNS[j], "n": i * j} for j in range(i % 4)]} for i in range(12)]
    write("orders.json", json.dumps({"status": "ok", "result": {"orders": orders}}))
    write("vectors.libsvm", "".join(f"{(-1) ** i} {1 + i % 3}:{i / 4} 5:{i}\n" for i in range(12)))
    for i in range(3):
        header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }".ljust(117) + "\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        write(f"grids/{i}.npy", content + struct.pack("<6i", *range(i, i + 6)))
    write("records.tfrecord", b"".join(_framed(f"record {i}".encode()) for i in range(9)))


def _framed(record):
    """Returns a record as TFRecord files hold it."""
    size = struct.pack("<Q", len(record))
    return size + _masked_crc(size) + record + _masked_crc(record)


def _masked_crc(data):
    """Returns the checksum of a frame."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def make_others():
    """Writes texts, images and sounds, and the tokenizer."""
    from PIL import Image
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tests.support.files.video_makers import video

    verses = [f"The {c} of {t}\nis not the {c}\nof my {t}." for t in ("sea", "day") for c in ("end", "king", "song")]
    write("poem/poem.txt", "\n\n".join(verses) + "\n")
    words = {w: i for i, w in enumerate(("[UNK]", "the", "of", "is", "not", "my", "sea", "end", "song", "."))}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(INPUTS / "tokenizer.json"))
    for kind, colour in (("blue", (10, 20, 240)), ("red", (250, 30, 20))):
        for i in range(4):
            picture = Image.new("RGB", (10 + i, 9), colour)
            picture.putpixel((i, i), (255, 255, 255))
            (INPUTS / "photos" / kind).mkdir(parents=True, exist_ok=True)
            picture.save(INPUTS / f"photos/{kind}/{i}.png")
    for i, kind in enumerate(("mp4", "webm")):
        write(f"videos/{i}.{kind}", video(kind, 8 + 2 * i, fps=6))
    labels = ["file,label"]
    (INPUTS / "sounds").mkdir(exist_ok=True)
    for i, pitch in enumerate((220, 440, 880)):
        with wave.open(str(INPUTS / f"sounds/{i}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            values = (int(9000 * math.sin(2 * math.pi * pitch * t / 8000)) for t in range(300 + 20 * i))
            file.writeframes(b"".join(struct.pack("<h", v) for v in values))
        labels.append(f"{i}.wav,{'low' if i < 2 else 'high'}")
    write("sounds.csv", "\n".join(labels) + "\n")


def make_expected():
    """Converts all cases, keeps one dataset whole, and writes what they are."""
    shutil.rmtree(NEUTRAL, ignore_errors=True)
    NEUTRAL.mkdir()
    try:
        found = {}
        for name, (first, *options) in CASES.items():
            shardkit("convert", first, name, *options, folder=NEUTRAL)
            found[name] = describe(NEUTRAL / name)
        # The place of its inputs is the only one that the whole dataset tells.
        shutil.copytree(INPUTS / "people", NEUTRAL / "people-inputs")
        (NEUTRAL / "whole").mkdir()
        options = CASES["people"][1:]
        shardkit("convert", "people-inputs", "whole/people", *options, folder=NEUTRAL)
        shutil.rmtree(DATASET, ignore_errors=True)
        shutil.copytree(NEUTRAL / "whole/people", DATASET)
        shutil.rmtree(NEUTRAL / "people-inputs")
        append(NEUTRAL / "whole/people", NEUTRAL)
        found["appended"] = describe(NEUTRAL / "whole/people", 2)
    finally:
        shutil.rmtree(NEUTRAL)
    EXPECTED.write_text(json.dumps({"tools": tools(), "datasets": found}, indent=1, ensure_ascii=False) + "\n")


def make_added():
    """Converts the cases that `expected.json` lacks, with the tools that made the others."""
    expected = json.loads(EXPECTED.read_text())
    assert expected["tools"] == tools()
    for name in (name for name in CASES if name not in expected["datasets"]):
        with tempfile.TemporaryDirectory() as folder:
            expected["datasets"][name] = describe(convert(name, folder))
    EXPECTED.write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def make_run():
    """Trains for one epoch, and keeps what the second one needs."""
    shutil.rmtree(NEUTRAL, ignore_errors=True)
    NEUTRAL.mkdir()
    try:
        train("run", 1, NEUTRAL)
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.copytree(NEUTRAL / "run", RUN, ignore=shutil.ignore_patterns("tensorboard", ".lock"))
        record = RUN / "train.json"
        record.write_text(record.read_text().replace(f"{NEUTRAL}/", ""))
    finally:
        shutil.rmtree(NEUTRAL)


if __name__ == "__main__":
    if sys.argv[1:] == ["inputs"]:
        make_tables()
        make_younger_tables()
        make_others()
    elif sys.argv[1:] == ["expected"]:
        make_expected()
    elif sys.argv[1:] == ["added"]:
        make_added()
    elif sys.argv[1:] == ["run"]:
        make_run()
    else:
        sys.exit(__doc__)

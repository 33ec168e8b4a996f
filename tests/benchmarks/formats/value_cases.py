"""Inputs with values as people have them, and their rows as readers that share no code with shardkit give them."""

import io
import json
import math
import tarfile
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS = 12_000
LATE = 11_500


class Case(NamedTuple):
    """An input.

    Attributes:
        make: Writes it into a folder and returns its rows.
        inputs: Names of what is converted; all files of the folder if empty.
        before: Arguments of conversions before it, whose datasets are called dataset0 and so on.
    """

    name: str
    make: Any
    options: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()


def jsonl(rows, wanted=None):
    """Returns a maker of JSON Lines; rows are those that json reads, or as given."""

    def make(folder):
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        read = [json.loads(line) for line in (folder / "a.jsonl").read_text().split("\n")]
        return read if wanted is None else list(map(wanted, read))

    return make


def csv_of(value, usual, convert, at=LATE, num_rows=NUM_ROWS):
    """Returns a maker of a CSV file in which one value differs from the others."""

    def make(folder):
        values = [value if number == at else usual for number in range(num_rows)]
        (folder / "a.csv").write_text("id,x\n" + "".join(f"{n},{v}\n" for n, v in enumerate(values)))
        return [{"id": n, "x": convert(v)} for n, v in enumerate(values)]

    return make


def items(folder):
    rows = [{"id": n, "t": ["a", "b"][: n % 3]} for n in range(50)]
    jsonl(rows)(folder)
    return [{"id": row["id"], "t": item} for row in rows for item in row["t"] or [None]]


def csv_files(*texts):
    def make(folder):
        rows = []
        for number, values in enumerate(texts):
            (folder / f"{number}.csv").write_text("x\n" + "".join(f"{v}\n" for v in values))
            rows += [{"x": float(v)} for v in values]
        return rows

    return make


def parquet(columns, flat=lambda row: row):
    def make(folder):
        pq.write_table(pa.table(columns), folder / "a.parquet")
        return list(map(flat, pq.read_table(folder / "a.parquet").to_pylist()))

    return make


def parquet_files(folder):
    pq.write_table(pa.table({"v": [1, 2]}), folder / "a.parquet")
    pq.write_table(pa.table({"v": [1.0, None]}), folder / "b.parquet")
    return [{"v": 1}, {"v": 2}, {"v": 1}, {"v": None}]


def fixed_lists(folder):
    values = [[1.0, 2.0], None, [3.0, 4.0]]
    pq.write_table(pa.table({"g": pa.array(values, pa.list_(pa.float32(), 2))}), folder / "a.parquet")
    return [{"g": value} for value in values]


def tensors(folder):
    values = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    pq.write_table(pa.table({"t": column}), folder / "a.parquet")
    return [{"t": value.ravel().tolist()} for value in values]


def int8_arrays(folder):
    values = np.random.default_rng(0).integers(-128, 128, (50, 30), np.int8)
    np.save(folder / "a.npy", values)
    return [{"a": row.tolist()} for row in np.load(folder / "a.npy")]


def int8_lists(folder):
    rows = [[-128, 127], [], [-1] * 40]
    pq.write_table(pa.table({"id": range(3), "l": pa.array(rows, pa.list_(pa.int8()))}), folder / "a.parquet")
    return pq.read_table(folder / "a.parquet").to_pylist()


def hf_images(folder):
    from PIL import Image

    rows = []
    for number in range(6):
        sink = io.BytesIO()
        Image.new("RGB", (8, 6), (number * 40, 0, 0)).save(sink, "PNG")
        rows.append({"image": {"bytes": sink.getvalue(), "path": f"{number}.png"}, "label": number % 2})
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(metadata), folder / "a.parquet")
    return [
        {"image": row["image"]["bytes"], "image/path": row["image"]["path"], "label": row["label"]}
        for row in pq.read_table(folder).to_pylist()
    ]


def avro(folder):
    item = {
        "type": "record",
        "name": "Item",
        "fields": [{"name": "k", "type": "string"}, {"name": "n", "type": "long"}],
    }
    fields = [{"name": "id", "type": "long"}, {"name": "items", "type": {"type": "array", "items": item}},
              {"name": "maybe", "type": ["null", {"type": "map", "values": "double"}]}]  # fmt: skip
    rows = [{"id": n, "items": [{"k": f"k{i}", "n": i} for i in range(n % 3)], "maybe": {"a": n / 8} if n % 2 else None}
            for n in range(100)]  # fmt: skip
    with (folder / "a.avro").open("wb") as sink:
        fastavro.writer(sink, {"type": "record", "name": "R", "fields": fields}, rows)
    with (folder / "a.avro").open("rb") as source:
        return list(fastavro.reader(source))


def example(**values):
    import tensorflow as tf

    lists = {n: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for n, v in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def elwc(folder):
    import tensorflow as tf

    records = []
    for number in range(20):
        inner = example(a=[number])
        records.append(b"\n" + bytes([len(inner)]) + inner)
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for record in records:
            writer.write(record)
    return [{"record": record} for record in records]


def late_feature(folder):
    import tensorflow as tf

    rows = [{"a": n, **({"late": 7} if n == 60_000 else {})} for n in range(60_100)]
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for row in rows:
            writer.write(example(**{name: [value] for name, value in row.items()}))
    return rows


def late_member(folder):
    rows = []
    with tarfile.open(folder / "a.tar", "w") as tar:
        for n in range(6_000):
            members = {"txt": b"word", "cls": str(n % 3).encode()} | ({"json": b'{"k": 5}'} if n == 5_500 else {})
            rows.append({"__key__": f"{n:05d}", "txt": "word", "cls": n % 3, **({"json/k": 5} if n == 5_500 else {})})
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{n:05d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return rows


def table(keep=lambda row: True, files=1):
    """Returns a maker of CSV files for datasets, and of the rows that a conversion keeps of them."""

    def make(folder):
        rows = []
        for number in range(files):
            own = [{"id": n + 1_000 * number, "x": n / 8, "word": f"w{n % 7}"} for n in range(1_000)]
            (folder / f"{number}.csv").write_text(
                "id,x,word\n" + "".join(f"{r['id']},{r['x']},{r['word']}\n" for r in own)
            )
            rows += own
        return [row for row in rows if keep(row)]

    return make


def flattened(row):
    """Returns objects as columns a/b."""
    found = {}
    for key, value in row.items():
        found |= {f"{key}/{k}": v for k, v in flattened(value).items()} if isinstance(value, dict) else {key: value}
    return found


CHAT = [{"id": n, "messages": [{"role": r, "content": f"é {n}"} for r in ("user", "bot")[: n % 3]]} for n in range(300)]
TWEETS = [
    {
        "id": n,
        "user": {"name": f"u{n}", "geo": None if n % 4 else {"lat": n / 8}},
        "entities": {"urls": [{"url": f"http://x/{n}", "at": [n, n + 5]}] * (n % 2), "tags": [f"t{n}"] * (n % 3)},
    }
    for n in range(300)
]


def late_rows(value, usual):
    """Returns rows of which one holds another value than the others."""
    return [{"id": n, "x": value if n == LATE else usual} for n in range(NUM_ROWS)]


LATE_KEY = [{"id": n, **({"new": "a"} if n == LATE else {})} for n in range(NUM_ROWS)]
NAN = [{"id": n, "x": [0.5, math.nan, math.inf][n % 3]} for n in range(30)]

CASES = (
    Case("chat messages, JSON Lines", jsonl(CHAT)),
    Case("tweets, JSON Lines", jsonl(TWEETS, flattened)),
    Case("objects with changing keys", jsonl([{"id": n, "m": {f"k{n}": n}} for n in range(200)])),
    Case("objects that are always empty", jsonl([{"id": n, "m": {}} for n in range(20)])),
    Case("a column of mixed types", jsonl([{"x": [n, f"w{n}", [n], {"a": n}][n % 4]} for n in range(40)])),
    Case(
        "lists of lists of one shape",
        jsonl(
            [{"m": [[n, 2], [3, 4.5]]} for n in range(20)], lambda row: {"m": [v for part in row["m"] for v in part]}
        ),
    ),
    Case("lists of lists of many shapes", jsonl([{"m": [[n] * (n % 3), [3]]} for n in range(20)])),
    Case("a list with nulls", jsonl([{"m": [n, None]} for n in range(20)])),
    Case("NaN and Infinity in JSON", jsonl(NAN)),
    Case("a late decimal, JSON Lines", jsonl(late_rows(1700000123.25, 0.5))),
    Case("a late key, JSON Lines", jsonl(LATE_KEY)),
    Case("a late word among integers, JSON Lines", jsonl(late_rows("n/a", 7))),
    Case("a late integer beyond int64, JSON Lines", jsonl(late_rows(2**63, 7), lambda r: r | {"x": str(r["x"])})),
    Case("a late decimal, CSV", csv_of("1700000123.25", "0.5", float)),
    Case("a late decimal among integers, CSV", csv_of("0.5", "7", float)),
    Case("a late word among integers, CSV", csv_of("nil", "7", str)),
    Case("a late integer beyond int64, CSV", csv_of("9223372036854775808", "7", str)),
    Case("a late integer beyond 2**53 among decimals", csv_of("9007199254740993", "0.5", str)),
    Case("a late leading zero, CSV", csv_of("007", "7", str)),
    Case("a late +1, CSV", csv_of("+1", "7", str)),
    Case(
        "a late time among dates, CSV",
        csv_of("2024-05-06 07:08", "2024-05-06", lambda v: 1_714_953_600_000_000 + (25_680_000_000 if ":" in v else 0)),
    ),
    Case("a column that is empty for 1 MiB, CSV", csv_of("7", "", lambda v: int(v) if v else None, 200_000, 200_001)),
    Case("integers in one CSV file, decimals in another", csv_files(["1", "2"], ["0.1234567", "3"])),
    Case("integers here, doubles there, Parquet", parquet_files),
    Case(
        "a list of structs and a map, Parquet",
        parquet(
            {
                "s": [[{"a": 1}], [], [{"a": 2}, {"a": None}]],
                "m": pa.array([[("k", 1)], [], [("l", 2)]], pa.map_(pa.string(), pa.int64())),
            },
            lambda row: {"s": row["s"], "m": dict(row["m"])},
        ),
    ),
    Case("nulls that counts deny, Parquet", parquet({"id": [1, 2, 3], "s": [[{"a": 1}], None, []]})),
    Case("nulls inside lists, Parquet", parquet({"l": [[1, None], [], [2]]})),
    Case("fixed-size lists with nulls, Parquet", fixed_lists),
    Case("tensors of one shape, Parquet", tensors),
    Case("images of Hugging Face, Parquet", hf_images),
    Case("arrays of records and maps, Avro", avro),
    Case("int8 arrays, NumPy", int8_arrays),
    Case("lists of int8, Parquet", int8_lists),
    Case("ELWC records, kept as bytes", elwc, ("--tfrecord-as", "bytes")),
    Case("a feature that comes late, TFRecord", late_feature),
    Case("a member that comes late, WebDataset", late_member),
    Case("items of lists, --explode", items, ("--explode", "t")),
    Case("a dataset, resharded", table(), ("--num-shards", "5"), ("dataset0",), (("0.csv",),)),
    Case("two datasets, merged", table(files=2), (), ("dataset0", "dataset1"), (("0.csv",), ("1.csv",))),
    Case(
        "a dataset, filtered",
        table(lambda row: row["word"] == "w3"),
        ("--select", "SELECT * FROM rows WHERE word = 'w3'"),
        ("dataset0",),
        (("0.csv",),),
    ),
    Case("casts by type", table(), ("--cast", "float32=float64"), ("0.csv",)),
)

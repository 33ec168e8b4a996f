"""Prints the examples of a split, written from shardkit/dataset/FORMAT.md alone: read_shards.py DATASET SPLIT"""

import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pyarrow.parquet as pq


def read_split(folder: Path, name: str) -> Iterator[dict]:
    text = max(p for p in (folder / "manifests").iterdir() if re.fullmatch(r"\d{8}\.json", p.name)).read_bytes()
    manifest, others = json.loads(text), re.sub(rb'(?m)^  "sha256": .*\n', b"", text)
    compact, is_gzip = re.sub(rb'("(?:[^"\\]|\\.)*")|\s+', rb"\1", others), manifest["compression"] == "gzip"
    check(manifest["format_version"] == 1 and hashlib.sha256(compact).hexdigest() == manifest["sha256"], "the manifest")
    check(len(manifest) == 12, "the manifest has other members")
    table = folder / manifest["shard_table"]["path"]
    check(hashlib.sha256(table.read_bytes()).hexdigest() == manifest["shard_table"]["sha256"], "the shard table")
    for shard in (row for row in pq.read_table(table).to_pylist() if row["split"] == name):
        check(not {"", ".", ".."} & set(shard["path"].split("/")), "a path leads out of the dataset")
        data, at = (folder / shard["path"]).read_bytes(), 10 * is_gzip
        check(hashlib.sha256(data).hexdigest() == shard["sha256"], shard["path"])
        for size, num_examples in zip(shard["block_num_bytes"], shard["block_num_examples"], strict=True):
            frames, at = data[at : at + size], at + size
            examples = list(read_frames(zlib.decompressobj(-15).decompress(frames) if is_gzip else frames))
            check(len(examples) == num_examples, f"the number of examples in {shard['path']}")
            for example in examples:
                yield {f["name"]: value_of(example.get(f["name"]), **f) for f in manifest["features"]}


def read_frames(frames: bytes) -> Iterator[dict]:
    while frames:
        end = 12 + int.from_bytes(frames[:8], "little")
        crc, stated = google_crc32c.value(frames[12:end]), int.from_bytes(frames[end : end + 4], "little")
        check(((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 == stated, "a record")
        yield {e[1].decode(): e[2] for _, m in fields(frames[12:end]) for e in (dict(fields(x)) for _, x in fields(m))}
        frames = frames[end + 4 :]


def check(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"damaged: {what}")


def varints(data: bytes) -> list[int]:
    return [sum((b & 127) << 7 * i for i, b in enumerate(v)) for v in re.findall(rb"[\x80-\xff]*[\x00-\x7f]", data)]


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        start = re.compile(rb"[\x80-\xff]*[\x00-\x7f]").match(data, 1).end()
        end = start + varints(data[1:start])[0]
        yield data[0] >> 3, data[start:end]
        data = data[end:]


def value_of(stored: bytes | None, dtype: str, stored_as: str, shape: tuple = (), **_: object) -> object:
    values = [value for _, content in fields(stored or b"") for _, value in fields(content)]
    if stored_as == "int64_list":
        values = [(n ^ 1 << 63) - (1 << 63) for packed in values for n in varints(packed)]
    elif stored_as != "bytes_list":
        code = "<f" if stored_as == "float_list" else {"int8": "b", "uint8": "B", "float64": "<d"}[dtype]
        values = [n for v in values for (n,) in struct.iter_unpack(code, v)]
    values = [v.decode() if dtype == "string" else bool(v) if dtype == "bool" else v for v in values]
    return None if stored is None else values if shape else values[0]


if __name__ == "__main__":
    print(*read_split(Path(sys.argv[1]), sys.argv[2]), sep="\n")

"""The manifest and the shard table: byte-stable, strict, and never leading out of the dataset."""

import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit.dataset.documents import Accounting, InputInfo, check_relative_path
from shardkit.dataset.manifest import (
    Created,
    FeatureStatistics,
    Manifest,
    Quantiles,
    ShardInfo,
    SplitInfo,
    TopValue,
    decode_manifest,
    describe_table,
    encode_manifest,
    manifest_path,
    parse_manifest_name,
    shard_table_path,
)
from shardkit.dataset.shard_table import decode_shard_table, encode_shard_table
from shardkit.errors import DamageError, UnsafeError, UsageError
from shardkit.features import make_feature
from tests.support.examples import draws

COUNT = st.integers(0, 2**63 - 1)
NAME = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def make_shard(split="train", index=0, **changes):
    parts = {
        "split": split,
        "shard_index": index,
        "path": f"data/abc/{split}-{index:05d}.tfrecord.gz",
        "num_examples": 30,
        "num_bytes": 118,
        "num_uncompressed_bytes": 300,
        "crc32c": 2**32 - 1,
        "sha256": "0" * 64,
        "block_num_bytes": (60, 40),
        "block_num_uncompressed_bytes": (200, 100),
        "block_num_examples": (20, 10),
        "block_crc32c": (0, 2**32 - 1),
    }
    return ShardInfo(**{**parts, **changes})


def make_manifest(shards, table=None, **changes):
    """Returns the manifest that counts these shards."""
    table = encode_shard_table(shards) if table is None else table
    names = list(dict.fromkeys(s.split for s in shards))
    splits = [
        SplitInfo(
            name=name,
            num_shards=len(own),
            num_examples=sum(s.num_examples for s in own),
            num_bytes=sum(s.num_bytes for s in own),
            num_uncompressed_bytes=sum(s.num_uncompressed_bytes for s in own),
        )
        for name in names
        for own in [[s for s in shards if s.split == name]]
    ]
    num_examples = sum(s.num_examples for s in splits)
    parts = {
        "format_version": 1,
        "name": "flights",
        "fingerprint": "abc",
        "created": Created(at="2026-01-01T00:00:00Z", commit_id="c", inputs=("a.csv",), tool_versions={"numpy": "2"}),
        "recipe": {"seed": 7},
        "compression": "gzip",
        "features": (make_feature("age", "int64"), make_feature("name", "string", nullable=True)),
        "splits": tuple(splits),
        "accounting": Accounting(num_rows=num_examples, num_examples=num_examples),
        "shard_table": describe_table(1, "0" * 32, table, len(shards)),
    }
    return Manifest(**{**parts, **changes})


def change(manifest, **fields):
    """Returns the JSON of a manifest with some fields replaced; None removes one."""
    tree = {**msgspec.json.decode(encode_manifest(manifest)), **fields}
    return msgspec.json.encode({k: v for k, v in tree.items() if v is not None})


SHARDS = [make_shard("train", 0), make_shard("train", 1), make_shard("test", 0)]
MANIFEST = make_manifest(SHARDS)
TABLE = encode_shard_table(SHARDS)


def quantiles_of(value, relative_error):
    percents = ("p01", "p05", "p25", "p50", "p75", "p95", "p99")
    return Quantiles(**dict.fromkeys(percents, value), relative_error=relative_error)


statistics = st.builds(
    FeatureStatistics,
    count=COUNT,
    num_nulls=COUNT,
    num_values=COUNT,
    min=st.none() | NUMBER,
    max=st.none() | NUMBER,
    mean=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    std=st.none() | st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    num_distinct=st.none() | COUNT,
    num_distinct_is_exact=st.booleans(),
    top_values=st.lists(
        st.builds(
            TopValue, value=st.none() | st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1), count=COUNT
        ),
        max_size=3,
    ).map(tuple),
    vocabulary=st.sampled_from([(), ("b", "a"), (2**64 - 1, -(2**63)), (True, False)]),
    quantiles=st.none() | st.sampled_from([quantiles_of(0, 0.0), quantiles_of(-1.5, 2.0**-8)]),
    max_length=st.none() | COUNT,
)
splits = st.builds(
    SplitInfo,
    name=NAME,
    num_shards=COUNT,
    num_examples=COUNT,
    num_bytes=COUNT,
    num_uncompressed_bytes=COUNT,
    statistics=st.dictionaries(st.text(), statistics, max_size=2),
)
manifests = st.builds(
    make_manifest,
    st.just([]),
    name=st.text(),
    fingerprint=NAME,
    created=st.builds(
        Created,
        at=st.text(),
        commit_id=st.text(),
        inputs=st.lists(st.text(), max_size=3).map(tuple),
        tool_versions=st.dictionaries(st.text(), st.text(), max_size=3),
    ),
    recipe=st.dictionaries(st.text(), JSON, max_size=3),
    compression=st.sampled_from(["gzip", "none"]),
    splits=st.lists(splits, max_size=3, unique_by=lambda s: s.name).map(tuple),
    accounting=st.lists(COUNT, min_size=4, max_size=4).map(
        lambda n: Accounting(
            num_rows=sum(n),
            num_examples=n[0],
            num_filtered=n[1],
            num_duplicates=n[2],
            num_rejected=n[3],
            inputs=(InputInfo(name="a.csv", num_bytes=1, num_rows=3, num_examples=2, num_rejected=1),),
        )
    )
    .filter(lambda a: a.num_rows < 2**63),
    extensions=st.dictionaries(st.text(), JSON, max_size=2),
)  # fmt: skip


@pytest.mark.full
@settings(max_examples=draws(60), suppress_health_check=[HealthCheck.too_slow])
@given(manifests)
def test_a_manifest_is_the_same_bytes_after_a_round_trip(manifest):
    raw = encode_manifest(manifest)
    again = decode_manifest(raw, "here")
    assert again == manifest
    assert encode_manifest(again) == raw


def test_a_manifest_is_json_that_a_person_can_read():
    lines = encode_manifest(MANIFEST).decode().split("\n")
    assert lines[0] == "{"
    assert lines[-2:] == ["}", ""]
    keys = [line.split('"')[1] for line in lines if line.startswith('  "')]
    assert keys == sorted(keys)


def test_the_order_in_which_a_recipe_was_given_does_not_show():
    one = make_manifest(SHARDS, recipe={"a": 1, "b": {"c": 1, "d": 2}})
    two = make_manifest(SHARDS, recipe={"b": {"d": 2, "c": 1}, "a": 1})
    assert encode_manifest(one) == encode_manifest(two)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "truncated"),
        (b"not json", "malformed"),
        (b"[]", "object"),
        (b"{}", "format_version"),
        (b"\xff\xfe", "malformed"),
        (encode_manifest(MANIFEST)[:-20], "truncated"),
        (change(MANIFEST, format_version=0), "format_version"),
        (change(MANIFEST, format_version="1"), "format_version"),
        (change(MANIFEST, surprise=1), "unknown field `surprise`"),
        (change(MANIFEST, features=None), "required field `features`"),
        (change(MANIFEST, compression="zip"), "compression"),
        (change(MANIFEST, splits=[{"name": "train"}]), "splits"),
        (change(MANIFEST, features=[{"name": "a", "dtype": "int8", "stored_as": "float_list"}]), "cannot be stored"),
        (
            change(MANIFEST, features=[{"name": "a", "dtype": "int8", "stored_as": "int64_list"}] * 2),
            "'a' is there twice",
        ),
        (change(MANIFEST, accounting={"num_rows": 3, "num_examples": 2}), "3 rows in, 2 accounted for"),
        (change(MANIFEST, extensions={"x": 1}).replace(b'"x":1', b'"x":' + b"[" * 100_000), "recursion"),
    ],
    ids=lambda value: value[:30].decode(errors="replace") if isinstance(value, bytes) else value,
)
def test_a_damaged_manifest_is_named(raw, why):
    with pytest.raises(DamageError, match="the manifest cannot be read in /data/set") as caught:
        decode_manifest(raw, "/data/set")
    assert why in str(caught.value)


def test_split_names_are_unique():
    split = msgspec.to_builtins(MANIFEST.splits[0])
    with pytest.raises(DamageError, match="the split 'train' is there twice"):
        decode_manifest(change(MANIFEST, splits=[split, split]), "here")


def test_what_is_under_extensions_may_be_unknown():
    extended = msgspec.structs.replace(MANIFEST, extensions={"later": {"deep": [1]}})
    assert decode_manifest(encode_manifest(extended), "here").extensions == {"later": {"deep": [1]}}


@pytest.mark.parametrize(
    "edit", [{"name": "other"}, {"fingerprint": "0" * 32}, {"recipe": {"seed": 1}}, {"extensions": {"x": 1}}]
)
def test_a_manifest_that_was_edited_by_hand_is_refused(edit):
    with pytest.raises(DamageError, match="does not match its own SHA-256"):
        decode_manifest(change(MANIFEST, **edit), "here")


def test_a_newer_format_asks_for_a_newer_shardkit_even_if_all_else_is_unknown():
    with pytest.raises(UsageError, match=r"reads up to 1\. Install a newer shardkit") as caught:
        decode_manifest(b'{"format_version": 2, "whatever": {}}', "here")
    assert caught.value.exit_code == 2


HOSTILE_PATHS = [
    "", "/", ".", "..", "/etc/passwd", "//etc/passwd", "../x", "data/../x", "data/..", "data/./x", "./x", "data//x",
    "data/", "data/x/", "~/x", "~root/x", "data/~", "C:/x", "C:\\x", "..\\x", "data\\..\\x", "file:///etc/passwd",
    "s3://bucket/x", "http://x/y", "memory://x", "a::b", "data/x\n", "data/\x00", "data/x\x1b[31m", "data/%2e%2e/x",
    "data/ x", "data/x ", "data/ /x", " ", "data/x\ty",
    "data/x*", "data/?", "data/[a]", "data/$HOME", "data/`x`", "data/x;y", "data/x|y", "data/x&y",
    "data/\u2025/x", "data/\uff0e\uff0e/x", "data/caf\u00e9", "data/\u202ex", "data/\ud800", "...://x", "a" * 256,
    "/".join(["aa"] * 400),
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=lambda path: ascii(path)[:40])
def test_paths_that_may_lead_out_are_refused(path):
    with pytest.raises(UnsafeError) as caught:
        check_relative_path(path, "here")
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    "path",
    ["x", "data/abc/train-00000-of-00016.tfrecord.gz", "a=1/b_2/.c", "...", "a" * 255, "my files/x (1).tfrecord"],
)
def test_paths_that_stay_inside_are_fine(path):
    check_relative_path(path, "here")


@given(st.text(max_size=40))
def test_an_accepted_path_stays_inside(path):
    try:
        check_relative_path(path, "here")
    except UnsafeError:
        return
    assert not path.startswith("/")
    assert ".." not in path.split("/")
    assert path.isascii()
    assert path.isprintable()


def test_a_manifest_and_a_table_with_a_hostile_path_are_refused():
    table = msgspec.to_builtins(MANIFEST.shard_table)
    with pytest.raises(UnsafeError):
        decode_manifest(change(MANIFEST, shard_table={**table, "path": "../../x.parquet"}), "here")
    rejected = {"path": "../../secrets.jsonl.gz", "num_rows": 1, "num_bytes": 1, "sha256": "0" * 64}
    accounting = {**msgspec.to_builtins(MANIFEST.accounting), "rejected_files": [rejected]}
    with pytest.raises(UnsafeError, match="secrets"):
        decode_manifest(change(MANIFEST, accounting=accounting), "here")
    shards = [make_shard(path="../x")]
    with pytest.raises(UnsafeError):
        decode_shard_table(encode_shard_table(shards), make_manifest(shards), "here")


def test_the_table_round_trips_and_is_the_same_bytes_for_the_same_rows():
    assert list(decode_shard_table(TABLE, MANIFEST, "here")) == SHARDS
    assert encode_shard_table(list(SHARDS)) == TABLE


def test_the_table_is_parquet_that_others_read():
    frame = pq.read_table(io.BytesIO(TABLE)).to_pandas()
    assert frame["num_examples"].sum() == 90
    assert list(frame["block_num_examples"][0]) == [20, 10]


def test_an_empty_dataset_has_an_empty_table():
    manifest = make_manifest([])
    assert list(decode_shard_table(encode_shard_table([]), manifest, "here")) == []


def test_another_table_than_the_named_one_is_refused():
    with pytest.raises(DamageError, match="not the one that the manifest names in here"):
        decode_shard_table(TABLE + b" ", MANIFEST, "here")


@pytest.mark.parametrize(
    "shards",
    [
        SHARDS[:2],
        SHARDS[::-1],
        [SHARDS[0], SHARDS[0], SHARDS[2]],
        [SHARDS[0], make_shard("train", 2), SHARDS[2]],
        [SHARDS[0], SHARDS[1], make_shard("secret", 0)],
        [SHARDS[0], make_shard("train", 1, path=SHARDS[0].path), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, num_bytes=119), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, block_num_examples=(20, 11)), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, block_num_examples=(30,)), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, block_num_uncompressed_bytes=(200, 101)), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, block_num_bytes=(60, 59)), SHARDS[2]],
        [SHARDS[0], make_shard("train", 1, num_examples=31, block_num_examples=(20, 11)), SHARDS[2]],
    ],
    ids=[
        "a shard is missing", "order", "a shard twice", "a gap", "an unknown split", "a file twice", "total bytes",
        "block examples", "fewer entries", "block sizes", "blocks larger than the file", "total examples",
    ],
)  # fmt: skip
def test_a_table_that_disagrees_with_its_manifest_is_refused(shards):
    table = encode_shard_table(shards)
    info = describe_table(1, "0" * 32, table, 3)
    manifest = make_manifest(SHARDS, shard_table=info)
    with pytest.raises(DamageError):
        list(decode_shard_table(table, manifest, "here"))


def in_parquet(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "table",
    [b"PAR1 but not really PAR1", in_parquet(pa.table({"split": ["train"]})), TABLE[: len(TABLE) // 2]],
    ids=["no parquet", "columns are missing", "cut in half"],
)
def test_a_table_that_is_none_is_refused(table):
    with pytest.raises(DamageError, match="cannot be read"):
        decode_shard_table(table, make_manifest(SHARDS, table), "here")


def test_a_count_that_no_memory_holds_is_only_wrong():
    huge = SplitInfo(name="x", num_shards=2**62, num_examples=0, num_bytes=0, num_uncompressed_bytes=0)
    with pytest.raises(DamageError, match="does not list the shards"):
        decode_shard_table(TABLE, make_manifest(SHARDS, splits=(huge,)), "here")


def test_names_of_versions():
    assert manifest_path(1) == "manifests/00000001.json"
    assert shard_table_path(12, "0123456789abcdef" * 2) == "manifests/00000012-0123456789abcdef.shards.parquet"
    assert parse_manifest_name("00000012.json") == 12
    for name in ("12.json", "00000012.shards.parquet", ".00000012.json.ab", "00000012.json\n", "0000001a.json"):
        assert parse_manifest_name(name) is None


def test_asking_for_what_is_not_there_names_what_is():
    assert MANIFEST.split("test").num_examples == 30
    assert MANIFEST.feature("name").dtype == "string"
    with pytest.raises(UsageError, match=r"no split 'val'\. It has: train, test"):
        MANIFEST.split("val")
    with pytest.raises(UsageError, match=r"no feature 'agee'\. It has: age, name\. Did you mean 'age'\?$"):
        MANIFEST.feature("agee")


_DEEP = b"[" * 5000 + b"7" + b"]" * 5000


@pytest.mark.parametrize(("old", "new"), [(b"abc", b"a\xffc"), (b'"seed"', b'"s\xe3ed"'), (b"7", _DEEP)])
def test_bytes_that_are_no_json_are_damage(old, new):
    raw = encode_manifest(MANIFEST).replace(old, new)
    with pytest.raises(DamageError, match="the manifest cannot be read"):
        decode_manifest(raw, "here")

"""Manifests, features and statistics made by hand."""

from __future__ import annotations

import hashlib

from shardkit.dataset.documents import Accounting
from shardkit.dataset.manifest import Created, FeatureStatistics, Manifest, ShardTableInfo, SplitInfo, TopValue
from shardkit.features import Feature, make_feature

AGE = make_feature("age", "int64")
CITY = make_feature("city", "string", nullable=True)
PRICE = make_feature("price", "float64")
PHOTO = make_feature("photo", "bytes", media_type="image/jpeg")


def statistics(
    num_distinct: int | None = None, *, exact: bool = True, listed: int = 0, **settings: object
) -> FeatureStatistics:
    top = tuple(TopValue(value=f"v{i}", count=10 - i) for i in range(listed))
    known = {"count": 100, "num_nulls": 0, "num_values": 100, **settings}
    return FeatureStatistics(num_distinct=num_distinct, num_distinct_is_exact=exact, top_values=top, **known)  # type: ignore[arg-type]


def manifest(splits: dict[str, int], features: tuple[Feature, ...] = (AGE, CITY, PRICE)) -> Manifest:
    infos = tuple(
        SplitInfo(name=n, num_shards=1, num_examples=size, num_bytes=1, num_uncompressed_bytes=1)
        for n, size in splits.items()
    )
    return Manifest(
        format_version=1, name="d", fingerprint="f", compression="gzip", features=features, splits=infos, recipe={},
        created=Created(at="", commit_id="", inputs=(), tool_versions={}),
        accounting=Accounting(num_rows=0, num_examples=0),
        shard_table=ShardTableInfo(path="t", num_rows=0, sha256=hashlib.sha256().hexdigest()),
    )  # fmt: skip

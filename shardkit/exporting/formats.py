"""The formats by name."""

from __future__ import annotations

from shardkit.exporting.array_record import ArrayRecord
from shardkit.exporting.base import ExportFormat
from shardkit.exporting.mds import Mds
from shardkit.exporting.tables import Arrow, Csv, JsonLines, Parquet
from shardkit.exporting.webdataset import WebDataset

FORMATS: dict[str, ExportFormat] = {
    "parquet": Parquet(),
    "arrow": Arrow(),
    "csv": Csv(),
    "jsonl": JsonLines(),
    "webdataset": WebDataset(),
    "mds": Mds(),
    "array-record": ArrayRecord(),
}

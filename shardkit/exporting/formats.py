"""The formats by name."""

from __future__ import annotations

from shardkit.exporting.base import ExportFormat
from shardkit.exporting.tables import Arrow, Csv, JsonLines, Parquet

FORMATS: dict[str, ExportFormat] = {
    "parquet": Parquet(),
    "arrow": Arrow(),
    "csv": Csv(),
    "jsonl": JsonLines(),
}

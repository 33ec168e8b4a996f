"""The contract of sources, for the formats of `FORMATS`."""

from __future__ import annotations

import dataclasses

from shardkit.sources import source_for
from shardkit.sources.formats import FORMATS
from shardkit.testing import SourceContract


class FormatContract(SourceContract):
    """The contract of one format; a test class of it names the format and writes its files."""

    format: str
    is_cut = True

    def __init_subclass__(cls, **settings):
        cls.drops_columns = "drop_columns" in FORMATS[cls.format].options
        super().__init_subclass__(**settings)

    def source(self):
        return source_for(self.format)

    def cut_source(self, split_bytes, batch_bytes):
        source = self.source()
        sizes = {"split_bytes": split_bytes, "batch_bytes": batch_bytes, "block_bytes": batch_bytes}
        known = {field.name for field in dataclasses.fields(source)}
        return dataclasses.replace(source, **{name: size for name, size in sizes.items() if name in known})

"""What verification reports."""

from __future__ import annotations

import msgspec


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as the manifest says.

    Attributes:
        path: File, relative to the dataset.
        block: 0-based block of the shard.
        byte: Where in the file: of the block; of the record in shards without compression.
        record: 0-based record of the shard, as counted by the manifest.
    """

    path: str
    problem: str
    block: int | None = None
    byte: int | None = None
    record: int | None = None

    def __str__(self) -> str:
        places = []
        if self.block is not None:
            places.append(f"block {self.block}" + (f" (byte {self.byte})" if self.byte is not None else ""))
        elif self.byte is not None:
            places.append(f"byte {self.byte}")
        if self.record is not None:
            places.append(f"record {self.record}")
        return ": ".join([self.path, *([", ".join(places)] if places else []), self.problem])


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What verification found.

    Attributes:
        num_shards, num_examples, num_bytes, num_uncompressed_bytes: What the manifest says of those splits.
        num_read_shards, num_read_bytes: What was read of them; nothing where the shard table cannot be trusted.
        damages: In the order of the shards; at most MAX_LISTED per file.
        num_undecodable: Records among them whose image or sound does not decode, though their bytes are as written.
        num_damaged_shards: Shards with at least one.
        num_other_files: Files beside the shards that this version does not name; no damage.
    """

    version: int
    splits: tuple[str, ...]
    num_shards: int
    num_examples: int
    num_bytes: int
    num_uncompressed_bytes: int
    num_read_shards: int
    num_read_bytes: int
    damages: tuple[Damage, ...]
    num_damages: int
    num_undecodable: int
    num_damaged_shards: int
    num_other_files: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged."""
        return self.num_damages == 0

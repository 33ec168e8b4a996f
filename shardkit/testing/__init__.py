"""Help for tests: small datasets, and the contract that every source of raw files keeps."""

from shardkit.testing.datasets import write_dataset
from shardkit.testing.source_contract import SourceContract

__all__ = ["SourceContract", "write_dataset"]

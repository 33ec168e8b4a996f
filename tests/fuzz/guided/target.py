"""What a target of the fuzzer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Target(NamedTuple):
    """One parser of the product.

    Attributes:
        name: On the command line.
        seeds: Makes small valid inputs.
        run: Parses some bytes.
        refusals: Exceptions that the parser documents, besides `ShardkitError`.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()


class Limits(NamedTuple):
    """What one input may take.

    Attributes:
        max_s: Seconds.
        max_bytes: Growth of the process's memory.
    """

    max_s: float = 10.0
    max_bytes: int = 256 * 2**20


class Job(NamedTuple):
    """How a target is run.

    Attributes:
        seed: Of the mutations.
        num_runs: Inputs.
        is_guided: Whether Atheris chooses the mutations.
        limits: What one input may take.
    """

    seed: int
    num_runs: int
    is_guided: bool
    limits: Limits = Limits()

"""Option types that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import click

from shardkit.errors import UsageError
from shardkit.units import parse_duration, parse_size

T = TypeVar("T", int, float)

# The reader has room for 64, of which the longest examples may need one more.
MAX_BOUNDARIES = 64


class _ParsedType(click.ParamType[T]):
    """A number that is written with a unit."""

    kind: type[T]
    parse: Callable[[str], T]

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Returns the number."""
        if isinstance(value, self.kind):
            return value
        try:
            return self.parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class SizeType(_ParsedType[int]):
    """A size such as `128MiB`, as a number of bytes."""

    name, kind, parse = "size", int, staticmethod(parse_size)


class DurationType(_ParsedType[float]):
    """A duration such as `7d`, as a number of seconds."""

    name, kind, parse = "duration", float, staticmethod(parse_duration)


class FiniteRange(click.FloatRange):
    """Numbers of a range; neither infinity nor NaN, which are in every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number to compute with", param, ctx)
        return number


class StepsType(click.ParamType[tuple[int, int]]):
    """Steps such as `10:20`: from the first to before the second, counted from 0."""

    name = "steps"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Returns both."""
        if isinstance(value, tuple):
            return value
        first, _, stop = str(value).partition(":")
        if not (first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
            self.fail(f"{value!r} are no steps; write them like 10:20", param, ctx)
        return int(first), int(stop)


class LengthBucketsType(click.ParamType["str | tuple[int, ...]"]):
    """Longest lengths of buckets such as `16,32,64`, or `auto`."""

    name = "lengths"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[int, ...]:
        """Returns the lengths, or `auto`."""
        if value == "auto" or isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        ends = [int(part) if part.isdecimal() else 0 for part in parts]
        if len(ends) >= MAX_BOUNDARIES or any(a >= b for a, b in pairwise((0, *ends))):
            self.fail(
                f"{value!r} are no lengths of buckets; write auto, or up to {MAX_BOUNDARIES - 1} ascending numbers "
                "from 1 like 16,32,64",
                param,
                ctx,
            )
        return tuple(ends)


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Returns the names in a comma-separated list, None if it was not given."""
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())

"""Which engines can run here, judged by what is installed: nothing is started, and nothing of Beam is imported."""

from __future__ import annotations

import msgspec

from beam_pipelines.engines.engine import engine_for
from beam_pipelines.engines.settings import EngineOptions
from shardkit.conversion.engines import ENGINES
from shardkit.errors import UsageError


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """What of an engine is here.

    Attributes:
        name: Of `--runner`.
        versions: Of its packages and program.
        lacks: The first thing that it lacks, and the next step; None where it is ready.
    """

    name: str
    versions: tuple[str, ...]
    lacks: str | None


def readiness() -> tuple[Readiness, ...]:
    """Returns every engine."""
    return tuple(map(_readiness_of, ENGINES))


def _readiness_of(name: str) -> Readiness:
    engine, lacks = engine_for(EngineOptions(runner=name)), None
    try:
        engine.require()
    except UsageError as error:
        lacks = f"{error.what}. {error.next_step}"
    return Readiness(name=name, versions=engine.versions(), lacks=lacks)

"""What the command asks of an engine. Nothing of Beam is imported."""

from __future__ import annotations

import abc
import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, cast

import msgspec

from beam_pipelines.engines.settings import Chosen, EngineOptions, EngineSpec, Facts, choose_settings, number_of
from shardkit.conversion.engines import ENGINES
from shardkit.conversion.plan import Plan
from shardkit.conversion.progress import Totals
from shardkit.conversion.request import ConvertRequest
from shardkit.errors import StorageError, UsageError, missing_extra


class Engine(abc.ABC):
    """What runs a conversion: one with a spec takes options."""

    spec: ClassVar[EngineSpec | None] = None
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    def prepare(self, request: ConvertRequest, num_workers: int | None) -> ConvertRequest:
        """Checks that the engine can do what is asked for, and returns the request with what the engine adds.

        Raises:
            UsageError: If the engine cannot.
        """
        if num_workers is not None and (why := self.why_no_workers()) is not None:
            raise UsageError(
                f"--workers means nothing here to --runner {self.options.runner}",
                why=why,
                state="Nothing was read or written",
                next_step="Leave it out; --runner local heeds it",
            )
        return request

    def why_no_workers(self) -> str | None:
        """Returns why --workers cannot say how many pieces of work are done at the same time, None if it can."""
        return None

    def require(self) -> None:
        """Checks that the packages and programs are installed here that the engine needs.

        Raises:
            UsageError: If one is not.
        """
        if self.spec is None:
            return
        missing = next((package for package in self.packages if find_spec(package) is None), None)
        if missing is not None:
            raise missing_extra(self.spec.extra, missing.replace("_", "-"))
        if (lacking := self.find_obstacle()) is not None:
            raise lacking

    def find_obstacle(self) -> UsageError | None:
        """Returns what else has to be installed, None if nothing."""
        return None if self.spec is None else self.spec.needs(self.options, Facts(1, 1, os.environ))

    def versions(self) -> tuple[str, ...]:
        """Returns what of the engine is installed here, each with its version."""
        found = []
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                found.append(f"{package.replace('_', '-')} {metadata.version(package)}")
        return tuple(found)

    def install(self, program: Path | None) -> Path:
        """Installs the program of the engine, and returns its place.

        Args:
            program: A file of it; None lets the tools of its language get it.

        Raises:
            UsageError: If the engine is no program, or the file is none of it.
            StorageError: If it cannot be had.
        """
        spec = self.spec
        raise UsageError(
            f"--runner {self.options.runner} is no program that can be installed by itself",
            next_step=f"Run: pip install 'shardkit[{spec.extra}]'" if spec is not None and self.packages else None,
        )

    def check(self) -> tuple[str, ...]:
        """Checks the options before anything is read, and returns notes about them.

        Raises:
            UsageError: If an option is wrong, or something that the engine needs is not there.
            StorageError: If an address that an option names does not answer.
        """
        return ()

    def default_workers(self, plan: Plan) -> int:
        """Returns the pieces of work at the same time where the user does not say."""
        return len(os.sched_getaffinity(0))

    def settings_and_flags(self, plan: Plan, num_workers: int) -> tuple[tuple[Chosen, ...], list[str]]:
        """Returns every setting with its value, and the flags of Beam that the job is made with.

        Raises:
            UsageError: If an option is none of the engine, or something that it needs is not there.
        """
        return (), []

    def chosen(self, facts: Facts) -> tuple[Chosen, ...]:
        """Returns every setting of an engine that has some.

        Raises:
            UsageError: If an option is none of the engine, or something that it needs is not there.
        """
        assert self.spec is not None
        chosen = choose_settings(self.spec, self.options.runner, self.options, facts)
        if (missing := self.spec.needs(self.options, facts)) is not None:
            raise missing
        number_of(chosen, "stall-minutes")
        return chosen

    @abc.abstractmethod
    def start(self, plan: Plan, num_workers: int, say: Callable[[str], None]) -> Start:
        """Returns how a plan is run.

        Args:
            plan: What is to be done; it is stored before it is run.
            num_workers: Pieces of work at the same time, where the engine leaves that to its caller.

        Raises:
            UsageError: If the engine lacks something, before anything is read.
            ConflictError: If a job of the engine does the same already.
        """


class Start(NamedTuple):
    """How a stored plan is run.

    Attributes:
        run: Runs the plan at a path, given what to do when a worker is lost; that must end the process.
        read_progress: Returns how far it is, where no folder holds that.
        remote: The run, where it goes on when the command ends.
        is_this_process: Whether all of the work is done in this process.
    """

    run: Callable[[str, Callable[[StorageError], None]], None]
    stop: Callable[[], None]
    read_progress: Callable[[], tuple[Totals, int | None]] | None = None
    remote: RemoteRun | None = None
    is_this_process: bool = False


class RemoteJob(Protocol):
    """A job that a service runs."""

    @property
    def id(self) -> str:
        """As the service calls it."""

    @property
    def url(self) -> str:
        """Where a browser shows it."""


class RemoteRun(Protocol):
    """A run that goes on when the command ends.

    Attributes:
        cancel_s: The longest that `cancel` takes.
        is_cancel_taken: Whether the service took the order to end it.
    """

    service: str
    jobs_url: str
    cancel_s: float
    is_submitting: bool
    is_cancel_taken: bool

    @property
    def job(self) -> RemoteJob | None:
        """The job, as soon as it was handed over."""

    def cancel(self) -> str:
        """Cancels the job, and returns its state. Raises Exception if the service does not answer."""

    def after_cancel(self, plan: Plan, state: str | None) -> str:
        """Returns a sentence on the job and what it committed, given the state that `cancel` returned, if it did."""

    def clean_up(self) -> None:
        """Removes the files that were made to be handed over."""


def engine_for(options: EngineOptions) -> Engine:
    """Returns the engine that was asked for."""
    return class_of(options.runner)(options)


def class_of(name: str) -> type[Engine]:
    """Returns the class of an engine, which is imported when it is asked for."""
    module, _, name_in_it = ENGINES[name].runs.partition(":")
    return cast(type[Engine], getattr(importlib.import_module(module), name_in_it))


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

"""An engine that calls the steps of a conversion itself, without Beam: it gives the two verbs of `convert_by`.

What runs where the command runs, such as the layout and the commit, is a thread of the command: when that ends,
nothing is committed any more.
"""

from __future__ import annotations

import abc
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from beam_pipelines.engines.engine import Engine, Start
from beam_pipelines.engines.settings import Chosen, EngineSpec, Facts, number_of
from beam_pipelines.engines.watch import KEPT, cancel_soon, explained_end, follow
from shardkit.conversion.exchange import remove_worker_folders
from shardkit.conversion.plan import Plan, load_plan
from shardkit.conversion.run.local import stop_workers
from shardkit.conversion.steps import Each, Shuffled, convert_by, open_plan
from shardkit.errors import StorageError, UsageError


class Work(NamedTuple):
    """What an engine is to run.

    Attributes:
        plan: As the command has it.
    """

    plan_path: str
    plan: Plan
    num_workers: int
    chosen: Sequence[Chosen]


class Session(NamedTuple):
    """A cluster that works for this process.

    Attributes:
        each, shuffled: See `convert_by`.
        cancel: Ends what it does for this process, from any thread.
        folder: To be removed when all of it has ended.
    """

    each: Each
    shuffled: Shuffled
    cancel: Callable[[], None]
    folder: Path | None = None


# Of this process; there is one at most.
_running: list[Session] = []


class NativeEngine(Engine):
    """An engine with verbs of its own: it states its spec, and how a session begins and ends.

    Attributes:
        cluster: The option that names a running cluster.
        lost: A pattern of its errors when workers died over the same part again and again.
    """

    spec: ClassVar[EngineSpec]
    lost: ClassVar[str]
    cluster: ClassVar[str] = "address"

    def why_no_workers(self) -> str | None:
        """Returns that a cluster which the user named says it."""
        named = dict(self.options.values).get(self.cluster)
        return None if named is None else f"--engine-option {self.cluster}={named} says what does the work"

    @abc.abstractmethod
    def session(self, work: Work) -> AbstractContextManager[Session]:
        """Begins a session with the engine, which ends with the block."""

    def check_address(self, chosen: Sequence[Chosen]) -> None:
        """Checks that a cluster answers that the settings name.

        Raises:
            UsageError: If the address is none.
            StorageError: If nothing answers.
        """

    def check(self) -> tuple[str, ...]:
        """Checks the options, and that the cluster that they name is there."""
        if self.options.flags:
            raise UsageError(
                f"--runner {self.options.runner} takes no flags of Beam",
                why=f"{self.options.flags[0]} was given, and Beam does not run it",
                next_step=f"Use --engine-option; shardkit convert --engine-help {self.options.runner} lists them",
            )
        self.require()
        self.check_address(self.chosen(Facts(1, 1, os.environ)))
        return ()

    def settings_and_flags(self, plan: Plan, num_workers: int) -> tuple[tuple[Chosen, ...], list[str]]:
        return self.chosen(Facts(num_workers, len(plan.input_splits), os.environ)), []

    def start(self, plan: Plan, num_workers: int, say: Callable[[str], None]) -> Start:
        """Returns how a plan is run."""
        chosen, _ = self.settings_and_flags(plan, num_workers)
        return Start(partial(self._run, num_workers, chosen), _stop)

    def _run(
        self, num_workers: int, chosen: Sequence[Chosen], plan_path: str, on_lost_worker: Callable[[StorageError], None]
    ) -> None:
        # `plan_path` may be a URL; opening it makes a local copy in a new folder.
        opened = open_plan(plan_path)
        plan = load_plan(plan_path)
        work = Work(plan_path, plan, num_workers, chosen)
        end_if_lost = partial(self._end_if_lost, on_lost_worker)
        with explained_end(self.options.runner, self.spec.extra, plan, end_if_lost), ExitStack() as stack:
            stack.callback(remove_worker_folders)
            session = _begin(stack, self.session(work))
            _running[:] = [session]
            convert = partial(convert_by, opened, session.each, session.shuffled)
            follow(convert, session.cancel, plan, 60 * number_of(chosen, "stall-minutes"))

    def _end_if_lost(self, on_lost_worker: Callable[[StorageError], None], error: Exception) -> None:
        if found := re.search(self.lost, f"{type(error).__name__}: {error}"):
            on_lost_worker(
                StorageError(
                    f"workers of {self.options.runner} died over the same part again and again",
                    why=f"{found.group().splitlines()[0]}; most often the system ran out of memory",
                    state=KEPT,
                    next_step="Run the same command again, with fewer --workers if memory is short",
                )
            )


def _stop() -> None:
    for session in _running:
        cancel_soon(session.cancel)
    stop_workers()
    for session in _running:
        if session.folder is not None:
            shutil.rmtree(session.folder, ignore_errors=True)
    remove_worker_folders()


def _begin(stack: ExitStack, context: AbstractContextManager[Session]) -> Session:
    # Clients of engines would answer Ctrl-C and SIGTERM in their own way, which may take as long as it likes.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return stack.enter_context(context)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

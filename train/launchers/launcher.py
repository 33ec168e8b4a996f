"""What a launcher is: how a cluster gives a command as many tasks at the same time as a run has workers."""

from __future__ import annotations

import abc
import contextlib
import importlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from shardkit.clusters.addresses import Client
from shardkit.clusters.ray import short_folder
from shardkit.errors import UsageError, missing_extra, suggest

# Called in a task with the index of the worker, and the host of the task as the other tasks reach it.
Task = Callable[[int, str], None]
_UNTOUCHED = "Nothing was trained"
TRAINING = Client(
    "a training", "--launcher-option", _UNTOUCHED, _UNTOUCHED, "tasks call the command, which must be on a node"
)
_CLASSES = {"spark": "train.launchers.spark:SparkLauncher", "ray": "train.launchers.ray:RayLauncher"}


class Launcher(abc.ABC):
    """Starts tasks on a cluster.

    Args:
        num_workers: At most so many tasks run at the same time.

    Attributes:
        passed_on: Start of the keys of options that the cluster gets as they are; empty where there are none.
    """

    packages: ClassVar[tuple[str, ...]]
    extra: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    passed_on: ClassVar[str] = ""

    def __init__(self, options: Mapping[str, str], num_workers: int) -> None:
        self._options, self._num_workers = options, num_workers
        self._folder: Path | None = None
        self._host = ""

    @abc.abstractmethod
    def check_address(self) -> None:
        """Checks that the cluster that the options name is there, or raises `ShardkitError`."""

    @abc.abstractmethod
    def begin_session(self, folder: Path) -> str:
        """Begins a session of this process with the cluster, which has a folder for files.

        Returns this host, as tasks reach it.
        """

    @abc.abstractmethod
    def run(self, count: int, task: Task) -> None:
        """Runs so many tasks at the same time, to their end; raises what the cluster does."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Ends the tasks, from any thread."""

    @abc.abstractmethod
    def end_session(self) -> None:
        """Ends the session."""

    def check(self) -> None:
        """Checks that the launcher can be used.

        Raises:
            UsageError: If a package is missing, or an option is none.
            StorageError: If nothing answers at the address.
        """
        missing = next((package for package in self.packages if find_spec(package) is None), None)
        if missing is not None:
            raise missing_extra(self.extra, missing)
        for key in self._options:
            if key not in self.keys and not (self.passed_on and key.startswith(self.passed_on)):
                more = f", and {self.passed_on}NAME" if self.passed_on else ""
                raise UsageError(
                    f"--launcher {self.extra} has no option {key!r}.{suggest(key, self.keys)}",
                    next_step=f"It has {', '.join(self.keys)}{more}",
                )
        self.check_address()

    def explain(self, lines: Sequence[str]) -> str:
        """Returns which of the lines of an error of the cluster says why."""
        return lines[-1].strip()

    def begin(self) -> str:
        """Begins the session unless it is there; returns this host, as tasks reach it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"shardkit-{self.extra}-", dir=short_folder()))
            # Clients of clusters would answer signals in their own way.
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                self._host = self.begin_session(self._folder)
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        return self._host

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Ends the session behind the block."""
        try:
            yield
        finally:
            if self._folder is not None:
                with contextlib.suppress(Exception):
                    self.end_session()
                shutil.rmtree(self._folder, ignore_errors=True)


def make_launcher(name: str, options: Mapping[str, str], num_workers: int) -> Launcher:
    """Returns a launcher, checked."""
    module, _, kind = _CLASSES[name].partition(":")
    launcher: Launcher = getattr(importlib.import_module(module), kind)(options, num_workers)
    launcher.check()
    return launcher

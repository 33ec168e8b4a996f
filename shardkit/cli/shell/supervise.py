"""`shardkit convert` in a process below this one, begun again when a bad row brings it down or holds it up.

This process stays small: it knows the work folder, waits, and reads where each part of the inputs is. A process
that died, or hangs at a row, is replaced by one that works at the suspect parts in isolation
(`conversion.rows.isolation`) and goes on with the rest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import click
import msgspec

from shardkit.cli.shell.errors import explain, show
from shardkit.cli.shell.supervised import (
    END_OF_MESSAGE,
    EXIT_LOST_WORKER,
    Message,
    announce_end,
    connect_to_supervisor,
)
from shardkit.conversion.rows.attempts import COMMITTING_FILE, Place, is_suspect, list_attempts, suspect
from shardkit.errors import BadInputError, OutOfSpaceError, ShardkitError, StorageError
from shardkit.runtime.bounded import LATE_SIGNAL, BoundedStep, deadline_error
from shardkit.runtime.early_signals import WORDS, stop_at_once_on_signals
from shardkit.runtime.process_limits import (
    EXIT_NO_MEMORY,
    describe_memory,
    inherit_descendants,
    is_cramped,
    kill_children,
    larger_memory_step,
)
from shardkit.runtime.signals import heeded, signal_name

# Those that compiled code ends with.
_CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
_MAX_STARTS = 50
_STARTS_BEFORE_ALL_ARE_SUSPECT = 3
# A worker may be killed between two parts, or before the first: one death without a trace shows nothing.
_MAX_ENDS_WITHOUT_TRACE = 2
_POLL_SECONDS = 0.5
# A user's function may hold Python's global lock, or swallow what a signal raises: it is ended within a second. Calls
# of libraries take up to 0.5 s to cancel (`interruptible`).
_ANSWER_SECONDS = 0.8
# A process that isolates a part watches it, too, and acts first.
_GRACE_SECONDS = 3.0


class _End(NamedTuple):
    """How the process below ended: its exit code, negative for a signal; where it hung; whether it said so.

    A user's function, or a library that it calls, may end the process as if all were well. `late` is the step of the
    planning that passed its deadline, `open_files` are those that it had open.
    """

    code: int
    hung: Mapping[int, Place] = {}
    was_announced: bool = False
    late: BoundedStep | None = None
    open_files: tuple[str, ...] = ()

    @property
    def is_crash_of_reader(self) -> bool:
        """Whether compiled code broke down while the planning had a file open."""
        return bool(self.open_files) and -self.code in _CRASHES and not self.is_of_memory

    @property
    def is_of_memory(self) -> bool:
        """Whether there was too little memory, as far as can be known: libraries end a process in many ways for it."""
        of_others = (EXIT_LOST_WORKER, -signal.SIGKILL)
        return self.code == EXIT_NO_MEMORY or (is_cramped() and not self.was_announced and self.code not in of_others)


def supervised(run: Callable[[], int]) -> int:
    """Runs a function in a process below this one until it ends by itself, and returns its exit code.

    Args:
        run: Returns an exit code; must be able to go on where another process was cut off.
    """
    folder: Path | None = None
    before: frozenset[str] = frozenset()
    ends_without_trace = 0
    end = _End(0)
    for number in range(1, _MAX_STARTS + 1):
        child = _Child(run, number)
        end = child.wait()
        folder = child.folder or folder
        if child.was_deaf_to is not None:
            return _say_stopped(child.was_deaf_to, folder)
        if child.asked_to_stop or end.was_announced:
            return end.code if end.code >= 0 else 128 - end.code
        if end.late is not None:
            return _show(deadline_error(end.late))
        if end.is_crash_of_reader:
            return _show(_crash_error(end))
        left = _what_is_left(folder)
        is_new = folder is not None and _suspect_attempts(folder, end, number)
        ends_without_trace = 0 if is_new or left != before else ends_without_trace + 1
        if folder is None or ends_without_trace == _MAX_ENDS_WITHOUT_TRACE or number == _MAX_STARTS:
            break
        before = left
        click.echo(f"\nnote: {_sentence(end)}; going on, with each part it was at in a separate process", err=True)
    return _give_up(end, folder)


class _Child:
    """One process below this one."""

    def __init__(self, run: Callable[[], int], number: int) -> None:
        self.folder: Path | None = None
        self.asked_to_stop = False
        self.was_deaf_to: int | None = None
        self._asked: int | None = None
        self._answer_by = 0.0
        self._answers_signals = False
        self._open_files: tuple[str, ...] = ()
        self._steps: dict[int, BoundedStep] = {}
        self._signalled: set[int] = set()
        self._has_announced_end = False
        self._read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # Neither process may meet a signal before its handler is set.
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, WORDS)
        inherit_descendants()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _live_below(write, run, number, self._blocked, parent)
        os.close(write)

    def wait(self) -> _End:
        """Waits for the end, hands signals on, and ends a process that hangs."""
        previous = {number: signal.signal(number, self._hand_on) for number in heeded(WORDS)}
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        hung: Mapping[int, Place] = {}
        late: BoundedStep | None = None
        try:
            text = b""
            while True:
                ready, _, _ = select.select([self._read], [], [], self._seconds_to_wait())
                if ready:
                    found = os.read(self._read, 4096)
                    if not found:
                        break
                    *messages, text = (text + found).split(END_OF_MESSAGE)
                    for message in messages:
                        self._heed(msgspec.json.decode(message, type=Message))
                elif self._seconds_to_wait() == 0.0:
                    self.was_deaf_to, self._answers_signals = self._asked, True
                    self._signal(signal.SIGKILL)
                elif not hung and late is None:
                    self._signal_late_steps()
                    hung, late = self._hung(), self._late(_GRACE_SECONDS)
                    if hung or late is not None:
                        self._signal(signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
        finally:
            os.close(self._read)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self.asked_to_stop or hung or late is not None:
            # A program that user code runs would go on.
            kill_children()
        code = os.waitstatus_to_exitcode(status)
        return _End(code, hung, self._has_announced_end, late, self._open_files)

    def _seconds_to_wait(self) -> float:
        if self._asked is None or self._answers_signals:
            return _POLL_SECONDS
        return min(_POLL_SECONDS, max(0.0, self._answer_by - time.monotonic()))

    def _heed(self, message: Message) -> None:
        self._has_announced_end |= message.is_end
        self._answers_signals |= message.answers_signals or message.is_end
        if message.folder is not None:
            self.folder = Path(os.fsdecode(message.folder))
        if message.open_files is not None:
            self._open_files = message.open_files
        if message.step is not None:
            self._steps[message.step.number] = message.step
            if message.step.deadline is None:
                del self._steps[message.step.number]

    def _signal_late_steps(self) -> None:
        # The process ends the step itself where it can: it cancels queries, and removes what it began to write.
        step = self._late(0.0)
        if step is not None and step.number not in self._signalled:
            self._signalled.add(step.number)
            self._signal(LATE_SIGNAL)

    def _late(self, grace_s: float) -> BoundedStep | None:
        limit = time.monotonic() - grace_s
        return next((s for s in self._steps.values() if s.deadline is not None and s.deadline < limit), None)

    def _hung(self) -> Mapping[int, Place]:
        if self.folder is None:
            return {}
        now = time.monotonic()
        hung = {i: place for i, place in list_attempts(self.folder).items() if place.deadline < now}
        waits = {i: _GRACE_SECONDS if is_suspect(self.folder, i) else 0.0 for i in hung}
        return {i: place for i, place in hung.items() if place.deadline < now - waits[i]}

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        if self._asked is None:
            self._asked = number
            self._answer_by = time.monotonic() + _ANSWER_SECONDS
        if number == signal.SIGINT and _has_terminal():
            return  # The process below got it from the terminal.
        self._signal(number)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def _live_below(channel: int, run: Callable[[], int], number: int, blocked: Set[int], parent: int) -> None:
    connect_to_supervisor(channel, is_restarted=number > 1)
    code = 70
    try:
        stop_at_once_on_signals(announce_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        from shardkit.runtime.process_limits import die_with_parent, let_replace

        die_with_parent(parent)
        let_replace()
        try:
            code = run()
        except KeyboardInterrupt as late:
            # The command did not answer it: the signal came behind its last word, or an import let it through.
            code = getattr(late, "exit_code", 130)
            show(explain(late), late)
        sys.stdout.flush()
        sys.stderr.flush()
        announce_end()
    finally:
        # Threads of the runner outlive it; taken down with the interpreter, they may abort the process.
        os._exit(code)


def _has_terminal() -> bool:
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _suspect_attempts(folder: Path, end: _End, number: int) -> bool:
    places = end.hung or dict.fromkeys(list_attempts(folder))
    is_new = [suspect(folder, index, place) for index, place in places.items()]
    if number >= _STARTS_BEFORE_ALL_ARE_SUSPECT:
        is_new.append(suspect(folder, None))
    return any(is_new)


def _what_is_left(folder: Path | None) -> frozenset[str]:
    if folder is None:
        return frozenset()
    # A process short of memory itself names the parts that it was at.
    patterns = ("extract/*", "survey/*", "shards/*", "isolated/*.suspect")
    return frozenset(str(p) for pattern in patterns for p in folder.glob(pattern))


def _sentence(end: _End) -> str:
    if end.hung:
        return "a row held the conversion up"
    if end.code == EXIT_LOST_WORKER:
        return "a worker process died"
    if end.is_of_memory:
        return "the conversion ran out of memory"
    if end.code >= 0:
        return f"the conversion ended with exit code {end.code} before it was done"
    return f"the conversion ended with {signal_name(-end.code)}"


def _say_stopped(number: int, folder: Path | None) -> int:
    # The work folder goes when the version is there.
    may_be_committed = folder is not None and (not folder.exists() or (folder / COMMITTING_FILE).exists())
    state = "It may be committed already" if may_be_committed else "Nothing was committed"
    click.echo(
        f"\n{WORDS[signal.Signals(number)]}: {state}; run the same command again to go on where it stopped.", err=True
    )
    return 128 + number


def _crash_error(end: _End) -> BadInputError:
    return BadInputError(
        "the file cannot be read",
        where=", ".join(end.open_files),
        why=f"its reader ended with {signal_name(-end.code)}, as it does of damage, or of too little memory",
        state="Nothing was committed",
        next_step="Correct the file, leave it out with --exclude GLOB, or allow more with --max-memory",
    )


def _show(error: ShardkitError) -> int:
    show(explain(error), error)
    return error.exit_code


def _give_up(end: _End, folder: Path | None) -> int:
    why, next_step = None, "Run the same command again, with fewer --workers if memory is short"
    if end.is_of_memory:
        allowed = describe_memory() or "--max-memory says how much a process may ask for"
        why, next_step = (
            f"begun again, it came no further; {allowed}",
            larger_memory_step() + ", or with fewer --workers",
        )
    elif end.code in (-signal.SIGKILL, EXIT_LOST_WORKER):
        why = "most often the system ran out of memory"
    elif folder is None:
        why = "it was planning: it read the heads of the inputs, and asked a --map for its columns"
    error = (OutOfSpaceError if end.is_of_memory else StorageError)(
        _sentence(end),
        why=why,
        state="Nothing was committed" + ("" if folder is None else "; finished parts are kept"),
        next_step=next_step,
    )
    return _show(error)

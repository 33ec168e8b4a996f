"""The one place where an exception becomes a message and an exit code.

Exit codes: those of `shardkit.errors`, 2 for a wrong command line, 70 for a bug of shardkit, 130 after Ctrl-C,
143 after SIGTERM, 141 when the reader of the output left.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import signal
import sys
import textwrap
import traceback
from typing import NamedTuple

import click

from shardkit.errors import OutOfSpaceError, ShardkitError, StorageError, UsageError, missing_extra
from shardkit.messages import OUTPUT_NAME, visible
from shardkit.runtime.early_signals import stopped_sentence
from shardkit.runtime.process_limits import NO_MEMORY, describe_memory, is_of_memory, larger_memory_step

DEBUG_VARIABLE = "SHARDKIT_DEBUG"
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141

_EXTRAS = {
    "apache_beam": ("beam", "apache-beam"),
    "tensorflow": ("train", "tensorflow"),
    "keras": ("train", "keras"),
    "tensorboard": ("train", "tensorboard"),
}

_OPTION = r"""--[a-z][a-z-]*(?: (?:'[^']*'|"[^"]*"|[^\s'"]\S*))?"""
_WHOLE = re.compile(rf"(?<=\S)  \S.*?(?:  |$)|`[^`]*`|{_OPTION}(?: {_OPTION})*")
"""A command between two blanks on both sides or in backticks, or options, each with its value."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP. A kind of KeyboardInterrupt, so that code that cleans up after Ctrl-C does so here."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(signal.Signals(signal_number).name)


class Explanation(NamedTuple):
    """The message about an exception.

    Attributes:
        label: Such as `error[SK-E300]`; None where nothing is printed.
        lines: The message; the first line follows the label, the others are indented.
        usage: The usage line of the command, printed before the label.
    """

    exit_code: int
    label: str | None
    lines: tuple[str, ...]
    usage: str | None = None


def explain(error: BaseException) -> Explanation:
    """Returns the explanation of an exception."""
    if isinstance(error, ShardkitError):
        return _explain_shardkit_error(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        exit_code = error.exit_code if isinstance(error, Terminated) else EXIT_INTERRUPTED
        label = "terminated" if isinstance(error, Terminated) else "interrupted"
        notes = tuple(_sentence(note) for note in getattr(error, "__notes__", ()))
        return Explanation(exit_code, label, notes or (stopped_sentence(),))
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return Explanation(error.exit_code, None, (), usage=error.format_message())
    if isinstance(error, click.UsageError):
        return _explain_click_usage(error)
    if isinstance(error, click.ClickException):
        return Explanation(2, f"error[{UsageError.code}]", (_sentence(error.format_message()),))
    known = _translate(error)
    if known is not None:
        return _explain_shardkit_error(known)
    return Explanation(
        EXIT_BUG,
        "error[SK-E999]",
        (
            f"this is a bug in shardkit: {type(error).__name__}: {visible(str(error)) or 'no message'}",
            "Run the same command with --debug added, and report what it prints.",
        ),
    )


def show(explanation: Explanation, error: BaseException) -> None:
    """Prints an explanation on stderr, with the traceback below it if `--debug` was given."""
    color = False if os.environ.get("NO_COLOR") else None
    if explanation.usage:
        click.echo(explanation.usage, err=True, color=color)
    if explanation.label is None:
        return
    from shardkit.storage.locations import redact
    from shardkit.storage.options import hide_secrets

    first, *others = (redact(hide_secrets(line)) for line in explanation.lines)
    label = f"{explanation.label}:"
    headline = _wrapped(f"{label} {first}").replace(label, click.style(label, fg="red", bold=True), 1)
    for line in (headline, *(_wrapped(f"  {line}") for line in others)):
        click.echo(line, err=True, color=color)
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        trace = redact(hide_secrets("".join(traceback.format_exception(error)).rstrip()))
        click.echo(click.style(trace, dim=True), err=True, color=color)


def _wrapped(line: str) -> str:
    """Returns a line for a terminal, which would break it within a word; a file or a pipe gets it as it is.

    Commands and options with their values stay whole, so that they can be pasted: the terminal breaks long ones.
    """
    width = shutil.get_terminal_size().columns
    if not sys.stderr.isatty() or len(line) <= width:
        return line
    glued = _WHOLE.sub(_glued, line)
    lines = textwrap.fill(glued, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _glued(found: re.Match[str]) -> str:
    command = found[0].strip()
    return found[0].replace(command, command.replace(" ", "\0"))


def reader_left(error: BaseException) -> bool:
    """Whether an exception only says that the reader of the output left, as `head` does."""
    if isinstance(error, SystemExit):
        # rich answers a closed pipe with exit code 1, which would mean damage here.
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, BrokenPipeError) and _is_closed(sys.stdout.fileno())


def _explain_shardkit_error(error: ShardkitError) -> Explanation:
    from shardkit.storage.locations import redact

    where = None if error.where is None else redact(error.where)
    head = ShardkitError(error.what, where=where, why=error.why)
    others = map(_sentence, (s for s in (error.state, error.next_step) if s))
    lines = (_sentence(str(head)), *map(visible, error.table), *others)
    return Explanation(error.exit_code, f"error[{error.code}]", lines)


def _explain_click_usage(error: click.UsageError) -> Explanation:
    usage = error.ctx.get_usage() if error.ctx else None
    # click lists choices one a line.
    lines = [_sentence(error.format_message().replace("\n\t", " "))]
    if error.ctx:
        lines.append(f"Try {error.ctx.command_path} --help")
    return Explanation(error.exit_code, f"error[{UsageError.code}]", tuple(lines), usage)


def _translate(error: BaseException) -> ShardkitError | None:
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        return missing_extra(*extra) if extra else None
    if is_of_memory(error):
        memory = describe_memory()
        step = "Free some, then run the same command again"
        return OutOfSpaceError(
            NO_MEMORY,
            where=next(iter(getattr(error, "__notes__", ())), None),
            why=memory,
            next_step=step if memory is None else larger_memory_step(),
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        if error.filename == OUTPUT_NAME:
            return OutOfSpaceError(
                "no space left",
                where=OUTPUT_NAME,
                state="What the command prints is cut off; a version that it committed stays",
                next_step="Free some space where the output goes",
            )
        return OutOfSpaceError("no space left", where=_file_of(error), next_step="Free some space, then run it again")
    if isinstance(error, OSError) and error.errno and error.filename is not None:
        return _refused_by_system(error)
    return None


def _refused_by_system(error: OSError) -> ShardkitError:
    where, why = _file_of(error), (error.strerror or "").lower()
    if isinstance(error, PermissionError):
        step = "Choose another place, or allow the user of this command to read and write there"
        return UsageError("the operating system refused access", where=where, why=why, next_step=step)
    if error.errno == errno.ENAMETOOLONG:
        return UsageError("a name is too long", where=where, why=why, next_step="Choose a shorter name")
    step = "Check that its disk is there and works, then run the same command again"
    return StorageError("the operating system failed", where=where, why=why, next_step=step)


def _file_of(error: OSError) -> str | None:
    return None if error.filename is None else os.fsdecode(error.filename)


def _sentence(text: str) -> str:
    text = visible(text.strip())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _is_closed(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

"""The shell around all commands: the lazy group, help pages with examples, and signals.

A command module `shardkit/cli/NAME.py` holds one attribute `command`, made with `ExampleCommand`:

    @click.command(cls=ExampleCommand, epilog='''
        shardkit inspect out/adult
        shardkit inspect out/adult --shards
    ''')

The epilog is printed under "Examples:", line by line. Every such command also takes
`--storage-options` and `--debug`.
A command of many options shows them under headings, with `headings={"Data": ("--label", "--features"), ...}`.
A command that is interrupted may add what the user has to know with `KeyboardInterrupt.add_note`.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import click

from shardkit.cli.shell.errors import DEBUG_VARIABLE, Terminated
from shardkit.runtime.early_signals import has_default_handler
from shardkit.runtime.signals import note_interrupt

OTHER_OPTIONS = "Other options"
_HELP_ALL = "--help-all"
# Options whose values name data. Of others, the last one given holds, as users expect who add one to a command.
_ONCE = frozenset({"--labels", "--columns", "--select", "--map", "--query", "--table"})

# As wide as click makes the column of options at most, so that those of all headings are aligned.
_OPTION_WIDTH = 30
# With the blanks in front of each, and those within quotes.
_WORDS = re.compile(r"""\s*(?:'[^']*'|"[^"]*"|[^\s'"])+""")


class Entry(NamedTuple):
    """One subcommand that is not imported yet.

    Attributes:
        module: Where it lives; its attribute `command` is the command.
        help: One line for the list of commands.
    """

    module: str
    help: str


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is run or its own help is asked for."""

    def __init__(self, *args: Any, table: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            from shardkit.errors import suggest

            raise click.UsageError(f"There is no command {name!r}.{suggest(name, self.table)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)


class ExampleCommand(click.Command):
    """A command whose epilog is its examples, and that takes `--storage-options` and `--debug`.

    Args:
        headings: Options by the heading that they are under in the help; those without one come last.
        common: Options that `--help` shows; `--help-all` then shows all. None shows all with `--help`.
    """

    def __init__(
        self,
        *args: Any,
        headings: Mapping[str, Sequence[str]] | None = None,
        common: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.headings = headings or {}
        self.common = None if common is None else (*common, _HELP_ALL, "--help")
        self.params += [storage_option(), debug_option(), *([] if common is None else [_help_all_option()])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for param in {p for p in order if order.count(p) > 1}:
            # Click would take the last and forget what the others name.
            if not _ONCE.isdisjoint(param.opts):
                raise click.UsageError(f"{max(param.opts, key=len)} is given twice, and takes one value.", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        for argument in (p for p in self.params if isinstance(p, click.Argument) and p.name):
            typed = ctx.params.get(argument.name or "")
            for location in typed if isinstance(typed, tuple) else (typed,):
                _check_location(location, argument.human_readable_name.removesuffix("..."))
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.headings:
            super().format_options(ctx, formatter)
            return
        options = {max(p.opts, key=len): p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        named = {name for names in self.headings.values() for name in names}
        others = [name for name in options if name not in named]
        is_shown = options if self.common is None or ctx.meta.get(_HELP_ALL) else self.common
        for heading, names in {**self.headings, OTHER_OPTIONS: others}.items():
            lines = [options[name].get_help_record(ctx) for name in names if name in is_shown]
            with formatter.section(heading):
                formatter.write_dl([(line[0].ljust(_OPTION_WIDTH), line[1]) for line in lines if line is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)


def _check_location(typed: str | None, name: str) -> None:
    """Refuses an empty name, and a place that is gone when the command is over."""
    from shardkit.errors import UsageError

    if typed is not None and not typed.strip():
        raise UsageError(
            f"{name} is empty",
            state="Nothing was read or written",
            next_step="Name a file, a folder or a URL; a variable that is not set may have left it out",
        )
    if typed is not None and typed.lower().startswith("memory:"):
        raise UsageError(
            f"{name} lies in the memory of a process",
            why="nothing is left of it when the command is over",
            state="Nothing was read or written",
            next_step="Name a folder, or a place in a store",
        )


def write_examples(epilog: str | None, formatter: click.HelpFormatter) -> None:
    """Writes an epilog under the heading "Examples"; a long line goes on behind a backslash, as a shell takes it."""
    if epilog:
        lines = textwrap.dedent(epilog).strip("\n").rstrip().splitlines()
        cut = [part for line in lines for part in _cut_line(f"  {line}".rstrip(), formatter.width)]
        formatter.write("\nExamples:\n" + "".join(f"{part}\n" for part in cut))


def _cut_line(line: str, width: int) -> list[str]:
    parts = [""]
    for word in _WORDS.findall(line):
        if parts[-1].strip() and len(parts[-1] + word) > width - (2 if line[-len(word) :] != word else 0):
            parts.append("     ")
        parts[-1] += word
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:]


def _help_all_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[_HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        [_HELP_ALL],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show all options, the rarer ones too, and exit.",
    )


def debug_option() -> click.Option:
    """Returns the option `--debug`. It sets an environment variable, so that worker processes see it as well."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            os.environ[DEBUG_VARIABLE] = "1"

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback below an error message.",
    )


def storage_option() -> click.Option:
    """Returns the option `--storage-options`. It sets an environment variable, so that workers see it as well."""

    def remember(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> None:
        if texts:
            from shardkit.storage.options import remember_options

            remember_options(texts)

    return click.Option(
        ["--storage-options"],
        multiple=True,
        metavar="[STORE:]KEY=VALUE",
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="What the client of a store is made with, such as endpoint_url=http://host:9000 or gs:anon=true. Repeat "
        "for more. Credentials are better left to the environment and profiles of each store.",
    )


def install_signal_handlers() -> None:
    """Makes SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP `Terminated`.

    Signals that the parent process had ignored stay ignored, as with nohup.
    """

    def terminate(signal_number: int, frame: FrameType | None) -> NoReturn:
        error = Terminated(signal_number)
        note_interrupt(error)
        raise error

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if has_default_handler(number):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else terminate)


def ignore_signals() -> None:
    """Makes further signals change nothing, for the last words of a command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def exit_within(seconds: float, exit_code: int) -> None:
    """Ends the process in so many seconds even if a thread of an engine never returns."""
    import threading

    def end() -> NoReturn:
        from shardkit.cli.shell.supervised import announce_end

        announce_end()
        os._exit(exit_code)

    watchdog = threading.Timer(seconds, end)
    watchdog.daemon = True
    watchdog.start()


def print_document(document: object) -> None:
    """Prints values as one JSON document."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def survive_narrow_encodings() -> None:
    """Makes stdout escape characters that its encoding lacks; a file name must not end a command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def silence_closed_output() -> None:
    """Points stdout at nothing, so that the flush at exit does not complain of a reader that left or a full disk."""
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), sys.stdout.fileno())

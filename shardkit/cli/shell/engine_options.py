"""The engines of `shardkit convert`: its options for them, Beam's own flags after `--`, and a page of help for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand
from shardkit.conversion.engines import ENGINES
from shardkit.storage.options import is_secret_name, without_secrets

if TYPE_CHECKING:
    from beam_pipelines.engines.settings import Chosen, EngineOptions

_FLAGS = "shardkit.convert.flags"


class EngineCommand(ExampleCommand):
    """A command that leaves the words after `--` to Beam, where the first begins with a dash too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, flags = split_flags(args)
        ctx.meta[_FLAGS] = flags
        return super().parse_args(ctx, own)


def split_flags(args: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Returns the arguments of the command, and those of Beam.

    What follows `--` and begins with no dash are names of files, as everywhere.
    """
    typed = list(args)
    if "--" not in typed:
        return typed, ()
    position = typed.index("--")
    rest = typed[position + 1 :]
    if not rest or not rest[0].startswith("--"):
        return typed, ()
    return typed[:position], tuple(rest)


def engine_help_option() -> click.Option:
    """Returns the option that shows the page of an engine."""
    return click.Option(
        ["--engine-help"],
        type=click.Choice([name for name, engine in ENGINES.items() if engine.has_options]),
        is_eager=True,
        expose_value=False,
        callback=_show_page,
        help="Show what an engine needs and its options, and end.",
    )


def chosen_engine(ctx: click.Context, runner: str, typed: Sequence[str]) -> EngineOptions:
    """Returns the engine that was asked for.

    Raises:
        UsageError: If an engine without options gets one, or an engine gets an option that another one has.
    """
    from beam_pipelines.engines.settings import EngineOptions, parse_option
    from shardkit.errors import UsageError

    values, flags = tuple(map(parse_option, typed)), ctx.meta.get(_FLAGS, ())
    empty = next((key for key, value in values if not value.strip()), None)
    if empty is not None:
        raise UsageError(
            f"--engine-option {empty} has no value",
            state="Nothing was read or written",
            next_step="Give it one, or leave it out; a variable that is not set may have left it empty",
        )
    for owner, engine in ENGINES.items():
        own = [(key, ctx.params[key.replace("-", "_")]) for key in engine.own_options]
        given = [(key, value) for key, value in own if value is not None]
        if given and owner != runner:
            raise UsageError(
                f"--{given[0][0]} is for --runner {owner}", next_step=f"Leave it out, or add --runner {owner}"
            )
        values = (*values, *given)
    if any(flag.startswith("--runner") for flag in flags):
        raise UsageError("--runner goes before the --", next_step="Leave it out of the flags of Beam")
    if not ENGINES[runner].has_options and (values or flags):
        what = "flags of Beam were given" if flags else "--engine-option was given"
        raise UsageError(
            f"--runner {runner} takes no options of engines",
            why=what,
            next_step="Leave them out, or name another --runner",
        )
    return EngineOptions(runner=runner, values=values, flags=flags)


def engine_rows(chosen: Sequence[Chosen], flags: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns name, value and reason of the settings that an engine would get, for a dry run."""
    passed = set(flags)
    rows = [(c.setting.key, _shown(c), _why(c, passed)) for c in chosen if c.value is not None]
    return [*rows, *(("Beam", flag, "") for flag in without_secrets(flags))]


def _shown(chosen: Chosen) -> str:
    # What an engine gets as it is may be a credential, such as conf.spark.hadoop.fs.s3a.secret.key.
    is_secret = "." in chosen.setting.key and is_secret_name(chosen.setting.key)
    return "***" if is_secret else chosen.value or "-"


def _why(chosen: Chosen, passed: set[str]) -> str:
    setting, value, is_typed = chosen
    if setting.flag is not None and value is not None:
        spelled = (f"--{setting.flag}={value}",) if setting.spell is None else setting.spell(value)
        if not passed.issuperset(spelled):
            return "not set: a flag of Beam says otherwise"
    return "as asked for" if is_typed else setting.reason


def _show_page(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    from beam_pipelines.engines.engine import class_of

    engine = class_of(value).spec
    assert engine is not None  # The option offers no other.
    formatter = ctx.make_formatter()
    formatter.write_text(f"--runner {value}: {engine.title}.")
    for paragraph in engine.text:
        formatter.write_paragraph()
        formatter.write_text(paragraph)
    with formatter.section("Engine options"):
        rows = []
        for setting in engine.settings:
            default = f" [default: {setting.shown}]" if setting.shown else ""
            reason = f" Why: {setting.reason}." if setting.reason else ""
            rows.append((setting.key, f"{setting.meaning[0].upper()}{setting.meaning[1:]}.{default}{reason}"))
        formatter.write_dl(rows)
    with formatter.section("Examples"):
        for example in engine.examples:
            formatter.write(f"  {example}\n")
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()

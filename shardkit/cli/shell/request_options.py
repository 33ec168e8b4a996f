"""The options of `shardkit convert`, made of its request; other commands take some of the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import click

from shardkit.cli.shell.option_types import NumberRange, SizeType
from shardkit.conversion.request import HEADINGS, option_fields
from shardkit.options import OptionField, Size, options_of
from shardkit.sources.options import SourceOptions
from shardkit.units import MiB

INPUT_OPTIONS = (*(f.typed_name for f in options_of(SourceOptions)), "schema_path")


def click_options(names: Sequence[str], **helps: str) -> list[click.Parameter]:
    """Returns the options that fields of a request stand for.

    Args:
        names: Of the parameters.
        helps: What a command says of some of them in its own words.
    """
    fields = {f.typed_name: f for f in option_fields()}
    return [_click_option(fields[name], helps.get(name, fields[name].option.help)) for name in names]


def headings_of(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the flags of fields by the heading that they stand under."""
    fields = [f for f in option_fields() if f.typed_name in names]
    return {h: tuple(f"--{f.key}" for f in fields if f.option.heading == h) for h in HEADINGS}


def _click_option(field: OptionField, text: str) -> click.Option:
    option, default = field.option, field.default
    settings: dict[str, Any] = {"help": text}
    if field.is_flag:
        is_on = bool(option.shown_default if default is None else default)
        settings |= {"is_flag": True, "default": is_on, "show_default": is_on}
    elif field.is_repeated:
        settings["multiple"] = True
    elif default not in (None, ()):
        shown = f"{default // MiB}MiB" if isinstance(option.form, Size) else default
        settings |= {"default": shown, "show_default": True}
    elif option.shown_default is not None:
        settings["show_default"] = option.shown_default
    if not field.is_flag:
        settings |= {"type": _click_type(field), "metavar": option.form.metavar}
    return click.Option([option.flag, field.typed_name], **settings)


def _click_type(field: OptionField) -> click.ParamType[Any]:
    option = field.option
    kinds = [kind for kind in (get_args(field.kind) or (field.kind,)) if kind is not type(None)]
    choice = field.kind if get_origin(field.kind) is Literal else kinds[0]
    if isinstance(option.form, Size):
        return SizeType()
    if get_origin(choice) is Literal:
        return click.Choice(get_args(choice))
    if choice is float:
        return NumberRange(min=option.minimum)
    if choice is not int or field.is_repeated or option.form.is_one:
        return click.STRING
    has_limits = option.minimum is not None or option.maximum is not None
    return click.IntRange(option.minimum, option.maximum) if has_limits else click.INT

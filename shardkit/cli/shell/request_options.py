"""Options made of the structs that state them: those of `shardkit convert` and of `shardkit train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from shardkit.cli.shell.option_types import FiniteRange, LengthBucketsType, SizeType, StepsType
from shardkit.conversion.request import HEADINGS, option_fields
from shardkit.options import Form, LengthBuckets, OneOf, OptionField, Size, Steps, options_of
from shardkit.sources.options import SourceOptions
from shardkit.units import MiB

_TYPES: dict[type[Form], type[click.ParamType[Any]]] = {
    Size: SizeType, Steps: StepsType, LengthBuckets: LengthBucketsType
}  # fmt: skip
INPUT_OPTIONS = (*(f.typed_name for f in options_of(SourceOptions)), "schema_path")


def click_options(names: Sequence[str], **helps: str) -> list[click.Parameter]:
    """Returns the options that fields of a request stand for."""
    fields = {f.typed_name: f for f in option_fields()}
    return [click_option(fields[name], helps.get(name)) for name in names]


def headings_of(fields: Sequence[OptionField], headings: Sequence[str] = HEADINGS) -> dict[str, tuple[str, ...]]:
    """Returns the flags of fields by the heading that they are under."""
    return {h: tuple(f"--{f.key}" for f in fields if f.option.heading == h) for h in headings}


def click_option(field: OptionField, text: str | None = None) -> click.Option:
    """Returns the option that a field stands for."""
    option, default = field.option, field.default
    settings: dict[str, Any] = {"help": text or option.help, "required": default is msgspec.NODEFAULT}
    if field.is_flag:
        is_on = bool(option.shown_default if default is None else default)
        settings |= {"is_flag": True, "default": is_on, "show_default": is_on}
    elif field.is_repeated:
        settings["multiple"] = True
    elif default not in (None, (), msgspec.NODEFAULT):
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
    made = next((type_() for form, type_ in _TYPES.items() if isinstance(option.form, form)), None)
    if made is not None:
        return made
    if isinstance(option.form, OneOf):
        return click.Choice(option.form.names)
    if get_origin(choice) is Literal:
        return click.Choice(get_args(choice))
    if choice is float:
        is_open = [option.excludes in (end, "both") for end in ("minimum", "maximum")]
        return FiniteRange(option.minimum, option.maximum, *is_open)
    if choice is not int or field.is_repeated or option.form.is_one:
        return click.STRING
    has_limits = option.minimum is not None or option.maximum is not None
    return click.IntRange(option.minimum, option.maximum) if has_limits else click.INT

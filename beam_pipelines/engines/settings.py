"""The settings of an engine, and their values where the user gives none. Pure data and arithmetic."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shardkit.errors import UsageError


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks of an engine.

    Attributes:
        flags: Of Beam, as typed after `--`.
    """

    runner: str = "local"
    values: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


class Facts(NamedTuple):
    """What defaults depend on.

    Attributes:
        num_workers: Pieces of work at the same time, as asked for, or the cores of this machine.
    """

    num_workers: int
    num_input_splits: int
    environment: Mapping[str, str]
    destination: str = ""
    fingerprint: str = ""


# Flags of Beam that may be given several times, and are then joined.
_REPEATABLE = {"labels", "experiments", "dataflow_service_options"}

Needs = Callable[[EngineOptions, Facts], UsageError | None]


class Setting(NamedTuple):
    """One setting of an engine.

    Attributes:
        meaning: A phrase for the help.
        flag: Of Beam, without its dashes; None where shardkit itself heeds it.
        default: Returns the value where the user gives none, None for no value.
        shown: That default in words; empty where there is none.
        spell: Returns the flags for a value, where `--flag=value` is not what Beam takes.
        choices: The only values there are; none where any may be right.
    """

    key: str
    meaning: str
    flag: str | None
    default: Callable[[Facts], str | None]
    shown: str = ""
    reason: str = ""
    spell: Callable[[str], Sequence[str]] | None = None
    choices: tuple[str, ...] = ()


def no_value(facts: Facts) -> str | None:
    """Returns None: the default of a setting that has no value unless the user gives one."""
    return None


_STALL_MINUTES = "10"
STALL = Setting(
    "stall-minutes",
    "give up when no worker has done anything for so long",
    None,
    lambda facts: _STALL_MINUTES,
    _STALL_MINUTES,
    "a lost worker would else be waited for without end; the longest step without a sign takes a few minutes",
)
SHARED = (
    "Workers find the plan, and leave what they read, in the work folder: --work-dir must name a folder that all of "
    "them share. The engine itself carries descriptions of a few bytes only, so its memory and its shuffle do not grow "
    "with the data. Where workers share no disk, --work-dir names a folder in a store, such as s3://bucket/work: then "
    "the records go through the engine's shuffle, in chunks of 1 MiB."
)


class EngineSpec(NamedTuple):
    """What an engine takes and needs.

    Attributes:
        text: Paragraphs for its page of help.
        needs: Returns what is missing here before it can be used, None if nothing.
        runner: Name of Beam's runner; empty where the engine is not Beam's.
        passed_on: Start of the keys of options that the engine gets as they are; empty where there are none.
    """

    title: str
    text: tuple[str, ...]
    settings: tuple[Setting, ...]
    needs: Needs
    examples: tuple[str, ...]
    extra: str = "beam"
    runner: str = ""
    passed_on: str = ""


class Chosen(NamedTuple):
    """The value of a setting.

    Attributes:
        value: Typed or by default; None for none.
    """

    setting: Setting
    value: str | None
    is_typed: bool


def parse_option(text: str) -> tuple[str, str]:
    """Returns key and value of `KEY=VALUE`. Raises UsageError if there is no `=`, or nothing before it."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--engine-option {text!r} has no value", next_step="Write it like --engine-option KEY=VALUE")
    # What is passed on is spelled as the engine has it.
    return key.strip() if "." in key else key.strip().replace("_", "-"), value.strip()


def choose_settings(engine: EngineSpec, name: str, options: EngineOptions, facts: Facts) -> tuple[Chosen, ...]:
    """Returns every setting of an engine with its value.

    Raises:
        UsageError: If an option is none of the engine, or is given twice.
    """
    typed: dict[str, str] = {}
    known = {setting.key: setting for setting in engine.settings}
    if engine.passed_on:
        keys = dict.fromkeys(key for key, _ in options.values if key.startswith(engine.passed_on))
        known |= {key: Setting(key, "passed on as it is", None, no_value) for key in keys}
    for key, value in options.values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(
                f"the engine {name} has no option {key!r}",
                why=f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}",
                next_step=f"shardkit convert --engine-help {name} lists them; flags of Beam itself go after --",
            )
        if key in typed:
            raise UsageError(f"--engine-option {key} is given twice", next_step="Leave one of them out")
        choices = known[key].choices
        if value and choices and value.upper() not in choices:
            raise UsageError(
                f"--engine-option {key}={value} is none that there is", next_step=f"Choose one of {', '.join(choices)}"
            )
        typed[key] = value
    return tuple(
        Chosen(s, typed.get(s.key) or s.default(facts), s.key in typed and bool(typed[s.key])) for s in known.values()
    )


def beam_flags(engine: EngineSpec, chosen: Sequence[Chosen], flags: Sequence[str]) -> list[str]:
    """Returns the flags that Beam's options are made of; those that the user typed for Beam come last, and win."""
    own = [f"--runner={engine.runner}", "--no_save_main_session"]
    for setting, value, _ in chosen:
        if setting.flag is not None and value is not None:
            own.extend((f"--{setting.flag}={value}",) if setting.spell is None else setting.spell(value))
    typed = {flag_name(flag) for flag in flags}
    return [flag for flag in own if flag_name(flag) not in typed - _REPEATABLE] + list(flags)


def value_of(chosen: Sequence[Chosen], key: str) -> str | None:
    """Returns the value of a setting."""
    return next(c.value for c in chosen if c.setting.key == key)


def number_of(chosen: Sequence[Chosen], key: str) -> float:
    """Returns the value of a setting that is a positive number. Raises UsageError if it is none."""
    text = value_of(chosen, key) or ""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UsageError(f"--engine-option {key}={text} is no positive number", next_step=f"Write it like {key}=10")
    return number


def flag_name(flag: str) -> str:
    """Returns the name of a flag as Beam stores it."""
    return flag.lstrip("-").partition("=")[0].replace("-", "_")

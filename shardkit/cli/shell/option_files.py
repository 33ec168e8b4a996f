"""Options of a command from a TOML file or as `key=value`. The keys are the long options without their dashes.

Typed options win over `--set`, that wins over the file, and that over the defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from shardkit.errors import suggest

NOT_IN_A_FILE = frozenset({"config", "set", "debug", "help", "storage-options"})
_FROM_FILE = "shardkit.settings.file"
_FROM_TEXTS = "shardkit.settings.texts"
_TRUTHS = {"true": True, "false": False}


def settings_options() -> list[click.Option]:
    """Returns `--config` and `--set`."""
    return [
        click.Option(
            ["--config"],
            metavar="FILE.toml",
            is_eager=True,
            expose_value=False,
            callback=_read_file,
            help="Options from a TOML file: their long names without dashes. What is typed wins.",
        ),
        click.Option(
            ["--set"],
            multiple=True,
            metavar="KEY=VALUE",
            is_eager=True,
            expose_value=False,
            callback=_read_texts,
            help="An option as key and value, such as learning-rate=1e-3; wins over --config. Repeat for more.",
        ),
    ]


def read_toml(path: str, what: str, origin: str) -> dict[str, Any]:
    """Returns the content of a TOML file.

    Args:
        what: What the file is, for messages.
        origin: The sentence that says where such a file comes from.

    Raises:
        UsageError: If it is not there, or no TOML.
    """
    import tomllib

    from shardkit.errors import UsageError
    from shardkit.storage import files as storage

    try:
        return tomllib.loads(storage.read_bytes(path).decode())
    except FileNotFoundError:
        raise UsageError(f"the {what} is not there", where=path, next_step=f"Name a file that {origin}") from None
    except OSError as error:
        raise UsageError(
            f"the {what} cannot be read",
            where=path,
            why=error.strerror,
            next_step=f"Make it readable, or name another file with --{what}",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the {what} is no TOML",
            where=path,
            why=str(error),
            next_step=f"Correct it, or name a file that {origin}",
        ) from error


def checked_defaults(
    command: click.Command, content: Mapping[str, Any], what: str, where: str | None, unknown: Collection[str]
) -> dict[str, Any]:
    """Returns values of options as defaults of a command, by the names of its parameters.

    Args:
        content: Values by key. Options whose value is a list of names, with commas, also take a list.

    Raises:
        UsageError: If a key is no option, or its value is of another kind.
    """
    from shardkit.errors import UsageError

    known = {key: p for p in command.params if (key := key_of(p)) not in unknown}
    defaults: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            hint = suggest(key, known).strip() or f"Options are: {', '.join(sorted(known))}"
            is_section = isinstance(value, dict)
            raise UsageError(
                f"the {what} has {'the section ' if is_section else ''}{key!r}, which is no option",
                where=where,
                next_step="Write the options without sections" if is_section else hint,
            )
        parameter = known[key]
        defaults[parameter.name or ""] = _default_of(command, parameter, value, what, where)
    return defaults


def _default_of(command: click.Command, parameter: click.Parameter, value: Any, what: str, where: str | None) -> Any:
    from shardkit.errors import UsageError

    key = key_of(parameter)
    is_flag, is_multiple = bool(getattr(parameter, "is_flag", False)), bool(getattr(parameter, "multiple", False))
    names = _joined(parameter, value)
    is_list = isinstance(value, list) and names is None
    if is_list != is_multiple or isinstance(value, dict):
        wanted = "a list" if is_multiple else "one value"
        raise UsageError(
            f"{key!r} in the {what} must be {wanted}",
            where=where,
            next_step=f"Write {key} = [...]"
            if is_multiple
            else f"Write it as --{key} takes it on the command line, in quotes and without brackets",
        )
    if isinstance(value, bool) != is_flag:
        raise UsageError(
            f"{key!r} in the {what} must {'' if is_flag else 'not '}be true or false",
            where=where,
            next_step=f"Write {key} = true" if is_flag else f"Write a value as --{key} takes it on the command line",
        )
    default = names or (value if is_list or isinstance(value, bool) else str(value))
    try:
        parameter.type_cast_value(click.Context(command), default)
    except click.BadParameter as error:
        raise UsageError(
            f"{key!r} in the {what} has a value that does not fit",
            where=where,
            why=error.message.rstrip("."),
            next_step=f"Write what --{key} takes on the command line",
        ) from None
    return default


def key_of(parameter: click.Parameter) -> str:
    """Returns how a parameter is called in a file: by its longest option, or an argument by its name."""
    return max(parameter.opts, key=len).lstrip("-")


def _joined(parameter: click.Parameter, value: Any) -> str | None:
    takes_names = isinstance(parameter, click.Option) and "," in (parameter.metavar or "")
    if takes_names and isinstance(value, list) and all(isinstance(v, str) and "," not in v for v in value):
        return ",".join(value)
    return None


def _read_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is not None:
        content = read_toml(path, "config", "holds options of this command, such as epochs = 10")
        _remember(ctx, _FROM_FILE, checked_defaults(ctx.command, content, "config", path, NOT_IN_A_FILE))


def _read_texts(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> None:
    from shardkit.errors import UsageError

    known = {key_of(p): p for p in ctx.command.params}
    content: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--set {text!r} sets nothing", next_step="Write it like --set learning-rate=1e-3")
        parameter = known.get(key)
        if getattr(parameter, "multiple", False):
            content.setdefault(key, []).append(value)
        else:
            content[key] = _TRUTHS.get(value, value) if getattr(parameter, "is_flag", False) else value
    if content:
        _remember(ctx, _FROM_TEXTS, checked_defaults(ctx.command, content, "option --set", None, NOT_IN_A_FILE))


def _remember(ctx: click.Context, source: str, defaults: dict[str, Any]) -> None:
    # The two may be typed in any order, so they are kept apart until both are known.
    ctx.meta[source] = defaults
    ctx.default_map = {**(ctx.default_map or {}), **ctx.meta.get(_FROM_FILE, {}), **ctx.meta.get(_FROM_TEXTS, {})}

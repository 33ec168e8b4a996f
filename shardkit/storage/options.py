"""The user's options for a store's client: parsed, handed to worker processes, and never shown.

They travel in an environment variable, as credentials do: neither a command line of a worker, nor a manifest, nor the
graph of a job holds them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

from shardkit.errors import UsageError

VARIABLE = "SHARDKIT_STORAGE_OPTIONS"
EVERY_STORE = "*"
# The protocols of each name that options can be given under.
STORES = {
    "s3": ("s3",),
    "gs": ("gs", "gcs"),
    "az": ("az", "abfs", "abfss"),
    "hdfs": ("hdfs",),
    "hf": ("hf",),
    "http": ("http", "https"),
}

_SHORTEST_SECRET = 4
_SECRET_NAME = re.compile("key|secret|token|pass|cred|connection|sas|sign", re.IGNORECASE)


def parse_options(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns options by store, `*` for all, of texts such as `anon=true` and `s3:endpoint_url=http://host:9000`.

    Values that are JSON other than text are what they say; all others are text.

    Raises:
        UsageError: If one names no option; does not repeat the value, which may be secret.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        store, colon, key = name.rpartition(":")
        if not equals or not key.isidentifier():
            raise UsageError(
                "--storage-options needs a name and a value",
                next_step="Write it like --storage-options endpoint_url=http://localhost:9000",
            )
        if colon and store not in STORES:
            raise UsageError(
                f"there is no store {store!r} to give options to", next_step=f"Stores are {', '.join(STORES)}"
            )
        found.setdefault(store or EVERY_STORE, {})[key] = _value_of(key, value)
    return found


def remember_options(texts: Iterable[str]) -> None:
    """Makes this process and those that it starts give options to the clients of stores.

    Raises:
        UsageError: If one names no option.
    """
    if options := parse_options(texts):
        os.environ[VARIABLE] = json.dumps(options)


def options_for(protocol: str) -> dict[str, Any]:
    """Returns the options for the client of a protocol.

    Raises:
        UsageError: If `SHARDKIT_STORAGE_OPTIONS` holds anything but options by store.
    """
    by_store = _parsed(os.environ.get(VARIABLE, ""))
    names = [EVERY_STORE, *(name for name, protocols in STORES.items() if protocol in protocols)]
    return {key: value for name in names for key, value in by_store.get(name, {}).items()}


def hide_secrets(text: str) -> str:
    """Returns text without the values of options that may be credentials, as they are or as URLs spell them."""
    try:
        by_store = _parsed(os.environ.get(VARIABLE, ""))
    except UsageError:
        # No client was made with these options, and the error about them is being shown.
        return text
    secrets = {s for options in by_store.values() for s in _secrets_of(options)}
    spellings = {spell(s) for s in secrets for spell in (str, quote, quote_plus, partial(quote, safe=""))}
    for secret in sorted(spellings, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def is_secret_name(name: str) -> bool:
    """Whether an option of this name may hold a credential."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(flags: Iterable[str]) -> Iterator[str]:
    """Yields flags of another program, without the values of those whose names are of credentials."""
    is_value = False
    for word in flags:
        name, equals, _ = word.partition("=")
        is_secret = name.startswith("-") and is_secret_name(name)
        if is_value and not word.startswith("-"):
            yield "***"
        else:
            yield f"{name}=***" if is_secret and equals else word
        is_value = is_secret and not equals


def without_values(arguments: Iterable[str]) -> Iterator[str]:
    """Yields the words of a command line, `--storage-options` with the names of its options only."""
    is_value = False
    for word in arguments:
        if is_value or word.startswith("--storage-options="):
            name, equals, rest = word.partition("=")
            yield f"{name}={rest.partition('=')[0]}=***" if not is_value else f"{name}=***" if equals else "***"
            is_value = False
        else:
            is_value = word == "--storage-options"
            yield word


def without_options(arguments: Iterable[str], *others: str) -> Iterator[str]:
    """Yields the words of a command line without `--storage-options`, which other processes have in the environment.

    Args:
        arguments: As typed.
        others: Options with a value to be left out, too.
    """
    names, is_value = ("--storage-options", *others), False
    for word in arguments:
        if not is_value and word not in names and not word.startswith(tuple(f"{name}=" for name in names)):
            yield word
        is_value = not is_value and word in names


def _value_of(key: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # A key of digits is a text all the same.
    return (
        text if isinstance(value, int | float) and not isinstance(value, bool) and _SECRET_NAME.search(key) else value
    )


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Mapping[str, Mapping[str, Any]]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise UsageError(
            f"{VARIABLE} is no JSON of options by store",
            next_step='Set it like {"s3": {"anon": true}}, with "*" for all stores, or unset it',
        )
    return found


def _secrets_of(options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _secrets_of(value)
        elif isinstance(value, str) and _SECRET_NAME.search(key) and len(value) >= _SHORTEST_SECRET:
            yield value

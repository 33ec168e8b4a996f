"""What a version tells of the one that it was appended to."""

from __future__ import annotations

import msgspec

from shardkit.accounting import Count, InputInfo
from shardkit.errors import DamageError
from shardkit.manifest import Json, Manifest

EXTENSION = "appended_to"


class AppendedTo(msgspec.Struct, frozen=True, kw_only=True):
    """The version that another one began with.

    Attributes:
        version: Its number.
        fingerprint: Of it.
        num_inputs: How many inputs it had; they stand first in the accounting of the other.
    """

    version: Count
    fingerprint: str
    num_inputs: Count


def appended_to(manifest: Manifest) -> AppendedTo | None:
    """Returns what a version was appended to, None if it is a conversion by itself.

    Raises:
        DamageError: If it tells something else.
    """
    found = manifest.extensions.get(EXTENSION)
    if found is None:
        return None
    try:
        return msgspec.convert(found, AppendedTo)
    except msgspec.ValidationError as error:
        raise DamageError("the manifest does not tell what it was appended to", why=str(error)) from error


def as_extension(base: AppendedTo) -> dict[str, Json]:
    """Returns what the extensions of a manifest hold of it."""
    return {EXTENSION: msgspec.to_builtins(base)}


def own_inputs(manifest: Manifest) -> tuple[InputInfo, ...]:
    """Returns the inputs that came with this very version."""
    base = appended_to(manifest)
    return manifest.accounting.inputs[base.num_inputs if base is not None else 0 :]

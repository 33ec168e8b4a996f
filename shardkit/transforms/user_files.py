"""The files of a user that transformations need, known by their hashes."""

from __future__ import annotations

import hashlib

import msgspec

from shardkit.errors import UsageError
from shardkit.storage import files as storage
from shardkit.transforms.options import TransformOptions, split_reference


def with_hashes(options: TransformOptions) -> TransformOptions:
    """Returns the options with absolute paths and the hashes of the files they name, and the turn that images get.

    Raises:
        UsageError: If a file cannot be read, or is not the one of which the options hold a hash.
    """
    changes_images = options.image_size or options.image_format or options.image_quality
    changes: dict[str, object] = {"apply_exif": options.apply_exif is not False if changes_images else None}
    if options.map_path is not None:
        path, function = split_reference(options.map_path)
        path = storage.normalize(path)
        found = sha256_of(read_user_file(path, "--map"))
        _check_same(path, "--map", options.map_sha256, found)
        changes |= {"map_path": f"{path}:{function}", "map_sha256": found}
    tokenize = []
    for column, given_path, sha256 in options.tokenize:
        path = storage.normalize(given_path)
        found = sha256_of(read_user_file(path, "--tokenize"))
        _check_same(path, "--tokenize", sha256 or None, found)
        tokenize.append((column, path, found))
    return msgspec.structs.replace(options, **changes, tokenize=tuple(tokenize))


def read_user_file(path: str, option: str, sha256: str | None = None) -> bytes:
    """Returns the content of a file that an option names.

    Args:
        sha256: What its content must hash to; None takes whatever is there.

    Raises:
        UsageError: If it cannot be read or is another one.
    """
    try:
        content = storage.read_bytes(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(
            f"the file of {option} cannot be read",
            where=storage.redact(path),
            why=reason,
            next_step="Check the path, and that the file may be read",
        ) from error
    if sha256 is not None:
        _check_same(path, option, sha256, sha256_of(content))
    return content


def sha256_of(content: bytes) -> str:
    """Returns the SHA-256 of some bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _check_same(path: str, option: str, expected: str | None, found: str) -> None:
    if expected is not None and expected != found:
        raise UsageError(
            f"the file of {option} is not the one that the recipe was made with",
            where=storage.redact(path),
            why=f"its SHA-256 is {found}, expected {expected}",
            next_step=f"Put the old file back, or name the new one with {option}",
        )

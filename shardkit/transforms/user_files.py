"""The files of a user that transformations need, known by their hashes, and the function of --map in one of them."""

from __future__ import annotations

import functools
import hashlib
import threading
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from shardkit.errors import UsageError
from shardkit.runtime.process_limits import is_memory_short
from shardkit.runtime.signals import noted_interrupt
from shardkit.runtime.user_files import user_module
from shardkit.storage import files as storage
from shardkit.transforms.options import TransformOptions, split_reference

OPTION = "--map"


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


class UserCodeError(Exception):
    """Code of the user raised something; the text says what, and on which line of the file."""


class UserMemoryError(UserCodeError):
    """One request of the user's code was larger than what is left of memory."""


@functools.lru_cache(maxsize=16)
def load_function(reference: str, sha256: str | None) -> Callable[..., Any]:
    """Returns the function that `FILE.py:function` names, with what it raises turned into UserCodeError or MemoryError.

    Args:
        sha256: What the content of the file must hash to.

    Raises:
        UsageError: If there is no such file or function, or the file cannot be run.
    """
    path, name = split_reference(reference)
    source = read_user_file(path, OPTION, sha256)
    module, run = user_module(f"_shardkit_map_{(sha256 or 'unhashed')[:16]}", path, source)
    try:
        _call(path, run)
    except UserCodeError as error:
        raise UsageError(
            f"the file of {OPTION} fails",
            where=path,
            why=str(error),
            next_step="Correct the file; it is run once as a module",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(
            f"the file of {OPTION} has no function {name!r}",
            where=path,
            next_step="Name one that the file defines, like --map my_map.py:function",
        )
    return functools.partial(_call, path, function)


def _call(path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    is_main = threading.current_thread() is threading.main_thread()  # Signals reach no other.
    before = noted_interrupt()
    try:
        result = function(*arguments)
        if is_main and noted_interrupt() is not before:
            raise noted_interrupt()  # The function has an `except` that swallowed it.
        return result
    except BaseException as error:
        if is_main and isinstance(error, KeyboardInterrupt):
            raise
        if is_main and noted_interrupt() is not before:
            raise noted_interrupt() from error
        # Where memory is short, another thread of this process may have taken it, so no row is blamed.
        is_of_memory = isinstance(error, MemoryError)
        described = None if is_of_memory and is_memory_short() else _tell(path, error)
        # The locals of the failed function, perhaps all memory, would live as long as the message.
        traceback.clear_frames(error.__traceback__)
    if described is None:
        raise MemoryError
    raise UserMemoryError(described) if is_of_memory else UserCodeError(described)


def _tell(path: str, error: BaseException) -> str:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    line = f" (line {lines[-1]})" if lines else ""
    said = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{said}{line}"

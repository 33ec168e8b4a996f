"""A user's function, `FILE.py:function`, loaded by its path; no folder is put on the import path."""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from shardkit.errors import UsageError
from shardkit.runtime.process_limits import is_memory_short
from shardkit.runtime.signals import noted_interrupt
from shardkit.runtime.user_files import UserModuleLoader
from shardkit.transforms.options import split_reference
from shardkit.transforms.user_files import read_user_file

OPTION = "--map"


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
    loader = UserModuleLoader(path, source)
    spec = importlib.util.spec_from_loader(f"_shardkit_map_{(sha256 or 'unhashed')[:16]}", loader, origin=path)
    if spec is None:
        raise UsageError(
            f"the file of {OPTION} is no Python file", where=path, next_step="Write it like --map my_map.py:function"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        _call(path, loader.exec_module, module)
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

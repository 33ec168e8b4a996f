"""Runs a user's code as a module from bytes that were read before, without a cache of older code."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType


class UserModuleLoader(importlib.abc.ExecutionLoader):
    """Loads exactly these bytes, no older compilation of the file, and leaves no compiled file beside the user's."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)


def user_module(name: str, path: str, source: bytes) -> tuple[ModuleType, Callable[[], None]]:
    """Returns a module that is empty still, and the function that runs the source in it.

    Args:
        name: In `sys.modules`.
    """
    loader = UserModuleLoader(path, source)
    spec = importlib.util.spec_from_loader(name, loader, origin=path)
    assert spec is not None  # There is a loader.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module, lambda: loader.exec_module(module)

"""Runs a user's code as a module from bytes that were read before, without a cache of older code."""

from __future__ import annotations

import importlib.abc
import importlib.util


class UserModuleLoader(importlib.abc.ExecutionLoader):
    """Loads exactly these bytes, no older compilation of the file, and leaves no compiled file beside the user's."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)

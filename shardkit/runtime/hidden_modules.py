"""Modules that a process does not import though they are installed, because it starts faster without them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Workers of a conversion inherit it.
_VARIABLE = "SHARDKIT_HIDES_PANDAS"

# Commands that call functions of the user with these options only; a recipe may name such a function.
_COMMANDS = {
    "convert": ("--append", "--map", "--recipe"),
    **dict.fromkeys(("clean", "export-data", "index", "inspect", "verify"), ()),
}


def hide_pandas(arguments: Sequence[str] | None = None) -> None:
    """Hides pandas in this process and those it starts, where no function of the user can need it.

    pyarrow and Beam import it wherever they find it, which takes 0.2 s and 40 MB.

    Args:
        arguments: Of the command line; None in a process that another one started.
    """
    if arguments is None:
        is_hidden = _VARIABLE in os.environ
    else:
        options = _COMMANDS.get(arguments[0] if arguments else "")
        is_hidden = options is not None and not any(word.partition("=")[0] in options for word in arguments)
    if is_hidden:
        os.environ[_VARIABLE] = "1"
        sys.meta_path.insert(0, _HiddenModules(("pandas",)))


class _HiddenModules(MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        return None

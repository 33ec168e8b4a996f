"""What a process of the conversion does without, though it may be installed."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_GC_OBJECTS = 50_000


def lighten_process() -> None:
    """Makes this process, which must be one of its own, cheaper to start; to be called before NumPy is imported.

    As if pandas were not installed: Beam and pyarrow import it wherever they find it, for data frames that no
    conversion has, 0.2 s and 40 MB each time. And without the threads of NumPy's linear algebra, which spin for 0.1 s
    of CPU time when they start, and have nothing to do here. And with fewer searches for cycles of objects, which
    take a tenth of the time of imports and of lists of many files, and find little.
    """
    gc.set_threshold(_GC_OBJECTS, 20, 50)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.meta_path.insert(0, _LeftOut("pandas"))


class _LeftOut(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        return None

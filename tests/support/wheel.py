"""The wheel of this checkout, built once for all processes of the tests."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def built_wheel(folder: Path) -> Path:
    """Returns the wheel below a folder that processes share; the first one builds it of a copy of the tree."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            _build(folder)
    return next(folder.glob("*.whl"))


def _build(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("shardkit", "beam_pipelines", "train", "tests", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    code = f"import setuptools.build_meta as b; print(b.build_wheel({str(folder)!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

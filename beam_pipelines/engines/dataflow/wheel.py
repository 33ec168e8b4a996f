"""Brings shardkit to workers: finds how it is installed, writes requirements."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import shardkit
from beam_pipelines.engines.dataflow.packaging import PINNED, Launcher, Packaging
from shardkit._version import __version__
from shardkit.errors import UsageError

_KERNEL = re.compile(r"shardkit/_kernel\..*so")


def look_at_launcher() -> Launcher:
    """Returns the installation that the command runs from."""
    root = Path(shardkit.__file__).resolve().parent.parent
    is_checkout = (root / "pyproject.toml").exists()
    return Launcher(
        version=__version__,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        origin=root.as_uri() if is_checkout else _origin(),
    )


def pinned_versions() -> Mapping[str, str]:
    """Returns the versions, here, of the libraries that must be the same on workers."""
    found = {}
    for name in PINNED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def declared_requirements(packaging: Packaging) -> tuple[str, ...]:
    """Returns the requirements of shardkit, a line of metadata each, from the index or the wheel.

    Raises:
        UsageError: If the wheel cannot be read.
    """
    if packaging.kind == "wheel":
        text = _read_wheel(Path(packaging.what))
        return tuple(re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE))
    return tuple(metadata.requires("shardkit") or ()) if packaging.kind == "index" else ()


def stage_packages(packaging: Packaging, lines: Sequence[str], folder: Path) -> list[str]:
    """Writes the requirements of workers and returns the flags by which Beam stages them.

    Args:
        packaging: How they get shardkit.
        lines: Requirements that they install beside it.
        folder: For what is made.

    Raises:
        UsageError: If the wheel lacks the compiled kernel.
    """
    if packaging.kind == "image":
        return []
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{line}\n" for line in lines))
    # Workers fetch missing packages: to stage them from here would take source archives of everything.
    own = [f"--requirements_file={requirements}", "--requirements_cache=skip"]
    if packaging.kind == "index":
        return own
    check_kernel(Path(packaging.what))
    return [*own, f"--extra_package={packaging.what}"]


def check_kernel(wheel: Path) -> None:
    """Checks that a wheel holds the compiled kernel: without it a job costs many times as much.

    Raises:
        UsageError: If it does not.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            has_kernel = any(_KERNEL.fullmatch(name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{wheel} is no wheel", why=str(error), next_step="Check the file") from error
    if not has_kernel:
        raise UsageError(
            f"{wheel.name} has no compiled kernel",
            why="encoding would take many times longer",
            next_step="Build it where there is a C++ compiler, or give --engine-option image=NAME",
        )


def _origin() -> str | None:
    try:
        text = metadata.distribution("shardkit").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "nowhere that is known"
    return None if text is None else str(json.loads(text)["url"])


def _read_wheel(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            return archive.read(name).decode()
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise UsageError(f"{path} is no wheel", why=str(error) or None, next_step="Check the file") from error

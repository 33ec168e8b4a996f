"""Brings shardkit to workers: finds how it is installed, builds a wheel, writes requirements."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import shardkit
from beam_pipelines.engines.dataflow.packaging import PINNED, Launcher, Packaging, check_wheel_name
from shardkit._version import __version__
from shardkit.errors import UsageError

_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "shardkit", "beam_pipelines", "train")
_BUILD_LIMIT_S = 600
_KERNEL = re.compile(r"shardkit/_kernel\..*so")


def look_at_launcher() -> Launcher:
    """Returns the installation that the command runs from."""
    root = Path(shardkit.__file__).resolve().parent.parent
    is_checkout = all((root / name).exists() for name in _SOURCES)
    return Launcher(
        version=__version__,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        platform=f"{platform.system()} {platform.machine()}",
        checkout=str(root) if is_checkout else None,
        origin=None if is_checkout else _origin(),
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
    """Returns the requirements of shardkit, a line of metadata each, from the sources or the wheel.

    Raises:
        UsageError: If the wheel cannot be read.
    """
    if packaging.kind == "checkout":
        project = tomllib.loads(Path(packaging.what, "pyproject.toml").read_text())["project"]
        by_extra = project["optional-dependencies"].items()
        return (*project["dependencies"], *(f'{line}; extra == "{name}"' for name, of in by_extra for line in of))
    if packaging.kind == "wheel":
        text = _read_wheel(Path(packaging.what))
        return tuple(re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE))
    return tuple(metadata.requires("shardkit") or ()) if packaging.kind == "index" else ()


def stage_packages(packaging: Packaging, lines: Sequence[str], folder: Path) -> list[str]:
    """Makes the packages for workers and returns the flags by which Beam stages them.

    Args:
        packaging: How they get shardkit.
        lines: Requirements that they install beside it.
        folder: For what is made.

    Raises:
        UsageError: If a wheel cannot be built, or lacks the compiled kernel.
    """
    if packaging.kind == "image":
        return []
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{line}\n" for line in lines))
    # Workers fetch missing packages: to stage them from here would take source archives of everything.
    own = [f"--requirements_file={requirements}", "--requirements_cache=skip"]
    if packaging.kind == "index":
        return own
    wheel = build_wheel(Path(packaging.what), folder) if packaging.kind == "checkout" else Path(packaging.what)
    check_kernel(wheel)
    return [*own, f"--extra_package={wheel}"]


def build_wheel(checkout: Path, folder: Path) -> Path:
    """Builds the wheel of a checkout, from a copy of it, and returns its path.

    Raises:
        UsageError: If that fails.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _SOURCES:
        path = checkout / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(path, source / name)
    # Where setuptools is installed, nothing is downloaded.
    alone = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") is not None else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *alone]
    built = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_LIMIT_S,
    )
    wheels = sorted(folder.glob("shardkit-*.whl"))
    if built.returncode != 0 or not wheels:
        raise UsageError(
            "no wheel for the workers could be built",
            where=str(checkout),
            why=(built.stderr.strip().splitlines() or ["pip wheel made none"])[-1],
            next_step="Build one yourself and name it with --engine-option package=FILE.whl",
        )
    check_wheel_name(wheels[0].name, look_at_launcher())
    return wheels[0]


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

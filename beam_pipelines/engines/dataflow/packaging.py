"""How workers of Dataflow get shardkit: decided by pure functions over the installation of the command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from beam_pipelines.engines.settings import Chosen, Setting, value_of
from shardkit.conversion.plan import Recipe
from shardkit.doctor.requirements import parse_requirement
from shardkit.errors import UsageError
from shardkit.sources.formats import format_named

# Libraries whose versions must be those of the command, or workers are refused; Beam's, because it unpacks the job.
PINNED = ("apache-beam", "isal", "pillow", "tokenizers", "zlib-ng")
_STORES = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "az": "azure", "abfs": "azure", "abfss": "azure", "hdfs": "hdfs"}
_WHEEL = re.compile(r"shardkit-([^-]+)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")
_NAME_ONE = "Name a wheel with --engine-option package=FILE.whl, or an image with --engine-option image=NAME"


class Launcher(NamedTuple):
    """What the command runs from.

    Attributes:
        version: Of shardkit.
        python: Such as `3.11`.
        origin: URL of the checkout that runs, or that it was installed from; None if that is an index of packages.
    """

    version: str
    python: str
    origin: str | None


class Packaging(NamedTuple):
    """A way to get shardkit.

    Attributes:
        kind: In an image; a wheel that there is; from the index.
        what: Name of the image, path of the wheel, or version.
        why: A phrase.
    """

    kind: Literal["image", "wheel", "index"]
    what: str
    why: str

    def describe(self) -> str:
        """Returns it as a dry run shows it."""
        return f"{'shardkit' if self.kind == 'index' else self.kind} {self.what}"


def choose_packaging(image: str | None, package: str | None, launcher: Launcher) -> Packaging:
    """Returns how workers get shardkit.

    Args:
        image: As asked for.
        package: A wheel, as asked for.
        launcher: What the command runs from.

    Raises:
        UsageError: If none of the ways works, or the wheel is none for the workers.
    """
    if image is not None and package is not None:
        raise UsageError("image and package are both given", next_step="Leave one --engine-option out")
    if image is not None:
        return Packaging("image", image, "as asked for; it holds shardkit, nothing is installed")
    if package is not None:
        check_wheel_name(package, launcher)
        return Packaging("wheel", package, "as asked for")
    if launcher.origin is None:
        return Packaging("index", launcher.version, "the command was installed from an index, as workers can")
    if launcher.origin.startswith("file:") and launcher.origin.endswith(".whl"):
        path = unquote(urlsplit(launcher.origin).path)
        check_wheel_name(path, launcher)
        return Packaging("wheel", path, "the command was installed from it")
    build = ""
    if launcher.origin.startswith("file:"):
        build = f"pip wheel --no-deps {unquote(urlsplit(launcher.origin).path)} builds a wheel. "
    raise UsageError(
        "workers cannot get the shardkit that runs here",
        why=f"it comes from {launcher.origin}",
        next_step=build + _NAME_ONE,
    )


def check_wheel_name(path: str, launcher: Launcher) -> None:
    """Checks by its name that a wheel is one of this shardkit, for Linux on x86_64 and the Python of the command.

    Raises:
        UsageError: If it is not.
    """
    name = path.rsplit("/", 1)[-1]
    match = _WHEEL.fullmatch(name)
    if match is None:
        raise UsageError(f"{name} is no wheel of shardkit", next_step="Name a file like shardkit-*.whl")
    version, python, abi, platform = match.groups()
    if version != launcher.version:
        raise UsageError(
            f"{name} is not what the command is",
            why=f"that has version {launcher.version}, and other versions may write other bytes",
            next_step="Name a wheel of the same version",
        )
    own = f"cp{launcher.python.replace('.', '')}"
    runs = (
        own in python.split(".")
        or (abi == "abi3" and any(_number(tag) <= _number(own) for tag in python.split(".")))
        or "py3" in python.split(".")
    )
    if not runs or not any(re.fullmatch(r"any|(many)?linux.*_x86_64", tag) for tag in platform.split(".")):
        raise UsageError(
            f"{name} does not run on the workers",
            why=f"they have Python {launcher.python}, as the command has, on Linux x86_64",
            next_step="Name a wheel like shardkit-*-cp311-abi3-manylinux_*_x86_64.whl",
        )


def extras_for(urls: Iterable[str], recipe: Recipe) -> tuple[str, ...]:
    """Returns the extras that workers need.

    Args:
        urls: Of everything that is read and written.
        recipe: Of the conversion.
    """
    found = {"beam", "gcs"} | {_STORES[scheme] for url in urls if (scheme := url.partition(":")[0]) in _STORES}
    extra = format_named(recipe.source.format).extra
    found |= {extra} if extra is not None else set()
    found |= {"sql"} if recipe.transforms.select is not None else set()
    found |= {"text"} if recipe.transforms.tokenize else set()
    return tuple(sorted(found))


def requirements(
    packaging: Packaging, extras: Sequence[str], declared: Sequence[str], versions: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the lines of requirements that workers install beside shardkit, or, from an index, with it.

    Args:
        packaging: How they get shardkit.
        extras: That they need.
        declared: What the package requires, a line of its metadata each.
        versions: Of libraries here, by name.
    """
    if packaging.kind == "image":
        return ()
    found = {
        line.partition(";")[0].strip()
        for line in declared
        if (known := parse_requirement(line)) is not None and known.extra in extras and known.name not in PINNED
    }
    wanted = {
        known.name
        for line in declared
        if (known := parse_requirement(line)) is not None and (known.extra is None or known.extra in extras)
    }
    pins = {f"{name}=={versions[name]}" for name in PINNED if name in wanted and name in versions}
    if packaging.kind == "index":
        return (f"shardkit[{','.join(extras)}]=={packaging.what}", *sorted(pins))
    return (*sorted(found), *sorted(pins))


def packaging_rows(packaging: Packaging, lines: Sequence[str]) -> tuple[Chosen, ...]:
    """Returns the rows of a dry run about packaging, beside the engine's own settings."""
    rows = [("shardkit", packaging.describe(), packaging.why)]
    if lines:
        rows.append(("requirements", ", ".join(lines), "what it needs there, in the versions that make the same bytes"))
    return tuple(
        Chosen(Setting(key, key, None, lambda facts: None, reason=reason), value, False) for key, value, reason in rows
    )


def packaging_of(chosen: Sequence[Chosen], launcher: Launcher) -> Packaging:
    """Returns how workers get shardkit, by the settings.

    Raises:
        UsageError: If none of the ways works.
    """
    package = value_of(chosen, "package")
    if package is not None and not Path(package).is_file():
        raise UsageError(f"there is no wheel at {package}", next_step="Check the path")
    return choose_packaging(value_of(chosen, "image"), package, launcher)


def _number(tag: str) -> int:
    digits = re.fullmatch(r"cp3(\d+)", tag)
    return int(digits.group(1)) if digits else 10**6

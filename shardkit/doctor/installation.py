"""Whether the packages that are installed are those that shardkit is made for, and fit each other."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PACKAGE = "shardkit"
# The use of each extra; the extras for the tests of shardkit are left out.
EXTRAS = {
    "beam": "--runner beam, prism, portable, flink",
    "dask": "--runner dask",
    "spark": "--runner spark",
    "ray": "--runner ray",
    "dataflow": "--runner dataflow",
    "train": "shardkit train, evaluate, predict, export; tf.data",
    "s3": "s3:// addresses",
    "gcs": "gs:// addresses",
    "azure": "az:// addresses",
    "hdfs": "hdfs:// addresses",
    "hf": "hf:// addresses",
    "array-record": "export-data --to array-record",
    "http": "http:// addresses",
    "torch": "the reader for PyTorch",
    "jax": "the reader for JAX",
    "audio": "--audio samples",
    "video": "videos",
    "sql": "--select, --where",
    "postgres": "postgresql:// inputs",
    "text": "--tokenize",
}


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is needed.

    Attributes:
        version: That is installed, None if it is not.
        clauses: Bounds of the version.
        fits: Whether the version is within them; None where that cannot be said.
    """

    name: str
    version: str | None
    clauses: str
    fits: bool | None


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """An optional part."""

    name: str
    purpose: str
    packages: tuple[Package, ...]

    @property
    def is_installed(self) -> bool:
        """Whether nothing is missing."""
        return all(package.version is not None for package in self.packages)

    @property
    def command(self) -> str:
        """What adds it."""
        return f"pip install '{PACKAGE}[{self.name}]'"


class VersionConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose version another one does not take."""

    name: str
    version: str
    clauses: str
    wanted_by: str


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What is installed.

    Attributes:
        version: Of shardkit; None if it runs from a folder without being installed.
    """

    version: str | None
    python: str
    python_clauses: str
    core: tuple[Package, ...]
    extras: tuple[Extra, ...]
    conflicts: tuple[VersionConflict, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, a sentence each."""
        found = []
        if _fits(self.python, SpecifierSet(self.python_clauses)) is False:
            found = [f"Python is {self.python}, {PACKAGE} needs {self.python_clauses}"]
        found += [
            f"{package.name} {'is not installed' if package.version is None else f'is {package.version}'}, "
            f"{PACKAGE} needs {package.name}{package.clauses}"
            for package in self.core
            if package.version is None or package.fits is False
        ]
        found += [
            f"{package.name} is {package.version}, {PACKAGE}[{extra.name}] needs {package.name}{package.clauses}"
            for extra in self.extras
            for package in extra.packages
            if package.version is not None and package.fits is False
        ]
        found += [f"{m.name} is {m.version}, {m.wanted_by} needs {m.name}{m.clauses}" for m in self.conflicts]
        return tuple(dict.fromkeys(found))


def inspect_installation() -> Installation:
    """Returns the installed packages from their metadata, without imports."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return make_installation(None, platform.python_version(), "", (), lambda name: None, {})
    names = {name for extra in ("", *EXTRAS) for name in _requirements(found.requires or (), extra)}
    versions = {name: version for name in names if (version := _version_of(name))}
    others = {name: tuple(metadata.requires(name) or ()) for name in versions}
    # Packages that shardkit needs may need further packages.
    names = {name for lines in others.values() for name in _requirements(lines)}
    versions |= {name: version for name in names if (version := _version_of(name))}
    return make_installation(
        found.version,
        platform.python_version(),
        str(found.metadata["Requires-Python"] or ""),
        tuple(found.requires or ()),
        versions.get,
        others,
    )


def make_installation(
    version: str | None,
    python: str,
    python_clauses: str,
    requires: Iterable[str],
    version_of: Callable[[str], str | None],
    requires_of_others: Mapping[str, Iterable[str]],
) -> Installation:
    """Returns the installation from its parts. Pure."""
    lines = tuple(requires)
    core = _requirements(lines)

    def packages(requirements: Mapping[str, SpecifierSet]) -> tuple[Package, ...]:
        found = [(name, bounds, version_of(name)) for name, bounds in requirements.items()]
        return tuple(
            Package(name=n, version=v, clauses=_clauses(bounds), fits=None if v is None else _fits(v, bounds))
            for n, bounds, v in found
        )

    conflicts = [
        VersionConflict(name=name, version=found, clauses=_clauses(bounds), wanted_by=other)
        for other, of_other in sorted(requires_of_others.items())
        for name, bounds in _requirements(of_other).items()
        if (found := version_of(name)) is not None and _fits(found, bounds) is False
    ]
    return Installation(
        version=version,
        python=python,
        python_clauses=python_clauses,
        core=packages(core),
        extras=tuple(
            Extra(name=extra, purpose=purpose, packages=packages(added))
            for extra, purpose in EXTRAS.items()
            if (added := {n: bounds for n, bounds in _requirements(lines, extra).items() if n not in core})
        ),
        conflicts=tuple(conflicts),
    )


def _requirements(lines: Iterable[str], extra: str = "") -> dict[str, SpecifierSet]:
    """Returns the bounds of the packages that lines of metadata ask for here, by name; those of one extra too."""
    found: dict[str, SpecifierSet] = {}
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found[canonicalize_name(requirement.name)] = requirement.specifier
    found.pop(canonicalize_name(PACKAGE), None)
    return found


def _clauses(bounds: SpecifierSet) -> str:
    """Returns bounds as people write them, the lower one first."""
    return ",".join(sorted(map(str, bounds), reverse=True))


def _fits(version: str, bounds: SpecifierSet) -> bool | None:
    """Whether a version is within bounds; None if it is of no known form."""
    try:
        return bounds.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return None


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

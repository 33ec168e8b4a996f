"""Whether the packages that are installed are those that shardkit is made for, and fit each other."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

import msgspec

from shardkit.doctor.requirements import Requirement, canonical, fits, parse_requirement

PACKAGE = "shardkit"
# The use of each extra; the extras for the tests of shardkit are left out.
EXTRAS = {
    "beam": "--runner beam, prism, portable, flink, spark",
    "dask": "--runner dask",
    "dataflow": "--runner dataflow",
    "train": "shardkit train, evaluate, predict, export; tf.data",
    "s3": "s3:// addresses",
    "gcs": "gs:// addresses",
    "azure": "az:// addresses",
    "hdfs": "hdfs:// addresses",
    "http": "http:// addresses",
    "torch": "the reader for PyTorch",
    "jax": "the reader for JAX",
    "audio": "--audio samples",
    "sql": "--select, --where",
    "postgres": "postgresql:// inputs",
    "text": "--tokenize",
}


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is needed.

    Attributes:
        name: Of it.
        version: That is installed, None if it is not.
        clauses: Bounds of the version.
        fits: Whether the version lies within them; None where that cannot be said.
    """

    name: str
    version: str | None
    clauses: str
    fits: bool | None


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """An optional part.

    Attributes:
        name: In `pip install 'shardkit[NAME]'`.
        purpose: What it is for.
        packages: What it takes.
    """

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
        python: Version of Python.
        python_clauses: What Python it takes.
        core: What every command needs.
        extras: Optional parts.
        conflicts: Packages that do not fit each other.
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
        found = [] if fits(self.python, self.python_clauses) is not False else [_python_problem(self)]
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
    versions = {name: version for name in _names_of(found.requires or ()) if (version := _version_of(name))}
    others = {name: tuple(metadata.requires(name) or ()) for name in versions}
    # Packages that shardkit needs may need further packages.
    names = {requirement.name for lines in others.values() for requirement in _requirements(lines)}
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
    own = list(_requirements(requires))

    def package(requirement: Requirement) -> Package:
        found = version_of(requirement.name)
        return Package(
            name=requirement.name,
            version=found,
            clauses=requirement.clauses,
            fits=None if found is None else fits(found, requirement.clauses),
        )

    conflicts = [
        VersionConflict(name=r.name, version=found, clauses=r.clauses, wanted_by=name)
        for name, lines in sorted(requires_of_others.items())
        for r in _requirements(lines)
        if r.extra is None and (found := version_of(r.name)) is not None and fits(found, r.clauses) is False
    ]
    return Installation(
        version=version,
        python=python,
        python_clauses=python_clauses,
        core=tuple(package(r) for r in own if r.extra is None),
        extras=tuple(
            Extra(name=name, purpose=purpose, packages=packages)
            for name, purpose in EXTRAS.items()
            if (packages := tuple(package(r) for r in own if r.extra == name))
        ),
        conflicts=tuple(conflicts),
    )


def _python_problem(installation: Installation) -> str:
    return f"Python is {installation.python}, {PACKAGE} needs {installation.python_clauses}"


def _requirements(lines: Iterable[str]) -> list[Requirement]:
    return [found for found in map(parse_requirement, lines) if found is not None]


def _names_of(lines: Iterable[str]) -> set[str]:
    return {r.name for r in _requirements(lines) if r.extra is None or r.extra in EXTRAS} - {canonical(PACKAGE)}


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

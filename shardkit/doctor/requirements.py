"""Which versions of packages a package takes, as its metadata say it. Pure.

`packaging` does all of that, but not every installation of shardkit has it. This module leaves out what no package
declares: versions before a release, epochs, and conditions other than that of an extra.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"""\s*extra\s*==\s*["']([A-Za-z0-9._-]+)["']\s*""")
_CLAUSE = re.compile(r"(~=|==|!=|<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?")
_RELEASE = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)(.*)")


class Requirement(NamedTuple):
    """A package that another one needs.

    Attributes:
        name: Of the package, in lower case with `-`.
        clauses: Bounds of its version, such as `>=8.2,<9`; empty for any.
        extra: Needed for this extra only; None if always.
        extras: Of the package itself.
    """

    name: str
    clauses: str
    extra: str | None
    extras: tuple[str, ...]


def parse_requirement(text: str) -> Requirement | None:
    """Returns the requirement of a line of metadata; None if it has conditions that are not looked at."""
    match = _REQUIREMENT.match(text)
    if match is None:
        return None
    name, extras, clauses, marker = match.groups()
    extra = _EXTRA.fullmatch(marker) if marker else None
    if marker and extra is None:
        return None
    return Requirement(
        name=canonical(name),
        clauses=clauses.strip(),
        extra=canonical(extra.group(1)) if extra else None,
        extras=tuple(canonical(e.strip()) for e in (extras or "").split(",") if e.strip()),
    )


def canonical(name: str) -> str:
    """Returns the name of a package as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def fits(version: str, clauses: str) -> bool | None:
    """Whether a version lies within bounds; None if either is of a form that is not looked at."""
    found = _release_of(version)
    if found is None:
        return None
    answers = [_holds(found, clause.strip()) for clause in clauses.split(",") if clause.strip()]
    if False in answers:
        return False
    return None if None in answers else True


def _release_of(version: str) -> tuple[int, ...] | None:
    match = _RELEASE.fullmatch(version.strip())
    # What follows a `+` names a build of the release.
    if match is None or (match.group(2) and not match.group(2).startswith("+")):
        return None
    return _parts(match.group(1))


def _parts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _holds(found: tuple[int, ...], clause: str) -> bool | None:
    match = _CLAUSE.fullmatch(clause)
    if match is None or (match.group(3) and match.group(1) not in ("==", "!=")):
        return None
    operator, bound = match.group(1), _parts(match.group(2))
    width = max(len(found), len(bound))
    left, right = _filled(found, width), _filled(bound, width)
    if operator in ("==", "!="):
        is_equal = left[: len(bound)] == bound if match.group(3) else left == right
        return is_equal == (operator == "==")
    if operator == "~=":
        return None if len(bound) < 2 else left >= right and left[: len(bound) - 1] == bound[:-1]
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]


def _filled(parts: tuple[int, ...], width: int) -> tuple[int, ...]:
    return parts + (0,) * (width - len(parts))

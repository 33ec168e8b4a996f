"""How the values of some options of a conversion are written, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from shardkit.errors import UsageError
from shardkit.options import Form, Named


class SplitShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dataset split.

    Attributes:
        fraction: Of the rows that it gets; 0 where none is given.
        files: A glob over the names of its files, or `@` and the path of a list of them; empty where none is given.
    """

    name: str
    fraction: float = 0.0
    files: str = ""


class Split(Named):
    """A split and its share of the rows or its files, such as `train=0.9` or `test=test/*`, or a split alone."""

    hint = "str | Sequence[str] | Mapping[str, float | str]"

    def parse(self, text: Any) -> Any:
        """Returns the split. Raises UsageError if its share is no fraction between 0 and 1."""
        name, sign, value = text.partition("=")
        if not sign and not re.search(r"[/%.]", name):
            return SplitShare(name=name)
        # As of 80%,test=20%.
        are_several = re.match(r"[\d.]+%?\s*[,;]\s*\w+\s*=", value)
        if sign and value and not are_several and not re.fullmatch(r"[-+.,/%\d\s]*|nan|inf", value):
            return SplitShare(name=name, files=value)
        number = value.strip().removesuffix("%")
        try:
            fraction = float(number) / (100 if number != value.strip() else 1)
        except ValueError:
            raise UsageError(
                f"{value if sign else text!r} is not a fraction",
                next_step="Write each split with its fraction, as in --split train=0.8 --split test=0.2, or with its "
                "files, as in --split 'train=train/*'",
            ) from None
        share = SplitShare(name=name, fraction=fraction)
        _check_fraction(share)
        return share

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the name, and the fraction where neither a column nor the files name the split of each row."""
        if value.get("files"):
            return f"{value['name']}={value['files']}"
        is_named = recipe.get("split_column") or recipe.get("splits_by_name")
        return str(value["name"]) if is_named else f"{value['name']}={value['fraction']!r}"


def parse_shares(shares: Sequence[SplitShare], default_names: Sequence[str] = ()) -> tuple[SplitShare, ...]:
    """Returns the dataset splits that were asked for, one named `train` if none was.

    Args:
        default_names: Where a column names each row's split: the splits if none was asked for. Fractions then have no
            meaning; without default names they must be there.

    Raises:
        UsageError: If a name repeats or is no word, or the fractions do not add up to 1.
    """
    if not shares:
        return tuple(SplitShare(name=name) for name in default_names) or (SplitShare(name="train", fraction=1.0),)
    names = [share.name for share in shares]
    for name in names:
        if not name.replace("_", "").isalnum() or not name.isascii() or len(name) > 64:
            raise UsageError(f"{name!r} cannot name a split", next_step="Use letters, digits and underscores")
        if names.count(name) > 1:
            raise UsageError(f"the split {name!r} is named twice", next_step=f"Give {name} one --split only")
    if any(share.files for share in shares):
        return _checked_files(shares)
    if default_names:
        if given := [share.name for share in shares if share.fraction]:
            raise UsageError(
                f"the split {given[0]!r} has a fraction",
                why="--split-column says which rows it gets",
                next_step=f"Write --split {given[0]}",
            )
        return tuple(shares)
    for share in shares:
        if not share.fraction:
            raise UsageError(
                f"the split {share.name!r} has no fraction", next_step=f"Write it like --split {share.name}=0.9"
            )
        _check_fraction(share)
    total = sum(share.fraction for share in shares)
    if abs(total - 1) > 1e-6:
        raise UsageError(
            f"the fractions of the splits add up to {total:g}",
            why="they must add up to 1",
            next_step="Change them, as in --split train=0.9 --split test=0.1",
        )
    return tuple(shares)


def _checked_files(shares: Sequence[SplitShare]) -> tuple[SplitShare, ...]:
    other = next((share for share in shares if not share.files), None)
    # One split may take the files that no other names.
    if other is not None and (other.fraction or sum(not share.files for share in shares) > 1):
        raise UsageError(
            f"the split {other.name!r} does not name its files, as others do",
            next_step=f"Write it like --split '{other.name}={other.name}/*'; one split alone takes the rest",
        )
    return tuple(shares)


def _check_fraction(share: SplitShare) -> None:
    if not 0 < share.fraction <= 1:
        percent = share.fraction if 1 < share.fraction <= 100 else 90
        raise UsageError(
            f"the fraction of split {share.name!r} is {share.fraction:g}",
            why="it must lie between 0 and 1",
            next_step=f"Write it like --split {share.name}={percent / 100:g}, or --split {share.name}={percent:g}%",
        )


class AllColumns(Form):
    """A flag that stands for no names of columns."""

    is_one = is_flag = True

    def parse(self, text: Any) -> Any:
        """Returns no names where the flag is given."""
        return () if text else None

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns True where the recipe holds a list without names."""
        return value == [] or None


# So few bad rows end no conversion that has no --max-bad, unless they are more than half of all. Where all are bad, it
# ends by itself, with their reasons.
_IGNORED_BAD = 99


class BadLimit:
    """How many rows may be bad: a number, or a share of all rows.

    Args:
        text: Such as `100` or `0.1%`. None if no limit is given: a tenth of the rows, and below 100
            of them half.

    Raises:
        UsageError: If it is neither.
    """

    def __init__(self, text: str | None) -> None:
        self._ignored = _IGNORED_BAD if text is None else 0
        self.text = "10%" if text is None else text.strip()
        digits = self.text.removesuffix("%")
        is_share = digits != self.text
        try:
            value = Fraction(digits)
        except (ValueError, ZeroDivisionError):
            value = Fraction(-1)
        if "/" in digits or value < 0 or (is_share and value > 100) or (not is_share and value.denominator != 1):
            raise UsageError(
                f"--max-bad {self.text!r} is no limit", next_step="Give a number of rows, or a share such as 0.1%"
            )
        self._share = value / 100 if is_share else None
        self._number = value

    def is_exceeded(self, num_bad: int, num_rows: int) -> bool:
        """Returns whether there are more bad rows than allowed; exact at the border."""
        allowed = self._number if self._share is None else self._share * num_rows
        is_ignored = num_bad <= self._ignored and (2 * num_bad <= num_rows or num_bad == num_rows)
        return num_bad > allowed and not is_ignored

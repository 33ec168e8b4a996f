"""What an option of a conversion is: its flag, help and role, and how its value is written as text.

Structs state options as annotations of their fields. The command line and recipes are made from the same annotations
that the code reads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from shardkit.errors import UsageError

# `content` decides what the dataset holds: it is in the fingerprint and in the recipe, and may not differ on --append.
# `limit` decides whether there is a dataset or where its inputs are found: it is in the recipe, and may differ.
# `run` says how the conversion is done: it is in neither.
Role = Literal["content", "limit", "run"]


PATH = "str | PathLike[str]"


class Form:
    """How a value is written on the command line and in a recipe file; this one takes text as it is.

    Attributes:
        metavar: What stands for the value in the help; None leaves it to the type.
        hint: Type of the value as a keyword in Python; empty leaves it to the type of the field.
        joint: What stands between the parts of a value that is one text.
        is_one: Whether a value of several parts is written as one text; else the option is repeated.
        is_flag: Whether the option is a flag that stands for a value other than a bool.
    """

    metavar: str | None = None
    hint = ""
    joint = ","
    is_one = False
    is_flag = False

    def parse(self, text: Any) -> Any:
        """Returns the value that was typed."""
        return text

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the text of a recipe file for a value of the stored recipe, None for none."""
        return value


class Named(Form):
    """Text that the help calls by a name."""

    def __init__(self, metavar: str, hint: str = "") -> None:
        self.metavar, self.hint = metavar, hint or self.hint


class OneOf(Form):
    """One of some names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)


class Size(Form):
    """A number of bytes such as `128MiB`."""

    hint = "int | str"


class Steps(Named):
    """Steps from the first to before the second, as `10:20`."""

    is_one = True


class LengthBuckets(Named):
    """Longest lengths of buckets, as `16,32,64`, or `auto`."""

    is_one = True


class Columns(Named):
    """Names, such as those of columns, with commas between them."""

    hint = "str | Sequence[str]"
    is_one = True

    def __init__(self, metavar: str = "A,B,...", *, is_none_if_empty: bool = False) -> None:
        super().__init__(metavar)
        self._is_none_if_empty = is_none_if_empty

    def parse(self, text: Any) -> Any:
        """Returns the names."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        return None if self._is_none_if_empty and not names else names

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the names as one text."""
        return ",".join(value or ()) or None


class Pair(Named):
    """Two texts with an equals sign between them.

    Args:
        form: What it should look like.
        metavar: What stands for it in the help, where that is something else.
        is_cut_at_last: Which of several equals signs counts.
        more: What follows the two texts in the value.
    """

    hint = "str | Sequence[str] | Mapping[str, str]"

    def __init__(
        self,
        flag: str,
        form: str,
        *,
        metavar: str | None = None,
        is_cut_at_last: bool = False,
        more: tuple[str, ...] = (),
    ) -> None:
        super().__init__(metavar or form)
        self._flag, self._form, self._is_cut_at_last, self._more = flag, form, is_cut_at_last, more

    def parse(self, text: Any) -> Any:
        """Returns both texts. Raises UsageError if there are not two."""
        left, sign, right = text.rpartition("=") if self._is_cut_at_last else text.partition("=")
        if not (sign and left and right):
            raise UsageError(
                f"{self._flag} {text} is not {self._form}", next_step=f"Write it like {self._flag} {self._form}"
            )
        return left, right, *self._more

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns both texts as one."""
        return "=".join(value[:2])


class Option(NamedTuple):
    """What is known of an option beside its name, type and default.

    Attributes:
        flag: As it is typed; of a flag that can be switched off both spellings, with a slash between them.
        help: One sentence or two.
        role: What the value decides. It has no default: each option needs a decision.
        excludes: Which of the two the number may not be.
        shown_default: What the help calls the default where that is None.
        is_common: Whether `--help` shows it; `--help-all` shows all.
        typed_as: Name of the parameter where that is not the field's, which has another option.
    """

    flag: str
    help: str
    heading: str
    role: Role
    form: Form = Form()
    minimum: Any = None
    maximum: Any = None
    excludes: Literal["", "minimum", "maximum", "both"] = ""
    shown_default: str | bool | None = None
    is_common: bool = False
    typed_as: str | None = None


class OptionField(NamedTuple):
    """An option of a struct.

    Attributes:
        part: The field that holds the struct, where that is in another one; else empty.
    """

    name: str
    part: str
    kind: Any
    option: Option
    default: Any

    @property
    def key(self) -> str:
        """How the option is called in a recipe file."""
        return self.option.flag.partition("/")[0].removeprefix("--")

    @property
    def typed_name(self) -> str:
        """Name of the parameter that holds the typed value."""
        return self.option.typed_as or self.name

    @property
    def path(self) -> str:
        """Where the request and the recipe hold it."""
        return f"{self.part}.{self.name}".removeprefix(".")

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return self.option.form.is_flag or self.kind in (bool, bool | None)

    @property
    def is_repeated(self) -> bool:
        """Whether the option is given once for each part of its value."""
        return not self.option.form.is_one and str(self.kind).startswith("tuple[")

    def parse(self, typed: Any) -> Any:
        """Returns the value that was typed. Raises UsageError if the text is not of its form."""
        return tuple(map(self.option.form.parse, typed)) if self.is_repeated else self.option.form.parse(typed)

    def write(self, recipe: Mapping[str, Any]) -> Any:
        """Returns its value in a recipe file, None or an empty list for none.

        Args:
            recipe: As the manifest holds it.
        """
        part: Any = (recipe.get(self.part) or {}) if self.part else recipe
        value, form = part.get(self.name), self.option.form
        if self.is_repeated:
            return [form.write(v, recipe) for v in value or ()]
        written = form.write(value, recipe)
        return written or None if self.default is False else written


@functools.cache
def options_of(struct: type[msgspec.Struct], part: str = "") -> tuple[OptionField, ...]:
    """Returns the options of a struct and of the structs that it holds, in the order of their fields.

    Args:
        struct: Fields without an `Option` are none of a user's.
    """
    found: list[OptionField] = []
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            found += options_of(hint, field.name)
        for option in getattr(hint, "__metadata__", ()):
            found.append(OptionField(field.name, part, hint.__origin__, option, field.default))
    return tuple(found)

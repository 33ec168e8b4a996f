"""What an option of a conversion is: its flag, help and role, and how its value is written as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from shardkit.errors import UsageError

# `content` decides what the dataset holds: it is in the fingerprint and in the recipe, and may not differ on --append.
# `limit` decides whether there is a dataset or where its inputs are found: it is in the recipe, and may differ.
# `run` says how the conversion is done: it is in neither.
Role = Literal["content", "limit", "run"]


class Form:
    """How a value is written on the command line and in a recipe file; this one takes text as it is.

    Attributes:
        metavar: What stands for the value in the help; None leaves it to the type.
        is_one: Whether a value of several parts is written as one text; else the option is repeated.
    """

    metavar: str | None = None
    is_one = False

    def parse(self, text: Any) -> Any:
        """Returns the value that was typed."""
        return text

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns what a recipe file says for a value of the stored recipe, None for nothing."""
        return value


class Named(Form):
    """Text that the help calls by a name."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar


class Size(Form):
    """A number of bytes such as `128MiB`."""


class Columns(Form):
    """Names of columns with commas between them."""

    metavar = "A,B,..."
    is_one = True

    def __init__(self, *, is_none_if_empty: bool = False) -> None:
        self._is_none_if_empty = is_none_if_empty

    def parse(self, text: Any) -> Any:
        """Returns the names."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        return None if self._is_none_if_empty and not names else names

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the names as one text."""
        return ",".join(value or ()) or None


class Delimiter(Named):
    """One character; a tab has names."""

    def parse(self, text: Any) -> Any:
        """Returns the character, None for an empty text."""
        return {"\\t": "\t", "tab": "\t"}.get(text, text) or None


class Split(Named):
    """A split and its share of the rows, such as `train=0.9`, or a split alone."""

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns the name, and the fraction where no column names the split of each row."""
        return str(value["name"]) if recipe.get("split_column") else f"{value['name']}={value['fraction']!r}"


class Pair(Named):
    """Two texts with an equals sign between them.

    Args:
        flag: Of the option, for messages.
        form: What it should look like.
        metavar: What stands for it in the help, where that is something else.
        is_cut_at_last: Which of several equals signs counts.
        more: What follows the two texts in the value.
    """

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
        """Returns both texts.

        Raises:
            UsageError: If there are not two.
        """
        left, sign, right = text.rpartition("=") if self._is_cut_at_last else text.partition("=")
        if not (sign and left and right):
            raise UsageError(
                f"{self._flag} {text} is not {self._form}", next_step=f"Write it like {self._flag} {self._form}"
            )
        return left, right, *self._more

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns both texts as one."""
        return "=".join(value[:2])


class ImageSize(Named):
    """Height and width of images, or one number for both."""

    is_one = True

    def parse(self, text: Any) -> Any:
        """Returns height and width.

        Raises:
            UsageError: If the text is no size.
        """
        height, sign, width = text.lower().partition("x")
        sizes = (height, width if sign else height)
        if not all(size.isascii() and size.isdigit() for size in sizes):
            raise UsageError(
                f"--image-size {text} is not a size",
                next_step="Write it like 224, or like 240x320 for height and width",
            )
        return int(sizes[0]), int(sizes[1])

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns height and width as one text."""
        return "x".join(map(str, value)) if value else None


class AllColumns(Form):
    """A flag that stands for no names of columns."""

    def write(self, value: Any, recipe: Mapping[str, Any]) -> Any:
        """Returns True where the recipe holds a list without names."""
        return value == [] or None


class Option(NamedTuple):
    """What is known of an option beside its name, type and default.

    Attributes:
        flag: As it is typed; of a flag that can be switched off both spellings, with a slash between them.
        help: One sentence or two.
        heading: Under which the help shows it.
        role: What the value decides. It has no default: each option needs a decision.
        part: Which part of the recipe holds it: `source`, `transforms`, the recipe itself, or `features`, which come
            from a file.
        stored_as: Its name in that part, where it has another name there.
        form: How it is written.
        minimum, maximum: Of a number.
        shown_default: What the help calls the default where that is None.
        is_common: Whether `--help` shows it; `--help-all` shows all.
    """

    flag: str
    help: str
    heading: str
    role: Role
    part: str = ""
    stored_as: str | None = None
    form: Form = Form()
    minimum: Any = None
    maximum: Any = None
    shown_default: str | None = None
    is_common: bool = False


class OptionField(NamedTuple):
    """A field of a request.

    Attributes:
        name: Of the field.
        kind: Its type.
        option: What is known of it.
        default: What it is if it is not given.
    """

    name: str
    kind: Any
    option: Option
    default: Any

    @property
    def key(self) -> str:
        """How the option is called in a recipe file."""
        return self.option.flag.partition("/")[0].removeprefix("--")

    @property
    def stored_name(self) -> str:
        """How the recipe calls it, in its part."""
        return self.option.stored_as or self.name

    @property
    def path(self) -> str:
        """Where the recipe holds it."""
        return f"{self.option.part}.{self.stored_name}".removeprefix(".")

    @property
    def is_in_recipe(self) -> bool:
        """Whether the stored recipe holds it."""
        return self.option.role != "run" and self.option.part != "features"

    @property
    def is_repeated(self) -> bool:
        """Whether the option is given once for each part of its value."""
        return not self.option.form.is_one and str(self.kind).startswith("tuple[")

    def parse(self, typed: Any) -> Any:
        """Returns the value that was typed; None and nothing give the default.

        Raises:
            UsageError: If the text is not of its form.
        """
        if typed is None or typed == ():
            return self.default
        return tuple(map(self.option.form.parse, typed)) if self.is_repeated else self.option.form.parse(typed)

    def write(self, recipe: Mapping[str, Any]) -> Any:
        """Returns what a recipe file says for it, None or an empty list for nothing.

        Args:
            recipe: As the manifest holds it.
        """
        part: Any = (recipe.get(self.option.part) or {}) if self.option.part else recipe
        value, form = part.get(self.stored_name), self.option.form
        if self.is_repeated:
            return [form.write(v, recipe) for v in value or ()]
        written = form.write(value, recipe)
        return written or None if self.default is False else written

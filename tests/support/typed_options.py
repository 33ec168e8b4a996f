"""The types of the keywords of `shardkit.convert` and `Writer`, made of the structs that state the options.

python -m tests.support.typed_options    writes shardkit/conversion/memory/typed_options.py anew
"""

from __future__ import annotations

from typing import get_args

from shardkit.conversion.memory.keywords import keywords
from shardkit.options import OptionField
from tests.support.paths import ROOT

FILE = ROOT / "shardkit" / "conversion" / "memory" / "typed_options.py"
HEAD = '''"""Types of the keywords of `shardkit.convert` and `shardkit.Writer`, for type checkers and editors.

`python -m tests.support.typed_options` makes this file of the structs that state the options; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict

from shardkit.transforms.options import FetchKind


class RowOptions(TypedDict, total=False):
    """Options of `shardkit convert` that have a meaning for rows of a program."""

{of_rows}


class ConvertOptions(RowOptions, total=False):
    """Options of `shardkit convert`."""

{others}
'''


def make_text() -> str:
    """Returns what the file should hold."""
    hints = {name: f"    {name}: {hint_of(field)}" for name, field in keywords().items()}
    of_rows = keywords(of_rows=True)
    others = "\n".join(line for name, line in hints.items() if name not in of_rows)
    return HEAD.format(of_rows="\n".join(hints[name] for name in of_rows), others=others)


def hint_of(field: OptionField) -> str:
    """Returns the type of a keyword, as Python writes it."""
    if field.is_flag:
        return "bool"
    if field.option.form.hint or field.is_repeated:
        return field.option.form.hint or "str | Sequence[str]"
    kinds = [kind for kind in get_args(field.kind) or (field.kind,) if kind is not type(None)]
    names = [name for kind in kinds for name in get_args(kind) or (kind,)]
    if isinstance(names[0], str):
        return "Literal[" + ", ".join(f'"{name}"' for name in names) + "]"
    return " | ".join(kind.__name__ for kind in kinds)


if __name__ == "__main__":
    FILE.write_text(make_text())
